"""Heartbeat, reconcile, and falling silent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mesh import leases, liveness, revocations, workers, workloads
from mesh.models import AttemptStatus, Grant, State, Worker, Workload
from tests.factories import Held, Member, World
from tests.mesh.checks import (
    MICRO,
    NOON,
    Clock,
    counted,
    events,
    ms,
    refused,
    unchanged,
    worker_events,
)


def beat(member: Member, *running: str, **members: Any) -> liveness.Beat:
    said: dict[str, Any] = {
        "caller": member.caller,
        "worker_id": member.worker_id,
        "version": member.row.version,
        "capability_version": member.row.capability_version,
        "health": "HEALTHY",
        "timestamp": NOON,
        "running_claims": list(running),
        **members,
    }
    return liveness.heartbeat(**said)


# --- Heartbeat: checks in their order -------------------------------------------------------------


def test_heartbeat_needs_a_known_worker_that_speaks_for_itself(world: World) -> None:
    worker, other = world.worker(), world.worker()
    with refused("WORKER_NOT_FOUND"):
        beat(worker, worker_id="worker_x")
    with refused("PERMISSION_DENIED"):
        beat(worker, worker_id=other.worker_id)
    with refused("PERMISSION_DENIED"):
        beat(worker, caller=world.operator)


@pytest.mark.parametrize("members", [{"version": "9"}, {"capability_version": 9}])
def test_heartbeat_with_other_versions_is_rejected_before_its_clock(
    world: World, members: dict[str, Any]
) -> None:
    worker = world.worker()
    with refused("WORKER_HEARTBEAT_REJECTED"):
        beat(worker, **members, timestamp=NOON - ms(60_000))


def test_heartbeat_refuses_a_clock_that_went_back_over_five_seconds(world: World) -> None:
    worker = world.worker()
    beat(worker, timestamp=NOON - ms(5_000))
    worker = world.worker()
    with refused("WORKER_CLOCK_INVALID"):
        beat(worker, timestamp=NOON - ms(5_000) - MICRO)


def test_heartbeat_tells_a_bad_clock_before_a_reconcile_and_that_before_a_bad_capacity(
    world: World,
) -> None:
    worker = world.worker()
    Worker.objects.filter(pk=worker.row.pk).update(is_unreconciled=True)
    with refused("WORKER_CLOCK_INVALID"):
        beat(worker, timestamp=NOON - ms(6_000), concurrency=0)
    with refused("WORKER_RECOVERY_REQUIRED"):
        beat(worker, concurrency=0)


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("", "Reconcile first."),
        ("worker", "Reconcile first."),
        ("operator", "The worker was drained: an operator's recover lets it back."),
        (
            "revocation",
            "The grant was revoked and the worker drained: register under one in force.",
        ),
    ],
)
def test_a_worker_out_of_service_is_told_what_brings_it_back(
    world: World, cause: str, told: str
) -> None:
    worker = world.worker()
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle="OFFLINE", drain_cause=cause)
    with refused("WORKER_RECOVERY_REQUIRED") as refusal:
        beat(worker)
    assert refusal.value.detail == told


@pytest.mark.parametrize("lifecycle", ["OFFLINE", "RECOVERING"])
def test_heartbeat_of_a_lost_worker_asks_for_a_reconcile(world: World, lifecycle: str) -> None:
    worker = world.worker()
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle=lifecycle)
    with refused("WORKER_RECOVERY_REQUIRED"):
        beat(worker)


@pytest.mark.parametrize("concurrency", [0, 1_001])
def test_heartbeat_refuses_a_capacity_out_of_bounds(world: World, concurrency: int) -> None:
    worker = world.worker()
    with refused("WORKER_INVALID"):
        beat(worker, concurrency=concurrency)


# --- Heartbeat: effects ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "skew", "stored"),
    [
        (NOON - ms(2_500), -2_500, NOON - ms(2_500)),
        (NOON + ms(4_000), 4_000, NOON),
        (NOON, 0, NOON),
    ],
)
def test_the_reported_time_gives_the_skew_and_is_stored_capped(
    world: World, reported: datetime, skew: int, stored: datetime
) -> None:
    worker = world.registered()
    beat(worker, timestamp=reported)
    row = worker.refresh()
    assert (row.clock_skew_ms, row.reported_at, row.last_seen_at) == (skew, stored, NOON)


def test_a_clock_that_was_far_ahead_may_be_set_right(world: World, clock: Clock) -> None:
    worker = world.registered()
    beat(worker, timestamp=NOON + ms(86_400_000))
    clock.pass_(ms(10_000))
    beat(worker, timestamp=clock.at)
    assert worker.refresh().clock_skew_ms == 0


@pytest.mark.parametrize("health", ["HEALTHY", "DEGRADED", "UNHEALTHY", "UNKNOWN"])
def test_health_is_as_reported(world: World, health: str) -> None:
    worker = world.registered()
    beat(worker, health=health)
    assert (worker.refresh().health, worker.row.lifecycle) == (health, "READY")


def test_the_first_beat_makes_a_registered_worker_ready(world: World) -> None:
    worker = world.registered()
    beat(worker)
    assert worker_events(worker.refresh()) == ["registered", "ready"]


def test_a_capacity_below_what_is_active_only_stops_new_claims(world: World) -> None:
    worker = world.worker()
    held = [world.running(worker) for _ in range(2)]
    world.workload()
    beat(worker, *[each.claim.claim_id for each in held], concurrency=1)
    assert (worker.refresh().lifecycle, worker.row.active, worker.row.concurrency) == ("BUSY", 2, 1)
    assert worker.claim() == []
    worker.complete(held[0].claim)
    assert worker.refresh().lifecycle == "BUSY"
    worker.complete(held[1].claim)
    assert worker.refresh().lifecycle == "READY"


def test_a_beat_renews_the_listed_claims_by_the_length_each_was_claimed_with(
    world: World, clock: Clock
) -> None:
    worker = world.worker()
    work = [world.workload() for _ in range(2)]
    short, long = worker.claim(lease_ms=20_000)[0], worker.claim(lease_ms=60_000)[0]
    worker.start(long)
    clock.pass_(ms(10_000))
    answer = beat(worker, short.claim_id, long.claim_id)
    ends = {each.claim_id: each.expires_at for each in answer.renewed}
    assert ends == {
        short.claim_id: clock.at + ms(20_000),
        long.claim_id: clock.at + ms(60_000),
    }
    assert [each.attempts.get().expires_at for each in work] == list(ends.values())


def test_a_beat_does_not_renew_what_it_does_not_list(world: World, clock: Clock) -> None:
    held = world.running()
    clock.pass_(ms(10_000))
    answer = beat(held.worker)
    assert (answer.renewed, held.attempt.expires_at) == ([], NOON + ms(30_000))


def test_a_beat_never_makes_a_lease_shorter(world: World) -> None:
    worker = world.worker()
    world.workload()
    claim = worker.claim(lease_ms=2_000)[0]
    worker.start(claim)
    leases.renew(**worker.presenting(claim), lease_ms=90_000)
    assert beat(worker, claim.claim_id).renewed[0].expires_at == NOON + ms(90_000)


def test_a_beat_does_not_renew_a_lease_that_is_over(world: World, clock: Clock) -> None:
    held = world.running()
    clock.to(NOON + ms(30_000))
    answer = beat(held.worker, held.claim.claim_id)
    assert (answer.renewed, answer.fenced_claims) == ([], [held.claim.claim_id])


def test_a_beat_under_a_revoked_grant_is_heard_and_renews_nothing(
    world: World, clock: Clock
) -> None:
    held = world.running()
    Grant.objects.filter(pk=held.worker.row.grant_id).update(status="REVOKED")
    clock.pass_(ms(10_000))
    answer = beat(held.worker, held.claim.claim_id)
    assert (answer.renewed, held.worker.refresh().last_seen_at) == ([], clock.at)
    assert held.attempt.expires_at == NOON + ms(30_000)


@pytest.mark.parametrize(("before", "renewed"), [(MICRO, 1), (0 * MICRO, 0)])
def test_a_beat_renews_until_the_drain_deadline(
    world: World, clock: Clock, before: Any, renewed: int
) -> None:
    held = world.running()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id, deadline_ms=5_000)
    clock.to(NOON + ms(5_000) - before)
    assert len(beat(held.worker, held.claim.claim_id).renewed) == renewed


@pytest.mark.parametrize("status", ["expired", "SUPERSEDED"])
def test_beats_and_renewals_go_on_under_an_expired_or_superseded_grant(
    world: World, clock: Clock, status: str
) -> None:
    worker = world.worker(grant=world.grant(expires_in_ms=5_000)[1])
    held = world.running(worker)
    if status == "expired":
        clock.to(NOON + ms(5_000))
    else:
        Grant.objects.filter(pk=worker.row.grant_id).update(status=status)
    answer = beat(worker, held.claim.claim_id)
    assert (len(answer.renewed), answer.grant_ends_at) == (1, NOON + ms(5_000))


# --- Heartbeat: what it tells ---------------------------------------------------------------------


def test_a_beat_tells_fenced_claims(world: World) -> None:
    worker = world.worker()
    lost, foreign, own = world.succeeded(worker), world.running(), world.running(worker)
    listed = [lost.claim.claim_id, foreign.claim.claim_id, own.claim.claim_id, "claim_x"]
    assert beat(worker, *listed).fenced_claims == [listed[0], listed[1], "claim_x"]


def test_a_beat_tells_claims_to_cancel(world: World) -> None:
    held = world.cancelling()
    assert beat(held.worker).cancel_claims == [held.claim.claim_id]


def test_a_beat_tells_started_claims_that_are_missing(world: World) -> None:
    worker = world.worker()
    listed, missing, _ = world.running(worker), world.running(worker), world.claimed(worker)
    assert beat(worker, listed.claim.claim_id).missing_claims == [missing.claim.claim_id]


def test_a_beat_tells_unstarted_claims_in_full_after_a_lost_answer(world: World) -> None:
    worker = world.worker()
    world.workload(input={"page": 5})
    claim = worker.claim()[0]
    assert beat(worker).assigned_claims == [claim]
    assert beat(worker, claim.claim_id).assigned_claims == []


def test_a_claim_cancelled_before_its_worker_knew_of_it_is_told_with_the_cancel(
    world: World,
) -> None:
    held = world.claimed()
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    told = beat(held.worker)
    assert [each.claim_id for each in told.assigned_claims] == [held.claim.claim_id]
    assert told.cancel_claims == [held.claim.claim_id]


def test_a_claim_that_is_told_again_has_the_latest_checkpoint(world: World) -> None:
    held = world.checkpointed(retry_policy={"retry_on": ["broken"], "initial_delay_ms": 0})
    held.worker.fail(held.claim)
    claim = held.worker.claim()[0]
    assert claim.checkpoint == (1, {"page": 1})
    assert beat(held.worker).assigned_claims == [claim]


def test_a_draining_worker_without_claims_goes_offline(world: World) -> None:
    worker = world.worker()
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle="DRAINING")
    assert beat(worker).worker.lifecycle == "OFFLINE"


def test_what_a_worker_says_about_its_load_is_not_believed(world: World) -> None:
    held = world.running()
    Worker.objects.filter(pk=held.worker.row.pk).update(active=3)
    beat(held.worker, held.claim.claim_id, "claim_x", "claim_y")
    assert held.worker.refresh().active == 1


def test_a_beat_with_twenty_claims_costs_as_many_statements_as_with_one(world: World) -> None:
    counts = []
    for number in (1, 20):
        worker = world.worker(concurrency=40)
        held = [world.running(worker) for _ in range(number)]
        world.claimed(worker)
        with counted() as queries:
            assert len(beat(worker, *[each.claim.claim_id for each in held]).renewed) == number
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_a_beat_reads_the_input_only_of_claims_that_it_tells_in_full(world: World) -> None:
    """A worker's thousand claims may have inputs of a gigabyte together."""
    held = world.running()
    for told, has_input in ((0, False), (1, True)):
        if told:
            world.claimed(held.worker)
        with counted() as queries:
            assert len(beat(held.worker, held.claim.claim_id).assigned_claims) == told
        assert any('"input"' in (each["sql"] or "") for each in queries) == has_input


