"""An attempt of a run is settled once, whoever else acts on it, its work or its run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mesh import claims, invariants, workloads
from mesh.models import State
from tests.factories import World
from tests.workflows import rows
from tests.workflows.acting import (
    CANCELLED,
    FAILED,
    NOT_STARTED,
    SUCCEEDED,
    Case,
)
from workflows import admission, cancellation, ending, steering
from workflows.models import RunAttempt, RunEvent
from workflows.settlement import Outcome

from .checks import assert_sound
from .steering import Actor, answers, at_once, codes, hold, is_free


@pytest.fixture
def case(world: World) -> Case:
    steps = [rows.step("one", retry={"max_attempts": 10}), rows.step("two")]
    return Case(steps, world=world)


def _settle(case: Case, attempt: RunAttempt, outcome: Outcome) -> Callable[[], Any]:
    return partial(case.settle, attempt, outcome)


def _retry(case: Case, attempt: RunAttempt) -> Callable[[], Any]:
    workload_id = case.work(attempt).workload_id
    return partial(workloads.retry, caller=case.world.operator, workload_id=workload_id)


def assert_all_is_sound() -> None:
    assert_sound()
    assert invariants.broken() == {}


@pytest.mark.parametrize("settle_first", [True, False])
def test_a_retry_and_the_settlement_that_seals_wait_for_each_other(
    case: Case, settle_first: bool
) -> None:
    """Hazard: settled work is retried and runs again."""
    attempt = case.admit()
    case.worker.fail(case.start())
    calls = [_settle(case, attempt, FAILED), _retry(case, attempt)]
    with hold(case.work(attempt)):
        first: Actor[Any] = Actor(calls[0 if settle_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if settle_first else 0])
        second.wait_until_blocked(by=first)
    first.value()
    if settle_first:
        assert second.code() == "WORKLOAD_TRANSITION_DENIED"
        assert case.work(attempt).state == State.DEAD_LETTER
    else:
        assert second.code() == "OUTCOME_CONFLICT"
        assert case.claim().workload_id == case.work(attempt).workload_id
    assert_all_is_sound()


def test_a_retry_waits_for_the_run_before_it_locks_the_work(case: Case) -> None:
    attempt = case.admit()
    case.worker.fail(case.start())
    with hold(case.run):
        retry: Actor[Any] = Actor(_retry(case, attempt))
        retry.wait_until_blocked()
        assert is_free(case.work(attempt))
    retry.value()
    assert_all_is_sound()


def test_one_settlement_sent_many_times_at_once_is_recorded_once(case: Case) -> None:
    attempt = case.admit()
    case.worker.complete(case.start(), output=1)
    ended = at_once(*[_settle(case, attempt, SUCCEEDED)] * 6)
    assert len(answers(ended)) == 6
    assert RunEvent.objects.filter(event="run.attempt_settled").count() == 1
    assert case.run.active_attempts == 0
    assert_all_is_sound()


def test_of_different_outcomes_at_once_one_is_recorded(case: Case) -> None:
    attempt = case.admit()
    ended = at_once(*[_settle(case, attempt, each) for each in (CANCELLED, NOT_STARTED)] * 3)
    assert len(answers(ended)) == 3
    assert codes(ended) == ["OUTCOME_CONFLICT"] * 3
    assert len({each.outcome for each in answers(ended)}) == 1
    assert_all_is_sound()


def test_ready_work_is_either_withdrawn_or_claimed(case: Case) -> None:
    for number in range(1, 6):
        attempt = case.admit()
        settled, taken = at_once(_settle(case, attempt, NOT_STARTED), case.worker.claim)
        assert isinstance(taken, list)
        if isinstance(settled, RunAttempt):
            assert (taken, case.work(attempt).state) == ([], State.CANCELLED)
        else:
            assert codes([settled]) == ["WORK_OUTSTANDING"]
            assert len(taken) == 1
            case.worker.start(taken[0])
            case.worker.fail(taken[0])
            case.settle(attempt, Outcome("failed", retryable=True))
        assert case.step().last_number == number
    assert_all_is_sound()


@pytest.mark.parametrize("complete_first", [True, False])
def test_a_report_and_a_settlement_at_once(case: Case, complete_first: bool) -> None:
    attempt = case.admit()
    claim = case.start()
    calls: list[Callable[[], Any]] = [
        partial(case.worker.complete, claim),
        _settle(case, attempt, SUCCEEDED),
    ]
    with hold(case.work(attempt)):
        first: Actor[Any] = Actor(calls[0 if complete_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if complete_first else 0])
        second.wait_until_blocked(by=first)
    if complete_first:
        first.value()
        assert second.value().outcome == "succeeded"
    else:
        assert first.code() == "WORK_OUTSTANDING"
        second.value()
        case.settle(attempt, SUCCEEDED)
    assert_all_is_sound()


@pytest.mark.parametrize("kind", ["pause", "cancel", "fail"])
def test_no_claim_is_made_under_a_block_whoever_comes_first(case: Case, kind: str) -> None:
    begin: dict[str, Callable[[], Any]] = {
        "pause": partial(steering.pause, **case.asked, reason="wait"),
        "cancel": partial(cancellation.request, **case.asked),
        "fail": partial(case.fail, "broken"),
    }
    case.admit("one")
    case.admit("two")
    workers = [case.world.worker() for _ in range(3)]
    taking = [
        partial(claims.claim, caller=each.caller, worker_id=each.worker_id, maximum=1)
        for each in workers
    ]
    blocked, *taken = at_once(begin[kind], *taking)
    assert answers([blocked])
    assert invariants.broken() == {}
    for worker, each in zip(workers, answers(taken), strict=True):
        for claim in each.claims:
            assert Actor(partial(worker.start, claim)).code() == "MESH_RUN_BLOCKED"
    assert_all_is_sound()


def test_a_claim_that_a_block_had_to_wait_for_is_older_than_it(case: Case) -> None:
    attempt = case.admit()
    with hold(case.work(attempt)):
        pause = Actor(partial(steering.pause, **case.asked, reason="wait"))
        pause.wait_until_blocked()
        # The pause has the run and waits for the work, which is claimed meanwhile.
        claim = case.claim()
    pause.value()
    assert invariants.broken() == {}
    assert Actor(partial(case.worker.start, claim)).code() == "MESH_RUN_BLOCKED"


@pytest.mark.parametrize("pause_first", [True, False])
def test_a_start_against_a_pause(case: Case, pause_first: bool) -> None:
    attempt = case.admit()
    claim = case.claim()
    calls: list[Callable[[], Any]] = [
        partial(steering.pause, **case.asked, reason="wait"),
        partial(case.worker.start, claim),
    ]
    with hold(case.work(attempt)):
        first: Actor[Any] = Actor(calls[0 if pause_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if pause_first else 0])
        second.wait_until_blocked(by=first)
    first.value()
    if pause_first:
        assert second.code() == "MESH_RUN_BLOCKED"
    else:
        second.value()
    assert case.work(attempt).held
    assert_all_is_sound()


def test_a_run_that_ends_and_an_admission_at_once(case: Case) -> None:
    case.fail()
    steering.clear(**case.asked, reason="mended")
    case.fail()
    admit = partial(admission.admit, **case.owned, step="one", attempt=1)
    end = partial(ending.terminalize, **case.owned)
    ended, admitted, again = at_once(end, admit, end)
    assert codes([ended, again]) == []
    assert codes([admitted])[0] in {"RUN_TERMINAL", "RUN_CONTROL_FAILURE"}
    assert case.run.status == "FAILED"
    assert_all_is_sound()


def test_of_two_first_failures_at_once_one_stays(case: Case) -> None:
    ended = at_once(*[partial(case.fail, f"code-{n}") for n in range(4)])
    assert len(answers(ended)) == 4
    assert case.run.controlfailure_rows.count() == 1
    assert_all_is_sound()
