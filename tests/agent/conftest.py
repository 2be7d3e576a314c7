"""A fake mesh and agents as real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.fake_mesh import FakeMesh

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0


def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Wait until a condition holds; fail when it never does."""
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until, f"never came true: {what or condition}"
        time.sleep(0.03)


def is_running(pid: int) -> bool:
    """Whether a process is there and not just waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


class AgentProcess:
    """One `python -m mesh.agent`, with its log."""

    def __init__(self, url: str, folder: Path, *options: str, grant: str = "good-grant") -> None:
        self.folder = folder
        self.state = folder / "state"
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / "log").open("a+")
        grant_file = folder / "grant"
        grant_file.write_text(grant)
        fixed = ["--url", url, "--tenant", "acme", "--application", "app"]
        fixed += ["--name", folder.name, "--state-dir", str(self.state)]
        fixed += ["--grant-file", str(grant_file), "--heartbeat-interval-ms", "1000"]
        fixed += ["--handlers", "tests.agent.sample_handlers", "--stop-grace", "0.5"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mesh.agent", *fixed, *options],
            cwd=ROOT,
            stderr=self._log,
            env={**os.environ, "FENCEPOST_GRANT": "env-grant-secret", "MARK": "of the agent"},
        )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        self.kill()
        self._log.close()


StartAgent = Callable[..., AgentProcess]


@pytest.fixture
def mesh() -> Iterator[FakeMesh]:
    fake = FakeMesh()
    yield fake
    fake.close()


@pytest.fixture
def start_agent(mesh: FakeMesh, tmp_path: Path) -> Iterator[StartAgent]:
    """Start an agent against the fake; one folder, and so one state, per name."""
    started: list[AgentProcess] = []

    def start(*options: str, name: str = "one", grant: str = "good-grant") -> AgentProcess:
        agent = AgentProcess(mesh.url, tmp_path / name, *options, grant=grant)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        agent.close()
