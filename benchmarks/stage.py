"""What is measured against what: PostgreSQL, the web server as in production, and data.

The server runs several processes with DEBUG off and persistent connections; PostgreSQL is the
embedded one with durable writes. Everything lives in a temporary folder and is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from config.embedded import EmbeddedPostgres
from config.keys import make_development_keys

ROOT = Path(__file__).resolve().parent.parent
WEB_PROCESSES = 2


@dataclass
class Stage:
    """A running PostgreSQL and web server."""

    base: Path
    postgres: EmbeddedPostgres
    port: int
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def conninfo(self) -> str:
        """How libpq reaches the database."""
        with_parts = self.environment["DATABASE_URL"].removeprefix("postgres://").split("@/", 1)
        folder, _, database = with_parts[1].rpartition("/")
        return f"host={folder} user={with_parts[0]} dbname={database}"

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement (or a script) outside of any transaction."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def manage(self, *arguments: str) -> str:
        """Run one of the product's commands; what it printed."""
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def program(self, name: str) -> str:
        """The path of one of PostgreSQL's own programs."""
        return str(self.postgres.programs / name)


@contextmanager
def raised(*, web_processes: int = WEB_PROCESSES) -> Iterator[Stage]:
    """A stage with an empty, migrated database; it is taken down afterwards.

    With no web processes there is no web server: the caller runs its own.
    """
    base = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    base.chmod(0o755)
    parameters = {"shared_buffers": "1GB", "max_wal_size": "4GB", "max_connections": "100"}
    postgres = EmbeddedPostgres(base / "postgres", durable=True, **parameters)
    web: subprocess.Popen[bytes] | None = None
    try:
        url = postgres.start()
        make_development_keys(base)
        stage = Stage(base, postgres, _free_port())
        stage.environment = {
            **os.environ,
            "DATABASE_URL": url,
            "SECRET_KEY": "benchmark",
            "FENCEPOST_GRANT_KEY_FILE": str(base / "grant_key.pem"),
            "FENCEPOST_DATA_DIR": str(base),
            "FENCEPOST_ENV_FILE": os.devnull,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "ALLOWED_HOSTS": "127.0.0.1",
            "WEB_PROCESSES": str(web_processes),
        }
        stage.manage("migrate", "--verbosity=0")
        stage.manage("collectstatic", "--noinput", "--verbosity=0")
        if web_processes:
            web = _serve(stage, web_processes)
        yield stage
    finally:
        if web is not None:
            web.send_signal(signal.SIGTERM)
            web.wait(30)
        postgres.stop()
        shutil.rmtree(base, ignore_errors=True)


def _serve(stage: Stage, web_processes: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "gunicorn", "config.wsgi", "-c", "python:config.gunicorn",
        "--no-control-socket", "--bind", f"127.0.0.1:{stage.port}",
        "--workers", str(web_processes), "--log-level", "error",
    ]  # fmt: skip
    log = (stage.base / "web.log").open("wb")
    web = subprocess.Popen(command, cwd=ROOT, env=stage.environment, stdout=log, stderr=log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{stage.port}/healthz", timeout=2):
                return web
        except OSError:
            if web.poll() is not None:
                break
            time.sleep(0.1)
    raise RuntimeError((stage.base / "web.log").read_text()[-2_000:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
