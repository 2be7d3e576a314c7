"""Child processes: started, watched, logged to files of bounded size, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from config.embedded import dies_with_parent, end_process

LOG_BYTES = 5_000_000
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0
# Having run for so long, a child's next death counts as its first.
STEADY_S = 60.0

Launch = Callable[[int], "subprocess.Popen[bytes]"]


def command(
    argv: list[str], *, cwd: Path, env: Mapping[str, str], stdout: IO[bytes] | None = None
) -> Launch:
    """A child that ends with us, in a session of its own so that Ctrl-C reaches only us."""

    def launch(log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own commands
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout or log,
            stderr=log,
            start_new_session=True,
            preexec_fn=dies_with_parent(signal.SIGTERM),
        )

    return launch


class RotatingLog:
    """A file that is renamed to `.1` when it is full: two files, ten megabytes, no more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size
        self._tail = b""

    def write(self, data: bytes) -> None:
        """A full disk loses log lines, not the processes."""
        self._tail = (self._tail + data)[-4000:]
        with contextlib.suppress(OSError):
            if self._size + len(data) > LOG_BYTES:
                self._file.close()
                with contextlib.suppress(FileNotFoundError):  # somebody tidied up
                    self.path.replace(self.path.with_name(f"{self.path.name}.1"))
                self._file = self.path.open("ab", buffering=0)
                self._size = 0
            self._size += self._file.write(data)

    def last_line(self) -> str:
        """From memory: it may tell that the disk is full."""
        lines = self._tail.decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")

    def close(self) -> None:
        self._file.close()


@dataclass
class Child:
    """One process of ours. `patience_s` is how long it may take to stop before it is killed."""

    name: str
    launch: Launch
    log: RotatingLog
    patience_s: float = 10
    stop_signal: int = signal.SIGTERM
    process: subprocess.Popen[bytes] | None = None
    pipe: int = -1
    started_at: float = 0
    deaths: int = 0
    restart_at: float | None = field(default=None)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def next_delay(self) -> float:
        """Called when it died: how long to wait before it is started again."""
        if time.monotonic() - self.started_at > STEADY_S:
            self.deaths = 0
        self.deaths += 1
        return float(min(FIRST_DELAY_S * 2 ** (self.deaths - 1), LONGEST_DELAY_S))


class Family:
    """All our children, in the order of their start; stopped in the opposite order."""

    def __init__(self, log_dir: Path, record: Path, while_waiting: Callable[[], None]) -> None:
        self.log_dir = log_dir
        self.record = record
        self.while_waiting = while_waiting
        self.children: list[Child] = []
        self._selector = selectors.DefaultSelector()

    def add(self, name: str, launch: Launch, **options: Any) -> Child:
        log = RotatingLog(self.log_dir / f"{name}.log")
        child = Child(name, launch, log, **options)
        self.children.append(child)
        self.start(child)
        return child

    def start(self, child: Child) -> None:
        if child.process is not None:
            # It died; what it had started may still hold its port or its files.
            with contextlib.suppress(OSError):
                os.killpg(child.process.pid, signal.SIGKILL)
        self._close_pipe(child)
        child.restart_at = None
        child.pipe, write_end = os.pipe()
        os.set_blocking(child.pipe, False)
        self._selector.register(child.pipe, selectors.EVENT_READ, child)
        try:
            child.process = child.launch(write_end)
        finally:
            os.close(write_end)
        child.started_at = time.monotonic()
        self._write_record()

    def pump(self, timeout_s: float) -> None:
        """Move what children said into their logs, waiting at most so long for the first word."""
        self.while_waiting()
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return
        for key, _ in self._selector.select(timeout_s):
            self._drain(key.data)

    def wait(self, child: Child, timeout_s: float) -> bool:
        """Whether it ended by itself within the time."""
        deadline = time.monotonic() + timeout_s
        while child.is_running:
            if time.monotonic() > deadline:
                return False
            self.pump(0.05)
        self._drain(child)
        return True

    def stop(self, child: Child, *, in_a_hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask it to end, and kill it with all it started if it does not in time."""
        if child.is_running and child.process is not None:
            child.process.send_signal(child.stop_signal)
            deadline = time.monotonic() + child.patience_s
            while child.is_running and time.monotonic() < deadline and not in_a_hurry():
                self.pump(0.05)
            # Also what it left behind: its session is a process group.
            with contextlib.suppress(OSError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        self._drain(child)
        self._close_pipe(child)
        child.log.close()
        self.children.remove(child)
        self._write_record()

    def clear_leftovers(self) -> None:
        """End what a run that was killed left behind, if it is still the same process."""
        try:
            recorded = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return
        for entry in recorded:
            with contextlib.suppress(psutil.Error, OSError, KeyError, TypeError):
                process = psutil.Process(entry["pid"])
                if abs(process.create_time() - entry["created"]) < 1:
                    end_process(process.pid, entry["signal"], signal.SIGKILL, patience=10)
                    os.killpg(entry["pid"], signal.SIGKILL)
        self.record.unlink(missing_ok=True)

    def _write_record(self) -> None:
        entries = []
        for child in self.children:
            if child.process is not None and child.process.poll() is None:
                with contextlib.suppress(psutil.Error):
                    created = psutil.Process(child.process.pid).create_time()
                    entry = {
                        "name": child.name,
                        "pid": child.process.pid,
                        "created": created,
                        "signal": int(child.stop_signal),
                    }
                    entries.append(entry)
        with contextlib.suppress(OSError):
            temporary = self.record.with_suffix(".tmp")
            temporary.write_text(json.dumps(entries))
            temporary.replace(self.record)

    def _drain(self, child: Child) -> None:
        if child.pipe < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(child.pipe, 65_536):
                child.log.write(data)
            self._close_pipe(child)  # its end: nobody holds the other side any more

    def _close_pipe(self, child: Child) -> None:
        if child.pipe >= 0:
            self._selector.unregister(child.pipe)
            os.close(child.pipe)
            child.pipe = -1
