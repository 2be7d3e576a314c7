"""The real server as a process of its own, on the database of the test."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.db import connection

from config.runfile import RunFile
from mesh import grants, tenancy
from mesh.agent.client import ApiClient
from mesh.models import Role
from tests.agent.conftest import ROOT, eventually

TENANT, APPLICATION = "acme", "app"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def database_url() -> str:
    """Where the test's database is, as a URL that another process understands."""
    facts = connection.get_connection_params()
    user, host, port = facts.get("user", ""), facts.get("host", ""), facts.get("port", "")
    password = f":{facts['password']}" if facts.get("password") else ""
    if str(host).startswith("/"):
        return f"postgres://{user}@/{host}/{facts['dbname']}"
    where = f"{host}:{port}" if port else host
    return f"postgres://{user}{password}@{where}/{facts['dbname']}"


class RealServer:
    """Web server and data folder; `stop` and `start` as often as wanted."""

    def __init__(self, folder: Path, *, processes: int = 1, **env: str) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        RunFile(self.data).write(database_url=database_url())
        for name in ("grant_key.pem", "secret_key"):
            shutil.copy(Path(settings.DATA_DIR) / name, self.data / name)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "FENCEPOST_DATA_DIR": str(self.data),
            "FENCEPOST_ENV_FILE": os.devnull,
            **env,
        }
        self.processes = processes
        self._log = (folder / "web.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        tenant = tenancy.create_tenant(name=TENANT, applications=[APPLICATION], actor="system:test")
        self._caller = tenancy.system_caller(tenant, "test")
        _, secret = tenancy.create_token(caller=self._caller, name="ops", role=Role.OPERATOR)
        self.api = ApiClient(self.url, token=secret)
        self.start()

    def grant(self, *names: str) -> str:
        constraints = {"worker_names": list(names)} if names else {}
        _, token = grants.issue(
            caller=self._caller,
            application=APPLICATION,
            subject="service:registrar",
            capabilities=["worker:register", "worker:capability:test"],
            constraints=constraints,
            expires_in_ms=3_600_000,
            revision=1,
        )
        return token

    def start(self) -> None:
        gunicorn = ["gunicorn", "config.wsgi", "-c", "python:config.gunicorn"]
        listen = ["--no-control-socket", "--bind", f"127.0.0.1:{self.port}"]
        listen += ["--workers", str(self.processes)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *gunicorn, *listen],
            cwd=ROOT,
            env=self.environment,
            stdout=self._log,
            stderr=self._log,
            process_group=0,
        )
        eventually(self._answers, "the server answers")

    def stop(self) -> None:
        if self._process is not None:
            # The whole group: orphaned workers go on to serve connections that they have.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def end(self) -> None:
        """Ask it to end, and wait until it did."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        self.stop()
        self.api.close()
        self._log.close()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=2.0).is_success
        except httpx.HTTPError:
            return False

    # What an operator does

    def submit(self, definition_id: str, value: Any, **fields: Any) -> str:
        body = {
            "application": APPLICATION,
            "environment": "test",
            "definition_id": definition_id,
            "definition_revision": "1",
            "trigger": "test",
            "input": value,
            "idempotency_key": os.urandom(8).hex(),
            "capability_snapshot": ["test"],
            "retry_policy": {"initial_delay_ms": 100},
            **fields,
        }
        return str(self.api.call("POST", "workloads", body)["workload"]["workload_id"])

    def workload(self, workload_id: str) -> dict[str, Any]:
        return self.api.call("GET", f"workloads/{workload_id}")

    def state(self, workload_id: str) -> str:
        return str(self.workload(workload_id)["state"])

    def worker(self, name: str) -> dict[str, Any]:
        for row in self.api.call("GET", "workers")["results"]:
            if row["name"] == name:
                return dict(row)
        return {"lifecycle": None}

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout
