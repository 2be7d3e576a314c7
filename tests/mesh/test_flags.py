"""What a run of a workflow sets on its work: held starts nothing, sealed is never tried again."""

from __future__ import annotations

from datetime import datetime

import pytest

from mesh import leases, recovery, settlement, workloads
from mesh.models import State, Workload
from tests.factories import World

from .checks import Clock, counted, events, ms, refused, unchanged


def now(workload: Workload) -> Workload:
    workload.refresh_from_db()
    return workload


def test_held_work_is_not_claimed_and_unheld_it_is(world: World) -> None:
    work, member = world.workload(), world.worker()
    workloads.hold([work.pk])
    recovery.run("promote_due")
    assert (now(work).held, work.claimable, member.claim()) == (True, False, [])
    workloads.unhold([work.pk])
    assert [each.workload_id for each in member.claim()] == [work.workload_id]
    assert events(work) == ["ready", "claimed"]


def test_to_hold_or_unhold_twice_changes_nothing(world: World) -> None:
    work = world.workload()
    workloads.hold([work.pk])
    with unchanged():
        workloads.hold([work.pk])
    workloads.unhold([work.pk])
    with unchanged():
        workloads.unhold([work.pk])


def test_queue_time_does_not_run_while_work_is_held(world: World, clock: Clock) -> None:
    work = world.workload(timeouts={"queue_ms": 1_000})
    workloads.hold([work.pk])
    clock.pass_(ms(5_000))
    recovery.run("enforce_deadlines")
    assert now(work).state == State.READY
    workloads.unhold([work.pk])
    assert now(work).ready_at == clock.at
    clock.pass_(ms(1_000))
    recovery.run("enforce_deadlines")
    assert now(work).state == State.DEAD_LETTER


def test_held_work_that_was_claimed_cannot_start_and_is_released(world: World) -> None:
    held = world.claimed()
    workloads.hold([held.workload.pk])
    with refused("MESH_RUN_BLOCKED"):
        held.worker.start(held.claim)
    settlement.release(**held.presenting)
    assert (now(held.workload).state, held.workload.claimable) == (State.READY, False)
    workloads.unhold([held.workload.pk])
    assert now(held.workload).claimable


def test_a_start_that_was_accepted_is_repeated_although_held_now(world: World) -> None:
    held = world.running()
    workloads.hold([held.workload.pk])
    with unchanged():
        assert held.worker.start(held.claim).started_at is not None
    held.worker.complete(held.claim)
    assert now(held.workload).state == State.SUCCEEDED


def test_a_cancel_is_told_before_the_block(world: World) -> None:
    held = world.claimed()
    workloads.hold([held.workload.pk])
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    with refused("WORKLOAD_CANCELLATION_REQUESTED"):
        leases.start(**held.presenting)


def test_unheld_work_stays_blocked_by_what_it_waits_for(world: World) -> None:
    held = world.running()
    work = world.workload(dependencies=[{"workload_id": held.workload.workload_id}])
    workloads.hold([work.pk])
    held.worker.complete(held.claim)
    assert (now(work).open_dependencies, work.claimable) == (0, False)
    workloads.unhold([work.pk])
    assert now(work).claimable


def test_many_are_held_in_as_few_statements_as_one(world: World) -> None:
    works = [world.workload().pk for _ in range(5)]
    with counted() as one:
        workloads.hold(works[:1])
    with counted() as more:
        workloads.hold(works[1:])
    assert len(one) == len(more)


def test_sealed_work_is_not_retried(world: World) -> None:
    held = world.dead_letter()
    workloads.seal([held.workload.pk])
    with refused("WORKLOAD_TRANSITION_DENIED"):
        workloads.retry(caller=world.operator, workload_id=held.workload.workload_id)


@pytest.mark.parametrize("due", ["before", "after"])
def test_unheld_work_is_claimable_only_when_due(world: World, clock: Clock, due: str) -> None:
    later: datetime = clock.at + ms(1_000)
    work = world.workload(not_before=later)
    workloads.hold([work.pk])
    if due == "after":
        clock.to(later)
    workloads.unhold([work.pk])
    assert now(work).claimable == (due == "after")
