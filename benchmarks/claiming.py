"""Claims and heartbeats over HTTP against pgbench doing the same work by one SQL statement."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from .figures import Figure, Options
from .stage import ROOT, Stage

HERE = Path(__file__).parent
CONNECTIONS = 4
WARM_S = 3
PGBENCH = "pgbench, one SQL statement"
# Neither foreign keys nor triggers are looked at while the stage is filled.
QUICKLY = "set session_replication_role = replica;"
# What the rows in the way have instead of what a READY one has.
DELAYED = {"claimable": "false", "priority": "1000", "available_at": "now() + interval '1 day'"}
FINISHED = {"claimable": "false", "state": "'SUCCEEDED'", "ended_at": "now()"}


def fill(stage: Stage, queued: int) -> None:
    """1 000 workers and at least `queued` READY workloads of 20 requirements; more if there are."""
    text = (HERE / "fill.sql").read_text()
    mesh, work = text.split("insert into mesh_workload (", 1)
    if not stage.sql("select 1 from mesh_tenant where name = 'bench'"):
        stage.sql(QUICKLY + mesh)
    ((ready,),) = stage.sql("select count(*) from mesh_workload where claimable")
    ((first,),) = stage.sql("select coalesce(max(id), 0) + 1 from mesh_workload")
    missing = queued - int(str(ready))
    if missing > 0:
        rows = work.split("insert into mesh_workloadevent", 1)[0]
        upto = int(str(first)) + missing - 1
        rows = rows.replace("generate_series(1, {queued})", f"generate_series({first}, {upto})")
        stage.sql(f"{QUICKLY}insert into mesh_workload ({rows}")
        stage.sql("vacuum analyze")


def put_in_the_way(stage: Stage, number: int, name: str, other: dict[str, str]) -> None:
    """`number` more rows like those that are there, but for some columns."""
    there = stage.sql(
        "select column_name from information_schema.columns"
        " where table_name = 'mesh_workload' and column_name <> 'id' order by ordinal_position"
    )
    columns = [str(each) for (each,) in there]
    key = f"'{name}_' || id || '_' || n"
    values = {"workload_id": key, "idempotency_key": key, **other}
    stage.sql(
        f"{QUICKLY}insert into mesh_workload ({', '.join(columns)})"
        f" select {', '.join(values.get(each, each) for each in columns)}"
        f" from (select * from mesh_workload where claimable limit 10000) as w,"
        f" generate_series(1, {number // 10_000}) as n"
    )
    stage.sql("vacuum analyze")


def one(stage: Stage, options: Options) -> list[Figure]:
    """One claim per call."""
    return [_claims(stage, options, slots=1, reach=0.30)]


def ten(stage: Stage, options: Options) -> list[Figure]:
    """Ten claims per call."""
    return [_claims(stage, options, slots=10, reach=0.40)]


def _claims(stage: Stage, options: Options, *, slots: int, reach: float) -> Figure:
    fill(stage, options.queued)
    rate(stage, slots=slots, seconds=WARM_S)
    ours = rate(stage, slots=slots, seconds=options.seconds)
    script = HERE / "claim.pgbench.sql"
    reference = slots * by_pgbench(stage, script, options.seconds, slots=slots)
    what = f"claim {slots} per call over HTTP"
    return Figure(what, "claims/s", ours, reference, PGBENCH, reach)


def heartbeat(stage: Stage, options: Options) -> list[Figure]:
    """Heartbeats of 100 workers with ten claims each."""
    fill(stage, min(options.queued, 100_000))
    load(stage, "beat", seconds=WARM_S)
    told = load(stage, "beat", seconds=options.seconds)
    reference = by_pgbench(stage, HERE / "beat.pgbench.sql", options.seconds)
    ours = told["calls"] / told["seconds"]
    what = "heartbeat with 10 claims over HTTP"
    return [Figure(what, "beats/s", ours, reference, PGBENCH, 0.35)]


def depth(stage: Stage, options: Options) -> list[Figure]:
    """Single claims with a longer and longer queue, then with a million rows in the way."""
    first = min(10_000, options.queued)
    # What is claimed while measuring must not empty it.
    fill(stage, first + 5_000)
    rate(stage, slots=1, seconds=WARM_S)
    base = rate(stage, slots=1, seconds=options.seconds)
    figures = []
    for queued in (first * 10, first * 100):
        if queued <= options.queued:
            fill(stage, queued)
            figures.append(_beside(stage, options, base, f"claim, {queued:,} queued"))
    for name, other in (("delayed", DELAYED), ("finished", FINISHED)):
        put_in_the_way(stage, options.queued, name, other)
        what = f"claim, with {options.queued:,} {name} in the way"
        figures.append(_beside(stage, options, base, what))
    return figures


def _beside(stage: Stage, options: Options, base: float, what: str) -> Figure:
    ours = rate(stage, slots=1, seconds=options.seconds)
    return Figure(what, "claims/s", ours, base, "itself with the short queue", 0.8)


def snapshot(stage: Stage, options: Options) -> list[Figure]:
    """Single claims while somebody holds an old snapshot open, which keeps dead rows in place."""
    fill(stage, min(options.queued, 200_000))
    rate(stage, slots=1, seconds=WARM_S)
    base = rate(stage, slots=1, seconds=options.seconds)
    age = 4 * options.seconds
    with psycopg.connect(stage.conninfo) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from mesh_tenant")
        rate(stage, slots=1, seconds=age)
        ours = rate(stage, slots=1, seconds=options.seconds)
    what = f"claim under a snapshot of {age} s"
    return [Figure(what, "claims/s", ours, base, "itself without", 0.8)]


def recover(stage: Stage, options: Options) -> list[Figure]:
    """10 000 leases of most workers run out at once, and claims go on."""
    number = min(10_000, options.queued // 5)
    fill(stage, min(options.queued, 100_000))
    before = rate(stage, slots=1, seconds=options.seconds)
    load(stage, "claim", slots=10, calls=number // 10)
    ((over,),) = stage.sql(
        "with late as (select id from mesh_attempt where status = 'CLAIMED' order by id desc"
        f" limit {number}), ended as (update mesh_attempt a set"
        " claimed_at = now() - interval '2 min', expires_at = now() - interval '1 s'"
        " from late where a.id = late.id returning 1) select count(*) from ended"
    )
    sweep = stage.start("recovering")
    during = rate(stage, slots=1, seconds=options.seconds)
    stage.finish(sweep)
    took = json.loads((stage.base / "recovering.json").read_text())
    notes = {"expired": over, **took, "claims_rate_meanwhile": during / before if before else 0}
    return [
        Figure(f"recover {over} expired leases", "s", took["seconds"], 0.0, "-", 10.0, True, notes),
        Figure("claim while leases are recovered", "claims/s", during, before, "itself", 0.5),
    ]


def rate(stage: Stage, *, slots: int, seconds: int) -> float:
    """Claims per second over HTTP."""
    told = load(stage, "claim", slots=slots, seconds=seconds)
    return float(told["claims"] / told["seconds"])


def load(
    stage: Stage, what: str, *, slots: int = 1, seconds: int = 3_600, calls: int = 10**9
) -> dict[str, Any]:
    """What the load generator did, until one of the bounds."""
    arguments = [str(each) for each in (stage.port, what, seconds, calls, CONNECTIONS, slots)]
    command = [sys.executable, "-m", "benchmarks.load", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    if told["errors"]:
        raise RuntimeError(f"{told['errors']} of {told['calls']} calls were refused")
    return told


def by_pgbench(stage: Stage, script: Path, seconds: int, *, slots: int = 1) -> float:
    """Transactions per second of a script."""
    command = [
        stage.program("pgbench"), "--no-vacuum", "--protocol=prepared", f"--time={seconds}",
        f"--client={CONNECTIONS}", "--jobs=2", f"--define=slots={slots}",
        f"--file={script}", stage.conninfo,
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    if found is None:
        raise RuntimeError(done.stdout + done.stderr)
    return float(found[1])