def test_an_answer_reads_no_more_inputs_than_it_may_hold(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker()
    first, *_ = (world.claimed(worker, input="x" * 100) for _ in range(3))
    monkeypatch.setattr("mesh.giving.MAX_ANSWER_BYTES", 150)
    with counted() as queries:
        told = beat(worker).assigned_claims
    assert [each.claim_id for each in told] == [first.claim.claim_id]
    reads = [each["sql"] for each in queries if '"input"' in (each["sql"] or "")]
    assert len(reads) == 1
    assert f"IN ({first.workload.pk})" in reads[0]


# --- The three facts ------------------------------------------------------------------------------


def test_beating_accepting_and_progressing_are_three_facts(world: World, clock: Clock) -> None:
    worker = world.worker(concurrency=2)
    world.workload()
    clock.pass_(ms(1_000))
    polled, claim = clock.at, worker.claim()[0]
    clock.pass_(ms(1_000))
    started = clock.at
    worker.start(claim)
    clock.pass_(ms(1_000))
    beat(worker, claim.claim_id)
    row = worker.refresh()
    assert row.last_seen_at == clock.at
    assert (row.last_poll_at, row.last_progress_at) == (polled, started)


def test_a_full_worker_that_beats_is_not_deaf(world: World, clock: Clock) -> None:
    held = world.running(world.worker(concurrency=1))
    clock.pass_(ms(5_000))
    beat(held.worker, held.claim.claim_id)
    assert held.worker.refresh().last_poll_at == clock.at


# --- Reconcile ------------------------------------------------------------------------------------


def reconcile(member: Member, **members: Any) -> liveness.Reconciliation:
    said: dict[str, Any] = {
        "caller": member.caller,
        "worker_id": member.worker_id,
        "worker_version": member.row.version,
        "capability_version": member.row.capability_version,
        "known_claims": [],
        "running_attempts": [],
        "completed_attempts": [],
        "failed_attempts": [],
        "timestamp": NOON,
        **members,
    }
    return liveness.reconcile(**said)


def restarted(world: World, member: Member) -> Member:
    done = liveness.register(
        registration=world.registration(name=member.row.name), credential=member.credential
    )
    member.credential = done.credential
    member.refresh()
    return member


@pytest.mark.parametrize("members", [{"worker_version": "9"}, {"capability_version": 9}])
def test_reconcile_with_other_versions_is_denied(world: World, members: dict[str, Any]) -> None:
    worker = world.worker()
    with refused("WORKER_RECONCILIATION_DENIED"):
        reconcile(worker, **members)


def test_reconcile_tells_other_versions_before_a_drain(world: World) -> None:
    worker = world.worker()
    workers.drain(caller=world.operator, worker_id=worker.worker_id)
    with refused("WORKER_RECONCILIATION_DENIED"):
        reconcile(worker, worker_version="9")
    with refused("WORKER_DRAINED"):
        reconcile(worker)


def test_reconcile_refuses_a_worker_that_was_offline_when_its_grant_was_revoked(
    world: World, clock: Clock
) -> None:
    grant, token = world.grant()
    worker = world.worker(grant=token)
    clock.pass_(ms(30_000))
    liveness.silence(worker_pk=worker.row.pk, actor="system:test")
    revocations.revoke_grant(caller=world.caller(), grant_id=grant.grant_id)
    with refused("WORKER_DRAINED"):
        reconcile(worker)


def test_an_operators_drain_lasts_until_recover(world: World) -> None:
    worker = world.worker()
    workers.drain(caller=world.operator, worker_id=worker.worker_id)
    restarted(world, worker)
    with refused("WORKER_DRAINED"):
        reconcile(worker)
    workers.recover(caller=world.operator, worker_id=worker.worker_id)
    assert reconcile(worker).worker.lifecycle == "READY"


def test_a_worker_that_drained_itself_is_ready_after_register_and_reconcile(world: World) -> None:
    worker = world.worker()
    workers.drain(caller=worker.caller, worker_id=worker.worker_id)
    restarted(world, worker)
    answer = reconcile(worker)
    assert (answer.worker.lifecycle, answer.worker.health) == ("READY", "UNKNOWN")
    assert not worker.refresh().is_unreconciled
    assert worker_events(worker.row)[-3:] == ["recovering", "ready", "reconciled"]
    beat(worker)


def test_reconcile_keeps_what_is_known_and_loses_what_is_forgotten(world: World) -> None:
    worker = world.worker(concurrency=9)
    known, running, done, failed, forgotten, given = (world.running(worker) for _ in range(6))
    settled = world.succeeded(worker)
    restarted(world, worker)
    answer = reconcile(
        worker,
        known_claims=[known.claim.claim_id, settled.claim.claim_id, "claim_x"],
        running_attempts=[running.claim.attempt_id, settled.claim.attempt_id, "attempt_x"],
        completed_attempts=[done.claim.attempt_id, settled.claim.attempt_id],
        failed_attempts=[failed.claim.attempt_id, "attempt_x"],
    )
    kept = [each.claim.claim_id for each in (known, running, done, failed)]
    assert answer.authoritative_claims == sorted(kept)
    assert answer.fenced_claims == [settled.claim.claim_id, "claim_x"]
    assert answer.cancel_attempts == [settled.claim.attempt_id, "attempt_x"]
    assert answer.reports == {
        done.claim.attempt_id: "accepted",
        settled.claim.attempt_id: "already_recorded",
        failed.claim.attempt_id: "accepted",
        "attempt_x": "fenced",
    }
    for each in (forgotten, given):
        assert (each.attempt.status, each.refresh().state) == ("WORKER_LOST", State.READY)
    assert worker.refresh().active == 4


def test_reconcile_fences_a_claim_whose_lease_is_over(world: World, clock: Clock) -> None:
    held = world.running()
    restarted(world, held.worker)
    clock.to(NOON + ms(30_000))
    answer = reconcile(
        held.worker,
        known_claims=[held.claim.claim_id],
        running_attempts=[held.claim.attempt_id],
        completed_attempts=[held.claim.attempt_id],
    )
    assert (answer.authoritative_claims, answer.fenced_claims) == ([], [held.claim.claim_id])
    assert answer.cancel_attempts == [held.claim.attempt_id]
    assert answer.reports == {held.claim.attempt_id: "fenced"}


def test_reconcile_fences_another_workers_attempt(world: World) -> None:
    worker, other = world.worker(), world.running()
    answer = reconcile(
        worker,
        known_claims=[other.claim.claim_id],
        running_attempts=[other.claim.attempt_id],
        failed_attempts=[other.claim.attempt_id],
    )
    assert answer.fenced_claims == [other.claim.claim_id]
    assert answer.cancel_attempts == [other.claim.attempt_id]
    assert answer.reports == {other.claim.attempt_id: "fenced"}
    assert other.attempt.status == AttemptStatus.RUNNING


def test_a_lost_attempt_is_fenced_and_not_recorded(world: World) -> None:
    held = world.running()
    reconcile(held.worker)
    answer = reconcile(held.worker, completed_attempts=[held.claim.attempt_id])
    assert answer.reports == {held.claim.attempt_id: "fenced"}


def test_reconcile_again_gives_the_same_answer(world: World) -> None:
    worker = world.worker()
    held = world.running(worker)
    said: dict[str, Any] = {
        "known_claims": [held.claim.claim_id],
        "running_attempts": [held.claim.attempt_id],
    }
    restarted(world, worker)
    first, second = reconcile(worker, **said), reconcile(worker, **said)
    assert replace_worker(first) == replace_worker(second)
    assert second.authoritative_claims == [held.claim.claim_id]
    assert worker.refresh().active == 1


def replace_worker(answer: liveness.Reconciliation) -> list[Any]:
    return [
        answer.authoritative_claims,
        answer.fenced_claims,
        answer.cancel_attempts,
        answer.reports,
        answer.worker.lifecycle,
    ]


def test_reconcile_makes_a_full_worker_busy_in_the_same_transaction(world: World) -> None:
    held = world.running(world.worker(concurrency=1))
    Worker.objects.filter(pk=held.worker.row.pk).update(lifecycle="OFFLINE")
    answer = reconcile(held.worker, known_claims=[held.claim.claim_id])
    assert answer.worker.lifecycle == "BUSY"
    assert worker_events(held.worker.row)[-4:] == ["recovering", "ready", "busy", "reconciled"]


def test_reconcile_leaves_a_draining_worker_draining(world: World) -> None:
    held = world.running()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id)
    restarted(world, held.worker)
    answer = reconcile(held.worker, known_claims=[held.claim.claim_id])
    assert (answer.worker.lifecycle, answer.worker.drain_cause) == ("DRAINING", "operator")


