"""What retention removes, and what it never does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import Model

from mesh import history, invariants, recovery, retention, workers, workloads
from mesh.models import (
    Attempt,
    AuditEntry,
    Checkpoint,
    Decision,
    Dependency,
    LateReport,
    Result,
    State,
    Worker,
    WorkerEvent,
    Workload,
    WorkloadEvent,
)
from tests.factories import Held, World, in_state
from tests.mesh.checks import AT_REST, MICRO, NOON, Clock, events, ms

DAY = timedelta(days=1)
PRUNE = retention.SWEEP
ENDED = ("SUCCEEDED", "CANCELLED", "DEAD_LETTER")


def prune() -> dict[str, int]:
    """What one pass removed, by kind of rows; whatever it leaves is sound."""
    report = recovery.run(PRUNE)
    assert invariants.broken() == {}
    return {name: number for name, number in report.counts.items() if number}


def exists(work: Workload) -> bool:
    return Workload.objects.filter(pk=work.pk).exists()


def decide(work: Workload, clock: Clock) -> Decision:
    return Decision.objects.create(workload=work, actor="service:ops", at=clock.at)


def wait_for(work: Workload, *others: Workload) -> None:
    for each in others:
        Dependency.objects.create(workload=work, depends_on=each, is_open=False)


@pytest.mark.parametrize("state", ENDED)
def test_ended_work_goes_at_the_boundary(world: World, clock: Clock, state: State) -> None:
    work = in_state(world, state)
    clock.to(NOON + 90 * DAY - MICRO)
    assert "work" not in prune()
    assert exists(work)
    clock.to(NOON + 90 * DAY)
    assert prune()["work"] == 1
    assert not exists(work)


@pytest.mark.parametrize("state", sorted(set(AT_REST) - set(ENDED)))
def test_work_that_has_not_ended_stays_for_ever(world: World, clock: Clock, state: State) -> None:
    work = in_state(world, state)
    decide(work, clock)
    told = events(work)
    clock.to(NOON + 10_000 * DAY)
    assert prune().keys() <= {"worker_history", "audit"}
    assert (Workload.objects.get(pk=work.pk).state, events(work)) == (state, told)
    assert work.decisions.exists()


def test_ended_work_goes_with_all_that_hangs_on_it(world: World, clock: Clock) -> None:
    held = world.checkpointed()
    held.worker.complete(held.claim)
    decide(held.workload, clock)
    LateReport.objects.create(
        attempt=held.attempt, step="fail", code="x", digest="y", reported_at=clock.at
    )
    wait_for(held.workload, world.cancelled())
    stays = world.succeeded(held.worker)
    Workload.objects.filter(pk=stays.workload.pk).update(ended_at=NOON + DAY)
    clock.to(NOON + 90 * DAY)
    assert prune()["work"] == 2
    assert Workload.objects.get() == stays.workload
    kept: list[Any] = [Attempt, Result, Checkpoint, Decision, Dependency, LateReport]
    assert [model.objects.count() for model in kept] == [1, 1, 0, 0, 0, 0]
    assert {each.workload_id for each in WorkloadEvent.objects.all()} == {stays.workload.pk}


@pytest.mark.parametrize(
    ("model", "statements"),
    [
        (Workload, (*retention._DELETE_WORK, *retention._keeping)),
        (Attempt, retention._DELETE_WORK),
        (Worker, (*retention._DELETE_RETIRED, retention._RETIRED)),
    ],
)
def test_every_table_that_points_there_is_thought_of(
    model: type[Model], statements: tuple[str, ...]
) -> None:
    """Else a row of a new kind would keep what it points to from ever being removed."""
    pointing = {
        getattr(each, "through", None) or each.related_model for each in model._meta.related_objects
    }
    said = " ".join(statements)
    tables = sorted(each._meta.db_table for each in pointing)
    assert [table for table in tables if f" {table} " not in said] == []


def test_removing_work_frees_its_key(world: World, clock: Clock) -> None:
    first = world.succeeded(idempotency_key="once").workload
    clock.to(NOON + 90 * DAY)
    prune()
    again = world.workload(idempotency_key="once", input={"other": "content"})
    assert (again.workload_id, again.fencing_token) == (first.workload_id, 0)


def test_work_that_other_work_names_stays_until_that_is_removed(world: World, clock: Clock) -> None:
    first, second = world.cancelled(), world.cancelled()
    waiting = world.workload()
    wait_for(second, first)
    wait_for(waiting, second)
    clock.to(NOON + 90 * DAY)
    assert prune() == {}
    workloads.cancel(caller=world.operator, workload_id=waiting.workload_id)
    clock.to(NOON + 180 * DAY - MICRO)
    assert prune() == {}
    clock.to(NOON + 180 * DAY)
    assert prune()["work"] == 3


def test_a_dead_letter_that_was_retried_stays(world: World, clock: Clock) -> None:
    held = world.dead_letter()
    pks = [held.workload.pk]
    clock.to(NOON + 90 * DAY)
    workloads.retry(caller=world.operator, workload_id=held.workload.workload_id)
    assert retention.delete_work(pks, clock.at) == 0
    assert exists(held.workload)


def test_pages_follow_each_other(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PAGE", 2)
    waiting, kept = world.workload(), world.cancelled()
    wait_for(waiting, kept)
    for _ in range(5):
        world.cancelled()
    clock.to(NOON + 90 * DAY)
    assert prune()["work"] == 5
    assert exists(kept)


@pytest.mark.usefixtures("passing_over")
def test_work_that_cannot_be_removed_stays_alone_and_is_pushed_back(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, others = world.cancelled(), [world.cancelled() for _ in range(3)]
    clock.to(NOON + 90 * DAY)
    delete = retention.delete_work

    def refuse_one(pks: list[int], now: Any) -> int:
        if stuck.pk in pks:
            raise IntegrityError("something still points to it")
        return delete(pks, now)

    monkeypatch.setattr(retention, "delete_work", refuse_one)
    assert recovery.run(PRUNE).counts["failed"] == 1
    assert [exists(each) for each in (stuck, *others)] == [True, False, False, False]
    assert Workload.objects.get(pk=stuck.pk).sweep_after == clock.at + ms(30_000)


# --- History --------------------------------------------------------------------------------------


def test_history_may_be_kept_for_less_than_the_work(
    world: World, clock: Clock, settings: LazySettings
) -> None:
    settings.KEEP_HISTORY_DAYS = 30
    held, running = world.succeeded(), world.running()
    clock.to(NOON + 30 * DAY - MICRO)
    assert "work_history" not in prune()
    clock.to(NOON + 30 * DAY)
    assert prune()["work_history"] == 3
    last = WorkloadEvent.objects.get(workload=held.workload)
    assert (last.sequence, last.event) == (4, "workload.completed")
    assert events(running.workload) == ["ready", "claimed", "started"]
    # What was looked at is not looked at again; what ended since is.
    assert "work_history" not in prune()
    later = world.cancelled()
    clock.pass_(30 * DAY)
    assert prune()["work_history"] == 1
    assert later.events.get().event == "workload.cancelled"


def test_a_retried_dead_letter_without_its_beginning_is_sound(
    world: World, clock: Clock, settings: LazySettings
) -> None:
    settings.KEEP_HISTORY_DAYS = 30
    held = world.dead_letter()
    clock.to(NOON + 30 * DAY)
    prune()
    workloads.retry(caller=world.operator, workload_id=held.workload.workload_id)
    told = [each.event for each in held.workload.events.all()]
    assert told == ["workload.dead_lettered", "workload.retried"]
    assert invariants.broken() == {}


def test_worker_events_go_but_the_last_one(world: World, clock: Clock) -> None:
    worker, silent = world.worker(), world.worker()
    clock.to(NOON + 50 * DAY)
    workers.drain(caller=world.operator, worker_id=worker.worker_id)
    clock.to(NOON + 90 * DAY)
    assert prune()["worker_history"] > 0
    kept = WorkerEvent.objects.filter(worker=worker.row)
    assert {each.at for each in kept} == {NOON + 50 * DAY}
    last = WorkerEvent.objects.get(worker=silent.row)
    assert last.sequence == silent.refresh().event_sequence


def test_what_stands_above_keeps_work_and_removes_rows_of_its_own(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_keeping", [])
    monkeypatch.setattr(retention, "_others", {})
    kept, goes = world.cancelled(priority=7), world.cancelled()
    retention.keep("w.priority = 7")
    retention.also("letters", lambda now: 3 if now == clock.at else 0)
    clock.to(NOON + 90 * DAY)
    assert prune().items() >= {"work": 1, "letters": 3}.items()
    assert retention.delete_work([kept.pk], clock.at) == 0
    assert (exists(kept), exists(goes)) == (True, False)


def test_a_retired_worker_goes_once_no_row_points_to_it(world: World, clock: Clock) -> None:
    held, idle = world.succeeded(), world.worker()
    for each in (held.worker, idle):
        workers.remove(caller=world.operator, worker_id=each.worker_id)
    Workload.objects.filter(pk=held.workload.pk).update(ended_at=NOON + DAY)
    clock.to(NOON + 90 * DAY)
    assert prune()["retired_workers"] == 1
    assert Worker.objects.get() == held.worker.row
    clock.to(NOON + 91 * DAY)
    assert prune()["retired_workers"] == 1
    assert not Worker.objects.exists()


def test_a_worker_that_came_back_is_not_retired(world: World, clock: Clock) -> None:
    worker = world.worker()
    clock.to(NOON + 1_000 * DAY)
    prune()
    assert Worker.objects.get() == worker.row


def test_decisions_go_after_a_week_unless_their_work_lives(world: World, clock: Clock) -> None:
    ended, waiting = world.cancelled(), world.workload()
    for each in (ended, waiting):
        decide(each, clock)
    clock.to(NOON + 7 * DAY - MICRO)
    assert prune() == {}
    clock.to(NOON + 7 * DAY)
    assert prune()["decisions"] == 1
    assert Decision.objects.get().workload == waiting


def test_audit_goes_after_four_hundred_days(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PAGE", 2)
    for day in (0, 0, 0, 1):
        history.audit(
            tenant_id=None, actor="a", action="b", target="c", at=NOON + timedelta(days=day)
        )
    clock.to(NOON + 400 * DAY)
    prune()
    assert [each.at for each in AuditEntry.objects.filter(action="b")] == [NOON + DAY]


def _refused(held: Held, act: str) -> bool:
    rows = WorkloadEvent.objects.filter(workload=held.workload)
    try:
        with transaction.atomic():
            rows.update(actor="eve") if act == "update" else rows.delete()
    except DatabaseError:
        return True
    return False


@pytest.mark.parametrize("act", ["update", "delete"])
def test_history_is_never_changed_by_others(world: World, act: str) -> None:
    assert _refused(world.succeeded(), act)


def test_retention_itself_can_neither_rewrite_history_nor_take_what_is_recent(
    world: World, clock: Clock
) -> None:
    old = world.succeeded()
    clock.to(NOON + DAY)
    recent = world.succeeded()
    with transaction.atomic():
        retention.allow(NOON)
        assert _refused(old, "update")
        assert _refused(recent, "delete")
        assert not _refused(old, "delete")
    with transaction.atomic():
        assert _refused(recent, "delete")
