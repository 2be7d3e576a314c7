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


def heed_interrupts() -> None:
    """As in a terminal; workers of pytest-xdist ignore Ctrl-C, and their children would too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    let_servers_in(tmp_path)
    script, mark, temporary = (tmp_path / name for name in ("test_it.py", "started", "t"))
    script.write_text(
        f"import pathlib, time\ndef test_it():\n    pathlib.Path({str(mark)!r}).touch()\n"
        "    time.sleep(600)\n"
    )
    temporary.mkdir()
    options = ["--rootdir", str(ROOT), "-c", "pyproject.toml", str(script)]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        env=environment(TMPDIR=str(temporary)),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=heed_interrupts,
    ) as run:
        try:
            wait_until(mark.exists, "the test runs", 150)
            servers = clusters_below(run.pid, str(temporary))
            assert servers
            run.send_signal(how)
            assert run.wait(120) != 0
        finally:
            run.kill()
    assert list(temporary.iterdir()) == []
    assert [server for server in servers if server.is_running()] == []


def clusters_below(pid: int, folder: str) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process(pid).children()
        if any(folder in part for part in child.cmdline())
    ]
