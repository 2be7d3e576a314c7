"""A claim is ended by its worker, by a sweep, by a cancel; only one of them ends it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mesh import clock, deadlines, leases, recovery, settlement, workloads
from mesh.models import Attempt, Lifecycle, Result, State
from tests.factories import Held, World, expire

from .checks import assert_sound, events
from .steering import Actor, answers, at_once, codes, hold


def _complete(held: Held, result_id: str = "r", output: Any = 1) -> Callable[[], Attempt]:
    return partial(settlement.complete, **held.presenting, result_id=result_id, output=output)


def _cancel(world: World, held: Held) -> Callable[[], Any]:
    return partial(workloads.cancel, caller=world.operator, workload_id=held.workload.workload_id)


def _sweep() -> recovery.SweepReport:
    return recovery.run("recover_expired_leases")


def test_one_complete_sent_many_times_at_once_is_stored_once(world: World) -> None:
    held = world.running()
    ended = at_once(*[_complete(held)] * 6)
    assert len(answers(ended)) == 6
    assert Result.objects.count() == 1
    assert events(held.workload).count("completed") == 1
    assert held.worker.refresh().active == 0
    assert_sound()


def test_of_different_results_for_one_claim_at_once_one_is_taken(world: World) -> None:
    held = world.running()
    ended = at_once(*[_complete(held, f"r{n}", n) for n in range(6)])
    assert len(answers(ended)) == 1
    assert codes(ended) == ["WORKLOAD_CLAIM_INVALID"] * 5
    assert held.worker.refresh().active == 0
    assert_sound()


def test_of_two_claims_one_ended_in_many_ways_at_once_frees_one_slot(world: World) -> None:
    for _ in range(5):
        held = world.running(world.worker(concurrency=2), retry_policy={"initial_delay_ms": 0})
        other = world.running(held.worker)
        fail = partial(settlement.fail, **held.presenting, kind="transient_connection", error="x")
        ended = at_once(_complete(held), fail, _complete(held, "other"), fail)
        assert len(answers(ended)) in {1, 2}  # the two equal fails are one report
        assert held.worker.refresh().active == 1
        assert held.worker.row.lifecycle == Lifecycle.READY
        assert other.attempt.is_live
    assert_sound()


def test_a_report_that_waited_past_its_lease_end_is_judged_by_when_it_acts(world: World) -> None:
    held = world.running()
    with hold(held.worker.row):
        late = Actor(_complete(held))
        late.wait_until_blocked()
        expire(held)
    assert late.code() == "WORKLOAD_LEASE_EXPIRED"
    assert held.refresh().state == State.RUNNING


@pytest.mark.parametrize("sweep_first", [True, False])
def test_reports_against_the_sweep_of_their_expired_lease(world: World, sweep_first: bool) -> None:
    reports: list[Callable[[Held], Callable[[], Any]]] = [
        _complete,
        lambda held: partial(settlement.fail, **held.presenting, kind="timeout", error="x"),
        lambda held: partial(leases.renew, **held.presenting),
        lambda held: partial(leases.checkpoint, **held.presenting, state=1),
        lambda held: partial(leases.start, **held.presenting),
    ]
    for report in reports:
        held = world.running(retry_policy={"initial_delay_ms": 0})
        expire(held)
        calls: list[Callable[[], Any]] = [_sweep, report(held)]
        with hold(held.worker.row):
            first: Actor[Any] = Actor(calls[0 if sweep_first else 1])
            first.wait_until_blocked()
            second: Actor[Any] = Actor(calls[1 if sweep_first else 0])
            second.wait_until_blocked(by=first)
        sweep, told = (first, second) if sweep_first else (second, first)
        expected = "WORKLOAD_CLAIM_INVALID" if sweep_first else "WORKLOAD_LEASE_EXPIRED"
        assert told.code() == expected
        assert sweep.value().changed == [held.workload.workload_id]
        assert events(held.workload)[-2:] == ["recovered", "ready"]
        assert held.worker.refresh().active == 0
        workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    assert_sound()


def test_a_lease_that_was_renewed_before_the_sweep_got_the_lock_is_left_alone(
    world: World,
) -> None:
    held = world.running()
    expire(held)
    with hold(held.worker.row):
        sweep = Actor(_sweep)
        sweep.wait_until_blocked()
        # As a renewal would have done whose commit the sweep waits for.
        Attempt.objects.filter(pk=held.attempt.pk).update(
            expires_at=clock.now().replace(year=clock.now().year + 1)
        )
    assert sweep.value().changed == []
    assert held.refresh().state == State.RUNNING


@pytest.mark.parametrize("complete_first", [True, False])
def test_complete_against_cancel(world: World, complete_first: bool) -> None:
    held = world.running()
    calls = [_complete(held), _cancel(world, held)]
    with hold(held.workload):
        first: Actor[Any] = Actor(calls[0 if complete_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if complete_first else 0])
        second.wait_until_blocked(by=first)
    first.value()
    assert second.code() == "WORKLOAD_TRANSITION_DENIED"
    expected = State.SUCCEEDED if complete_first else State.CANCELLATION_REQUESTED
    assert held.refresh().state == expected
    assert_sound()


def test_cancel_does_not_wait_for_the_worker_that_renews(world: World) -> None:
    held = world.running()
    with hold(held.worker.row):
        renewal = Actor(partial(leases.renew, **held.presenting))
        renewal.wait_until_blocked()
        # Ends while the worker's lock is held and waited for.
        assert Actor(_cancel(world, held)).value().state == State.CANCELLATION_REQUESTED
        assert renewal.is_running
    assert renewal.value().cancel_requested


def test_renew_does_not_wait_for_the_work_that_is_being_cancelled(world: World) -> None:
    held = world.running()
    with hold(held.workload):
        cancel = Actor(_cancel(world, held))
        cancel.wait_until_blocked()
        assert not Actor(partial(leases.renew, **held.presenting)).value().cancel_requested
        assert cancel.is_running
    cancel.value()
    assert leases.renew(**held.presenting).cancel_requested


@pytest.mark.parametrize("retry_first", [True, False])
def test_retry_against_cancel_of_a_dead_letter(world: World, retry_first: bool) -> None:
    held = world.dead_letter()
    retry = partial(workloads.retry, caller=world.operator, workload_id=held.workload.workload_id)
    calls: list[Callable[[], Any]] = [retry, _cancel(world, held)]
    with hold(held.workload):
        first: Actor[Any] = Actor(calls[0 if retry_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if retry_first else 0])
        second.wait_until_blocked(by=first)
    first.value()
    if retry_first:
        second.value()
    else:
        assert second.code() == "WORKLOAD_TRANSITION_DENIED"
    assert held.refresh().state == State.CANCELLED
    assert_sound()


def test_two_retries_at_once_give_one_try_more(world: World) -> None:
    held = world.dead_letter()
    retry = partial(workloads.retry, caller=world.operator, workload_id=held.workload.workload_id)
    ended = at_once(*[retry] * 5)
    assert codes(ended) == ["WORKLOAD_TRANSITION_DENIED"] * 4
    assert held.refresh().extra_attempts == 1
    assert_sound()


@pytest.mark.parametrize("start_first", [True, False])
def test_start_against_cancel(world: World, start_first: bool) -> None:
    held = world.claimed()
    start = partial(leases.start, **held.presenting)
    with hold(held.workload):
        first: Actor[Any] = Actor(start if start_first else _cancel(world, held))
        first.wait_until_blocked()
        second: Actor[Any] = Actor(_cancel(world, held) if start_first else start)
        second.wait_until_blocked(by=first)
    first.value()
    if start_first:
        second.value()
    else:
        assert second.code() == "WORKLOAD_CANCELLATION_REQUESTED"
    assert held.refresh().state == State.CANCELLATION_REQUESTED
    assert (held.attempt.started_at is not None) is start_first
    assert_sound()


def test_confirmed_cancel_against_the_end_of_its_grace_ends_the_work_once(world: World) -> None:
    for _ in range(5):
        held = world.cancelling(timeouts={"cancel_grace_ms": 1})
        ended = at_once(
            partial(settlement.cancelled, **held.presenting),
            partial(deadlines.enforce, workload_pk=held.workload.pk, actor="system:test"),
            partial(deadlines.enforce, workload_pk=held.workload.pk, actor="system:test"),
        )
        assert codes(ended) in ([], ["WORKLOAD_CLAIM_INVALID"])
        assert events(held.workload).count("cancelled") == 1
        assert held.worker.refresh().active == 0
    assert_sound()


def test_an_old_worker_reports_while_its_successor_starts(world: World) -> None:
    old = world.running(retry_policy={"initial_delay_ms": 0})
    expire(old)
    _sweep()
    new = world.worker()
    [claim] = new.claim()
    start, stale = at_once(lambda: new.start(claim), _complete(old))
    assert not isinstance(start, Exception)
    assert codes([stale]) == ["WORKLOAD_STALE_FENCE"]
    new.complete(claim)
    assert Actor(_complete(old)).code() == "WORKLOAD_CLAIM_INVALID"
    assert_sound()
