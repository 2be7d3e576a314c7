"""Work of the policy hold: never repeated by itself, and its truth is never turned away for age."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mesh import deadlines, leases, liveness, recovery, resolutions, settlement, workloads
from mesh.models import Attempt, AttemptStatus, LateReport, Result, State, WorkloadEvent
from tests.factories import Held, Member, World
from tests.mesh.checks import NOON, Clock, events, ms, raises, refused, unchanged

HOLD = "hold"


def complete(held: Held, **members: Any) -> Attempt:
    said = {"result_id": "r1", "output": {"pages": 3}, **members}
    return settlement.complete(**{**held.presenting, **said})


def fail(held: Held, **members: Any) -> Attempt:
    said = {"kind": "timeout", "error": "It broke.", **members}
    return settlement.fail(**{**held.presenting, **said})


def lose(clock: Clock, held: Held) -> None:
    """Let the lease of a claim end and be swept; its worker keeps beating."""
    clock.to(held.attempt.expires_at)
    recovery.run("recover_expired_leases")
    held.worker.beat()
    held.refresh()


def evidence(held: Held) -> dict[str, Any]:
    found: dict[str, Any] = (
        WorkloadEvent.objects.filter(workload=held.workload).latest("sequence").evidence
    )
    return found


# --- Lost, or out of time -------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "checkpointed"])
def test_lost_started_work_is_held(world: World, clock: Clock, state: str) -> None:
    held: Held = getattr(world, state)(lost_policy=HOLD)
    lose(clock, held)
    assert (held.workload.state, held.attempt.status) == (State.HELD, "WORKER_LOST")
    assert (events(held.workload)[-1], evidence(held)["cause"]) == ("held", "lease over")
    assert (held.worker.refresh().active, held.workload.deadline_at) == (0, None)
    assert (held.workload.last_failure or {})["kind"] == "worker_failure"


def test_lost_unstarted_work_goes_back_whatever_its_policy(world: World, clock: Clock) -> None:
    held = world.claimed(lost_policy=HOLD)
    lose(clock, held)
    assert (held.workload.state, held.workload.claimable) == (State.READY, True)
    assert events(held.workload)[-2:] == ["recovered", "ready"]


@pytest.mark.parametrize("cause", ["overall", "execution", "heartbeat"])
def test_a_time_limit_of_started_work_holds_it(world: World, clock: Clock, cause: str) -> None:
    held = world.running(lost_policy=HOLD, timeouts={f"{cause}_ms": 5_000})
    clock.pass_(ms(5_000))
    deadlines.enforce(workload_pk=held.workload.pk, actor="system:test")
    assert (held.refresh().state, held.attempt.status) == (State.HELD, "TIMED_OUT")
    assert events(held.workload)[-2:] == ["timed_out", "held"]
    assert evidence(held)["cause"] == cause
    assert held.attempt.failure == {
        "kind": "timeout",
        "error": f"{cause}_ms passed",
        "cause": cause,
    }


def test_unstarted_work_over_its_overall_time_is_buried(world: World, clock: Clock) -> None:
    held = world.claimed(lost_policy=HOLD, timeouts={"overall_ms": 5_000})
    clock.pass_(ms(5_000))
    deadlines.enforce(workload_pk=held.workload.pk, actor="system:test")
    assert held.refresh().state == State.DEAD_LETTER


def test_the_overall_time_does_not_end_held_work(world: World, clock: Clock) -> None:
    held = world.held(timeouts={"overall_ms": 5_000})
    clock.pass_(ms(3_600_000))
    assert deadlines.enforce(workload_pk=held.workload.pk, actor="system:test") is None
    assert recovery.run("enforce_deadlines").changed == []
    assert held.refresh().state == State.HELD


# --- Failed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "state"),
    [
        ({}, State.DEAD_LETTER),
        ({"no_effect": False}, State.DEAD_LETTER),
        ({"no_effect": True}, State.READY),
        ({"no_effect": True, "kind": "secret_rejected"}, State.DEAD_LETTER),
        ({"no_effect": True, "kind": "other"}, State.DEAD_LETTER),
    ],
)
def test_a_failure_is_retried_only_if_it_had_no_effect(
    world: World, members: dict[str, Any], state: State
) -> None:
    policy = {"retry_on": ["timeout", "secret_rejected"]}
    held = world.running(lost_policy=HOLD, retry_policy=policy)
    fail(held, **members)
    assert (held.refresh().state, held.worker.refresh().active) == (state, 0)


def test_work_that_is_requeued_when_lost_may_say_it_too(world: World) -> None:
    held = world.running()
    fail(held, no_effect=True)
    assert held.refresh().state == State.READY
    assert (held.attempt.failure or {})["no_effect"] is True


# --- Cancelled ------------------------------------------------------------------------------------


def cancelling(world: World, maker: str = "running", **members: Any) -> Held:
    held: Held = getattr(world, maker)(lost_policy=HOLD, **members)
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    return held


def test_a_cancel_whose_grace_passed_holds_started_work(world: World, clock: Clock) -> None:
    held = cancelling(world)
    clock.pass_(ms(60_000))
    deadlines.enforce(workload_pk=held.workload.pk, actor="system:test")
    assert (held.refresh().state, held.attempt.status) == (State.HELD, "TIMED_OUT")
    assert (events(held.workload)[-1], evidence(held)["cause"]) == ("held", "cancel_grace")


def test_a_cancel_whose_grace_passed_ends_unstarted_work(world: World, clock: Clock) -> None:
    held = cancelling(world, "claimed")
    clock.pass_(ms(60_000))
    deadlines.enforce(workload_pk=held.workload.pk, actor="system:test")
    assert held.refresh().state == State.CANCELLED


@pytest.mark.parametrize(("maker", "state"), [("running", "HELD"), ("claimed", "CANCELLED")])
def test_lost_work_that_was_to_be_cancelled_is_held_if_it_started(
    world: World, clock: Clock, maker: str, state: str
) -> None:
    held = cancelling(world, maker)
    lose(clock, held)
    assert (held.workload.state, held.attempt.status) == (state, "WORKER_LOST")


def test_what_really_happened_is_taken_while_a_cancel_is_asked(world: World) -> None:
    done, broken = cancelling(world), cancelling(world)
    assert complete(done).status == AttemptStatus.SUCCEEDED
    assert done.refresh().state == State.SUCCEEDED
    assert fail(broken).status == AttemptStatus.FAILED
    assert (broken.refresh().state, events(broken.workload)[-2:]) == (
        State.CANCELLED,
        ["failed", "cancelled"],
    )


@pytest.mark.parametrize("report", [complete, fail])
def test_work_that_did_not_start_has_no_truth_to_tell(
    world: World, report: Callable[[Held], Attempt]
) -> None:
    held = cancelling(world, "claimed")
    with refused("WORKLOAD_TRANSITION_DENIED"):
        report(held)


def test_held_work_is_not_cancelled_but_resolved(world: World) -> None:
    held = world.held()
    with refused("WORKLOAD_TRANSITION_DENIED"):
        workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)


# --- Late reports ---------------------------------------------------------------------------------


@pytest.mark.parametrize("swept", [False, True])
def test_a_late_completion_of_the_latest_claim_settles(
    world: World, clock: Clock, swept: bool
) -> None:
    held = world.running(lost_policy=HOLD)
    clock.to(held.attempt.expires_at)
    if swept:
        lose(clock, held)
    attempt = complete(held)
    assert (attempt.status, attempt.failure, attempt.ended_at) == ("SUCCEEDED", None, clock.at)
    assert (held.refresh().state, events(held.workload)[-1]) == (State.SUCCEEDED, "completed")
    assert Result.objects.get(workload=held.workload).author == ""
    assert held.worker.refresh().active == 0


@pytest.mark.parametrize(
    ("members", "state", "last"),
    [
        ({}, State.DEAD_LETTER, "dead_lettered"),
        ({"no_effect": True}, State.READY, "ready"),
    ],
)
def test_a_late_failure_of_held_work_settles(
    world: World, members: dict[str, Any], state: State, last: str
) -> None:
    held = world.held()
    assert fail(held, **members).status == AttemptStatus.FAILED
    work = held.refresh()
    assert (work.state, events(work)[-2:]) == (state, ["failed", last])
    assert (work.retries, held.worker.refresh().active) == (1, 0)
    assert state != State.READY or work.available_at == NOON + ms(1_000)


def test_a_late_failure_of_work_that_was_to_be_cancelled_cancels_it(
    world: World, clock: Clock
) -> None:
    held = cancelling(world)
    lose(clock, held)
    fail(held, no_effect=True)
    assert held.refresh().state == State.CANCELLED


@pytest.mark.parametrize("report", [complete, fail])
def test_a_late_report_may_be_repeated(
    world: World, clock: Clock, report: Callable[[Held], Attempt]
) -> None:
    held = world.held()
    first = report(held)
    clock.pass_(ms(3_600_000))
    with unchanged():
        assert report(held).status == first.status


def test_only_complete_and_fail_may_be_late(world: World, clock: Clock) -> None:
    held = cancelling(world)
    clock.to(held.attempt.expires_at)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        settlement.cancelled(**held.presenting)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        leases.checkpoint(**held.presenting, state=1)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        leases.start(**held.presenting)


def test_requeued_work_is_not_settled_late(world: World, clock: Clock) -> None:
    held = world.running()
    clock.to(held.attempt.expires_at)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        complete(held)


def test_a_late_report_is_that_of_its_own_worker_and_token(world: World) -> None:
    held, other = world.held(), world.worker()
    with refused("WORKLOAD_CLAIM_INVALID"):
        complete(held, caller=other.caller)
    with refused("WORKLOAD_CLAIM_INVALID"):
        complete(held, fencing_token=99)


# --- Evidence -------------------------------------------------------------------------------------


def requeue(world: World, held: Held) -> None:
    resolutions.resolve(
        caller=world.operator,
        workload_id=held.workload.workload_id,
        resolution="requeue",
        reason="do it again",
    )


def overtaken(world: World) -> tuple[Held, Held]:
    """Work that was sent back while its first worker still had something to say, and claimed."""
    old = world.held()
    requeue(world, old)
    new = world.worker()
    [claim] = new.claim()
    new.start(claim)
    return old, Held(old.workload, new, claim)


def kept(held: Held) -> list[tuple[str, str, Any]]:
    rows = LateReport.objects.filter(attempt=held.attempt).order_by("pk")
    return [(each.step, each.code, each.body) for each in rows]


def test_a_report_of_an_older_claim_is_refused_and_kept_once(world: World) -> None:
    old, new = overtaken(world)
    for _ in range(2):
        with raises("WORKLOAD_STALE_FENCE"):
            complete(old)
    with raises("WORKLOAD_STALE_FENCE"):
        fail(old)
    [(step, code, body), (other, _, failure)] = kept(old)
    assert (step, code, body["output"]) == ("complete", "WORKLOAD_STALE_FENCE", {"pages": 3})
    assert (other, failure["kind"]) == ("fail", "timeout")
    assert new.refresh().state == State.RUNNING
    assert complete(new).status == AttemptStatus.SUCCEEDED


def test_an_older_claim_is_stale_also_while_the_later_one_is_held(world: World) -> None:
    old, new = overtaken(world)
    resolutions.reclaim(
        caller=world.operator, workload_id=new.workload.workload_id, reason="it hangs"
    )
    with raises("WORKLOAD_STALE_FENCE"):
        complete(old)
    assert kept(old)
    assert complete(new).status == AttemptStatus.SUCCEEDED


def test_a_report_after_somebody_resolved_the_work_is_refused_and_kept(world: World) -> None:
    held = world.held()
    requeue(world, held)
    with raises("WORKLOAD_CLAIM_INVALID"):
        complete(held)
    assert [each[:2] for each in kept(held)] == [("complete", "WORKLOAD_CLAIM_INVALID")]
    assert held.refresh().state == State.READY


@pytest.mark.parametrize(
    ("report", "members"),
    [
        (complete, {"output": {"password": "x"}}),
        (complete, {"output": "x" * 1024 * 1024}),
        (fail, {"details": {"token": "x"}}),
        (fail, {"error": "-----BEGIN PRIVATE KEY-----"}),
    ],
)
def test_what_may_not_be_stored_leaves_only_that_it_came(
    world: World, report: Callable[..., Attempt], members: dict[str, Any]
) -> None:
    old, _ = overtaken(world)
    with raises("WORKLOAD_STALE_FENCE"):
        report(old, **members)
    [(step, _, body)] = kept(old)
    assert (step, body) == (report.__name__, None)


def test_of_one_attempt_not_without_end_is_kept(world: World) -> None:
    old, _ = overtaken(world)
    for number in range(25):
        with raises("WORKLOAD_STALE_FENCE"):
            complete(old, output=number)
    assert len(kept(old)) == 20


@pytest.mark.parametrize("maker", ["running", "claimed"])
def test_nothing_is_kept_of_other_work(world: World, clock: Clock, maker: str) -> None:
    policy = {"running": "requeue", "claimed": HOLD}[maker]
    held = getattr(world, maker)(lost_policy=policy, retry_policy={"initial_delay_ms": 0})
    lose(clock, held)
    with raises("WORKLOAD_CLAIM_INVALID"):
        complete(held)
    assert kept(held) == []


# --- Coming back ----------------------------------------------------------------------------------


def reconcile(worker: Member, **lists: list[str]) -> liveness.Reconciliation:
    names = ("known_claims", "running_attempts", "completed_attempts", "failed_attempts")
    said: dict[str, Any] = {each: lists.get(each, []) for each in names}
    return liveness.reconcile(
        caller=worker.caller,
        worker_id=worker.worker_id,
        worker_version="1.0",
        capability_version=1,
        timestamp=NOON,
        **said,
    )


def test_reconcile_lets_started_work_of_the_latest_claim_run_on_and_report(
    world: World, clock: Clock
) -> None:
    held = world.running(lost_policy=HOLD)
    clock.to(held.attempt.expires_at)
    attempt = held.attempt.attempt_id
    for _ in range(2):
        said = reconcile(
            held.worker,
            known_claims=[held.claim.claim_id],
            running_attempts=[attempt],
            completed_attempts=[attempt],
        )
        assert (said.cancel_attempts, said.reports) == ([], {attempt: "accepted"})
        assert (said.authoritative_claims, said.fenced_claims) == ([], [held.claim.claim_id])
        recovery.run("recover_expired_leases")
    assert held.refresh().state == State.HELD


def test_reconcile_stops_work_of_an_older_claim_and_fences_its_report(world: World) -> None:
    old, _ = overtaken(world)
    attempt = old.attempt.attempt_id
    said = reconcile(old.worker, running_attempts=[attempt], failed_attempts=[attempt])
    assert (said.cancel_attempts, said.reports) == ([attempt], {attempt: "fenced"})


def test_reconcile_knows_a_late_report_that_was_recorded(world: World) -> None:
    held = world.held()
    complete(held)
    attempt = held.attempt.attempt_id
    assert reconcile(held.worker, completed_attempts=[attempt]).reports == {
        attempt: "already_recorded"
    }


def test_a_started_claim_that_the_worker_forgot_is_held(world: World) -> None:
    held = world.running(lost_policy=HOLD)
    reconcile(held.worker)
    assert (held.refresh().state, evidence(held)["cause"]) == (State.HELD, "forgotten")
