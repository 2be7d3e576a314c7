"""Sweeps and lists of runs: which they pick, in what way; one that raises does not come at once.

What a run that was picked comes to is tested with the coordinator.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from benchmarks.explaining import explained, whole_reads
from mesh import clock, recovery
from tests.factories import World
from workflows import cancellation, coordinator, steering, sweeps
from workflows.api import reading
from workflows.instances import Instance
from workflows.models import CoordinatorKind, Run, StepState

from . import rows
from .driving import acting_as

# Runs as an old system has them: nearly all ended, the rest under way.
FILL = """
insert into workflows_run (
    tenant_id, application_id, run_id, definition_id, environment, input, content_digest, status,
    coordinator, target_artifact_id, instance_id, generation, token_hash, active_attempts,
    executions, max_concurrency, max_executions, requested_by, event_sequence, created_at,
    updated_at, ended_at
)
select d.tenant_id, d.application_id, 'run-' || n, d.id, 'production', '{}', '',
    case when n % 20 = 0 then 'OPEN' else 'COMPLETED' end, 'builtin', 'x', 'mine', 1, 'x',
    (n % 20 = 0)::int, 1, 8, 1000, 'x', 1, now() - n * interval '1 s', now(),
    case when n % 20 <> 0 then now() end
from workflows_definition d, generate_series(1, 8000) n;
"""


@pytest.fixture
def old_system(world: World) -> World:
    rows.make_definition(world)
    with connection.cursor() as cursor:
        cursor.execute(FILL)
        cursor.execute("analyze workflows_run")
    rows.make_coordinator(world, "mine")
    return world


def ways(plans: list[str]) -> set[str]:
    """By which indexes runs are read."""
    found = re.compile(r"(?:using|Bitmap Index Scan on) (\w*runs\w*|workflows_run_pkey)")
    return {each for plan in plans for each in found.findall(plan)}


def test_a_sweep_reads_open_runs_alone_however_many_have_ended(old_system: World) -> None:
    with acting_as(Instance("mine")):
        for name, sweep in sweeps.SWEEPS.items():
            with explained() as plans:
                sweep(recovery.SweepReport(name), None)
            assert whole_reads(plans, ["workflows_run"]) == [], name
            assert all(each.startswith("open_runs") for each in ways(plans)), name


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ({"run_id__startswith": "no-"}, "run_id_is_unique"),
        ({"coordinator": CoordinatorKind.EXTERNAL}, "runs_by_coordinator"),
    ],
)
def test_a_list_of_few_runs_reads_those(
    old_system: World, wanted: dict[str, str], index: str
) -> None:
    found = reading.runs(old_system.operator).filter(**wanted).order_by("-created_at", "-id")
    assert f" {index} " in found[:50].explain()


def test_a_list_of_the_few_runs_of_a_definition_or_application_reads_those(
    old_system: World,
) -> None:
    caller = old_system.operator
    rare = rows.make_definition(old_system)
    other = old_system.tenant.applications.create(name="other")
    for wanted, index in (
        (reading.of_definition(caller, rare.definition_id), "definition_id"),
        (reading.of_application(caller, other.name), "application_id"),
    ):
        found = reading.runs(caller).filter(wanted).order_by("-created_at", "-id")
        assert f"workflows_run_{index}" in found[:50].explain()


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which runs the sweeps gave to the coordinator, which leaves them as they are."""
    found: list[int] = []

    def drive(pk: int) -> coordinator.Driven:
        found.append(pk)
        return coordinator.Driven()

    monkeypatch.setattr(coordinator, "drive", drive)
    return found


def swept(*names: str) -> None:
    for each in names:
        sweeps.SWEEPS[each](recovery.SweepReport(each), None)


def test_runs_in_which_only_a_person_can_do_something_are_passed_over(
    world: World, driven: list[int]
) -> None:
    mine: dict[str, Any] = {"owner": rows.authority("mine"), "coordinator": CoordinatorKind.BUILTIN}
    paused, stuck, failed, due, done = (rows.make_run(world, **mine) for _ in range(5))
    asked: dict[str, Any] = {"caller": world.operator, "reason": "not yet"}
    steering.pause(**asked, run_id=paused.run_id)
    for run, code in ((stuck, steering.NEVER_STARTED), (failed, "deadline_elapsed")):
        steering.set_failure(run, code=code, message="", step="", by="x")
    done.activations.update(state=StepState.SUCCEEDED)
    with acting_as(Instance("mine")):
        swept("advance_runs")
        assert sorted(driven) == [due.pk, done.pk]
        driven.clear()
        swept("finish_cancellations")
        assert driven == [failed.pk]
        driven.clear()
        # Its work that nobody claimed is withdrawn, and what ended is settled.
        rows.make_attempt(world, stuck)
        cancellation.request(**asked, run_id=paused.run_id)
        swept("finish_cancellations")
        assert driven == [paused.pk, failed.pk, stuck.pk]


def test_a_run_that_cannot_be_taken_over_is_pushed_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.make_coordinator(world, "gone", relinquished_at=clock.now())
    run = rows.make_run(world, owner=rows.authority("gone"), coordinator=CoordinatorKind.BUILTIN)
    # It would close the connection that the test's transaction is on.
    monkeypatch.setattr(connection, "close_if_unusable_or_obsolete", lambda: None)
    sweep = partial(sweeps.take_over_dead_coordinators, recovery.SweepReport("x"), None)
    tried: list[int] = []

    def broken(pk: int) -> coordinator.Driven:
        tried.append(pk)
        raise ValueError("broken")

    monkeypatch.setattr(coordinator, "drive", broken)
    for _ in range(2):
        sweep()
    assert tried == [run.pk]
    with clock.set_to(clock.now() + timedelta(seconds=30)):
        sweep()
    assert tried == [run.pk, run.pk]
    assert Run.objects.get(pk=run.pk).is_open
