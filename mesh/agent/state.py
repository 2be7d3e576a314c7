"""The agent's state folder: its credential, a lock against a second agent, folders for work."""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any


class StateInUseError(Exception):
    """Another agent runs with this state folder."""


class StateForeignError(Exception):
    """The state folder belongs to another worker."""


def write_private(path: Path, text: str, *, durable: bool) -> None:
    """Replace a file as a whole, readable by its owner alone.

    Survives the end of this process at any instruction; with `durable` also that of the machine.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can look into."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


class State:
    """An opened state folder. StateInUseError, StateForeignError."""

    def __init__(self, folder: Path, identity: dict[str, str]) -> None:
        self.folder = private_folder(folder)
        self._lock = self._take_lock()
        self._file = folder / "worker.json"
        self._identity = identity
        self.credential: str | None = self._read()
        self.spool = private_folder(folder / "spool")
        self._work = folder / "work"
        # What an agent that was killed left behind.
        shutil.rmtree(self._work, ignore_errors=True)
        private_folder(self._work)

    def _take_lock(self) -> int:
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise StateInUseError(str(self.folder)) from None
        return handle

    def _read(self) -> str | None:
        try:
            stored: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        if stored.get("worker") != self._identity:
            raise StateForeignError(str(self.folder))
        credential = stored.get("credential")
        return credential if isinstance(credential, str) else None

    def keep_credential(self, credential: str) -> None:
        """Store the credential before it is used: without it the name is out of reach for long."""
        stored = {"worker": self._identity, "credential": credential}
        write_private(self._file, json.dumps(stored), durable=True)
        self.credential = credential

    def make_workdir(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._work))

    def remove_workdir(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        os.close(self._lock)
