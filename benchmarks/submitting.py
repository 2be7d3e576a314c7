"""Submissions in batches of 1 000 over HTTP against procrastinate deferring batches of 1 000."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
import time
from typing import Any

import procrastinate

from .figures import Figure, Options
from .stage import Stage

BATCH = 1_000
CLIENTS = 2


def submit(stage: Stage, options: Options) -> list[Figure]:
    """As many batches as the jobs of the other rows make, five times."""
    return [measure(stage, batches=max(options.jobs // 200, 2))]


def measure(stage: Stage, *, batches: int) -> Figure:
    """Work taken in per second by `CLIENTS` clients, on the same PostgreSQL."""
    stage.manage("create_tenant", "batches", "--application", "jobs", "--json")
    made = stage.manage(
        "create_token", "bench", "--tenant", "batches", "--role", "operator", "--json"
    )
    token = json.loads(made)["token"]
    over_http(stage, token, batches=4, prefix="warm")
    ours = over_http(stage, token, batches=batches, prefix="job")
    reference = by_procrastinate(stage, batches=batches)
    return Figure("submit in batches of 1 000", "jobs/s", ours, reference,
                  "procrastinate batch defer", 0.5)  # fmt: skip


def over_http(stage: Stage, token: str, *, batches: int, prefix: str) -> float:
    bodies = [_batch(prefix, number) for number in range(batches)]
    began = time.monotonic()
    threads = [
        threading.Thread(target=_send, args=(stage.port, token, bodies[first::CLIENTS]))
        for first in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return batches * BATCH / (time.monotonic() - began)


def _batch(prefix: str, batch: int) -> bytes:
    workloads = [
        {
            "application": "jobs",
            "environment": "bench",
            "definition_id": "bench.noop",
            "definition_revision": "1",
            "trigger": "bench",
            "input": {"number": number},
            "idempotency_key": f"{prefix}-{batch}-{number}",
            "capability_snapshot": [],
        }
        for number in range(BATCH)
    ]
    return json.dumps({"workloads": workloads}).encode()


def _send(port: int, token: str, bodies: list[bytes]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for body in bodies:
        connection.request("POST", "/api/v1/workloads/batch", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200 or content.count(b'"created":true') != BATCH:
            raise RuntimeError(content[:500].decode())


def by_procrastinate(stage: Stage, *, batches: int) -> float:
    stage.sql("create database procrastinate_batches")
    conninfo = stage.conninfo.rsplit("dbname=", 1)[0] + "dbname=procrastinate_batches"
    return asyncio.run(_defer(conninfo, batches))


async def _defer(conninfo: str, batches: int) -> float:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=conninfo))

    @app.task(name="noop")
    async def noop(number: int) -> int:
        return number

    async def client(first: int) -> None:
        for batch in range(first, batches, CLIENTS):
            jobs: list[dict[str, Any]] = [
                {"number": batch * BATCH + number} for number in range(BATCH)
            ]
            await noop.batch_defer_async(*jobs)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        warm: list[dict[str, Any]] = [{"number": number} for number in range(BATCH)]
        await noop.batch_defer_async(*warm)
        began = time.monotonic()
        await asyncio.gather(*(client(first) for first in range(CLIENTS)))
        return batches * BATCH / (time.monotonic() - began)


if __name__ == "__main__":
    from .stage import raised

    with raised() as _stage:
        print(measure(_stage, batches=int(sys.argv[1]) if len(sys.argv) > 1 else 20))
