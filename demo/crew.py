"""The demo's agents: started, started again, and one of them killed now and then."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mesh.agent.processes import die_with_parent

log = logging.getLogger("demo")

APPLICATION = "documents"
TENANT = "acme"
CHECKSUM, COUNT, SUMMARIZE = "documents.checksum", "documents.count", "documents.summarize"
CATALOGUE, PUBLISH = "documents.catalogue", "documents.publish"
CAPABILITIES = (CHECKSUM, COUNT, SUMMARIZE, CATALOGUE, PUBLISH)

STOP_PATIENCE = 15.0
_FIRST_KILL = 45.0
_KILL_PATIENCE = 30.0
# Back before anybody missed it; or so late that its lease ran out and it counts as silent.
_ABSENCES = (5.0, 50.0)


@dataclass(frozen=True)
class Role:
    """What distinguishes one agent from the next."""

    capabilities: tuple[str, ...]
    labels: dict[str, str]
    concurrency: int
    runtime: str = "process"


ROLES = (
    Role(CAPABILITIES, {"zone": "a", "size": "large"}, 4),
    Role((CHECKSUM, COUNT, CATALOGUE, PUBLISH), {"zone": "b", "size": "small"}, 2),
    Role((CHECKSUM, SUMMARIZE), {"zone": "edge", "size": "small"}, 2, "edge"),
)


def names(number: int) -> list[str]:
    return [f"demo-{place}" for place in range(1, number + 1)]


@dataclass
class Member:
    """One agent of the crew and when to start it next."""

    name: str
    role: Role
    process: "subprocess.Popen[bytes] | None" = None
    start_at: float = 0.0
    deaths: int = field(default=0)


class Crew:
    """All agents. `tend` is called often and never waits; `stop` does."""

    def __init__(
        self,
        url: str,
        folder: Path,
        environment: dict[str, str],
        *,
        number: int,
        kill_every: float,
        busy: Callable[[], set[str]],
    ) -> None:
        """`busy` names those in the middle of long work: to kill one of them shows the most."""
        self._url = url
        self._busy = busy
        self._folder = folder
        self._environment = environment
        self._kill_every = kill_every
        self._kills = 0
        self._kill_at = time.monotonic() + min(_FIRST_KILL, kill_every or _FIRST_KILL)
        self.members = [
            Member(name, ROLES[place % len(ROLES)]) for place, name in enumerate(names(number))
        ]

    def tend(self) -> None:
        """Start who is due, notice who ended, and kill one when it is time for that."""
        now = time.monotonic()
        for member in self.members:
            if member.process is not None and member.process.poll() is not None:
                self._mourn(member, now)
            if member.process is None and now >= member.start_at:
                member.process = self._start(member)
        if self._kill_every and now >= self._kill_at:
            self._kill_one(now)

    def lose(self, name: str) -> bool:
        """Kill that one for longer than its lease lasts; whether it ran."""
        running = [one for one in self.members if one.name == name and one.process is not None]
        for member in running:
            _kill(member, time.monotonic() + max(_ABSENCES))
        return bool(running)

    def stop(self) -> None:
        """Ask all to end, wait, and kill who does not."""
        running = [m.process for m in self.members if m.process and m.process.poll() is None]
        for process in running:
            process.terminate()
        until = time.monotonic() + STOP_PATIENCE
        for process in running:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _mourn(self, member: Member, now: float) -> None:
        code = member.process.returncode if member.process else None
        member.process = None
        if member.start_at <= now:
            member.deaths += 1
            member.start_at = now + min(60.0, 2.0**member.deaths)
            log.warning("%s ended with %s, starting again", member.name, code)

    def _kill_one(self, now: float) -> None:
        running = [member for member in self.members if member.process is not None]
        busy = self._busy()
        victims = [member for member in running if member.name in busy]
        if not victims and now < self._kill_at + _KILL_PATIENCE:
            return
        self._kill_at = now + self._kill_every * random.uniform(0.8, 1.2)  # noqa: S311  a demo
        victims = victims or running
        if not victims:
            return
        victim = random.choice(victims)  # noqa: S311  a demo
        absence = _ABSENCES[self._kills % len(_ABSENCES)]
        self._kills += 1
        log.info("killing %s; it comes back in %.0f s", victim.name, absence)
        _kill(victim, now + absence)

    def _start(self, member: Member) -> "subprocess.Popen[bytes]":
        options = {
            "--url": self._url,
            "--tenant": TENANT,
            "--application": APPLICATION,
            "--name": member.name,
            "--runtime": member.role.runtime,
            "--concurrency": str(member.role.concurrency),
            "--handlers": "demo.handlers",
            "--grant-file": str(self._folder / "grants" / f"{member.name}.jws"),
            "--state-dir": str(self._folder / "agents" / member.name),
            "--heartbeat-interval-ms": "5000",
            "--heartbeat-timeout-ms": "20000",
            "--lease-ms": "20000",
            "--drain-grace": "8",
            "--stop-grace": "2",
        }
        arguments = [part for pair in options.items() for part in pair]
        for capability in member.role.capabilities:
            arguments += ["--capability", capability, "--kind", capability]
        for key, value in member.role.labels.items():
            arguments += ["--label", f"{key}={value}"]
        parent = os.getpid()
        return subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", "mesh.agent", *arguments, "--quiet"],
            cwd=Path(__file__).resolve().parents[1],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )


def _kill(member: Member, start_at: float) -> None:
    if member.process is not None:
        member.process.send_signal(signal.SIGKILL)
        member.process.wait()
        member.process = None
    member.start_at = start_at
