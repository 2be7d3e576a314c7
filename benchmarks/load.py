"""A lean load generator: kept-alive connections, in a process of its own.

`python -m benchmarks.load PORT SECONDS CONNECTIONS SLOTS`: each connection claims SLOTS at a time
for random workers and prints, all together, one line of JSON: calls, claims, seconds, errors.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time


def claim(port: int, until: float, slots: int, totals: list[int]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"max": slots, "lease_ms": 600_000})
    calls = claims = errors = 0
    while time.monotonic() < until:
        number = random.randint(1, 1_000)
        headers = {
            "Authorization": f"Bearer fpw_bench_{number}",
            "Content-Type": "application/json",
        }
        connection.request("POST", f"/api/v1/workers/worker_{number}/claims", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        calls += 1
        if answer.status == 200:
            claims += content.count(b'"claim_id"')
        else:
            errors += 1
    totals[0] += calls
    totals[1] += claims
    totals[2] += errors


def main() -> None:
    port, seconds, connections, slots = (int(each) for each in sys.argv[1:5])
    totals = [0, 0, 0]
    began = time.monotonic()
    threads = [
        threading.Thread(target=claim, args=(port, began + seconds, slots, totals))
        for _ in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    print(
        json.dumps({"calls": totals[0], "claims": totals[1], "errors": totals[2], "seconds": took})
    )


if __name__ == "__main__":
    main()
