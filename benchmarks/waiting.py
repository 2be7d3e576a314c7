"""From submit to start, while workers wait for work."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import threading
import time
from typing import Any

from .claiming import fill
from .figures import Figure, Options
from .stage import Stage

WAITERS = 10
PAUSE_S = 0.05


class Waiter(threading.Thread):
    """A worker that waits, starts what it gets, and settles it."""

    def __init__(self, port: int, number: int, started: dict[str, float]) -> None:
        super().__init__(daemon=True)
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.number = number
        self.started = started

    def send(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {
            "Authorization": f"Bearer fpw_bench_{self.number}",
            "Content-Type": "application/json",
        }
        self.http.request("POST", f"/api/v1/{path}", json.dumps(body), headers)
        answer = self.http.getresponse()
        told: dict[str, Any] = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(told)
        return told

    def run(self) -> None:
        # Until the stage is taken down.
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.work()

    def work(self) -> None:
        while True:
            asked = {"max": 1, "wait_ms": 20_000}
            for claim in self.send(f"workers/worker_{self.number}/claims", asked)["claims"]:
                path, fence = f"claims/{claim['claim_id']}", claim["fencing_token"]
                self.send(f"{path}/start", {"fencing_token": fence})
                self.started[claim["workload_id"]] = time.monotonic()
                result = {"result_id": claim["claim_id"], "output": None}
                self.send(f"{path}/complete", {"fencing_token": fence, **result})


def latency(stage: Stage, options: Options) -> list[Figure]:
    """p50 and p99 of the time from the submit's sending to the start's answer."""
    fill(stage, 0)
    token = stage.token("bench")
    started: dict[str, float] = {}
    for number in range(1, WAITERS + 1):
        Waiter(stage.port, number, started).start()
    submitted: dict[str, float] = {}
    connection = http.client.HTTPConnection("127.0.0.1", stage.port, timeout=60)
    number_of_jobs = max(options.jobs // 10, 20)
    for number in range(number_of_jobs):
        began = time.monotonic()
        submitted[stage.submit(connection, token, "documents", "definition-1", number)] = began
        time.sleep(PAUSE_S)
    deadline = time.monotonic() + 30
    while submitted.keys() - started.keys() and time.monotonic() < deadline:
        time.sleep(0.05)
    # The first ones meet a kind of work that nobody knew.
    taken = sorted(1_000 * (started[key] - at) for key, at in list(submitted.items())[10:])
    cuts = statistics.quantiles(taken, n=100)
    what = f"submit to start, {WAITERS} workers waiting"
    return [
        Figure(f"{what}, p50", "ms", cuts[49], 0.0, "-", 20.0, at_most=True),
        Figure(f"{what}, p99", "ms", cuts[98], 0.0, "-", 100.0, at_most=True),
    ]
