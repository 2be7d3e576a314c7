"""The web server as in production: many who wait for work, and a row that somebody keeps locked."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import connection

from mesh.canonical import secret_hash
from mesh.models import Tenant, Worker
from tests.agent.conftest import eventually
from tests.agent.real import APPLICATION, TENANT, RealServer
from tests.factories import World
from tests.races.steering import hold

WAITERS = 200
SLOW_S = 60.0


@pytest.fixture
def server(transactional_db: None, tmp_path: Path) -> Iterator[RealServer]:
    real = RealServer(tmp_path, processes=2)
    yield real
    real.close()


class Caller:
    """A worker with a connection of its own for each call."""

    def __init__(self, server: RealServer, row: Worker, number: int) -> None:
        self.port = server.port
        self.secret = f"fpw_{number}"
        self.worker_id = f"{row.worker_id}{number}"
        self.answer: dict[str, Any] = {}
        self.row = copy(row)
        self.row.pk, self.row.worker_id, self.row.name = None, self.worker_id, f"w-{number}"
        self.row.credential_hash = secret_hash(self.secret)

    def send(self, operation: str, body: dict[str, Any]) -> socket.socket:
        raw = json.dumps(body).encode()
        head = (
            f"POST /api/v1/workers/{self.worker_id}/{operation} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {self.secret}\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        line = socket.create_connection(("127.0.0.1", self.port), timeout=SLOW_S)
        line.sendall(head.encode() + raw)
        return line

    def hear(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as answer:
            self.answer = json.loads(answer.read().partition(b"\r\n\r\n")[2])

    def wait_for_work(self) -> None:
        """Ask again and again, until there is work or nobody answers any more."""
        with suppress(OSError, ValueError):
            while not self.answer.get("claims"):
                self.hear(self.send("claims", {"max": 1, "wait_ms": 20_000}))


def callers(server: RealServer, number: int) -> list[Caller]:
    """Ready workers; all but the first are copies of its row, for registering is not the point."""
    world = World(Tenant.objects.get(name=TENANT), APPLICATION)
    made = [Caller(server, world.worker(capabilities=["test"]).row, n) for n in range(1)]
    made += [Caller(server, made[0].row, n) for n in range(1, number)]
    Worker.objects.bulk_create([each.row for each in made])
    return made


def test_many_wait_while_others_are_served_and_all_work_is_handed_out_once(
    server: RealServer,
) -> None:
    made = callers(server, WAITERS)
    threads = [threading.Thread(target=each.wait_for_work, daemon=True) for each in made]
    for thread in threads:
        thread.start()
    polled = Worker.objects.filter(last_poll_at__isnull=False)
    eventually(lambda: polled.count() == WAITERS, "all have asked once")
    assert httpx.get(f"{server.url}/healthz", timeout=5.0).is_success
    assert _sessions() <= 2 * (8 + 1) + 1
    first = server.submit("test.noop", 0, capability_snapshot=[])
    assert server.workload(first)["workload_id"] == first
    works = [first, *(server.submit("test.noop", n, capability_snapshot=[]) for n in range(1, 50))]
    given = Counter[str]()

    def handed_out() -> bool:
        given.clear()
        for each in made:
            given.update(claim["workload_id"] for claim in each.answer.get("claims", []))
        return len(given) == len(works)

    eventually(handed_out, "all work is handed out")
    assert given == dict.fromkeys(works, 1)
    server.end()
    for thread in threads:
        thread.join(SLOW_S)
    # The others were answered, empty, when the server was asked to end.
    assert not any(thread.is_alive() for thread in threads)


def test_a_locked_row_holds_up_its_own_worker_and_nobody_else(server: RealServer) -> None:
    locked, other = callers(server, 2)
    row = Worker.objects.get(worker_id=locked.worker_id)
    with hold(row):
        lines = [locked.send("claims", {"max": 1}) for _ in range(50)]
        threads = [threading.Thread(target=locked.hear, args=(line,)) for line in lines]
        for thread in threads:
            thread.start()
        eventually(lambda: _waiting_for_locks() > 0, "calls wait for the row")
        assert httpx.get(f"{server.url}/healthz", timeout=5.0).is_success
        assert _waiting_for_locks() <= 2 * 2
        other.hear(other.send("claims", {"max": 1}))
        assert other.answer == {"claims": [], "reason": None}
        for thread in threads:
            thread.join(SLOW_S)
    assert locked.answer["code"] == "STORAGE_BUSY"
    assert locked.answer["retry_after_ms"] > 0


def _sessions() -> int:
    return _count("select count(*) from pg_stat_activity where datname = current_database()")


def _waiting_for_locks() -> int:
    return _count("select count(distinct pid) from pg_locks where not granted")


def _count(query: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return int(cursor.fetchone()[0])
