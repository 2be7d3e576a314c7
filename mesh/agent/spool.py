"""Reports that the server has not acknowledged yet, on disk.

Written before a report is sent for the first time, forgotten when it was answered for good, so a
finished result survives the end of the agent. Most are answered within moments: they are lines of
one journal, which is gone once all of them are answered. Reports of `hold` work, for nobody else
can find out what happened, and those whose delivery had to wait are files of their own that are
forced to the disk.
"""

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mesh.agent.state import write_private

log = logging.getLogger("mesh.agent")

_JOURNAL = "journal-*.lines"
# From here on a journal is written anew, with what is not answered yet.
_LONG = 4 * 1024 * 1024
# Made once: `json.dumps` makes an encoder for each call that asks for anything of its own.
encoded = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True)
class Report:
    """What became of one attempt: `complete`, `fail` or `cancelled`, with the body to send.

    `release`, which gives a claim back unbegun, is sent like the others and never stored.
    """

    outcome: str
    claim_id: str
    workload_id: str
    attempt_id: str
    fencing_token: int
    is_hold: bool
    body: dict[str, Any]
    made_at: float = field(default_factory=time.time)


class Spool:
    """The folder of unacknowledged reports. Safe to use from all threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = _Journal(folder)
        self._files: set[str] = set()
        self._lock = threading.Lock()

    def put(self, report: Report, *, durable: bool) -> None:
        """Store a report, or store it again; one of the same attempt is replaced."""
        text = encoded(vars(report))
        with self._lock:
            if durable or report.attempt_id in self._files:
                self._files.add(report.attempt_id)
                write_private(self._path(report.attempt_id), text, durable=durable)
                self._journal.forget([report.attempt_id])
            else:
                self._journal.note(report.attempt_id, text)

    def remove(self, *reports: Report) -> None:
        """Forget reports that were answered for good."""
        attempts = [each.attempt_id for each in reports]
        with self._lock:
            for one in self._files.intersection(attempts):
                self._path(one).unlink(missing_ok=True)
                self._files.discard(one)
            self._journal.forget(attempts)

    def load(self) -> list[Report]:
        """Everything stored, oldest first; what cannot be read is set aside."""
        found = {}
        with self._lock:
            for text in self._journal.load():
                report = Report(**json.loads(text))
                found[report.attempt_id] = report
            for path in self._folder.glob("*.json"):
                try:
                    stored = path.read_text(encoding="utf-8", errors="surrogatepass")
                    report = Report(**json.loads(stored))
                except (OSError, ValueError, TypeError):
                    log.error("unreadable report set aside: %s", path.name)
                    path.rename(path.with_suffix(".unreadable"))
                else:
                    self._files.add(report.attempt_id)
                    found[report.attempt_id] = report
        return sorted(found.values(), key=lambda report: report.made_at)

    def _path(self, attempt_id: str) -> Path:
        # Ids come from the server; as a file name only their digest is used.
        return self._folder / f"{hashlib.sha256(attempt_id.encode()).hexdigest()[:40]}.json"


class _Journal:
    """One file of lines: `+` and a report, or `-` and the attempts whose reports were answered.

    A line is written at once as a whole, and stays when this process ends at any instruction.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, bytes] = {}
        self._file: int | None = None
        self._size = 0
        self._is_torn = False

    def note(self, attempt_id: str, text: str) -> None:
        line = b"+" + text.encode("utf-8", "surrogatepass") + b"\n"
        self._write(line)
        self._open[attempt_id] = line

    def forget(self, attempts: Iterable[str]) -> None:
        known = [one for one in attempts if self._open.pop(one, None) is not None]
        if not known:
            return
        # Where this cannot be written the reports are sent once more: the server knows them.
        with contextlib.suppress(OSError):
            if not self._open:
                self._end(self._paths())
            else:
                self._write(b"-" + json.dumps(known).encode() + b"\n")
                if self._size > max(_LONG, 4 * sum(map(len, self._open.values()))):
                    self._renew()

    def load(self) -> Iterator[str]:
        """The reports that are not answered, also those of an earlier process."""
        for path in self._paths():
            broken = [line for line in path.read_bytes().split(b"\n") if not self._take(line)]
            if broken:
                log.error("unreadable reports set aside: %s", path.name)
                text = b"\n".join(broken).decode("utf-8", "replace")
                write_private(path.with_suffix(".unreadable"), text, durable=False)
        return iter([line[1:].decode("utf-8", "surrogatepass") for line in self._open.values()])

    def _take(self, line: bytes) -> bool:
        """Take a line in; whether it could be read."""
        try:
            said: Any = json.loads(line[1:].decode("utf-8", "surrogatepass")) if line else []
            if line[:1] == b"+":
                self._open[Report(**said).attempt_id] = line + b"\n"
            else:
                for one in said:
                    self._open.pop(one, None)
        except (ValueError, TypeError):
            return False
        return True

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob(_JOURNAL))

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._create()
        whole = (b"\n" + data) if self._is_torn else data
        self._is_torn = True
        written = os.write(self._file, whole)
        self._size += written
        if written < len(whole):
            raise OSError("the disk did not take all of it")
        self._is_torn = False

    def _create(self) -> int:
        last = max((int(path.stem.rpartition("-")[2]) for path in self._paths()), default=0)
        path = self._folder / _JOURNAL.replace("*", f"{last + 1:09}")
        self._size = 0
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def _renew(self) -> None:
        """Go on in a new file that begins with all that is open; then the old ones may go."""
        old, before = self._paths(), self._file
        self._file, self._is_torn = self._create(), False
        if before is not None:
            os.close(before)
        self._write(b"".join(self._open.values()))
        for path in old:
            path.unlink(missing_ok=True)

    def _end(self, paths: Iterable[Path]) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._is_torn = None, False
        for path in paths:
            path.unlink(missing_ok=True)
