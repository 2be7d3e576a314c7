"""What many requests leave in the memory of the web processes."""

from __future__ import annotations

import psutil

from .claiming import fill, load
from .figures import Figure, Options
from .stage import Stage

MIB = 1024 * 1024


def memory(stage: Stage, options: Options) -> list[Figure]:
    """Resident memory of the web's worker processes after many requests, against after few."""
    fill(stage, min(options.queued, options.requests + 10_000))
    few = max(options.requests // 100, 100)
    load(stage, "claim", calls=few // 2)
    load(stage, "beat", calls=few // 2)
    before = _resident(stage)
    load(stage, "claim", calls=options.requests // 2)
    load(stage, "beat", calls=options.requests // 2)
    after = _resident(stage)
    what = f"memory after {options.requests:,} requests"
    return [Figure(what, "MiB", after, before, f"after {few:,}", 1.10, at_most=True)]


def _resident(stage: Stage) -> float:
    assert stage.web is not None
    workers = psutil.Process(stage.web.pid).children()
    return float(sum(each.memory_info().rss for each in workers)) / MIB
