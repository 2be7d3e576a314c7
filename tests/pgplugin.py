"""Gives every test run a database, before Django reads its settings.

A throw-away PostgreSQL cluster, or the server that FENCEPOST_TEST_DATABASE_URL (or DATABASE_URL)
names. Tests run as development does: settings find the database through the data folder, so
DATABASE_URL itself, which means production, is taken out of the environment.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType

import pytest

from config.embedded import EmbeddedError, EmbeddedPostgres
from config.keys import make_development_keys
from config.runfile import RunFile

PREFIX = "fencepost-test-"
# The controller's choice reaches pytest-xdist's workers through the environment.
MARK = "FENCEPOST_TEST_RUN"


def start() -> None:
    if MARK in os.environ:
        return
    _remove_leftovers()
    base = Path(tempfile.mkdtemp(prefix=PREFIX))
    base.chmod(0o755)  # the account that PostgreSQL runs under must be able to enter it
    given = os.environ.pop("DATABASE_URL", None)
    url = os.environ.get("FENCEPOST_TEST_DATABASE_URL", given)
    server = None if url else EmbeddedPostgres(base / "postgres", durable=False)
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() != owner:
            return
        if server:
            server.destroy()
        shutil.rmtree(base, ignore_errors=True)

    atexit.register(remove)
    signal.signal(signal.SIGTERM, _end_session)
    if server:
        try:
            url = server.start()
        except EmbeddedError as error:
            pytest.exit(str(error), returncode=1)
    assert url is not None
    RunFile(base).write(database_url=url)
    make_development_keys(base)
    os.environ |= {
        MARK: str(base),
        "FENCEPOST_DATA_DIR": str(base),
        "FENCEPOST_ENV_FILE": os.devnull,
    }


def _end_session(signum: int, frame: FrameType | None) -> None:
    pytest.exit("terminated", returncode=128 + signum)


def _remove_leftovers() -> None:
    """Folders of runs that were killed with -9; their servers ended with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/postgres"):
        try:
            if time.time() - folder.stat().st_mtime < 600:
                continue
            with (folder / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder.parent, ignore_errors=True)
        except OSError:
            continue


start()
