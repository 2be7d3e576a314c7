"""What is measured against what: PostgreSQL, the web server as in production, and data.

The server runs several processes with DEBUG off and persistent connections; PostgreSQL is the
embedded one with durable writes. Everything lives in a temporary folder and is removed.
"""

from __future__ import annotations

import http.client
import json
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
from typing import Any

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
    web: subprocess.Popen[bytes] | None = None
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

    def token(self, tenant: str) -> str:
        """The secret of a new API token that may submit."""
        who = ("bench", "--tenant", tenant, "--role", "operator")
        made = self.manage("create_token", *who, "--json")
        return str(json.loads(made)["token"])

    def submit(
        self,
        connection: http.client.HTTPConnection,
        token: str,
        application: str,
        definition: str,
        *numbers: int,
    ) -> str:
        """Submit one piece of work, or many in one call; the id of the first."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        works = [_work(application, definition, number) for number in numbers]
        is_one = len(works) == 1
        path = "/api/v1/workloads" if is_one else "/api/v1/workloads/batch"
        body = works[0] if is_one else {"workloads": works}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status not in {200, 201}:
            raise RuntimeError(content.decode())
        told = json.loads(content)
        first = told if is_one else told["results"][0]
        if "code" in first:
            raise RuntimeError(content.decode()[:500])
        return str(first["workload"]["workload_id"] if is_one else first["workload_id"])

    def start(self, script: str) -> subprocess.Popen[bytes]:
        """Run one of our scripts beside; it writes its figures into a file."""
        out = str(self.base / f"{script}.json")
        command = [sys.executable, "-m", f"benchmarks.{script}", out]
        return subprocess.Popen(command, cwd=ROOT, env=self.environment)

    def finish(self, script: subprocess.Popen[bytes]) -> None:
        if script.wait(600):
            raise RuntimeError("a script beside failed")

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
            web = stage.web = _serve(stage, web_processes)
        yield stage
    finally:
        if web is not None:
            web.send_signal(signal.SIGTERM)
            web.wait(30)
        postgres.stop()
        shutil.rmtree(base, ignore_errors=True)


def _work(application: str, definition: str, number: int) -> dict[str, Any]:
    return {
        "application": application,
        "environment": "bench",
        "definition_id": definition,
        "definition_revision": "1",
        "trigger": "bench",
        "input": {"number": number},
        "idempotency_key": f"job-{number}",
        "capability_snapshot": [],
    }


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
