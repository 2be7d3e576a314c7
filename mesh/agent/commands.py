"""Commands as work: a template per definition, filled from the input, run without a shell.

A template is split once, when the agent starts. `{input.path}` is replaced by the scalar at that
dotted path and never becomes more than one argument. A value that begins with `-` could be read
as an option, so it is refused unless a literal `--` stands before it.
"""

import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, cast

from mesh.agent.handlers import WorkFailure
from mesh.agent.processes import die_with_parent, kill_group

_PLACEHOLDER = re.compile(r"\{input((?:\.[A-Za-z0-9_-]+)+)\}")
_STDERR_TAIL = 16 * 1024
_LEFTOVER_WAIT = 0.5
_EXIT_TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h
_INT64 = 2**63


class TemplateError(Exception):
    """A `--command` that cannot be used; the message says why."""


@dataclass(frozen=True)
class Template:
    """One definition's command, already split into arguments."""

    definition_id: str
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Read `definition=command arguments`; TemplateError when it cannot be one."""
        definition_id, separator, command = text.partition("=")
        if not separator or not definition_id.strip():
            raise TemplateError(f"expected definition=command, got {text!r}")
        try:
            arguments = tuple(shlex.split(command))
        except ValueError as error:
            raise TemplateError(f"{definition_id}: {error}") from None
        if not arguments:
            raise TemplateError(f"{definition_id}: no command")
        if "{input" in arguments[0]:
            raise TemplateError(f"{definition_id}: the program cannot come from the input")
        for argument in arguments:
            if "{input" in _PLACEHOLDER.sub("", argument):
                raise TemplateError(f"{definition_id}: unreadable placeholder in {argument!r}")
        return cls(definition_id.strip(), arguments)

    def fill(self, value: Any) -> list[str]:
        """The argument list for one input. WorkFailure `input_invalid` when it does not fit."""
        filled: list[str] = []
        after_options = False
        for argument in self.arguments:
            filled.append(_fill(argument, value, after_options=after_options))
            after_options = after_options or argument == "--"
        return filled


def _fill(argument: str, value: Any, *, after_options: bool) -> str:
    def replace(match: re.Match[str]) -> str:
        path = match.group(1)[1:]
        text = _scalar_text(_lookup(value, path), path)
        if text.startswith("-") and not after_options:
            raise _input_invalid(f"input.{path} begins with '-'")
        return text

    return _PLACEHOLDER.sub(replace, argument)


def _lookup(value: Any, path: str) -> Any:
    for key in path.split("."):
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise _input_invalid(f"input.{path} is missing")
    return value


def _scalar_text(value: Any, path: str) -> str:
    if isinstance(value, str):
        if "\0" in value:
            raise _input_invalid(f"input.{path} holds a NUL")
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise _input_invalid(f"input.{path} is not a text, number or boolean")


def _input_invalid(error: str) -> WorkFailure:
    return WorkFailure("input_invalid", error, no_effect=True)


@dataclass(frozen=True)
class Stop:
    """Asked of a running command: end with TERM now, and with KILL after `grace` seconds."""

    grace: float


def run(
    arguments: list[str],
    *,
    value: Any,
    workdir: str,
    output_limit: int,
    control: Any,
    on_started: Callable[[int], None],
    stop_asked: Callable[[], Stop | None],
) -> dict[str, Any]:
    """Run one command to its end and describe it: `{output, logs}`, or WorkFailure.

    `control` is a file descriptor that becomes readable when `stop_asked` has something to say.
    Meant for a process with a single thread: the child is prepared between fork and exec.
    """
    with tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps(value, ensure_ascii=False).encode())
        stdin.seek(0)
        process = _spawn(arguments, stdin=stdin, workdir=workdir)
    on_started(process.pid)
    captured = _Capture(process, output_limit)
    captured.watch(control, stop_asked)
    logs = captured.stderr.decode(errors="replace").replace("\0", "�")
    return _describe(captured, process.returncode, logs)


def _spawn(arguments: list[str], *, stdin: IO[bytes], workdir: str) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    try:
        return subprocess.Popen(  # noqa: S603  an argument list, never a shell
            arguments,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=workdir,
            env=_clean_environment(workdir),
            process_group=0,
            preexec_fn=lambda: die_with_parent(parent),
        )
    except OSError as error:
        raise WorkFailure(
            "command_unavailable", f"{arguments[0]}: {error.strerror}", no_effect=True
        ) from None


def _clean_environment(workdir: str) -> dict[str, str]:
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": workdir,
    }
    if "TZ" in os.environ:
        environment["TZ"] = os.environ["TZ"]
    return environment


class _Capture:
    """Reads a command's output within its limit and watches for its end."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        self._pipes = (cast(IO[bytes], process.stdout), cast(IO[bytes], process.stderr))
        self.process = process
        self.limit = limit
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.too_large = False
        self.stopped = False
        self._kill_at: float | None = None
        out, err = self._pipes
        self._open = {out.fileno(): self.stdout, err.fileno(): self.stderr}

    def watch(self, control: Any, stop_asked: Callable[[], Stop | None]) -> None:
        poll = select.poll()
        poll.register(control, select.POLLIN)
        pidfd = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else None
        for fd in [*self._open, *([pidfd] if pidfd is not None else [])]:
            poll.register(fd, select.POLLIN)
        try:
            while not self._ended():
                for fd, _event in poll.poll(self._patience(pidfd)):
                    if fd in self._open:
                        if not self._read(fd):
                            poll.unregister(fd)
                    elif fd != pidfd:
                        self._on_control(stop_asked())
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    kill_group(self.process.pid, signal.SIGKILL)
        finally:
            if pidfd is not None:
                os.close(pidfd)
            self._finish()

    def _ended(self) -> bool:
        # WNOWAIT leaves the zombie in place: its group id cannot be reused before the group died.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def _patience(self, pidfd: int | None) -> float | None:
        if self._kill_at is not None:
            return max(10.0, min(500.0, (self._kill_at - time.monotonic()) * 1000))
        return None if pidfd is not None else 50.0

    def _on_control(self, stop: Stop | None) -> None:
        if stop is None or self.stopped:
            return
        self.stopped = True
        self._kill_at = time.monotonic() + stop.grace
        kill_group(self.process.pid, signal.SIGTERM)

    def _read(self, fd: int) -> bool:
        chunk = os.read(fd, 65536)
        if not chunk:
            del self._open[fd]
            return False
        buffer = self._open[fd]
        buffer += chunk
        if buffer is self.stderr:
            del buffer[:-_STDERR_TAIL]
        elif len(buffer) > self.limit and not self.too_large:
            self.too_large = True
            kill_group(self.process.pid, signal.SIGKILL)
        if self.too_large:
            self.stdout.clear()
        return True

    def _finish(self) -> None:
        """End what the command left running, read what is left in the pipes, reap it."""
        kill_group(self.process.pid, signal.SIGKILL)
        until = time.monotonic() + _LEFTOVER_WAIT
        while self._open and time.monotonic() < until:
            ready, _, _ = select.select(list(self._open), [], [], 0.05)
            for fd in ready:
                self._read(fd)
        for pipe in self._pipes:
            pipe.close()
        self.process.wait()


