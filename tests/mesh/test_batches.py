"""Many reports in one call: each answered by itself, in order, at a constant cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mesh import reports, settlement, workloads
from mesh.errors import DomainError
from mesh.models import Attempt, Result, State
from mesh.reports import Report
from tests.factories import Held, Member, World, expire, name
from tests.mesh.checks import Clock, counted, events, ms, raises, refused, unchanged


def done(held: Held, **members: Any) -> Report:
    said = {"result_id": "r1", "output": {"pages": 3}, **members}
    return reports.complete(held.claim.claim_id, held.claim.fencing_token, **said)


def broken(held: Held, **members: Any) -> Report:
    said = {"kind": "timeout", "error": "It broke.", **members}
    return reports.fail(held.claim.claim_id, held.claim.fencing_token, **said)


def plain(held: Held, make: Callable[[str, int], Report]) -> Report:
    return make(held.claim.claim_id, held.claim.fencing_token)


def settle(worker: Member, *said: Report) -> list[str]:
    """The status of each attempt, or the code of its refusal."""
    settled = settlement.settle(caller=worker.caller, worker_id=worker.worker_id, said=said)
    assert [each.claim_id for each in settled] == [each.claim_id for each in said]
    return [
        each.refusal.code if each.refusal else each.attempt.status  # type: ignore[union-attr]
        for each in settled
    ]


@pytest.fixture
def worker(world: World) -> Member:
    return world.worker(concurrency=60)


def test_each_report_has_its_own_outcome_and_all_slots_are_free(
    world: World, worker: Member
) -> None:
    one, two, three = (world.running(worker) for _ in range(3))
    four, five = world.cancelling(worker), world.claimed(worker)
    assert settle(
        worker,
        done(one),
        broken(two),
        broken(three, kind="broken"),
        plain(four, reports.cancelled),
        plain(five, reports.release),
    ) == ["SUCCEEDED", "FAILED", "FAILED", "CANCELLED", "RELEASED"]
    states = [each.refresh().state for each in (one, two, three, four, five)]
    assert states == ["SUCCEEDED", "READY", "DEAD_LETTER", "CANCELLED", "READY"]
    assert (worker.refresh().active, worker.row.lifecycle) == (0, "READY")
    assert Result.objects.get(workload=one.workload).output == {"pages": 3}
    assert events(two.workload)[-2:] == ["failed", "ready"]


def test_a_refused_report_changes_nothing_and_holds_up_nobody(
    world: World, worker: Member, clock: Clock
) -> None:
    good, unstarted, over, secret, long = (
        world.running(worker),
        world.claimed(worker),
        world.running(worker),
        world.running(worker),
        world.running(worker),
    )
    expire(over)
    foreign = world.running()
    gone = Report("claim_" + "0" * 32, 1, reports.CANCELLED, {})
    nonsense = Report("nothing", 1, reports.CANCELLED, {})
    assert settle(
        worker,
        gone,
        nonsense,
        done(foreign),
        done(unstarted),
        done(over),
        done(secret, output={"token": "x"}),
        broken(long, error="x" * 70_000),
        Report(good.claim.claim_id, 99, reports.COMPLETE, done(good).body),
        done(good),
    ) == [
        "CLAIM_NOT_FOUND",
        "CLAIM_NOT_FOUND",
        "WORKLOAD_STALE_FENCE",
        "WORKLOAD_TRANSITION_DENIED",
        "WORKLOAD_LEASE_EXPIRED",
        "WORKLOAD_SECRET_REJECTED",
        "WORKLOAD_INVALID",
        "WORKLOAD_STALE_FENCE",
        "SUCCEEDED",
    ]
    assert worker.refresh().active == 4
    assert foreign.refresh().state == State.RUNNING


def test_of_two_reports_on_one_claim_the_later_is_judged_after_the_first(
    world: World, worker: Member
) -> None:
    held = world.running(worker)
    assert settle(
        worker,
        done(held),
        done(held),
        done(held, output=2),
        broken(held),
        done(held, result_id="r"),
    ) == [
        "SUCCEEDED",
        "SUCCEEDED",
        "WORKLOAD_RESULT_DUPLICATE",
        "WORKLOAD_CLAIM_INVALID",
        "WORKLOAD_CLAIM_INVALID",
    ]
    assert worker.refresh().active == 0
    assert events(held.workload).count("completed") == 1


def test_two_claims_of_one_workload_see_one_row(world: World, worker: Member, clock: Clock) -> None:
    old = world.running(worker, retry_policy={"initial_delay_ms": 0})
    worker.fail(old.claim, kind="timeout")
    [claim] = worker.claim()
    worker.start(claim)
    new = Held(old.workload, worker, claim)
    assert settle(worker, done(old), done(new), done(old), broken(new)) == [
        "WORKLOAD_STALE_FENCE",
        "SUCCEEDED",
        "WORKLOAD_RESULT_DUPLICATE",
        "WORKLOAD_CLAIM_INVALID",
    ]
    assert worker.refresh().active == 0


def test_a_repeated_call_gets_the_same_answers_and_writes_nothing(
    world: World, worker: Member, clock: Clock
) -> None:
    said = [done(world.running(worker)), broken(world.running(worker))]
    said.append(plain(world.claimed(worker), reports.release))
    first = settle(worker, *said)
    clock.pass_(ms(3_600_000))
    with unchanged():
        assert settle(worker, *said) == first


@pytest.mark.parametrize("number", [0, 101])
def test_a_call_has_from_1_to_100_reports(world: World, worker: Member, number: int) -> None:
    one = plain(world.claimed(worker), reports.release)
    with refused("REQUEST_INVALID"):
        settle(worker, *[one] * number)
    if number:
        assert settle(worker, *[one] * 100) == ["RELEASED"] * 100


def test_only_the_worker_itself_settles(world: World, worker: Member) -> None:
    said = [done(world.running(worker))]
    for caller, worker_id, code in (
        (world.operator, worker.worker_id, "PERMISSION_DENIED"),
        (world.worker().caller, worker.worker_id, "PERMISSION_DENIED"),
        (worker.caller, "worker_x", "WORKER_NOT_FOUND"),
    ):
        with raises(code):
            settlement.settle(caller=caller, worker_id=worker_id, said=said)


def test_a_batch_costs_the_same_with_one_claim_or_fifty(world: World) -> None:
    counts = []
    for number in (1, 50):
        worker = world.worker(concurrency=60)
        said: list[Report] = []
        for place in range(number):
            held = world.running(worker)
            said.append(done(held) if place % 2 else broken(held))
        with counted() as queries:
            settle(worker, *said)
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert counts[0] <= 6


def test_a_batch_of_late_and_repeated_reports_costs_the_same_with_few_or_many(
    world: World,
) -> None:
    counts = []
    for number in (2, 20):
        worker = world.worker(concurrency=60)
        said = []
        for place in range(number):
            held = world.succeeded(worker) if place % 2 else world.held(worker)
            if not place % 2:
                resolve_as_failed(world, held)
            said.append(done(held))
        with counted() as queries:
            answers = settle(worker, *said)
        assert set(answers) == {"WORKLOAD_CLAIM_INVALID"}
        counts.append(len(queries))
    assert counts[0] == counts[1]


def resolve_as_failed(world: World, held: Held) -> None:
    from mesh import resolutions

    resolutions.resolve(
        caller=world.operator,
        workload_id=held.workload.workload_id,
        resolution="failed",
        reason=name("why"),
    )


@pytest.mark.parametrize("step", ["complete", "fail"])
def test_one_report_alone_costs_no_more_than_it_did(world: World, step: str) -> None:
    held = world.running()
    call: Callable[..., Attempt] = getattr(held.worker, step)
    with counted() as queries:
        call(held.claim)
    # The savepoint of the transaction, the worker, the claim with its work, all changes.
    assert len(queries) <= 5, [each["sql"][:80] for each in queries]


def test_a_worker_that_drains_goes_offline_with_the_batch_that_ends_its_claims(
    world: World, worker: Member
) -> None:
    from mesh import workers

    said = [done(world.running(worker)), broken(world.running(worker))]
    workers.drain(caller=world.operator, worker_id=worker.worker_id)
    settle(worker, *said)
    assert worker.refresh().lifecycle == "OFFLINE"


def test_a_refusal_in_a_batch_is_no_error(world: World, worker: Member) -> None:
    held = world.claimed(worker)
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    [settled] = settlement.settle(
        caller=worker.caller, worker_id=worker.worker_id, said=[done(held)]
    )
    assert isinstance(settled.refusal, DomainError)
    assert settled.refusal.code == "WORKLOAD_TRANSITION_DENIED"
