"""Sweeps that run twice, at once, on many machines, or while the worker is heard again."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from mesh import brake, clock, expiry, liveness, recovery
from mesh.models import (
    Health,
    Incident,
    Lifecycle,
    State,
    SweepRun,
    Worker,
    WorkerEvent,
    Workload,
)
from tests.factories import Member, World, expire

from .checks import assert_sound, events
from .steering import Actor, Gate, answers, at_once, hold, is_free


def _beat(member: Member) -> liveness.Beat:
    return member.beat()


def _fall_silent(*members: Member) -> None:
    for each in members:
        Worker.objects.filter(pk=each.row.pk).update(
            last_seen_at=clock.now() - timedelta(seconds=31)
        )


def _silence(member: Member) -> list[str]:
    taken = liveness.silence(worker_pk=member.row.pk, actor="system:test")
    return [] if taken is None else [taken.worker_id]


def _recover_worker(member: Member) -> list[Workload]:
    return expiry.end_of(member.row.pk)


def test_two_sweepers_of_one_expired_lease_recover_it_once(world: World) -> None:
    """Not even kept apart by the sweep's own lock, as it is when that session broke."""
    held = world.running(world.worker(concurrency=2))
    other = world.running(held.worker)
    expire(held)
    with hold(held.worker.row):
        first = Actor(partial(_recover_worker, held.worker))
        first.wait_until_blocked()
        second = Actor(partial(_recover_worker, held.worker))
        second.wait_until_blocked(by=first)
    assert [each.workload_id for each in first.value()] == [held.workload.workload_id]
    assert second.value() == []
    assert events(held.workload).count("recovered") == 1
    assert held.worker.refresh().active == 1
    assert held.worker.row.lifecycle == Lifecycle.READY
    assert other.attempt.is_live
    assert_sound()


def test_a_pass_that_meets_another_one_does_nothing(world: World) -> None:
    held = world.running()
    expire(held)
    with hold(held.worker.row):
        first = Actor(partial(recovery.run, "recover_expired_leases"))
        first.wait_until_blocked()
        second = Actor(partial(recovery.run, "recover_expired_leases")).value()
        assert second.skipped
        assert second.changed == []
    assert first.value().changed == [held.workload.workload_id]


def test_a_worker_that_another_call_holds_keeps_no_other_one_waiting(world: World) -> None:
    busy, free, idle = world.running(), world.running(), world.running()
    expire(busy)
    expire(free)
    expire(idle)
    with hold(busy.worker.row):
        sweep = Actor(partial(recovery.run, "recover_expired_leases"))
        sweep.wait_until_blocked()
        assert {free.refresh().state, idle.refresh().state} == {State.READY}
        assert is_free(free.worker.row)
    found = [each.workload.workload_id for each in (free, idle, busy)]
    assert sweep.value().changed == found
    assert_sound()


def test_nobody_waits_for_workers_while_the_sweep_waits_for_the_work_of_one(world: World) -> None:
    busy, free = world.running(), world.running()
    expire(busy)
    expire(free)
    with hold(busy.workload):
        sweep = Actor(partial(recovery.run, "recover_expired_leases"))
        sweep.wait_until_blocked()
        assert not is_free(busy.worker.row)
        assert is_free(free.worker.row)
    assert sweep.value().changed == [each.workload.workload_id for each in (busy, free)]
    assert_sound()


@pytest.mark.parametrize("name", list(recovery.SWEEPS))
def test_a_sweep_that_runs_many_times_at_once_leaves_its_lock_free(world: World, name: str) -> None:
    reports = answers(at_once(*[partial(recovery.run, name)] * 4))
    assert len(reports) == 4
    assert any(not each.skipped for each in reports)
    assert not recovery.run(name).skipped


def test_due_work_is_promoted_and_reported_once_by_sweepers_at_once(world: World) -> None:
    works = [world.workload(not_before=clock.now() + timedelta(hours=1)) for _ in range(40)]
    with clock.set_to(clock.now() + timedelta(hours=1)):
        reports = answers(at_once(*[partial(recovery._promote, works[0].application_id)] * 4))
    promoted = [each for report in reports for each in report]
    assert sorted(promoted) == sorted(each.workload_id for each in works)


def test_due_work_that_is_cancelled_meanwhile_is_not_promoted(world: World) -> None:
    work = world.workload(not_before=clock.now() + timedelta(hours=1))
    with clock.set_to(clock.now() + timedelta(hours=1)), hold(work):
        assert Actor(partial(recovery.run, "promote_due")).value().changed == []
    assert not Workload.objects.get(pk=work.pk).claimable


