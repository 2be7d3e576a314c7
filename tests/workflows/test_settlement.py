"""Settlement: one outcome per attempt, that agrees with its work, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from mesh import leases, placing, workloads
from mesh import settlement as reports
from mesh.errors import DomainError
from mesh.models import Role, State, Workload
from tests.mesh import checks
from workflows import cancellation, settlement, steering
from workflows.models import (
    Access,
    LeaseScope,
    OutcomeSource,
    ResourceLease,
    RunAttempt,
    StepState,
)
from workflows.settlement import Outcome

from . import rows
from .acting import (
    ABANDONED,
    CANCELLED,
    FAILED,
    HOLD,
    NOT_STARTED,
    SUCCEEDED,
    Case,
    refused,
    unchanged,
)

pytestmark = pytest.mark.django_db

RETRYABLE = Outcome("failed", message="it broke", retryable=True)
SAME = Outcome("succeeded", output={"pages": 3}, has_output=True)
OTHER = Outcome("succeeded", output={"pages": 4}, has_output=True)
NULL = Outcome("succeeded", output=None, has_output=True)
OUTCOMES = {
    "succeeded": SUCCEEDED,
    "succeeded with the output": SAME,
    "succeeded with another output": OTHER,
    "succeeded with null": NULL,
    "failed": FAILED,
    "failed and retryable": RETRYABLE,
    "cancelled": CANCELLED,
    "not started": NOT_STARTED,
    "abandoned": ABANDONED,
}


# --- Agreement ------------------------------------------------------------------------------------


def _ready(case: Case, attempt: RunAttempt) -> None:
    pass


def _claimed(case: Case, attempt: RunAttempt) -> None:
    case.claim()


def _released(case: Case, attempt: RunAttempt) -> None:
    reports.release(**case.worker.presenting(case.claim()))


def _running(case: Case, attempt: RunAttempt) -> None:
    case.start()


def _checkpointed(case: Case, attempt: RunAttempt) -> None:
    leases.checkpoint(**case.worker.presenting(case.start()), state={"page": 1})


def _cancelling(case: Case, attempt: RunAttempt) -> None:
    case.start()
    case.cancel(attempt)


def _held(case: Case, attempt: RunAttempt) -> None:
    case.start()
    case.lose(attempt)


def _ready_again(case: Case, attempt: RunAttempt) -> None:
    case.worker.fail(case.start(), kind="transient_connection")


def _succeeded(case: Case, attempt: RunAttempt) -> None:
    case.worker.complete(case.start(), output={"pages": 3})


def _failed(case: Case, attempt: RunAttempt) -> None:
    case.worker.fail(case.start())


def _failed_without_effect(case: Case, attempt: RunAttempt) -> None:
    presenting = case.worker.presenting(case.start())
    reports.fail(**presenting, kind="broken", error="It broke.", no_effect=True)


def _cancelled_unclaimed(case: Case, attempt: RunAttempt) -> None:
    case.cancel(attempt)


def _cancelled_running(case: Case, attempt: RunAttempt) -> None:
    claim = case.start()
    case.cancel(attempt)
    reports.cancelled(**case.worker.presenting(claim))


def _buried_then_cancelled(case: Case, attempt: RunAttempt) -> None:
    _failed(case, attempt)
    case.cancel(attempt)


def _resolved(resolution: str) -> Callable[[Case, RunAttempt], None]:
    def resolve(case: Case, attempt: RunAttempt) -> None:
        _held(case, attempt)
        case.resolve(attempt, resolution)

    return resolve


OUTSTANDING: frozenset[str] = frozenset()
FAILURES = frozenset({"failed", "failed and retryable"})
# How the work came where it is; whether it is held when lost; the outcomes that agree.
ENDS: dict[str, tuple[Callable[[Case, RunAttempt], None], bool, frozenset[str]]] = {
    "CLAIMED": (_claimed, False, OUTSTANDING),
    "RUNNING": (_running, False, OUTSTANDING),
    "CHECKPOINTED": (_checkpointed, False, OUTSTANDING),
    "CANCELLATION_REQUESTED": (_cancelling, False, OUTSTANDING),
    "HELD": (_held, True, OUTSTANDING),
    "READY": (_ready, False, frozenset({"cancelled", "not started"})),
    "READY, given back": (_released, False, frozenset({"cancelled", "not started"})),
    "READY, tried before": (_ready_again, False, frozenset({"cancelled"})),
    "SUCCEEDED": (
        _succeeded,
        False,
        frozenset({"succeeded", "succeeded with the output"}),
    ),
    "SUCCEEDED, by a person": (
        _resolved("succeeded"),
        True,
        frozenset({"succeeded", "succeeded with null"}),
    ),
    "DEAD_LETTER": (_failed, False, FAILURES),
    "DEAD_LETTER of hold work": (_failed, True, frozenset({"failed"})),
    "DEAD_LETTER of hold work without effect": (_failed_without_effect, True, FAILURES),
    "DEAD_LETTER, by a person": (_resolved("failed"), True, frozenset({"failed"})),
    "CANCELLED, never started": (
        _cancelled_unclaimed,
        False,
        frozenset({"cancelled", "not started"}),
    ),
    "CANCELLED, started": (_cancelled_running, False, frozenset({"cancelled"})),
    "CANCELLED, buried before": (_buried_then_cancelled, False, frozenset({"cancelled"})),
    "CANCELLED, by a person": (
        _resolved("cancelled"),
        True,
        frozenset({"cancelled", "abandoned"}),
    ),
}


def at_end(end: str) -> tuple[Case, RunAttempt]:
    bring, is_hold, _ = ENDS[end]
    case = Case([rows.step("one", **(HOLD if is_hold else {}))])
    attempt = case.admit()
    bring(case, attempt)
    assert case.work(attempt).state == end.partition(",")[0].partition(" ")[0]
    return case, attempt


@pytest.mark.parametrize("end", ENDS)
def test_outcome_agrees_with_work(end: str) -> None:
    case, attempt = at_end(end)
    agreeing = ENDS[end][2]
    found = {}
    for said, outcome in OUTCOMES.items():
        before = case.run.event_sequence
        try:
            with transaction.atomic():
                settled = case.settle(attempt, outcome)
                assert settled.outcome == outcome.kind
                transaction.set_rollback(True)
            found[said] = ""
        except DomainError as refusal:
            found[said] = refusal.code
        assert case.run.event_sequence == before
    refusal_code = "OUTCOME_CONFLICT" if agreeing else "WORK_OUTSTANDING"
    assert found == {each: "" if each in agreeing else refusal_code for each in OUTCOMES}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_proposed_for_work_agrees_with_it(end: str) -> None:
    case, attempt = at_end(end)
    proposed = settlement.outcome_of(attempt)
    if not ENDS[end][2]:
        assert proposed is None
        return
    assert proposed is not None
    settled = case.settle(attempt, proposed)
    stored = {"SUCCEEDED": {"pages": 3}}.get(end)
    assert (settled.outcome, settled.output) == (proposed.kind, stored)
    expected = {
        "READY": "not_started",
        "READY, given back": "not_started",
        "CANCELLED, never started": "not_started",
        "CANCELLED, by a person": "abandoned",
        "READY, tried before": "cancelled",
    }
    assert proposed.kind == expected.get(end, proposed.kind)
    is_retryable = end in {"DEAD_LETTER", "DEAD_LETTER of hold work without effect"}
    assert proposed.retryable == is_retryable


@pytest.mark.parametrize(
    ("end", "source"),
    [
        ("SUCCEEDED", OutcomeSource.WORKER),
        ("DEAD_LETTER", OutcomeSource.WORKER),
        ("CANCELLED, started", OutcomeSource.WORKER),
        ("READY", OutcomeSource.NEVER_CLAIMED),
        ("CANCELLED, never started", OutcomeSource.NEVER_CLAIMED),
        ("SUCCEEDED, by a person", OutcomeSource.OPERATOR),
        ("DEAD_LETTER, by a person", OutcomeSource.OPERATOR),
        ("CANCELLED, by a person", OutcomeSource.OPERATOR),
    ],
)
def test_an_outcome_says_what_it_rests_on(end: str, source: str) -> None:
    case, attempt = at_end(end)
    proposed = settlement.outcome_of(attempt)
    assert proposed is not None
    assert case.settle(attempt, proposed).source == source


def test_a_failure_that_is_never_retried_is_not_proposed_as_retryable() -> None:
    case = Case()
    attempt = case.admit()
    case.worker.fail(case.start(), kind="secret_rejected", error="x" * 10_000)
    proposed = settlement.outcome_of(attempt)
    assert proposed is not None
    assert (proposed.retryable, len(proposed.message)) == (False, 4_000)
    case.settle(attempt, proposed)


def test_a_late_report_of_held_work_is_what_is_settled() -> None:
    case = Case([rows.step("one", **HOLD)])
    attempt = case.admit()
    claim = case.start()
    case.lose(attempt)
    with refused("WORK_OUTSTANDING"):
        case.settle(attempt, ABANDONED)
    case.worker.complete(claim, output=7)
    assert case.settle(attempt, SUCCEEDED).output == 7


def test_work_that_was_tried_after_a_harmless_failure_is_judged_by_its_last_try() -> None:
    case = Case([rows.step("one", **HOLD, delivery={"max_attempts": 3, "retry_on": ["broken"]})])
    attempt = case.admit()
    presenting = case.worker.presenting(case.start())
    reports.fail(**presenting, kind="broken", error="x", no_effect=True)
    Workload.objects.filter(pk=attempt.workload_id).update(claimable=True)
    case.worker.fail(case.start())
    assert case.work(attempt).state == State.DEAD_LETTER
    with refused("OUTCOME_CONFLICT"):
        case.settle(attempt, RETRYABLE)
    case.settle(attempt, FAILED)


# --- Order of checks ------------------------------------------------------------------------------


def _by_viewer(case: Case) -> dict[str, Any]:
    return {"caller": case.world.caller(Role.VIEWER)}


def _bad_outcome(case: Case) -> dict[str, Any]:
    return {"outcome": Outcome("succeeded", message="no such member")}


def _secret(case: Case) -> dict[str, Any]:
    return {"outcome": Outcome("succeeded", output={"password": "x"}, has_output=True)}


def _other_run(case: Case) -> dict[str, Any]:
    return {"run_id": "no-such-run"}


def _stale(case: Case) -> dict[str, Any]:
    return {"authority": case.other()}


def _other_attempt(case: Case) -> dict[str, Any]:
    return {"dispatch_identity": "0" * 64}


def _disagreeing(case: Case) -> dict[str, Any]:
    return {"outcome": FAILED}


FAULTS: list[tuple[Callable[[Case], dict[str, Any]], str]] = [
    (_by_viewer, "PERMISSION_DENIED"),
    (_bad_outcome, "ADMISSION_INVALID"),
    (_secret, "WORKLOAD_SECRET_REJECTED"),
    (_other_run, "RUN_NOT_FOUND"),
    (_stale, "AUTHORITY_STALE"),
    (_other_attempt, "ATTEMPT_NOT_FOUND"),
]


@pytest.mark.parametrize("place", range(len(FAULTS)))
def test_of_two_faults_the_earlier_is_told(place: int) -> None:
    """Each fault together with the next one, and the last with work that is under way."""
    case = Case()
    attempt = case.admit()
    case.start()
    fault, code = FAULTS[place]
    following = [each(case) for each, _ in FAULTS[place + 1 : place + 2]]
    said: dict[str, Any] = {"outcome": FAILED}
    for each in [*following, fault(case)]:
        said |= each
    with refused(code):
        case.settle(attempt, said.pop("outcome"), **said)


def test_work_under_way_is_told_before_an_outcome_that_could_not_agree() -> None:
    case = Case()
    attempt = case.admit()
    case.start()
    with refused("WORK_OUTSTANDING"):
        case.settle(attempt, ABANDONED)


def test_an_outcome_settled_otherwise_is_told_whatever_the_work_is_by_now() -> None:
    case = Case()
    attempt = case.succeed()
    Workload.objects.filter(pk=attempt.workload_id).update(sealed=True)
    with refused("OUTCOME_CONFLICT"):
        case.settle(attempt, FAILED)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("lost"),
        Outcome("cancelled", message="why"),
        Outcome("not_started", retryable=True),
        Outcome("failed", output=1, has_output=True),
        Outcome("abandoned", message="why"),
        Outcome("succeeded", reason="why"),
        Outcome("failed", message="x" * 4_001),
        Outcome("abandoned", reason="x" * 4_001),
    ],
)
def test_what_is_no_outcome_is_refused(outcome: Outcome) -> None:
    case = Case()
    attempt = case.admit()
    with refused("ADMISSION_INVALID"):
        case.settle(attempt, outcome)


def test_an_attempt_of_another_run_is_not_found() -> None:
    case = Case()
    other = Case(world=case.world)
    attempt = other.admit()
    with refused("ATTEMPT_NOT_FOUND"):
        case.settle(attempt, NOT_STARTED)


# --- Repeats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [end for end, (_, _, agreeing) in ENDS.items() if agreeing])
def test_an_identical_repeat_is_answered_and_another_outcome_refused(end: str) -> None:
    case, attempt = at_end(end)
    agreeing = sorted(ENDS[end][2])
    outcome = OUTCOMES[agreeing[0]]
    first = case.settle(attempt, outcome)
    with unchanged():
        again = case.settle(attempt, outcome)
    assert (again.outcome, again.settled_at) == (first.outcome, first.settled_at)
    others = {
        said: each
        for said, each in OUTCOMES.items()
        if each.kind != outcome.kind or said == "succeeded with another output"
    }
    codes = set()
    with unchanged():
        for each in others.values():
            with pytest.raises(DomainError) as caught:
                case.settle(attempt, each)
            codes.add(caught.value.code)
    assert codes == {"OUTCOME_CONFLICT"}


def test_an_output_left_out_is_the_stored_one_also_in_a_repeat() -> None:
    case, attempt = at_end("SUCCEEDED")
    case.settle(attempt, SUCCEEDED)
    with unchanged():
        case.settle(attempt, SAME)


def test_a_repeat_is_answered_after_the_run_has_ended() -> None:
    case = Case()
    attempt = case.succeed()
    case.terminalize()
    with unchanged():
        assert case.settle(attempt, SUCCEEDED).outcome == "succeeded"


def test_a_stale_authority_is_not_answered_although_it_repeats_itself() -> None:
    case = Case()
    attempt = case.succeed()
    before = case.owner
    case.hand_over()
    with refused("AUTHORITY_STALE"):
        case.settle(attempt, SUCCEEDED, authority=before)
    with unchanged():
        case.settle(attempt, SUCCEEDED)


# --- What follows ---------------------------------------------------------------------------------


def test_settling_frees_counts_and_seals() -> None:
    case = Case()
    attempt = case.admit()
    ResourceLease.objects.create(
        run=case.row,
        attempt=attempt,
        application=case.row.application,
        resource="invoices",
        access=Access.WRITE,
        scope=LeaseScope.APPLICATION,
        generation=1,
        acquired_at=attempt.admitted_at,
    )
    case.worker.complete(case.start(), output=[1])
    settled = case.settle(attempt, SUCCEEDED)
    assert (settled.output, settled.settled_by) == ([1], "service:ops")
    assert not ResourceLease.objects.exists()
    assert (case.run.active_attempts, case.run.executions) == (0, 1)
    assert case.work(attempt).sealed
    assert (case.step().state, case.step().output) == (StepState.SUCCEEDED, [1])
    told = case.row.events.get(event="run.attempt_settled").evidence
    assert told["authority"] == case.owner.public()
    assert str(case.owner.fencing_token) not in str(told)


def test_ready_work_is_withdrawn_also_while_a_block_holds_it() -> None:
    case = Case()
    attempt = case.admit()
    steering.pause(**case.asked, reason="wait")
    assert case.work(attempt).held
    case.settle(attempt, NOT_STARTED)
    work = case.work(attempt)
    assert (work.state, work.sealed, work.claimable) == (State.CANCELLED, True, False)
    assert checks.events(work) == ["ready", "cancelled"]
    assert case.worker.claim() == []


def test_ready_work_stays_where_the_outcome_does_not_agree() -> None:
    case = Case()
    attempt = case.admit()
    with refused("OUTCOME_CONFLICT"):
        case.settle(attempt, FAILED)
    assert case.claim().workload_id == attempt.workload.workload_id


def test_the_next_steps_are_due() -> None:
    case = Case([rows.step("one"), rows.step("two", needs=["one"])])
    case.succeed()
    assert case.states() == {"one": "SUCCEEDED", "two": "READY"}


@pytest.mark.parametrize(
    ("retry", "outcome", "state"),
    [
        (1, FAILED, StepState.FAILED),
        (1, RETRYABLE, StepState.FAILED),
        (2, FAILED, StepState.FAILED),
        (2, RETRYABLE, StepState.READY),
    ],
)
def test_a_failed_step_is_tried_again_only_while_it_may(
    retry: int, outcome: Outcome, state: str
) -> None:
    case = Case([rows.step("one", retry={"max_attempts": retry})])
    attempt = case.admit()
    case.worker.fail(case.start())
    case.settle(attempt, outcome)
    # What failed for good fails the run, and so nothing is left to be begun.
    assert case.step().state == state
    assert (case.step().tries, case.run.executions) == (1, 1)


@pytest.mark.parametrize(("retry", "state"), [(1, "FAILED"), (2, "READY")])
def test_an_abandoned_step_is_tried_again_while_tries_are_left(retry: int, state: str) -> None:
    case = Case([rows.step("one", **HOLD, retry={"max_attempts": retry})])
    attempt = case.admit()
    case.start()
    case.lose(attempt)
    case.resolve(attempt, "cancelled")
    settled = case.settle(attempt, ABANDONED)
    assert (settled.message, case.step().state) == ("nobody knows", state)


def test_a_cancelled_step_fails_the_run_unless_the_run_is_being_cancelled() -> None:
    for is_cancelling in (False, True):
        case = Case([rows.step("one"), rows.step("two", needs=["one"])])
        attempt = case.admit()
        if is_cancelling:
            cancellation.request(**case.asked)
        case.settle(attempt, CANCELLED)
        left = "PENDING" if is_cancelling else "SKIPPED"
        assert case.states() == {"one": "CANCELLED", "two": left}


def test_an_attempt_that_never_started_does_not_count() -> None:
    case = Case()
    attempt = case.admit()
    case.settle(attempt, NOT_STARTED)
    step, run = case.step(), case.run
    assert (step.state, step.tries, step.unstarted, step.last_number) == ("READY", 0, 1, 1)
    assert (run.executions, run.active_attempts) == (0, 0)
    again = case.admit()
    case.worker.complete(case.start())
    case.settle(again, SUCCEEDED)
    assert (case.step().unstarted, case.step().tries) == (0, 1)


def test_the_twenty_first_attempt_in_a_row_that_never_started_fails_the_run() -> None:
    case = Case()
    case.row.activations.update(unstarted=19)
    case.settle(case.admit(), NOT_STARTED)
    assert not case.run.controlfailure_rows.exists()
    case.settle(case.admit(), NOT_STARTED)
    failure = case.run.controlfailure_rows.get()
    assert (failure.code, failure.step, failure.ended_at) == ("never_started", "one", None)
    assert case.step().unstarted == 21
    steering.clear(**case.asked, reason="workers are back")
    assert case.step().unstarted == 0


def test_blocks_do_not_stop_facts() -> None:
    case = Case()
    attempt = case.admit()
    claim = case.start()
    steering.pause(**case.asked, reason="wait")
    case.fail()
    cancellation.request(**case.asked)
    case.worker.complete(claim, output=1)
    assert case.settle(attempt, SUCCEEDED).output == 1


def test_settling_takes_as_many_statements_in_a_large_run_as_in_a_small_one() -> None:
    counts = []
    for size in (2, 12):
        steps = [rows.step(f"s{n}") for n in range(size)]
        case = Case([rows.step("one"), *steps, rows.step("last", needs=["one"])])
        attempt = case.admit()
        for n in range(size):
            rows.make_attempt(case.world, case.run, f"s{n}")
        case.cancel(attempt)
        with checks.counted() as queries:
            case.settle(attempt, NOT_STARTED)
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 32


# --- Sealed for good ------------------------------------------------------------------------------


def test_a_settled_attempt_is_never_retried_nor_placed() -> None:
    case = Case()
    attempt = case.admit()
    case.worker.fail(case.start())
    case.settle(attempt, FAILED)
    work = case.work(attempt)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        workloads.retry(caller=case.world.operator, workload_id=work.workload_id)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        placing.place(caller=case.world.operator, workload_id=work.workload_id)


def test_sealed_work_is_not_resolved_even_if_it_were_held() -> None:
    case = Case([rows.step("one", **HOLD)])
    attempt = case.admit()
    case.start()
    case.lose(attempt)
    workloads.seal([attempt.workload_id])
    with refused("WORKLOAD_TRANSITION_DENIED"):
        case.resolve(attempt, "requeue")


def test_unsettled_work_is_retried_by_a_person_and_the_attempt_goes_on() -> None:
    case = Case()
    attempt = case.admit()
    case.worker.fail(case.start())
    workloads.retry(
        caller=case.world.operator, workload_id=case.work(attempt).workload_id, reason="again"
    )
    with refused("OUTCOME_CONFLICT"):
        case.settle(attempt, FAILED)
    case.worker.complete(case.start())
    assert case.settle(attempt, SUCCEEDED).outcome == "succeeded"