def _describe(captured: _Capture, code: int, logs: str) -> dict[str, Any]:
    if captured.stopped:
        raise WorkFailure("stopped", _last_line(logs) or "stopped", {"logs": logs})
    if captured.too_large:
        raise WorkFailure("output_too_large", f"more than {captured.limit} bytes on stdout")
    if code == 0:
        return {"output": parse_output(bytes(captured.stdout)), "logs": logs}
    kind = f"exit_{code}" if code > 0 else f"signal_{-code}"
    if code == _EXIT_TEMPORARY:
        kind = "transient_connection"
    details = {"exit_code": code, "stderr": logs[-4000:]}
    raise WorkFailure(kind, _last_line(logs) or kind, details)


def _last_line(logs: str) -> str:
    lines = [line.strip() for line in logs.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def parse_output(data: bytes) -> Any:
    """The command's stdout as a result: its JSON value if it is one, else `{"stdout": text}`."""
    text = data.decode(errors="replace").replace("\0", "�")
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text, parse_int=_int64, parse_constant=_not_json)
    return {"stdout": text}


def _int64(digits: str) -> int:
    number = int(digits)
    if not -_INT64 <= number < _INT64:
        raise ValueError(digits)
    return number


def _not_json(name: str) -> Any:
    raise ValueError(name)
