"""Many starts in one call: each by the rules of one start, in order, at a constant cost."""

from __future__ import annotations

import pytest

from mesh import leases, starts, workloads
from mesh.dockets import Judged
from mesh.models import Lifecycle, Worker
from mesh.starts import Start
from tests.factories import Held, Member, World, expire
from tests.mesh.checks import Clock, counted, events, ms, raises, refused, unchanged


def begin(held: Held, token: int | None = None) -> Start:
    return Start(held.claim.claim_id, token or held.claim.fencing_token)


def start(worker: Member, *said: Start) -> list[str]:
    """The status of each attempt, or the code of its refusal."""
    started = starts.start(caller=worker.caller, worker_id=worker.worker_id, said=said)
    assert [each.claim_id for each in started] == [each.claim_id for each in said]
    return [told(each) for each in started]


def told(each: Judged) -> str:
    return each.refusal.code if each.refusal else each.attempt.status  # type: ignore[union-attr]


@pytest.fixture
def worker(world: World) -> Member:
    return world.worker(concurrency=60)


def test_a_start_in_a_batch_leaves_what_a_start_alone_does(
    world: World, worker: Member, clock: Clock
) -> None:
    timeouts = {"execution_ms": 60_000, "heartbeat_ms": 20_000}
    alone, together = (world.claimed(worker, timeouts=timeouts) for _ in range(2))
    worker.start(alone.claim)
    assert start(worker, begin(together)) == ["RUNNING"]
    for name in ("status", "started_at", "last_progress_at", "execution_deadline_at",
                 "deadline_at", "expires_at", "report_step"):  # fmt: skip
        assert getattr(alone.attempt, name) == getattr(together.attempt, name), name
    for name in ("state", "started_attempts", "unstarted_losses", "event_sequence", "deadline_at"):
        assert getattr(alone.refresh(), name) == getattr(together.refresh(), name), name
    assert events(alone.workload) == events(together.workload) == ["ready", "claimed", "started"]
    assert worker.refresh().active == 2


def test_each_start_is_refused_by_itself_with_the_code_it_has_alone(
    world: World, worker: Member
) -> None:
    """So it is whatever stands beside it."""
    good, running = world.claimed(worker), world.running(worker)
    other, done, asked = world.claimed(), world.succeeded(worker), world.cancelling(worker)
    held, old = world.claimed(worker), world.claimed(worker)
    workloads.hold([held.workload.pk])
    expire(old)
    said = [
        begin(good), begin(running), begin(other), begin(done), begin(asked), begin(held),
        begin(old), begin(good, 99), Start("claim_x", 1),
    ]  # fmt: skip
    assert start(worker, *said) == [
        "RUNNING",
        "RUNNING",
        "WORKLOAD_STALE_FENCE",
        "WORKLOAD_CLAIM_INVALID",
        "WORKLOAD_CANCELLATION_REQUESTED",
        "MESH_RUN_BLOCKED",
        "WORKLOAD_LEASE_EXPIRED",
        "WORKLOAD_STALE_FENCE",
        "CLAIM_NOT_FOUND",
    ]
    for each in (other, done, asked, held, old):
        with refused(start(worker, begin(each))[0]):
            leases.start(**worker.presenting(each.claim))


def test_a_repeat_is_told_go_while_the_lease_lasts_and_never_after(
    world: World, worker: Member, clock: Clock
) -> None:
    one, two = world.claimed(worker), world.claimed(worker)
    assert start(worker, begin(one), begin(two)) == ["RUNNING"] * 2
    with unchanged():
        assert start(worker, begin(one), begin(two)) == ["RUNNING"] * 2
    clock.to(one.attempt.expires_at - ms(1))
    assert start(worker, begin(one)) == ["RUNNING"]
    clock.to(one.attempt.expires_at)
    with unchanged():
        assert start(worker, begin(one)) == ["WORKLOAD_LEASE_EXPIRED"]


def test_of_two_items_of_one_claim_the_first_acts(world: World, worker: Member) -> None:
    held = world.claimed(worker)
    assert start(worker, begin(held), begin(held)) == ["RUNNING"] * 2
    assert events(held.workload) == ["ready", "claimed", "started"]
    assert held.refresh().started_attempts == 1


def test_nothing_of_an_unreconciled_worker_starts(world: World, worker: Member) -> None:
    one, two = world.claimed(worker), world.claimed(worker)
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle=Lifecycle.RECOVERING)
    expire(two)
    with unchanged():
        assert start(worker, begin(one), begin(two)) == [
            "WORKER_RECOVERY_REQUIRED",
            "WORKLOAD_LEASE_EXPIRED",
        ]


@pytest.mark.parametrize("number", [0, 1_001])
def test_a_call_has_from_1_to_1000_starts(world: World, worker: Member, number: int) -> None:
    one = begin(world.claimed(worker))
    with refused("REQUEST_INVALID"):
        start(worker, *[one] * number)
    if number:
        assert start(worker, *[one] * 1_000) == ["RUNNING"] * 1_000


def test_only_the_worker_itself_starts(world: World, worker: Member) -> None:
    said = [begin(world.claimed(worker))]
    for caller, worker_id, code in (
        (world.operator, worker.worker_id, "PERMISSION_DENIED"),
        (world.worker().caller, worker.worker_id, "PERMISSION_DENIED"),
        (worker.caller, "worker_x", "WORKER_NOT_FOUND"),
    ):
        with raises(code):
            starts.start(caller=caller, worker_id=worker_id, said=said)


def test_a_batch_costs_the_same_with_one_claim_or_fifty(world: World) -> None:
    counts = []
    for number in (1, 50):
        worker = world.worker(concurrency=60)
        said = [begin(world.claimed(worker)) for _ in range(number)]
        with counted() as queries:
            assert start(worker, *said) == ["RUNNING"] * number
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert counts[0] <= 6


def test_refusals_cost_the_same_with_few_or_many(world: World) -> None:
    counts = []
    for number in (2, 20):
        worker = world.worker(concurrency=60)
        said = [begin(world.claimed() if n % 2 else world.succeeded(worker)) for n in range(number)]
        with counted() as queries:
            assert not {"RUNNING"} & set(start(worker, *said, Start("claim_x", 1)))
        counts.append(len(queries))
    assert counts[0] == counts[1]
