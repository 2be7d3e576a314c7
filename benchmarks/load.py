"""A lean load generator: kept-alive connections, in a process of its own.

`python -m benchmarks.load PORT WHAT SECONDS CALLS CONNECTIONS SLOTS`: each connection claims SLOTS
at a time for random workers (`claim`), or sends heartbeats of workers with ten claims (`beat`),
until SECONDS or CALLS are over. Prints one line of JSON: calls, claims, seconds, errors.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

BEATING = range(901, 1_001)


class Load:
    """What one connection sends."""

    def __init__(self, port: int, number: int, of: int, slots: int) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.slots = slots
        self.beating = BEATING[number::of]
        self.running: dict[int, list[str]] = {}
        self.calls = self.claims = self.errors = 0

    def send(self, worker: int, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {
            "Authorization": f"Bearer fpw_bench_{worker}",
            "Content-Type": "application/json",
        }
        path = f"/api/v1/workers/worker_{worker}/{operation}"
        self.http.request("POST", path, json.dumps(body), headers)
        answer = self.http.getresponse()
        content = answer.read()
        if answer.status != 200:
            self.errors += 1
            return {}
        found: dict[str, Any] = (
            {"raw": content} if operation == "heartbeat" else json.loads(content)
        )
        return found

    def claim(self) -> None:
        body = {"max": self.slots, "lease_ms": 600_000}
        told = self.send(random.randint(1, 900), "claims", body)
        self.claims += len(told.get("claims", ()))

    def beat(self) -> None:
        worker = random.choice(self.beating)
        body = {
            "version": "1",
            "capability_version": 1,
            "health": "HEALTHY",
            "timestamp": datetime.now(UTC).isoformat(),
            "running_claims": self.running[worker],
        }
        self.send(worker, "heartbeat", body)

    def prepare(self) -> None:
        """Ten claims for each worker that beats; those of an earlier run go on."""
        for worker in self.beating:
            body: dict[str, Any] = {
                "version": "1",
                "capability_version": 1,
                "health": "HEALTHY",
                "timestamp": datetime.now(UTC).isoformat(),
                "running_claims": [],
            }
            held = json.loads(self.send(worker, "heartbeat", body)["raw"])["assigned_claims"]
            if len(held) < 10:
                more = {"max": 10 - len(held), "lease_ms": 600_000}
                held += self.send(worker, "claims", more)["claims"]
            self.running[worker] = [each["claim_id"] for each in held[:10]]

    def run(self, what: str, until: float, calls: int) -> None:
        send = getattr(self, what)
        while self.calls < calls and time.monotonic() < until:
            send()
            self.calls += 1


def main() -> None:
    what = sys.argv[2]
    port, seconds, calls, connections, slots = (int(sys.argv[n]) for n in (1, 3, 4, 5, 6))
    loads = [Load(port, number, connections, slots) for number in range(connections)]
    if what == "beat":
        for each in loads:
            each.prepare()
    began = time.monotonic()
    each_calls = -(-calls // connections)
    threads = [
        threading.Thread(target=one.run, args=(what, began + seconds, each_calls)) for one in loads
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = ("calls", "claims", "errors")
    told = {name: sum(getattr(one, name) for one in loads) for name in names}
    print(json.dumps({**told, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
