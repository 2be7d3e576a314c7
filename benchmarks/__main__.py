"""`make bench`: measure, print a table with ratios, write benchmarks/results/latest.json.

`--only NAME` (again for more) measures these rows alone; `--resume` goes on where a run broke off.
`--queued N` is the length of the queue (default 1 000 000), `--seconds S` the length of each
measurement, `--jobs N` the number of end-to-end jobs, `--requests N` those of the memory row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from . import claiming, end_to_end, plans, serving, submitting, waiting
from .figures import Figure, Measure, Options
from .stage import ROOT, raised

RESULTS = Path(__file__).parent / "results"
# Name → the stage it shares with others of the same, and what it measures. On one stage the queue
# only grows, so the order counts.
ROWS: Final[dict[str, tuple[str, Measure]]] = {
    "depth": ("deep", claiming.depth),
    "claim-1": ("queue", claiming.one),
    "claim-10": ("queue", claiming.ten),
    "heartbeat": ("queue", claiming.heartbeat),
    "memory": ("queue", serving.memory),
    "recover": ("queue", claiming.recover),
    # Last of these: it leaves tables behind that want to be vacuumed.
    "snapshot": ("queue", claiming.snapshot),
    "plans": ("grown", plans.plans),
    "latency": ("idle", waiting.latency),
    "submit": ("submit", submitting.submit),
    "jobs": ("jobs", end_to_end.single),
    "jobs-batch": ("jobs-batch", end_to_end.batched),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--only", action="append", choices=ROWS, default=None)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--queued", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=4_000)
    parser.add_argument("--requests", type=int, default=100_000)
    chosen = parser.parse_args()
    options = Options(chosen.queued, chosen.seconds, chosen.jobs, chosen.requests)
    record = Record(options, is_resumed=chosen.resume)
    names = [each for each in chosen.only or ROWS if each not in record.done]
    for _, shared in groupby(names, key=lambda name: ROWS[name][0]):
        measure_on_one_stage(list(shared), options, record)
    record.show()
    return 1 if record.failed else 0


def measure_on_one_stage(names: list[str], options: Options, record: Record) -> None:
    """A row that fails is told and passed over."""
    try:
        with raised() as stage:
            for name in names:
                began = time.monotonic()
                try:
                    figures = ROWS[name][1](stage, options)
                except Exception:
                    record.fail(name, traceback.format_exc())
                    print((stage.base / "web.log").read_text()[-2_000:], file=sys.stderr)
                else:
                    record.keep(name, figures, time.monotonic() - began)
    except Exception:
        for name in set(names) - record.done - record.failed:
            record.fail(name, traceback.format_exc())


class Record:
    """What was measured, written after each row."""

    def __init__(self, options: Options, *, is_resumed: bool) -> None:
        self.path = RESULTS / "latest.json"
        self.told: dict[str, Any] = {"options": asdict(options), "revision": _revision()}
        self.figures: dict[str, list[dict[str, Any]]] = {}
        self.failed: set[str] = set()
        if is_resumed and self.path.exists():
            earlier = json.loads(self.path.read_text())
            # Figures of other code or another length are not comparable.
            if all(earlier.get(key) == value for key, value in self.told.items()):
                self.figures = earlier["figures"]

    @property
    def done(self) -> set[str]:
        return set(self.figures)

    def keep(self, name: str, figures: list[Figure], took: float) -> None:
        self.figures[name] = [
            {**asdict(each), "ratio": each.ratio, "is_reached": each.is_reached} for each in figures
        ]
        for each in self.figures[name]:
            print(_line(each), flush=True)
        print(f"  ({name}: {took:.0f} s)", flush=True)
        self._write()

    def fail(self, name: str, why: str) -> None:
        self.failed.add(name)
        print(f"{name} failed:\n{why}", file=sys.stderr, flush=True)

    def show(self) -> None:
        print(f"\n{'what':<48}{'ours':>20}{'reference':>12}{'ratio':>8}{'reach':>8}  against")
        for name in ROWS:
            for each in self.figures.get(name, []):
                print(_line(each))
        for name in sorted(self.failed):
            print(f"{name:<48}{'failed':>20}")

    def _write(self) -> None:
        RESULTS.mkdir(exist_ok=True)
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        told = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine,
            **self.told,
            "figures": self.figures,
        }
        self.path.write_text(json.dumps(told, indent=2) + "\n")


def _line(each: dict[str, Any]) -> str:
    ours = f"{each['ours']:,.1f} {each['unit']}"
    bound = f"{'≤' if each['at_most'] else '≥'} {each['reach']:g}"
    mark = "" if each["is_reached"] else "  (not reached)"
    return (
        f"{each['what']:<48}{ours:>20}{each['reference']:>12,.1f}{each['ratio']:>8.2f}"
        f"{bound:>8}  {each['against']}{mark}"
    )


def _revision() -> str:
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
