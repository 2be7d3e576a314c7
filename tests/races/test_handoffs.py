"""Authority over a run moves once, whoever else is at it; evidence is asked outside of locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.db import connection
from pytest_django import Settings

from mesh import clock, tenancy
from mesh.errors import DomainError
from tests.factories import World
from tests.workflows import resolvers, rows
from workflows import (
    admission,
    blocks,
    coordinators,
    handoffs,
    locking,
    recovery,
    settlement,
    steering,
)
from workflows import authority as authorities
from workflows.authority import Authority
from workflows.handoffs import HandedOver
from workflows.models import (
    Coordinator,
    Handoff,
    HandoffMode,
    RecoveryBarrier,
    Run,
    RunEvent,
)

from .steering import Actor, Gate, answers, at_once, codes, eventually, hold, is_free

OLD = rows.authority("old", fencing_token="of-old")


@pytest.fixture
def run(world: World) -> Run:
    """A run with work under way, whose owner relinquished; three others may take it."""
    run = rows.make_run(world, owner=OLD)
    rows.make_attempt(world, run)
    rows.make_coordinator(world, "old", relinquished_at=clock.now())
    for instance in ("a", "b"):
        rows.make_coordinator(world, instance)
    return run


def handing(world: World, run: Run, instance: str) -> Callable[[], HandedOver]:
    return partial(
        handoffs.hand_over,
        caller=world.operator,
        run_id=run.run_id,
        mode=HandoffMode.RECOVERY,
        expected=OLD,
        replacement=rows.authority(instance, 2, fencing_token=f"of-{instance}"),
    )


def assert_sound(run: Run) -> None:
    """The generation is that of the latest hand-over, events are gapless, the barrier is ours."""
    run.refresh_from_db()
    moves = list(Handoff.objects.filter(run=run).order_by("generation"))
    assert [each.generation for each in moves] == list(range(2, len(moves) + 2))
    assert run.generation == len(moves) + 1
    if moves:
        assert run.instance_id == moves[-1].replacement_instance_id
    sequences = list(RunEvent.objects.filter(run=run).values_list("sequence", flat=True))
    assert sequences == list(range(1, run.event_sequence + 1))
    for barrier in RecoveryBarrier.objects.filter(run=run, ended_at=None):
        assert (barrier.instance_id, barrier.generation) == (run.instance_id, run.generation)
    for attempt in run.attempts.unsettled().select_related("workload"):
        assert attempt.workload.held == blocks.standing(run.pk).any


def test_of_two_hand_overs_to_different_instances_one_wins(world: World, run: Run) -> None:
    done = at_once(handing(world, run, "a"), handing(world, run, "b"))
    (won,) = answers(done)
    assert set(codes(done)) <= {"AUTHORITY_STALE", "HANDOFF_CONFLICT"}
    assert Authority.of(Run.objects.get(pk=run.pk)) == Authority.of(won.run)
    assert Handoff.objects.filter(run=run).count() == 1
    assert_sound(run)


def test_one_with_its_evidence_in_hand_that_comes_second_conflicts(world: World, run: Run) -> None:
    with Gate(locking, "lock_run") as gate:
        actors = [Actor(handing(world, run, each)) for each in ("a", "b")]
        for _ in actors:
            gate.wait_for_arrival()
        for _ in actors:
            gate.let_through()
        done = [each.end() for each in actors]
    assert codes(done) == ["HANDOFF_CONFLICT"]
    assert_sound(run)


def test_the_same_hand_over_twice_at_once_is_made_once(world: World, run: Run) -> None:
    done = answers(at_once(*[handing(world, run, "a")] * 3))
    assert sorted(each.created for each in done) == [False, False, True]
    assert len({each.handoff.pk for each in done}) == 1
    assert_sound(run)


def test_a_repeat_that_read_the_run_before_it_moved_tells_who_has_it_now(
    world: World, run: Run
) -> None:
    with Gate(handoffs, "_require_other_token") as gate:
        early = [Actor(handing(world, run, each)) for each in ("a", "b")]
        for _ in early:
            gate.wait_for_arrival()
        handing(world, run, "a")()
        for _ in early:
            gate.let_through()
        again = early[0].value()
        assert early[1].code() == "HANDOFF_CONFLICT"
    assert not again.created
    assert Authority.of(again.run) == Authority.of(Run.objects.get(pk=run.pk))


def test_a_claim_by_the_old_owner_is_fine_before_and_stale_after(world: World, run: Run) -> None:
    claim = partial(authorities.claim, caller=world.operator, run_id=run.run_id, authority=OLD)
    calls: list[Callable[[], Any]] = [claim, handing(world, run, "a")]
    done = at_once(*calls)
    assert codes(done) in ([], ["AUTHORITY_STALE"])
    assert not isinstance(done[1], DomainError)
    assert_sound(run)
    assert Actor(claim).code() == "AUTHORITY_STALE"


def test_a_first_claim_that_a_hand_over_waits_for_is_what_it_finds(world: World) -> None:
    rows.make_coordinator(world, "old", relinquished_at=clock.now())
    rows.make_coordinator(world, "a")
    run = rows.make_run(world)
    with Gate(blocks, "own_barrier") as gate:
        claim = Actor(
            partial(authorities.claim, caller=world.operator, run_id=run.run_id, authority=OLD)
        )
        gate.wait_for_arrival()
        move = Actor(handing(world, run, "a"))
        move.wait_until_blocked(claim)
        gate.let_through()
        assert Authority.of(claim.value()) == OLD.without_token()
    assert move.value().created
    assert_sound(run)


def pausing(world: World, run: Run) -> Callable[[], Run]:
    return partial(steering.pause, caller=world.operator, run_id=run.run_id, reason="look")


def test_a_hand_over_and_a_pause_pass_each_other_without_a_deadlock(world: World, run: Run) -> None:
    calls: list[Callable[[], Any]] = [handing(world, run, "a"), pausing(world, run)]
    assert codes(at_once(*calls)) == []
    assert_sound(run)
    standing = blocks.standing(run.pk)
    assert standing.user_paused is not None
    assert standing.recovery is not None


def _admitting(world: World, run: Run) -> Callable[[], object]:
    return partial(
        admission.admit,
        caller=world.operator,
        run_id=run.run_id,
        authority=OLD,
        step="two",
        attempt=1,
    )


def _settling(world: World, run: Run) -> Callable[[], object]:
    return partial(
        settlement.settle,
        caller=world.operator,
        run_id=run.run_id,
        authority=OLD,
        dispatch_identity=run.attempts.get().dispatch_identity,
        outcome=settlement.Outcome("not_started"),
    )


def _finishing(world: World, run: Run) -> Callable[[], object]:
    _settling(world, run)()
    run.refresh_from_db()
    blocks.open_barrier(run, owner=OLD, by="system:test", reason="before")
    return partial(recovery.finish, caller=world.operator, run_id=run.run_id, authority=OLD)


@pytest.mark.parametrize("acting", [_admitting, _settling, _finishing])
def test_what_the_old_owner_does_at_that_moment_is_done_before_or_is_stale(
    acting: Callable[[World, Run], Callable[[], object]], world: World
) -> None:
    run = rows.make_run(world, [rows.step("one"), rows.step("two")], owner=OLD)
    rows.make_attempt(world, run)
    rows.make_coordinator(world, "old", relinquished_at=clock.now())
    rows.make_coordinator(world, "a")
    act = acting(world, run)
    calls: list[Callable[[], object]] = [act, handing(world, run, "a")]
    done = at_once(*calls)
    assert codes(done) in ([], ["AUTHORITY_STALE"])
    assert not isinstance(done[1], DomainError)
    assert_sound(run)
    assert run.active_attempts == run.attempts.unsettled().count()
    assert blocks.standing(run.pk).recovery is not None


@pytest.fixture
def hanging(settings: Settings) -> Iterator[None]:
    settings.EVIDENCE_RESOLVERS = [
        "tests.workflows.resolvers.Hanging",
        "workflows.evidence.CoordinatorEvidence",
    ]
    resolvers.asked.clear()
    resolvers.released.clear()
    yield
    resolvers.released.set()


def test_while_evidence_is_asked_nothing_is_locked_and_no_connection_is_held(
    world: World, run: Run, hanging: None, settings: Settings
) -> None:
    # Longer than this test waits for anything.
    settings.EVIDENCE_TIMEOUT_MS = 60_000
    before = _sessions()
    move = Actor(handing(world, run, "a"))
    eventually(lambda: bool(resolvers.asked), "the resolver is asked")
    assert is_free(run)
    eventually(lambda: _sessions() <= before, "the connection of the call is given back")
    pausing(world, run)()
    resolvers.released.set()
    assert move.value().created
    assert_sound(run)


def _sessions() -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "select pid from pg_stat_activity where datname = current_database()"
            " and backend_type = 'client backend'"
        )
        return {pid for (pid,) in cursor.fetchall()}


def test_of_two_registrations_of_one_instance_one_is_new(world: World) -> None:
    callers = [tenancy.authenticate(world.token()) for _ in range(2)]
    register = partial(
        coordinators.register, instance_id="same", artifact="coordinator:1", lease_ms=10_000
    )
    same = answers(at_once(*[partial(register, caller=callers[0])] * 3))
    assert sorted(is_new for _, is_new in same) == [False, False, True]
    Coordinator.objects.all().delete()
    done = at_once(*[partial(register, caller=each) for each in callers])
    assert codes(done) == ["PERMISSION_DENIED"]


def test_a_heartbeat_that_waits_until_the_lease_is_over_revives_nothing(world: World) -> None:
    caller = tenancy.authenticate(world.token())
    row, _ = coordinators.register(
        caller=caller, instance_id="late", artifact="coordinator:1", lease_ms=1_000
    )
    with hold(row):
        beat = Actor(partial(coordinators.heartbeat, caller=caller, instance_id="late"))
        beat.wait_until_blocked()
        eventually(lambda: clock.now() >= row.lease_ends_at, "the lease ends")
    assert beat.code() == "COORDINATOR_ENDED"
