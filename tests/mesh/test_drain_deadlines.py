"""What happens when the deadline of a drain passes."""

from __future__ import annotations

import pytest

from mesh import leases, recovery, workers
from mesh.models import WorkerEvent
from tests.factories import Held, World
from tests.mesh.checks import MICRO, NOON, Clock, ms, refused, unchanged

SWEEP = "enforce_deadlines"


@pytest.fixture
def draining(world: World, clock: Clock) -> Held:
    """Running work of a worker whose drain has ten seconds."""
    held = world.running()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id, deadline_ms=10_000)
    return held


def told(held: Held) -> int:
    return WorkerEvent.objects.filter(
        worker=held.worker.row, event="worker.drain_deadline_passed"
    ).count()


def test_a_drain_deadline_is_told_at_its_boundary_and_once(draining: Held, clock: Clock) -> None:
    clock.to(NOON + ms(10_000) - MICRO)
    with unchanged():
        assert recovery.run(SWEEP).changed == []
    clock.to(NOON + ms(10_000))
    report = recovery.run(SWEEP)
    assert (report.changed, report.counts) == ([draining.worker.worker_id], {"drain_deadline": 1})
    event = WorkerEvent.objects.latest("pk")
    assert (event.actor, event.evidence) == ("system:enforce_deadlines", {"active": 1})
    with unchanged():
        assert recovery.run(SWEEP).changed == []
    assert told(draining) == 1


def test_leases_run_out_after_a_drain_deadline(draining: Held, clock: Clock) -> None:
    clock.to(NOON + ms(10_000) - MICRO)
    leases.renew(**draining.presenting)
    clock.to(NOON + ms(10_000))
    with refused("WORKER_DRAINED"):
        leases.renew(**draining.presenting)
    assert draining.worker.beat(draining.claim.claim_id).renewed == []
    draining.worker.complete(draining.claim)
    assert draining.worker.refresh().lifecycle == "OFFLINE"


def test_a_drain_that_was_lifted_or_has_ended_passes_no_deadline(
    world: World, draining: Held, clock: Clock
) -> None:
    workers.undrain(caller=world.operator, worker_id=draining.worker.worker_id)
    ended = world.running()
    workers.drain(caller=world.operator, worker_id=ended.worker.worker_id, deadline_ms=10_000)
    ended.worker.complete(ended.claim)
    clock.to(NOON + ms(10_000))
    with unchanged():
        assert recovery.run(SWEEP).changed == []


def test_a_second_drain_tells_its_own_deadline(world: World, draining: Held, clock: Clock) -> None:
    clock.to(NOON + ms(10_000))
    recovery.run(SWEEP)
    workers.undrain(caller=world.operator, worker_id=draining.worker.worker_id)
    workers.drain(caller=world.operator, worker_id=draining.worker.worker_id, deadline_ms=5_000)
    clock.to(NOON + ms(15_000))
    assert recovery.run(SWEEP).changed == [draining.worker.worker_id]
    assert told(draining) == 2