def test_reconcile_that_loses_the_last_claim_of_a_draining_worker_ends_its_drain(
    world: World,
) -> None:
    held = world.running()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id)
    restarted(world, held.worker)
    answer = reconcile(held.worker)
    assert (answer.worker.lifecycle, answer.worker.drain_cause) == ("OFFLINE", "operator")
    with refused("WORKER_DRAINED"):
        reconcile(held.worker)


def test_a_register_that_abandons_the_last_claim_of_a_drained_worker_asks_for_a_reconcile(
    world: World,
) -> None:
    held = world.running()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id)
    done = liveness.register(
        registration=world.registration(name=held.worker.row.name, abandon_claims=True),
        credential=held.worker.credential,
    )
    row = held.worker.refresh()
    assert (row.lifecycle, row.drain_cause) == ("OFFLINE", "operator")
    assert done.reconcile_required
    assert row.is_unreconciled


def test_reconcile_is_a_beat_and_no_progress(world: World, clock: Clock) -> None:
    worker = world.worker()
    clock.pass_(ms(7_000))
    reconcile(worker)
    assert (worker.refresh().last_seen_at, worker.row.last_progress_at) == (clock.at, None)


def test_reconcile_begins_anew_with_the_workers_clock(world: World, clock: Clock) -> None:
    """Its host may have come back with another time."""
    worker = world.worker()
    back = clock.at - ms(3_600_000)
    with refused("WORKER_CLOCK_INVALID"):
        beat(worker, timestamp=back)
    reconcile(worker, timestamp=back)
    assert (worker.refresh().reported_at, worker.row.clock_skew_ms) == (back, -3_600_000)
    beat(worker, timestamp=back)
    reconcile(worker, timestamp=clock.at + ms(5_000))
    assert (worker.refresh().reported_at, worker.row.clock_skew_ms) == (clock.at, 5_000)


