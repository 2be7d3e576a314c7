"""Claims over HTTP against pgbench doing the same work by one hand-written statement."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .stage import ROOT, Stage

HERE = Path(__file__).parent
CONNECTIONS = 4


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    what: str
    unit: str
    ours: float
    reference: float
    against: str
    reach: float

    @property
    def ratio(self) -> float:
        return self.ours / self.reference if self.reference else 0.0


def fill(stage: Stage, queued: int) -> None:
    """1 000 workers and `queued` READY workloads of 20 requirements."""
    stage.sql((HERE / "fill.sql").read_text().replace("{queued}", str(queued)))
    stage.sql("vacuum analyze")


def measure(stage: Stage, *, slots: int, seconds: int, reach: float) -> Figure:
    """Claims per second by `slots` a call: over HTTP, and by pgbench."""
    over_http(stage, slots=slots, seconds=3)
    ours = over_http(stage, slots=slots, seconds=seconds)
    reference = by_pgbench(stage, slots=slots, seconds=seconds)
    what = f"claim {slots} per call over HTTP"
    return Figure(what, "claims/s", ours, reference, "pgbench, one SQL statement", reach)


def over_http(stage: Stage, *, slots: int, seconds: int) -> float:
    command = [sys.executable, "-m", "benchmarks.load"]
    arguments = [str(each) for each in (stage.port, seconds, CONNECTIONS, slots)]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    if told["errors"]:
        raise RuntimeError(f"{told['errors']} of {told['calls']} calls were refused")
    return float(told["claims"] / told["seconds"])


def by_pgbench(stage: Stage, *, slots: int, seconds: int) -> float:
    command = [
        stage.program("pgbench"), "--no-vacuum", "--protocol=prepared", f"--time={seconds}",
        f"--client={CONNECTIONS}", "--jobs=2", f"--define=slots={slots}",
        f"--file={HERE / 'claim.pgbench.sql'}", stage.conninfo,
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    if found is None:
        raise RuntimeError(done.stdout + done.stderr)
    return float(found[1]) * slots
