"""Many ask for the same work at once, or ask while it is taken from them."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from mesh import claims, giving, leases, locking, placing, revocations, workers, workloads
from mesh.claims import Claims
from mesh.giving import Claim
from mesh.models import Attempt, Decision, Grant, Lifecycle, State, Worker
from tests.factories import Member, World

from .checks import assert_capacity_was_kept, assert_sound, events
from .steering import Actor, Gate, answers, at_once, codes, hold, is_free


def _ask(member: Member, maximum: int = 1) -> Claims:
    return claims.claim(caller=member.caller, worker_id=member.worker_id, maximum=maximum)


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_many_claimants_take_each_workload_once(world: World, batch: int) -> None:
    works = [world.workload(priority=n % 3) for n in range(200)]
    members = [world.worker(concurrency=40) for _ in range(8)]

    def drain_queue(member: Member) -> list[Claim]:
        taken: list[Claim] = []
        for _ in range(40 // batch + 1):
            taken += _ask(member, batch).claims
        return taken

    ended = answers(at_once(*[partial(drain_queue, each) for each in members]))

    taken = Counter(claim.workload_id for part in ended for claim in part)
    assert taken == {work.workload_id: 1 for work in works}
    assert {claim.fencing_token for part in ended for claim in part} == {1}
    assert_capacity_was_kept()
    assert_sound()


def test_calls_for_one_worker_at_once_never_exceed_its_capacity(world: World) -> None:
    for _ in range(30):
        world.workload()
    member = world.worker(concurrency=5)

    ended = answers(at_once(*[partial(_ask, member, 4) for _ in range(8)]))

    assert sum(len(each.claims) for each in ended) == 5
    assert member.refresh().active == 5
    assert member.row.lifecycle == Lifecycle.BUSY
    assert_sound()


def test_tokens_rise_while_work_goes_round_between_workers(world: World) -> None:
    policy = {"max_attempts": 1_000, "initial_delay_ms": 0}
    works = [world.workload(retry_policy=policy) for _ in range(5)]
    members = [world.worker() for _ in range(6)]

    def go_round(member: Member) -> int:
        given_back = 0
        for _ in range(12):
            for claim in member.claim(2):
                member.start(claim)
                member.fail(claim, kind="transient_connection")
                given_back += 1
        return given_back

    ended = answers(at_once(*[partial(go_round, each) for each in members]))

    assert sum(ended) == Attempt.objects.count() >= len(works)
    assert_sound()


def test_a_workload_that_a_neighbour_looks_at_is_skipped_and_the_next_one_taken(
    world: World,
) -> None:
    first, second = world.workload(priority=9), world.workload()
    member = world.worker()
    with hold(first):
        taken = Actor(partial(_ask, member)).value()
    assert [each.workload_id for each in taken.claims] == [second.workload_id]


def test_a_claim_that_cancel_was_faster_than_takes_nothing(world: World) -> None:
    work, member = world.workload(), world.worker()
    with Gate(giving, "_run") as gate:
        asking = Actor(partial(_ask, member))
        gate.wait_for_arrival()
        workloads.cancel(caller=world.operator, workload_id=work.workload_id)
        gate.let_through()
        assert asking.value().claims == []
    assert events(work) == ["ready", "cancelled"]
    assert_sound()


def test_a_cancel_that_waits_for_a_claim_asks_its_worker(world: World) -> None:
    work, member = world.workload(), world.worker()
    with Gate(giving, "_run", after=True) as gate:
        asking = Actor(partial(_ask, member))
        gate.wait_for_arrival()
        cancel = Actor(
            partial(workloads.cancel, caller=world.operator, workload_id=work.workload_id)
        )
        cancel.wait_until_blocked(by=asking)
        gate.let_through()
        assert len(asking.value().claims) == 1
        assert cancel.value().state == State.CANCELLATION_REQUESTED
    assert_sound()


def test_a_claim_that_waits_for_a_drain_gets_nothing(world: World) -> None:
    member = world.worker()
    world.workload()
    with hold(member.row):
        drain = Actor(partial(workers.drain, caller=world.operator, worker_id=member.worker_id))
        drain.wait_until_blocked()
        asking = Actor(partial(_ask, member))
        asking.wait_until_blocked(by=drain)
    assert drain.value().lifecycle == Lifecycle.OFFLINE
    assert asking.code() == "WORKER_RECOVERY_REQUIRED"
    assert_sound()


def test_a_drain_that_waits_for_a_claim_lets_it_finish(world: World) -> None:
    member = world.worker()
    world.workload()
    with hold(member.row):
        asking = Actor(partial(_ask, member))
        asking.wait_until_blocked()
        drain = Actor(partial(workers.drain, caller=world.operator, worker_id=member.worker_id))
        drain.wait_until_blocked(by=asking)
    [claim] = asking.value().claims
    assert drain.value().lifecycle == Lifecycle.DRAINING
    member.start(claim)
    member.complete(claim)
    assert member.refresh().lifecycle == Lifecycle.OFFLINE


def test_claims_and_renewals_are_refused_from_the_moment_a_grant_is_revoked(world: World) -> None:
    grant, token = world.grant()
    held = world.running(world.worker(grant=token))
    world.workload()
    member = held.worker
    with hold(member.row):
        asking = Actor(partial(_ask, member))
        asking.wait_until_blocked()
        renewal = Actor(partial(leases.renew, **held.presenting))
        renewal.wait_until_blocked()
        with Gate(revocations, "drain_some") as drains:
            # Committed, and not one worker drained yet.
            revocation = Actor(
                partial(revocations.revoke_grant, caller=world.caller(), grant_id=grant.grant_id)
            )
            drains.wait_for_arrival()
            assert Worker.objects.get(pk=member.row.pk).lifecycle == Lifecycle.READY
    assert asking.value() == Claims([], "GRANT_REVOKED")
    assert renewal.code() == "GRANT_REVOKED"
    revocation.value()
    assert Grant.objects.get(pk=grant.pk).status == "REVOKED"


def test_place_and_claim_give_the_same_work_once(world: World) -> None:
    for _ in range(6):
        work, asks, placed = world.workload(), world.worker(), world.worker()
        place = partial(
            placing.place,
            caller=world.operator,
            workload_id=work.workload_id,
            worker_id=placed.worker_id,
        )
        pulled, pushed = at_once(partial(_ask, asks), place)
        winners = answers([pushed])
        assert isinstance(pulled, Claims)
        assert len(pulled.claims) + len(winners) == 1
        assert codes([pushed]) in ([], ["WORKLOAD_NOT_READY"])
    assert_sound()


@pytest.mark.parametrize("place_first", [True, False])
def test_place_and_claim_on_one_worker_share_its_last_slot(world: World, place_first: bool) -> None:
    named = world.workload()
    world.workload(priority=1)  # what a pull takes, so that the named work stays READY
    member = world.worker(concurrency=1)
    place = partial(
        placing.place,
        caller=world.operator,
        workload_id=named.workload_id,
        worker_id=member.worker_id,
    )
    ask = partial(_ask, member)
    with hold(member.row):
        first: Actor[Claim | Claims] = Actor(place if place_first else ask)
        first.wait_until_blocked()
        second: Actor[Claim | Claims] = Actor(ask if place_first else place)
        second.wait_until_blocked(by=first)
    first.value()
    if place_first:
        answer = second.value()
        assert isinstance(answer, Claims)
        # Full, and what was placed is told at once.
        assert answer.reason == "CAPACITY"
        assert [each.workload_id for each in answer.claims] == [named.workload_id]
    else:
        assert second.code() == "MESH_PLACEMENT_DENIED"
    assert member.refresh().active == 1
    assert_sound()


def test_place_passes_over_a_locked_worker(world: World) -> None:
    work = world.workload()
    best, other = world.worker(concurrency=9), world.worker(concurrency=2)
    with hold(best.row):
        placed = Actor(
            partial(placing.place, caller=world.operator, workload_id=work.workload_id)
        ).value()
    assert placed.worker_id == other.worker_id


def test_place_tells_that_five_workers_were_locked_and_holds_none_of_them(world: World) -> None:
    work = world.workload()
    members = [world.worker() for _ in range(7)]
    tried = [each.row for each in sorted(members, key=lambda each: each.worker_id)[:5]]
    with hold(*tried):
        refused = Actor(
            partial(placing.place, caller=world.operator, workload_id=work.workload_id)
        ).end()
    assert codes([refused]) == ["MESH_NO_ELIGIBLE_WORKER"]
    facts = getattr(refused, "facts", {})
    assert (facts["busy"], facts["reasons"]) == (5, ["BUSY"])
    # What was found out survived the refusal.
    decision = Decision.objects.get(workload=work)
    assert (decision.code, decision.counts) == ("MESH_NO_ELIGIBLE_WORKER", {"BUSY": 5})
    told = {each["worker_id"]: each["reasons"] for each in decision.candidates}
    busy = {each.worker_id for each in tried}
    assert told == {m.worker_id: ["BUSY"] if m.worker_id in busy else [] for m in members}
    assert_sound()


def test_place_gives_back_the_lock_of_each_worker_that_it_did_not_choose(world: World) -> None:
    work = world.workload()
    members = [world.worker() for _ in range(5)]
    place = partial(placing.place, caller=world.operator, workload_id=work.workload_id)
    with Gate(placing, "_try") as tries, Gate(placing, "_nobody") as gate:
        push = Actor(place)
        for number in range(5):
            tries.wait_for_arrival()
            if number == 0:
                # They were fit when they were ranked; locked and looked at again they are not.
                Worker.objects.filter(tenant=world.tenant).update(health="UNHEALTHY")
            assert all(is_free(each.row) for each in members)
            tries.let_through()
        gate.wait_for_arrival()
        assert all(is_free(each.row) for each in members)
        gate.let_through()
        refused = push.end()
    assert codes([refused]) == ["MESH_NO_ELIGIBLE_WORKER"]
    assert getattr(refused, "facts", {})["counts"] == {"HEALTH": 5}


def test_place_on_a_named_worker_waits_for_it(world: World) -> None:
    work, member = world.workload(), world.worker()
    with hold(member.row):
        push = Actor(
            partial(
                placing.place,
                caller=world.operator,
                workload_id=work.workload_id,
                worker_id=member.worker_id,
            )
        )
        push.wait_until_blocked()
    assert push.value().workload_id == work.workload_id


def test_place_judges_the_named_worker_by_what_it_is_once_locked(world: World) -> None:
    work, member = world.workload(), world.worker()
    with Gate(locking, "lock_worker") as gate:
        push = Actor(
            partial(
                placing.place,
                caller=world.operator,
                workload_id=work.workload_id,
                worker_id=member.worker_id,
            )
        )
        gate.wait_for_arrival()
        workers.drain(caller=world.operator, worker_id=member.worker_id)
        gate.let_through()
        assert push.code() == "MESH_PLACEMENT_DENIED"
    assert_sound()