def test_a_worker_that_is_heard_before_the_sweep_gets_the_lock_stays(world: World) -> None:
    member = world.worker()
    _fall_silent(member)
    with hold(member.row):
        beat = Actor(partial(_beat, member))
        beat.wait_until_blocked()
        silence = Actor(partial(_silence, member))
        silence.wait_until_blocked(by=beat)
    beat.value()
    assert silence.value() == []
    assert member.refresh().lifecycle == Lifecycle.READY


def test_a_beat_that_comes_after_the_worker_was_taken_is_told_to_reconcile(world: World) -> None:
    claimed, running = (held := world.claimed()), world.running(held.worker)
    member = held.worker
    _fall_silent(member)
    with hold(member.row):
        silence = Actor(partial(_silence, member))
        silence.wait_until_blocked()
        beat = Actor(partial(_beat, member))
        beat.wait_until_blocked(by=silence)
    assert silence.value() == [member.worker_id]
    assert beat.code() == "WORKER_RECOVERY_REQUIRED"
    assert member.refresh().lifecycle == Lifecycle.OFFLINE
    assert claimed.refresh().state == State.READY
    # Started work runs to its lease end.
    assert running.refresh().state == State.RUNNING
    assert_sound()


def test_a_silent_worker_is_taken_once_by_sweepers_at_once(world: World) -> None:
    held = world.claimed()
    _fall_silent(held.worker)
    reports = answers(at_once(*[partial(_silence, held.worker)] * 4))
    assert sorted(map(len, reports)) == [0, 0, 0, 1]
    gone = WorkerEvent.objects.filter(worker=held.worker.row, event="worker.offline")
    assert gone.count() == 1
    assert events(held.workload) == ["ready", "claimed", "recovered", "ready"]
    assert_sound()


def test_brake_passes_at_once_open_one_incident_and_take_nobody(world: World) -> None:
    members = [world.worker() for _ in range(6)]
    SweepRun.objects.create(name=brake.SWEEP, last_finished_at=clock.now())
    _fall_silent(*members)
    reports = answers(at_once(*[partial(recovery.run, brake.SWEEP)] * 4))
    assert [each for report in reports for each in report.changed] == []
    assert Incident.objects.count() == 1
    assert {each.refresh().lifecycle for each in members} == {Lifecycle.READY}


def test_after_the_hold_the_silent_are_taken_and_the_one_that_is_heard_stays(
    world: World,
) -> None:
    members = [world.worker() for _ in range(6)]
    _fall_silent(*members)
    recovery.run(brake.SWEEP)
    Incident.objects.update(opened_at=clock.now() - timedelta(seconds=31))
    heard = members[3]
    with hold(heard.row):
        sweep = Actor(partial(recovery.run, brake.SWEEP))
        sweep.wait_until_blocked()
        beat = Actor(partial(_beat, heard))
        beat.wait_until_blocked(by=sweep)
        Worker.objects.filter(pk=heard.row.pk).update(last_seen_at=clock.now())
    assert sorted(sweep.value().changed) == sorted(
        each.worker_id for each in members if each is not heard
    )
    beat.value()
    assert heard.refresh().lifecycle == Lifecycle.READY
    assert heard.row.health == Health.HEALTHY


def test_after_an_outage_no_sweep_recovers_while_another_one_moves_the_leases(
    world: World,
) -> None:
    held = world.running()
    expire(held)
    SweepRun.objects.create(
        name="recover_expired_leases", last_finished_at=clock.now() - timedelta(seconds=31)
    )
    with hold(held.worker.row):
        mover = Actor(partial(recovery.run, "promote_due"))
        mover.wait_until_blocked()
        recover = Actor(partial(recovery.run, "recover_expired_leases")).value()
        assert recover.changed == []
    mover.value()
    assert recovery.run("recover_expired_leases").changed == []
    assert held.refresh().state == State.RUNNING
    assert held.attempt.expires_at > clock.now() + timedelta(seconds=25)


def test_an_outage_lets_renewals_and_reports_of_late_leases_in(world: World) -> None:
    held = world.running()
    expire(held)
    SweepRun.objects.create(
        name="recover_expired_leases", last_finished_at=clock.now() - timedelta(seconds=31)
    )
    with Gate(recovery, "_end_outage", after=True) as gate:
        sweep: Actor[Any] = Actor(partial(recovery.run, "recover_expired_leases"))
        gate.wait_for_arrival()
        held.worker.complete(held.claim)
        gate.let_through()
        assert sweep.value().changed == []
    assert held.refresh().state == State.SUCCEEDED
