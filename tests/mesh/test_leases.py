"""The fence, start, renew, checkpoint, and what becomes of a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mesh import leases, placing, recovery, settlement, workers, workloads
from mesh.models import Attempt, AttemptStatus, Checkpoint, Grant, State, SweepRun, Worker
from tests.factories import Held, World
from tests.mesh.checks import MICRO, NOON, Clock, counted, events, ms, refused, unchanged

KIB = 1024
LEASE = ms(30_000)
Call = Callable[..., Any]


def complete(**shown: Any) -> Any:
    return settlement.complete(**shown, result_id="r", output=None)


def fail(**shown: Any) -> Any:
    return settlement.fail(**shown, kind="broken", error="It broke.")


def checkpoint(**shown: Any) -> Any:
    return leases.checkpoint(**shown, state={"page": 7})


CALLS: dict[str, Call] = {
    "start": leases.start,
    "renew": leases.renew,
    "checkpoint": checkpoint,
    "complete": complete,
    "fail": fail,
    "cancelled": settlement.cancelled,
    "release": settlement.release,
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def presented(world: World, call: Call, **members: Any) -> Held:
    """Work in a state in which `call` would be accepted."""
    if call in {leases.start, settlement.release}:
        return world.claimed(**members)
    if call is settlement.cancelled:
        return world.cancelling(**members)
    return world.running(**members)


def expire(clock: Clock) -> None:
    clock.to(NOON + LEASE)


def give_away(world: World, held: Held, clock: Clock) -> Held:
    """The lease ends, the work is recovered and another worker claims it."""
    expire(clock)
    recovery.run("recover_expired_leases")
    clock.pass_(ms(60_000))
    recovery.run("promote_due")
    other = world.worker()
    given = placing.place(
        caller=world.operator,
        workload_id=held.workload.workload_id,
        worker_id=other.worker_id,
    )
    return Held(held.workload, other, given)


# --- The fence ------------------------------------------------------------------------------------


@every_call
def test_worker_call_is_accepted_until_just_before_the_lease_ends(
    world: World, clock: Clock, call: Call
) -> None:
    held = presented(world, call)
    clock.to(NOON + LEASE - MICRO)
    call(**held.presenting)


@every_call
def test_worker_call_is_refused_from_the_very_end_of_the_lease(
    world: World, clock: Clock, call: Call
) -> None:
    held = presented(world, call)
    expire(clock)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        call(**held.presenting)


@every_call
@pytest.mark.parametrize("claim_id", ["claim_" + "0" * 32, "claim_x", "", "lease_1", "claim_" * 9])
def test_unknown_claim_is_not_found(world: World, call: Call, claim_id: str) -> None:
    held = world.running()
    with refused("CLAIM_NOT_FOUND"):
        call(**{**held.presenting, "claim_id": claim_id})


@every_call
def test_claim_of_another_tenant_is_not_found(world: World, call: Call) -> None:
    held = presented(world, call)
    stranger = World().worker()
    with refused("CLAIM_NOT_FOUND"):
        call(**{**held.presenting, "caller": stranger.caller})


@every_call
@pytest.mark.parametrize("difference", [-1, 1])
def test_another_token_is_stale(world: World, call: Call, difference: int) -> None:
    held = presented(world, call)
    with refused("WORKLOAD_STALE_FENCE"):
        call(**{**held.presenting, "fencing_token": held.claim.fencing_token + difference})


@every_call
def test_another_worker_presenting_the_claim_is_stale(world: World, call: Call) -> None:
    held = presented(world, call)
    other = world.worker()
    with refused("WORKLOAD_STALE_FENCE"):
        call(**{**held.presenting, "caller": other.caller})


@every_call
def test_stale_is_told_before_a_lease_that_is_over(world: World, clock: Clock, call: Call) -> None:
    held = presented(world, call)
    expire(clock)
    with refused("WORKLOAD_STALE_FENCE"):
        call(**{**held.presenting, "fencing_token": 99})


@every_call
def test_claim_of_ended_work_is_known_and_invalid(world: World, call: Call) -> None:
    held = world.succeeded()
    with refused("WORKLOAD_CLAIM_INVALID"):
        call(**held.presenting)


# Cancelled work gets no successor.
@pytest.mark.parametrize(
    "call", [each for each in CALLS.values() if each is not CALLS["cancelled"]]
)
def test_old_claim_is_stale_while_a_successor_holds_the_work(
    world: World, clock: Clock, call: Call
) -> None:
    held = presented(world, call)
    give_away(world, held, clock)
    with refused("WORKLOAD_STALE_FENCE"):
        call(**held.presenting)


@every_call
def test_only_a_worker_presents_claims(world: World, call: Call) -> None:
    held = presented(world, call)
    with refused("PERMISSION_DENIED"):
        call(**{**held.presenting, "caller": world.operator})


# --- Start ----------------------------------------------------------------------------------------


def test_start_runs_the_work_and_resets_the_unstarted_counter(world: World) -> None:
    worker = world.worker()
    work = world.workload()
    lost = worker.claim()[0]
    settlement.release(**worker.presenting(lost))
    claim = worker.claim()[0]
    attempt = worker.start(claim)
    work.refresh_from_db()
    assert (work.state, work.unstarted_losses, work.started_attempts) == (State.RUNNING, 0, 1)
    assert (attempt.status, attempt.started_at) == (AttemptStatus.RUNNING, NOON)
    assert events(work) == ["ready", "claimed", "released", "claimed", "started"]


def test_start_is_answered_again_while_the_lease_lives(world: World, clock: Clock) -> None:
    held = world.running()
    clock.pass_(LEASE - MICRO)
    with unchanged():
        again = leases.start(**held.presenting)
    assert (again.status, again.started_at) == (AttemptStatus.RUNNING, NOON)


def test_start_is_answered_again_after_a_checkpoint(world: World) -> None:
    held = world.checkpointed()
    with unchanged():
        assert leases.start(**held.presenting).status == AttemptStatus.CHECKPOINTED


def test_start_is_never_answered_after_the_lease_though_complete_is(
    world: World, clock: Clock
) -> None:
    lost = world.running()
    done = world.running()
    complete(**done.presenting)
    expire(clock)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        leases.start(**lost.presenting)
    with unchanged():
        assert complete(**done.presenting).status == AttemptStatus.SUCCEEDED


def make_unreconciled(world: World, held: Held) -> None:
    Worker.objects.filter(pk=held.worker.row.pk).update(is_unreconciled=True)


def make_offline(world: World, held: Held) -> None:
    Worker.objects.filter(pk=held.worker.row.pk).update(lifecycle="OFFLINE")


def ask_to_cancel(world: World, held: Held) -> None:
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)


@pytest.mark.parametrize("broken", [make_unreconciled, make_offline])
def test_start_needs_a_reconciled_worker(world: World, broken: Call) -> None:
    held = world.claimed()
    broken(world, held)
    with refused("WORKER_RECOVERY_REQUIRED"):
        leases.start(**held.presenting)


def test_start_is_refused_once_a_cancel_was_requested(world: World) -> None:
    held = world.claimed()
    ask_to_cancel(world, held)
    with refused("WORKLOAD_CANCELLATION_REQUESTED"):
        leases.start(**held.presenting)


def test_start_tells_a_cancel_before_it_repeats(world: World) -> None:
    held = world.running()
    ask_to_cancel(world, held)
    with refused("WORKLOAD_CANCELLATION_REQUESTED"):
        leases.start(**held.presenting)


def test_start_asks_for_a_reconcile_before_it_tells_a_cancel(world: World) -> None:
    held = world.claimed()
    ask_to_cancel(world, held)
    make_unreconciled(world, held)
    with refused("WORKER_RECOVERY_REQUIRED"):
        leases.start(**held.presenting)


def test_start_tells_the_fence_before_the_reconcile(world: World, clock: Clock) -> None:
    held = world.claimed()
    make_unreconciled(world, held)
    expire(clock)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        leases.start(**held.presenting)


def test_a_draining_worker_starts_what_it_holds(world: World) -> None:
    held = world.claimed()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id)
    assert leases.start(**held.presenting).status == AttemptStatus.RUNNING


# --- Renew ----------------------------------------------------------------------------------------


def test_renew_ends_the_lease_at_now_and_its_length(world: World, clock: Clock) -> None:
    held = world.running()
    clock.pass_(ms(20_000))
    renewal = leases.renew(**held.presenting, lease_ms=45_000)
    assert renewal.expires_at == held.attempt.expires_at == NOON + ms(65_000)
    assert (renewal.state, renewal.cancel_requested, renewal.deadline) == ("RUNNING", False, None)


def test_renew_never_makes_a_lease_shorter(world: World) -> None:
    held = world.running()
    assert leases.renew(**held.presenting, lease_ms=1_000).expires_at == NOON + LEASE


def test_renew_of_unstarted_work_is_accepted(world: World, clock: Clock) -> None:
    held = world.claimed()
    clock.pass_(ms(1_000))
    assert leases.renew(**held.presenting).expires_at == NOON + ms(31_000)


def test_renew_tells_a_requested_cancel(world: World) -> None:
    renewal = leases.renew(**world.cancelling().presenting)
    assert (renewal.state, renewal.cancel_requested) == ("CANCELLATION_REQUESTED", True)


@pytest.mark.parametrize(
    ("timeouts", "expected"),
    [
        ({"execution_ms": 5_000}, 5_000),
        ({"overall_ms": 4_000}, 4_000),
        ({"execution_ms": 5_000, "overall_ms": 4_000}, 4_000),
        ({"execution_ms": 3_000, "overall_ms": 4_000}, 3_000),
    ],
)
def test_renew_tells_the_deadline_that_comes_first(
    world: World, timeouts: dict[str, int], expected: int
) -> None:
    held = world.running(timeouts=timeouts)
    assert leases.renew(**held.presenting).deadline == NOON + ms(expected)


@pytest.mark.parametrize("lease_ms", [999, 900_001, 0, -1])
def test_a_lease_out_of_bounds_is_refused(world: World, lease_ms: int) -> None:
    held = world.claimed()
    world.workload()
    with refused("WORKLOAD_INVALID"):
        leases.renew(**held.presenting, lease_ms=lease_ms)
    with refused("WORKLOAD_INVALID"):
        held.worker.claim(lease_ms=lease_ms)


@pytest.mark.parametrize("lease_ms", [1_000, 900_000])
def test_a_lease_within_its_bounds_is_the_callers_choice(world: World, lease_ms: int) -> None:
    worker = world.worker()
    world.workload()
    assert worker.claim(lease_ms=lease_ms)[0].expires_at == NOON + ms(lease_ms)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(1_000, 30_000), (10_000, 30_000), (10_001, 30_003), (60_000, 180_000)],
)
def test_a_lease_without_a_length_lasts_three_beats_and_at_least_half_a_minute(
    world: World, interval: int, expected: int
) -> None:
    worker = world.worker(heartbeat_interval_ms=interval, heartbeat_timeout_ms=900_000)
    held = world.running(worker)
    assert held.claim.expires_at == NOON + ms(expected)
    assert leases.renew(**held.presenting).expires_at == NOON + ms(expected)


def test_renew_is_refused_under_a_revoked_grant_before_anybody_was_drained(world: World) -> None:
    held = world.running()
    Grant.objects.filter(pk=held.worker.row.grant_id).update(status="REVOKED")
    with refused("GRANT_REVOKED"):
        leases.renew(**held.presenting)


def drained(world: World, held: Held, deadline_ms: int) -> None:
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id, deadline_ms=deadline_ms)


def test_renew_goes_on_until_the_deadline_of_the_drain(world: World, clock: Clock) -> None:
    held = world.running()
    drained(world, held, 5_000)
    clock.to(NOON + ms(5_000) - MICRO)
    leases.renew(**held.presenting)
    clock.to(NOON + ms(5_000))
    with refused("WORKER_DRAINED"):
        leases.renew(**held.presenting)


def test_renew_tells_a_revoked_grant_before_a_drain_deadline_and_that_before_a_length(
    world: World,
) -> None:
    held = world.running()
    drained(world, held, 0)
    with refused("WORKER_DRAINED"):
        leases.renew(**held.presenting, lease_ms=1)
    Grant.objects.filter(pk=held.worker.row.grant_id).update(status="REVOKED")
    with refused("GRANT_REVOKED"):
        leases.renew(**held.presenting, lease_ms=1)


def test_renew_tells_the_fence_before_a_revoked_grant(world: World, clock: Clock) -> None:
    held = world.running()
    Grant.objects.filter(pk=held.worker.row.grant_id).update(status="REVOKED")
    expire(clock)
    with refused("WORKLOAD_LEASE_EXPIRED"):
        leases.renew(**held.presenting)


def test_renew_is_no_progress(world: World, clock: Clock) -> None:
    held = world.running()
    clock.pass_(ms(5_000))
    leases.renew(**held.presenting)
    held.worker.beat(held.claim.claim_id)
    assert held.worker.refresh().last_progress_at == NOON
    assert held.attempt.last_progress_at == NOON


def sweeps_finished(at: Any) -> None:
    SweepRun.objects.update_or_create(
        name="recover_expired_leases", defaults={"last_finished_at": at}
    )


def test_a_lease_that_is_over_is_renewed_while_the_sweeps_are_out(
    world: World, clock: Clock
) -> None:
    held = world.running()
    sweeps_finished(NOON)
    clock.to(NOON + ms(30_000))
    with refused("WORKLOAD_LEASE_EXPIRED"):
        leases.renew(**held.presenting)
    clock.pass_(MICRO)
    assert leases.renew(**held.presenting).expires_at == clock.at + LEASE


def test_a_lease_that_is_over_is_not_renewed_where_no_sweep_ever_ran(
    world: World, clock: Clock
) -> None:
    held = world.running()
    clock.to(NOON + ms(90_000))
    with refused("WORKLOAD_LEASE_EXPIRED"):
        leases.renew(**held.presenting)


@pytest.mark.parametrize("name", ["checkpoint", "complete", "fail", "start"])
def test_an_outage_of_the_sweeps_excuses_renewals_alone(
    world: World, clock: Clock, name: str
) -> None:
    held = presented(world, CALLS[name])
    sweeps_finished(NOON)
    clock.to(NOON + ms(31_000))
    with refused("WORKLOAD_LEASE_EXPIRED"):
        CALLS[name](**held.presenting)


# --- Checkpoint -----------------------------------------------------------------------------------


def keep(held: Held, state: Any) -> Attempt:
    return leases.checkpoint(**held.presenting, state=state)


def test_checkpoints_are_numbered_and_the_next_claimant_gets_the_latest(
    world: World, clock: Clock
) -> None:
    held = world.running()
    keep(held, {"page": 1})
    assert keep(held, {"page": 2}).status == AttemptStatus.CHECKPOINTED
    assert held.refresh().state == State.CHECKPOINTED
    assert give_away(world, held, clock).claim.checkpoint == (2, {"page": 2})


def test_a_repeat_of_the_latest_checkpoint_writes_nothing(world: World, clock: Clock) -> None:
    held = world.running()
    keep(held, {"page": 1})
    expire(clock)
    with unchanged():
        assert keep(held, {"page": 1}).attempt_id == held.claim.attempt_id


def test_a_checkpoint_equal_to_an_older_one_is_new(world: World) -> None:
    held = world.running()
    for page in (1, 2, 1):
        keep(held, {"page": page})
    kept = Checkpoint.objects.filter(workload=held.workload).order_by("sequence")
    assert [(each.sequence, each.state["page"]) for each in kept] == [(1, 1), (2, 2), (3, 1)]


def test_the_same_checkpoint_by_a_later_claim_is_new(world: World, clock: Clock) -> None:
    held = world.checkpointed()
    heir = give_away(world, held, clock)
    heir.worker.start(heir.claim)
    keep(heir, {"page": 1})
    assert Checkpoint.objects.filter(workload=held.workload).count() == 2


def test_a_repeat_with_another_token_is_no_repeat(world: World) -> None:
    held = world.checkpointed()
    with refused("WORKLOAD_STALE_FENCE"):
        leases.checkpoint(**{**held.presenting, "fencing_token": 9}, state={"page": 1})


def test_the_last_ten_checkpoints_are_kept(world: World) -> None:
    held = world.running()
    for page in range(1, 13):
        keep(held, page)
    kept = Checkpoint.objects.filter(workload=held.workload).order_by("sequence")
    assert [each.sequence for each in kept] == list(range(3, 13))


@pytest.mark.parametrize("state", ["claimed", "cancelling"])
def test_only_running_work_keeps_checkpoints(world: World, state: str) -> None:
    held = getattr(world, state)()
    with refused("WORKLOAD_TRANSITION_DENIED"):
        keep(held, {"password": "x"})


def test_a_checkpoint_is_screened_before_it_is_measured(world: World) -> None:
    held = world.running()
    with refused("WORKLOAD_SECRET_REJECTED"):
        keep(held, {"token": "x" * 257 * KIB})


def test_a_checkpoint_has_at_most_256_kib(world: World) -> None:
    held = world.running()
    keep(held, "x" * (256 * KIB - 2))
    with refused("WORKLOAD_INVALID"):
        keep(held, "x" * (256 * KIB - 1))


def test_a_checkpoint_is_progress(world: World, clock: Clock) -> None:
    held = world.running()
    clock.pass_(ms(5_000))
    keep(held, 1)
    assert held.worker.refresh().last_progress_at == clock.at
    assert held.attempt.last_progress_at == clock.at


# --- Losing ---------------------------------------------------------------------------------------


def test_losing_one_or_five_claims_takes_as_many_statements(world: World, clock: Clock) -> None:
    counts = []
    for number in (1, 5):
        worker = world.worker(concurrency=5)
        held = [world.running(worker) for _ in range(number)]
        attempts = [each.attempt for each in held]
        with counted() as queries:
            leases.lose(worker.row, attempts, cause="test", actor="system:test", at=clock.at)
        counts.append(len(queries))
    # The fuller worker was BUSY, and its move back to READY is one event more.
    assert counts[1] - counts[0] in {0, 1}
