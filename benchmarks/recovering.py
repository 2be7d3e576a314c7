"""`python -m benchmarks.recovering FILE`: sweep until no lease is over; how long it took."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    import django

    django.setup()
    from mesh import recovery

    began, cpu = time.monotonic(), time.process_time()
    changed = passes = 0
    while found := len(recovery.run("recover_expired_leases").changed):
        changed += found
        passes += 1
    told = {
        "recovered": changed,
        "passes": passes,
        "seconds": time.monotonic() - began,
        # Tells the machine's load from our own work; the database's share is not in it.
        "cpu_seconds": time.process_time() - cpu,
    }
    Path(sys.argv[1]).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
