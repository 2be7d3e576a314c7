"""`make bench`: measure, print a table with ratios, write benchmarks/results/latest.json.

`--queued N` sets the length of the queue (default 1 000 000), `--seconds S` the length of each
measurement, `--jobs N` the number of end-to-end jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from . import claiming, end_to_end, submitting
from .stage import raised

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--queued", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=3_000)
    chosen = parser.parse_args()
    figures = []
    with raised() as stage:
        claiming.fill(stage, chosen.queued)
        figures.append(claiming.measure(stage, slots=1, seconds=chosen.seconds, reach=0.30))
        figures.append(claiming.measure(stage, slots=10, seconds=chosen.seconds, reach=0.40))
    with raised() as stage:
        figures.append(end_to_end.measure(stage, jobs=chosen.jobs))
        figures.append(submitting.measure(stage))
    report(figures, chosen)


def report(figures: list[claiming.Figure], chosen: argparse.Namespace) -> None:
    """The table for people, the file for programs."""
    print(f"{'what':<40} {'ours':>18} {'reference':>10} {'ratio':>6} {'reach':>6}  against")
    for each in figures:
        ours = f"{each.ours:,.0f} {each.unit}"
        print(
            f"{each.what:<40} {ours:>18} {each.reference:>10,.0f} {each.ratio:>6.2f}"
            f" {each.reach:>6.2f}  {each.against}"
        )
    RESULTS.mkdir(exist_ok=True)
    told = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "options": vars(chosen),
        "figures": [{**asdict(each), "ratio": each.ratio} for each in figures],
    }
    (RESULTS / "latest.json").write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
