"""The invariants hold for what the domain makes, and each is seen to break."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection

from mesh import invariants, resolutions
from mesh.models import (
    Attempt,
    AttemptStatus,
    Dependency,
    Result,
    State,
    Worker,
    WorkerEvent,
    Workload,
    WorkloadEvent,
)
from tests.factories import World, in_state

AT_REST = (
    State.READY,
    State.CLAIMED,
    State.RUNNING,
    State.CHECKPOINTED,
    State.HELD,
    State.CANCELLATION_REQUESTED,
    State.SUCCEEDED,
    State.DEAD_LETTER,
    State.CANCELLED,
)


@pytest.fixture
def world(db: None) -> World:
    return World()


@pytest.fixture
def unguarded(world: World) -> World:
    """A world whose database lets rows be changed that it would protect."""
    with connection.cursor() as cursor:
        cursor.execute("set local session_replication_role = replica")
    return world


@pytest.mark.parametrize("state", AT_REST)
def test_nothing_is_broken_in_any_state_at_rest(state: State, world: World) -> None:
    in_state(world, state)
    assert invariants.broken() == {}


def test_nothing_is_broken_by_a_late_report_or_a_person(world: World) -> None:
    late, told = world.held(), world.held()
    late.worker.complete(late.claim)
    resolutions.resolve(
        caller=world.operator,
        workload_id=told.workload.workload_id,
        resolution="succeeded",
        reason="I looked",
    )
    assert (late.refresh().state, told.refresh().state) == (State.SUCCEEDED, State.SUCCEEDED)
    assert invariants.broken() == {}


def test_nothing_is_broken_by_a_second_try(world: World) -> None:
    worker = world.worker()
    held = world.running(worker, retry_policy={"retry_on": ["broken"], "initial_delay_ms": 0})
    worker.fail(held.claim)
    (again,) = worker.claim()
    worker.start(again)
    worker.complete(again)
    assert held.refresh().state == State.SUCCEEDED
    assert invariants.broken() == {}


def _second_live_attempt(world: World) -> None:
    with connection.cursor() as cursor:
        cursor.execute("drop index one_live_attempt_per_workload")
    attempt = world.claimed().attempt
    attempt.pk, attempt.number, attempt.fencing_token = None, 2, 2
    attempt.uid = attempt.uid.__class__(int=1)
    attempt.save()


def _wrong_active(world: World) -> None:
    Worker.objects.filter(pk=world.claimed().worker.row.pk).update(active=0)


def _live_attempt_of_ready_work(world: World) -> None:
    Workload.objects.filter(pk=world.claimed().workload.pk).update(state=State.READY)


def _held_without_a_start(world: World) -> None:
    Workload.objects.filter(pk=world.held().workload.pk).update(lost_policy="requeue")


def _falling_token(world: World) -> None:
    Attempt.objects.filter(pk=world.claimed().attempt.pk).update(fencing_token=7)


def _uncounted_start(world: World) -> None:
    Workload.objects.filter(pk=world.running().workload.pk).update(started_attempts=0)


def _succeeded_without_an_attempt(world: World) -> None:
    attempt = world.succeeded().attempt
    Attempt.objects.filter(pk=attempt.pk).update(status=AttemptStatus.FAILED)


def _no_result(world: World) -> None:
    Result.objects.filter(workload=world.succeeded().workload).delete()


def _no_end(world: World) -> None:
    Workload.objects.filter(pk=world.succeeded().workload.pk).update(ended_at=None)


def _gap(world: World) -> None:
    events = WorkloadEvent.objects.filter(workload=world.succeeded().workload)
    events.filter(sequence=2).delete()


def _broken_chain(world: World) -> None:
    events = WorkloadEvent.objects.filter(workload=world.succeeded().workload)
    events.filter(sequence=3).update(from_state=State.READY)


def _other_last_state(world: World) -> None:
    Workload.objects.filter(pk=world.running().workload.pk).update(event_sequence=9)


def _gap_of_a_worker(world: World) -> None:
    events = WorkerEvent.objects.filter(worker=world.worker().row).order_by("sequence")
    WorkerEvent.objects.filter(pk=events[0].pk).update(sequence=-5)


def _blocked(world: World) -> Workload:
    other = world.workload()
    return world.workload(dependencies=[{"workload_id": other.workload_id}])


def _miscounted_dependencies(world: World) -> None:
    Workload.objects.filter(pk=_blocked(world).pk).update(open_dependencies=0)


def _blocked_work_that_is_claimed(world: World) -> None:
    Workload.objects.filter(pk=_blocked(world).pk).update(state=State.CLAIMED)


def _untold_end(world: World) -> None:
    waited_for = Dependency.objects.get(workload=_blocked(world)).depends_on
    Workload.objects.filter(pk=waited_for.pk).update(state=State.CANCELLED, claimable=False)


def _attempt_of_another_pool(world: World) -> None:
    Attempt.objects.filter(pk=world.claimed().attempt.pk).update(pool_id="other")


def _member_that_was_removed(world: World) -> None:
    member = world.worker()
    world.pool(member)
    Worker.objects.filter(pk=member.row.pk).update(removed_at=member.row.registered_at)


BREAKS: dict[str, Callable[[World], None]] = {
    "a_workload_has_at_most_one_live_attempt": _second_live_attempt,
    "active_is_the_number_of_live_attempts": _wrong_active,
    "a_live_attempt_is_there_exactly_while_work_is_claimed": _live_attempt_of_ready_work,
    "held_work_was_started_and_given_up_with_its_latest_attempt": _held_without_a_start,
    "fencing_tokens_rise_with_attempt_numbers": _falling_token,
    "attempts_are_counted": _uncounted_start,
    "work_succeeded_exactly_when_one_attempt_did": _succeeded_without_an_attempt,
    "a_result_is_there_exactly_when_work_succeeded": _no_result,
    "work_has_an_end_exactly_when_it_ended": _no_end,
    "workload_history_has_no_gap": _gap,
    "workload_history_goes_from_state_to_state": _broken_chain,
    "workload_history_ends_where_the_work_is": _other_last_state,
    "open_dependencies_are_counted": _miscounted_dependencies,
    "blocked_work_is_at_rest": _blocked_work_that_is_claimed,
    "an_end_is_told_to_what_waits_for_it": _untold_end,
    "attempts_count_against_the_pool_that_their_work_names": _attempt_of_another_pool,
    "members_of_pools_are_workers_of_their_application": _member_that_was_removed,
    "worker_history_has_no_gap": _gap_of_a_worker,
}


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert BREAKS.keys() == invariants.RULES.keys()


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_names_its_rows(rule: str, unguarded: World) -> None:
    BREAKS[rule](unguarded)
    found = invariants.broken()
    assert rule in found
    assert 1 <= len(found[rule]) <= invariants.MAX_ROWS
    assert {"workload_id", "worker_id"} & found[rule][0].keys()


def test_rows_are_bounded(unguarded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "MAX_ROWS", 2)
    for _ in range(3):
        _no_end(unguarded)
    assert len(invariants.broken()["work_has_an_end_exactly_when_it_ended"]) == 2


def test_rules_of_what_stands_above_are_asked_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invariants, "_others", {})
    work = world.workload()
    invariants.also({"all_is_urgent": "select workload_id from mesh_workload where priority < 1"})
    assert [name for name, _ in invariants.every()] == [*invariants.RULES, "all_is_urgent"]
    assert invariants.broken() == {"all_is_urgent": [{"workload_id": work.workload_id}]}
