"""What retention removes of runs, and what it never does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.db.models import Model
from django.utils import timezone

from benchmarks.explaining import explained
from mesh import intake, invariants, recovery
from mesh import retention as mesh_retention
from mesh.models import Workload, WorkloadEvent
from tests.factories import World, name
from tests.mesh.checks import MICRO, NOON, Clock
from workflows import blocks, cancellation, retention, steering
from workflows.models import (
    Access,
    Activation,
    Attestation,
    CancellationRequest,
    ControlFailure,
    Coordinator,
    Handoff,
    LeaseScope,
    Receipt,
    RecoveryBarrier,
    RefusedWriter,
    ResourceLease,
    Run,
    RunAttempt,
    RunEvent,
    Statement,
    UserPause,
)

from . import rows
from .acting import NOT_STARTED, Case

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
TABLES: tuple[Any, ...] = (
    Run,
    Activation,
    RunAttempt,
    RunEvent,
    ResourceLease,
    RefusedWriter,
    UserPause,
    CancellationRequest,
    ControlFailure,
    RecoveryBarrier,
    Receipt,
    Handoff,
    Attestation,
    Statement,
    Workload,
    WorkloadEvent,
)


def prune() -> dict[str, int]:
    """What one pass removed, by kind of rows."""
    report = recovery.run(mesh_retention.SWEEP)
    return {outcome: number for outcome, number in report.counts.items() if number}


def ended(world: World | None = None) -> Case:
    case = Case(world=world)
    case.succeed()
    case.terminalize()
    return case


def left() -> dict[str, int]:
    return {each.__name__: each.objects.count() for each in TABLES if each.objects.exists()}


def refused_writer(case: Case, at: Any) -> None:
    RefusedWriter.objects.create(
        run=case.row,
        application=case.row.application,
        resource=name("resource"),
        scope=LeaseScope.RUN,
        dispatch_identity="0" * 64,
        first_asked_at=at,
        asked_at=at,
    )


def with_everything(clock: Clock) -> Case:
    """An ended run that every table of a run points to."""
    case = Case()
    case.settle(case.admit(), NOT_STARTED)
    case.succeed()
    steering.pause(**case.asked, reason="wait")
    blocks.open_barrier(case.run, owner=case.owner, by="system:test", reason="")
    case.finish()
    case.fail()
    cancellation.request(**case.asked)
    receipt = Receipt.objects.create(
        tenant=case.world.tenant,
        run=case.row,
        receipt_id=name("receipt"),
        resolver="coordinator",
        verdict="confirmed",
        transition={},
        at=clock.at,
    )
    case.hand_over()
    Handoff.objects.create(
        run=case.row,
        generation=2,
        mode="recovery",
        receipt=receipt,
        verified_at=clock.at,
        by="x",
        at=clock.at,
    )
    attestation = Attestation.objects.create(
        tenant=case.world.tenant,
        run=case.row,
        attestation_id=name("attestation"),
        transition={},
        required=1,
        created_at=clock.at,
    )
    Statement.objects.create(attestation=attestation, by="x", statement="y", at=clock.at)
    case.terminalize()
    # As if something had been left behind.
    ResourceLease.objects.create(
        run=case.row,
        attempt=case.row.attempts.latest("pk"),
        application=case.row.application,
        resource="a",
        access=Access.READ,
        scope=LeaseScope.RUN,
        generation=1,
        acquired_at=clock.at,
    )
    refused_writer(case, clock.at)
    return case


def test_an_old_ended_run_goes_with_all_that_belongs_to_it_and_its_work(clock: Clock) -> None:
    with_everything(clock)
    assert left().keys() == {each.__name__ for each in TABLES}
    clock.to(NOON + 90 * DAY)
    assert prune()["runs"] == 1
    assert left() == {}


def test_a_run_goes_at_the_boundary(clock: Clock) -> None:
    case = ended()
    clock.to(NOON + 90 * DAY - MICRO)
    assert "runs" not in prune()
    assert case.run.status == "COMPLETED"
    clock.to(NOON + 90 * DAY)
    assert prune()["runs"] == 1


@pytest.mark.parametrize(("work", "history", "kept"), [(30, 60, 60), (60, 30, 60)])
def test_a_run_is_kept_as_long_as_work_or_history_is(
    clock: Clock, settings: Any, work: int, history: int, kept: int
) -> None:
    settings.KEEP_ENDED_WORK_DAYS, settings.KEEP_HISTORY_DAYS = work, history
    ended()
    clock.to(NOON + kept * DAY - MICRO)
    assert prune().keys().isdisjoint({"runs", "work"})
    clock.to(NOON + kept * DAY)
    prune()
    assert (Run.objects.count(), Workload.objects.count()) == (0, 0)


def test_an_open_run_and_its_ended_work_stay_for_ever(clock: Clock) -> None:
    case = Case([rows.step("one"), rows.step("two")])
    case.succeed("one")
    bystander = case.world.cancelled()
    clock.to(NOON + 10_000 * DAY)
    assert prune()["work"] == 1
    assert not Workload.objects.filter(pk=bystander.pk).exists()
    assert case.row.attempts.get().workload.sealed
    assert mesh_retention.delete_work([case.row.attempts.get().workload_id], clock.at) == 0
    cancellation.request(**case.asked)
    case.terminalize()
    assert invariants.broken() == {}


def test_a_younger_run_stays(clock: Clock) -> None:
    ended()
    clock.pass_(DAY)
    young = ended()
    clock.to(NOON + 90 * DAY)
    assert prune()["runs"] == 1
    assert Run.objects.get() == young.row
    assert invariants.broken() == {}


def test_a_run_whose_work_others_wait_for_stays_until_they_are_gone(clock: Clock) -> None:
    case = ended()
    waited_for = case.row.attempts.get().workload
    submission = case.world.submission(dependencies=[{"workload_id": waited_for.workload_id}])
    waiting = intake.submit(caller=case.world.operator, submission=submission).workload
    clock.to(NOON + 90 * DAY)
    assert "runs" not in prune()
    assert case.run.attempts.exists()
    Workload.objects.filter(pk=waiting.pk).delete()


def test_a_run_with_a_young_receipt_stays_and_keeps_no_other(clock: Clock) -> None:
    stays, goes = ended(), ended()
    Receipt.objects.create(
        tenant=stays.world.tenant,
        run=stays.row,
        receipt_id=name("receipt"),
        resolver="attestation",
        verdict="confirmed",
        transition={},
        at=NOON + DAY,
    )
    clock.to(NOON + 90 * DAY)
    assert prune()["runs"] == 1
    assert Run.objects.get() == stays.row != goes.row


def test_the_run_id_is_free_again(clock: Clock) -> None:
    case = ended()
    clock.to(NOON + 90 * DAY)
    prune()
    again = rows.make_run(case.world, run_id=case.row.run_id, owner=case.owner)
    attempt = rows.make_attempt(case.world, again)
    assert attempt.workload.state == "READY"


def test_pages_follow_each_other(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAGE", 2)
    world = World()
    for _ in range(5):
        ended(world)
    clock.to(NOON + 90 * DAY)
    assert prune()["runs"] == 5


def test_a_run_that_cannot_be_removed_stays_alone_and_is_pushed_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    stuck, *others = [ended(world) for _ in range(3)]
    clock.to(NOON + 90 * DAY)
    delete = retention.delete_runs

    def refuse_one(pks: Any, now: Any, before: Any) -> int:
        if stuck.row.pk in pks:
            raise DatabaseError("something still points to it")
        return delete(pks, now, before)

    monkeypatch.setattr(retention, "delete_runs", refuse_one)
    assert prune()["runs"] == len(others)
    assert Run.objects.get() == stuck.row
    assert Run.objects.get().sweep_after == clock.at + timedelta(seconds=30)
    assert "passes over run" in caplog.text


def test_work_that_somebody_else_keeps_keeps_its_run(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_retention, "_keeping", [*mesh_retention._keeping])
    case = ended()
    mesh_retention.keep(f"w.id = {case.row.attempts.get().workload_id}")
    clock.to(NOON + 90 * DAY)
    assert "runs" not in prune()
    assert case.run.attempts.get().workload.sealed


def test_asks_of_refused_writers_go_after_an_hour(clock: Clock) -> None:
    case = Case()
    refused_writer(case, NOON)
    refused_writer(case, NOON + MICRO)
    clock.to(NOON + timedelta(hours=1))
    assert prune() == {"refused_writers": 1}
    assert RefusedWriter.objects.get().asked_at == NOON + MICRO


def test_a_coordinator_goes_long_after_its_end_unless_an_open_run_has_it(clock: Clock) -> None:
    world = World()
    over = rows.make_coordinator(world)
    gone = rows.make_coordinator(world, relinquished_at=NOON, lease_ends_at=NOON + DAY)
    named = rows.make_coordinator(world)
    run = rows.make_run(world, owner=rows.authority(named.instance_id))
    stranger = World()
    rows.make_run(stranger, owner=rows.authority(over.instance_id))
    clock.to(NOON + 90 * DAY)
    rows.make_coordinator(world)
    assert prune()["coordinators"] == 1
    assert not Coordinator.objects.filter(pk=gone.pk).exists()
    clock.pass_(timedelta(seconds=30))
    assert prune()["coordinators"] == 1
    assert not Coordinator.objects.filter(pk=over.pk).exists()
    Run.objects.filter(pk=run.pk).update(status="FAILED", ended_at=clock.at)
    assert prune()["coordinators"] == 1
    assert Coordinator.objects.count() == 1


@pytest.mark.parametrize("model", [Run, RunAttempt, Activation, Receipt, Attestation])
def test_every_table_that_points_there_is_thought_of(model: type[Model]) -> None:
    """Else a row of a new kind would keep a run from ever being removed."""
    said = " ".join(retention._DELETE)
    pointing = {each.related_model._meta.db_table for each in model._meta.related_objects}
    assert [table for table in sorted(pointing) if f" {table} " not in said] == []


FILL = """
insert into workflows_run (
    tenant_id, application_id, run_id, definition_id, environment, content_digest, status,
    coordinator, active_attempts, executions, max_concurrency, max_executions, requested_by,
    event_sequence, created_at, updated_at, ended_at
)
select r.tenant_id, r.application_id, 'filler-' || n, r.definition_id, 'production', '', s.status,
    'builtin', 0, 0, 8, 1000, 'x', 0, %(at)s, %(at)s, case when s.status <> 'OPEN' then %(at)s end
from workflows_run r, generate_series(1, 20000) n,
    lateral (select case when n %% 2 = 0 then 'OPEN' else 'FAILED' end as status) s
where r.id = %(run)s
"""


def test_retention_reads_what_is_old() -> None:
    case = ended()
    old = timezone.now() - 91 * DAY
    Run.objects.filter(pk=case.row.pk).update(ended_at=old)
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"at": timezone.now(), "run": case.row.pk})
        cursor.execute("analyze workflows_run")
    with explained() as plans:
        retention.prune_runs(timezone.now())
        retention.prune_asks(timezone.now())
        retention.prune_coordinators(timezone.now())
    assert len(plans) > 20
    assert [plan for plan in plans if "Seq Scan on workflows_run " in plan] == []
    assert any("ended_runs_by_age" in plan for plan in plans)