def test_claims_are_refused_until_a_reconcile_and_given_after_it(world: World) -> None:
    held = world.running()
    world.workload()
    restarted(world, held.worker)
    with refused("WORKER_RECOVERY_REQUIRED"):
        held.worker.claim()
    reconcile(held.worker, known_claims=[held.claim.claim_id])
    beat(held.worker, held.claim.claim_id)
    assert len(held.worker.claim()) == 1


# --- Falling silent -------------------------------------------------------------------------------


def silence(held: Member) -> Worker | None:
    return liveness.silence(worker_pk=held.row.pk, actor="system:test")


def test_a_worker_is_silent_from_the_boundary_on(world: World, clock: Clock) -> None:
    worker = world.worker()
    clock.to(NOON + ms(30_000) - MICRO)
    with unchanged():
        assert silence(worker) is None
    clock.to(NOON + ms(30_000))
    assert silence(worker) is not None
    assert (worker.refresh().lifecycle, worker.row.health) == ("OFFLINE", "UNHEALTHY")
    with unchanged():
        assert silence(worker) is None


def test_a_silent_workers_unstarted_claims_go_back_and_started_ones_run_to_their_lease_end(
    world: World, clock: Clock
) -> None:
    worker = world.worker(heartbeat_timeout_ms=30_000)
    work = [world.workload() for _ in range(2)]
    started, _ = worker.claim(2, lease_ms=900_000)
    worker.start(started)
    clock.to(NOON + ms(30_000))
    silence(worker)
    first, second = (Workload.objects.get(pk=each.pk) for each in work)
    assert (first.state, first.attempts.get().expires_at) == ("RUNNING", NOON + ms(900_000))
    assert (second.state, second.attempts.get().status) == ("READY", "WORKER_LOST")
    assert events(second)[-2:] == ["recovered", "ready"]
    assert worker.refresh().active == 1


def test_started_work_of_a_silent_worker_may_still_complete(world: World, clock: Clock) -> None:
    worker = world.worker()
    world.workload()
    claim = worker.claim(lease_ms=900_000)[0]
    worker.start(claim)
    clock.to(NOON + ms(30_000))
    silence(worker)
    assert worker.complete(claim).status == AttemptStatus.SUCCEEDED
    assert worker.refresh().lifecycle == "OFFLINE"


def test_a_cancelled_unstarted_claim_of_a_silent_worker_is_cancelled(
    world: World, clock: Clock
) -> None:
    held: Held = world.claimed()
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    clock.to(NOON + ms(30_000))
    silence(held.worker)
    assert (held.refresh().state, held.attempt.status) == ("CANCELLED", "WORKER_LOST")
