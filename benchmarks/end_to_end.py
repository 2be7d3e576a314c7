"""No-op jobs from submit to stored result: one agent over HTTP against procrastinate."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time

import procrastinate
import psycopg

from .claiming import Figure
from .stage import ROOT, Stage

CONCURRENCY = 10
SUBMITTERS = 2


def measure(stage: Stage, *, jobs: int) -> Figure:
    """Jobs per second, submitted one by one and settled one by one, on the same PostgreSQL."""
    ours = by_agent(stage, jobs)
    reference = by_procrastinate(stage, jobs)
    return Figure("end-to-end no-op jobs, single submits", "jobs/s", ours, reference,
                  f"procrastinate, concurrency {CONCURRENCY}", 5.0)  # fmt: skip


def by_agent(stage: Stage, jobs: int) -> float:
    stage.manage("create_tenant", "e2e", "--application", "jobs", "--json")
    token = json.loads(
        stage.manage("create_token", "bench", "--tenant", "e2e", "--role", "operator", "--json")
    )["token"]
    grant = json.loads(
        stage.manage(
            "issue_grant", "--tenant", "e2e", "--application", "jobs",
            "--subject", "service:registrar", "--capability", "worker:register", "--json",
        )
    )["grant"]  # fmt: skip
    agent = _start_agent(stage, grant)
    try:
        _wait_until_ready(stage)
        began = time.monotonic()
        threads = [
            threading.Thread(target=_submit, args=(stage.port, token, first, jobs))
            for first in range(SUBMITTERS)
        ]
        for thread in threads:
            thread.start()
        done = "select count(*) from mesh_workload where state = 'SUCCEEDED'"
        before = time.monotonic() + 600
        while stage.sql(done) != [(jobs,)]:
            if time.monotonic() > before or agent.poll() is not None:
                raise RuntimeError("the jobs did not end; see agent.log")
            time.sleep(0.05)
        return jobs / (time.monotonic() - began)
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)


def _start_agent(stage: Stage, grant: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "mesh.agent", "--url", f"http://127.0.0.1:{stage.port}",
        "--tenant", "e2e", "--application", "jobs", "--name", "bench",
        "--concurrency", str(CONCURRENCY), "--handlers", "benchmarks.handlers",
        "--state-dir", str(stage.base / "agent"),
    ]  # fmt: skip
    log = (stage.base / "agent.log").open("wb")
    environment = {**os.environ, "FENCEPOST_GRANT": grant}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def _wait_until_ready(stage: Stage) -> None:
    deadline = time.monotonic() + 30
    while not stage.sql("select 1 from mesh_worker where name = 'bench' and lifecycle = 'READY'"):
        if time.monotonic() > deadline:
            raise RuntimeError((stage.base / "agent.log").read_text()[-2_000:])
        time.sleep(0.05)


def _submit(port: int, token: str, first: int, jobs: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for number in range(first, jobs, SUBMITTERS):
        body = {
            "application": "jobs",
            "environment": "bench",
            "definition_id": "bench.noop",
            "definition_revision": "1",
            "trigger": "bench",
            "input": {"number": number},
            "idempotency_key": f"job-{number}",
            "capability_snapshot": [],
        }
        connection.request("POST", "/api/v1/workloads", json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 201:
            raise RuntimeError(content.decode())


def by_procrastinate(stage: Stage, jobs: int) -> float:
    """The same number of no-op jobs, deferred one by one beside a running worker."""
    stage.sql("create database procrastinate")
    conninfo = stage.conninfo.rsplit("dbname=", 1)[0] + "dbname=procrastinate"
    script = [sys.executable, "-m", "benchmarks.end_to_end", conninfo, str(jobs)]
    worker = subprocess.Popen([*script, "worker"], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        began = time.monotonic()
        submitters = [
            subprocess.Popen([*script, "defer", str(first)], cwd=ROOT)
            for first in range(SUBMITTERS)
        ]
        with psycopg.connect(conninfo, autocommit=True) as connection:
            count = "select count(*) from procrastinate_jobs where status = 'succeeded'"
            while connection.execute(count).fetchone() != (jobs,):
                time.sleep(0.05)
        took = time.monotonic() - began
        for submitter in submitters:
            submitter.wait(30)
        return jobs / took
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)


def _procrastinate_app(conninfo: str) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=conninfo)
    return procrastinate.App(connector=connector)


async def _procrastinate_worker(conninfo: str) -> None:
    app = _procrastinate_app(conninfo)

    @app.task(name="noop")
    async def noop(number: int) -> int:
        return number

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        print("ready", flush=True)
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=True)


async def _procrastinate_defer(conninfo: str, first: int, jobs: int) -> None:
    app = _procrastinate_app(conninfo)
    async with app.open_async():
        for number in range(first, jobs, SUBMITTERS):
            await app.configure_task("noop").defer_async(number=number)


if __name__ == "__main__":
    _conninfo, _jobs, _role, *_rest = sys.argv[1:]
    if _role == "worker":
        asyncio.run(_procrastinate_worker(_conninfo))
    else:
        asyncio.run(_procrastinate_defer(_conninfo, int(_rest[0]), int(_jobs)))
