"""The processes in which work runs, seen from the agent.

A thread cannot be stopped, a process can: each slot has a child process of its own process group,
kept between jobs and replaced when it had to be killed. The guard ends whatever is left when the
agent itself is killed.
"""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from typing import IO, Any, cast

from mesh.agent import guard
from mesh.agent.processes import kill_group
from mesh.agent.spool import encoded

HELLO_TIMEOUT = 60.0


class RunnerError(Exception):
    """A child process could not be started; the message says why."""


class RunnerDiedError(Exception):
    """The child process ended in the middle of a job."""

    def __init__(self, code: int) -> None:
        self.kind = f"exit_{code}" if code >= 0 else f"signal_{-code}"
        super().__init__(f"the process of the work ended: {self.kind}")


class Guard:
    """The agent's side of the guard process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(  # noqa: S603  our own file
            [sys.executable, "-I", "-S", str(guard.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        self._stdin = cast(IO[bytes], self._process.stdin)

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the guard, and with it every group it still watches."""
        with self._lock, contextlib.suppress(OSError):
            self._stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stdin.write(line.encode())
            self._stdin.flush()


@dataclass(frozen=True)
class RunnerSettings:
    """What a child process is started with."""

    handlers: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class Runner:
    """One child process: takes a job, answers with frames, can be woken and killed."""

    def __init__(self, settings: RunnerSettings, watchdog: Guard) -> None:
        self._guard = watchdog
        self._connection, theirs = Pipe(duplex=True)
        self._wake_read, self._wake_write = Pipe(duplex=False)
        self._poll = select.poll()
        for each in (self._connection, self._wake_read):
            self._poll.register(each.fileno(), select.POLLIN)
        self._command_group: int | None = None
        self._job = 0
        arguments = ["--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        arguments += [part for module in settings.handlers for part in ("--handlers", module)]
        arguments += [f"--command={command}" for command in settings.commands]
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", "mesh.agent.child", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=[theirs.fileno()],
            process_group=0,
        )
        theirs.close()
        self._guard.watch(self._process.pid)
        self.definitions: tuple[str, ...] = self._hello()

    def _hello(self) -> tuple[str, ...]:
        frame = self._first_frame()
        if "definitions" not in frame:
            self.kill()
            raise RunnerError(frame.get("error", "the child process does not answer"))
        return tuple(frame["definitions"])

    def _first_frame(self) -> dict[str, Any]:
        with contextlib.suppress(EOFError, OSError):
            if self._connection.poll(HELLO_TIMEOUT):
                return self._receive()
        return {}

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start_job(self, job: dict[str, Any]) -> None:
        """Hand over one job. RunnerDiedError when the child is gone."""
        self._job += 1
        self._send({"type": "job", **job})

    def answer_checkpoint(self, answer: dict[str, Any]) -> None:
        self._send({"type": "checkpointed", **answer})

    def ask_stop(self, grace: float) -> None:
        """Ask the running job to end by itself; kill() comes later if it does not."""
        self._send({"type": "stop", "grace": grace})

    def wait(self, timeout: float | None) -> dict[str, Any] | None:
        """The next frame of the running job; None after `timeout` or a wake(). RunnerDiedError."""
        ready = {fd for fd, _ in self._poll.poll(timeout and math.ceil(timeout * 1000))}
        if self._wake_read.fileno() in ready:
            self._wake_read.recv_bytes()
        if self._connection.fileno() not in ready:
            return None
        try:
            frame = self._receive()
        except (EOFError, OSError):
            raise self._died() from None
        if frame["type"] == "command":
            self._command_group = frame["group"]
            self._guard.watch(frame["group"])
            return None
        if frame["type"] == "done":
            self._forget_command()
        return frame

    def wake(self) -> None:
        """Make a wait() in another thread return."""
        with contextlib.suppress(OSError):
            self._wake_write.send_bytes(b"w")

    def kill(self) -> None:
        """End the child and all it started, now."""
        if self._command_group is not None:
            kill_group(self._command_group, signal.SIGKILL)
        # Not reaped yet, so the number cannot have been given to another group.
        kill_group(self._process.pid, signal.SIGKILL)
        self._forget_command()
        self._guard.forget(self._process.pid)
        self._process.wait()
        for connection in (self._connection, self._wake_read, self._wake_write):
            connection.close()

    def _receive(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return frame

    def _send(self, frame: dict[str, Any]) -> None:
        data = encoded({**frame, "job": self._job})
        try:
            self._connection.send_bytes(data.encode())
        except OSError:
            raise self._died() from None

    def _died(self) -> RunnerDiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.poll()
        return RunnerDiedError(-signal.SIGKILL if code is None else code)

    def _forget_command(self) -> None:
        if self._command_group is not None:
            self._guard.forget(self._command_group)
            self._command_group = None


class Runners:
    """Child processes for the lanes: the one that waits warm, or new ones."""

    def __init__(self, settings: RunnerSettings) -> None:
        self._settings = settings
        self._guard = Guard()
        self._idle: list[Runner] = []
        self._lock = threading.Lock()

    def take(self) -> Runner:
        """An idle child, or a new one. RunnerError."""
        while True:
            with self._lock:
                runner = self._idle.pop() if self._idle else None
            if runner is None:
                return Runner(self._settings, self._guard)
            if runner.alive:
                return runner
            runner.kill()

    def give_back(self, runner: Runner) -> None:
        with self._lock:
            self._idle.append(runner)

    def close(self) -> None:
        """Kill those that nobody took, and through the guard whatever else is left."""
        with self._lock:
            idle, self._idle = self._idle, []
        for runner in idle:
            runner.kill()
        self._guard.close()
