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
from procrastinate.types import JSONDict

from .figures import Figure, Options
from .stage import ROOT, Stage

CONCURRENCY = 10
# What somebody gives an agent whose jobs take no time: claims, starts and results go by as many as
# there are slots. A process runs for each only where jobs are long.
SLOTS = 500
SUBMITTERS = 2
BATCH = 1_000


def single(stage: Stage, options: Options) -> list[Figure]:
    """Jobs per second, submitted one by one, on the same PostgreSQL."""
    return [_measure(stage, options, batch=1)]


def batched(stage: Stage, options: Options) -> list[Figure]:
    """The same, submitted by a thousand."""
    return [_measure(stage, options, batch=BATCH)]


def _measure(stage: Stage, options: Options, *, batch: int) -> Figure:
    ours = by_agent(stage, options.jobs, batch)
    reference = by_procrastinate(stage, options.jobs, batch)
    how = "single submits" if batch == 1 else f"submits by {batch}"
    against = f"procrastinate, concurrency {CONCURRENCY}"
    what = f"no-op jobs, {SLOTS} slots, {how}"
    return Figure(what, "jobs/s", ours, reference, against, 5.0)


def _make_tenant(stage: Stage) -> None:
    stage.manage("create_tenant", "e2e", "--application", "jobs", "--json")


def _submit_all(stage: Stage, token: str, jobs: int, batch: int) -> None:
    threads = [
        threading.Thread(target=_submit, args=(stage, token, first, jobs, batch))
        for first in range(SUBMITTERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_agent(stage: Stage, jobs: int, batch: int) -> float:
    _make_tenant(stage)
    token = stage.token("e2e")
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
        _submit_all(stage, token, jobs, batch)
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
        "--concurrency", str(SLOTS), "--handlers", "benchmarks.handlers",
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


def _submit(stage: Stage, token: str, first: int, jobs: int, batch: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=60)
    for numbers in batches(first, jobs, batch):
        stage.submit(connection, token, "jobs", "bench.noop", *numbers)


def batches(first: int, jobs: int, batch: int) -> list[list[int]]:
    """The numbers of one submitter's jobs, in parts."""
    own = list(range(first, jobs, SUBMITTERS))
    return [own[at : at + batch] for at in range(0, len(own), batch)]


def by_procrastinate(stage: Stage, jobs: int, batch: int) -> float:
    """The same number of no-op jobs, deferred the same way, beside a running worker."""
    stage.sql("create database procrastinate")
    conninfo = stage.conninfo.rsplit("dbname=", 1)[0] + "dbname=procrastinate"
    script = [sys.executable, "-m", "benchmarks.end_to_end", conninfo, str(jobs)]
    worker = subprocess.Popen([*script, "worker"], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        began = time.monotonic()
        submitters = [
            subprocess.Popen([*script, "defer", str(first), str(batch)], cwd=ROOT)
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


async def _procrastinate_defer(conninfo: str, first: int, jobs: int, batch: int) -> None:
    app = _procrastinate_app(conninfo)
    async with app.open_async():
        for numbers in batches(first, jobs, batch):
            task = app.configure_task("noop")
            if batch == 1:
                await task.defer_async(number=numbers[0])
            else:
                jobs_of_batch: list[JSONDict] = [{"number": number} for number in numbers]
                await task.batch_defer_async(*jobs_of_batch)


if __name__ == "__main__":
    _conninfo, _jobs, _role, *_rest = sys.argv[1:]
    if _role == "defer":
        asyncio.run(_procrastinate_defer(_conninfo, int(_rest[0]), int(_jobs), int(_rest[1])))
    else:
        asyncio.run(_procrastinate_worker(_conninfo))
