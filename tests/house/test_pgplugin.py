"""A test run makes its own cluster and leaves nothing, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.house.commands import ROOT, environment
from tests.house.running import let_servers_in, wait_until


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    let_servers_in(tmp_path)
    script = tmp_path / "test_sleep.py"
    mark = tmp_path / "started"
    script.write_text(
        f"import pathlib, time\ndef test_it():\n    pathlib.Path({str(mark)!r}).touch()\n"
        "    time.sleep(600)\n"
    )
    temporary = tmp_path / "t"
    temporary.mkdir()
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", str(ROOT)]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "-c", "pyproject.toml", str(script)],
        env=environment(TMPDIR=str(temporary)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as run:
        wait_until(mark.exists, "the test runs", 150)
        servers = [
            child
            for child in psutil.Process(run.pid).children()
            if any(str(temporary) in part for part in child.cmdline())
        ]
        assert servers
        run.send_signal(how)
        assert run.wait(120) != 0
    assert list(temporary.iterdir()) == []
    assert [server for server in servers if server.is_running()] == []
