"""Admissions: what is checked in which order, what comes in, and what a repeat is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import clock
from mesh.canonical import secret_hash
from mesh.errors import DomainError
from mesh.models import LostPolicy, Role, State, Workload
from mesh.submissions import RETRY_DEFAULTS
from tests.factories import CAPABILITY, World, name
from workflows import admission, blocks
from workflows.models import (
    CancellationRequest,
    ControlFailure,
    OutcomeKind,
    RecoveryBarrier,
    ResourceLease,
    Run,
    RunAttempt,
    RunEvent,
    RunStatus,
    StepState,
    UserPause,
)

from . import rows
from .admitting import Driven, driven, driven_steps, read, settle, step_with, write

pytestmark = pytest.mark.django_db
BLOCKS: Mapping[str, Any] = {
    "RUN_PAUSED": UserPause,
    "RUN_CANCELLING": CancellationRequest,
    "RUN_CONTROL_FAILURE": ControlFailure,
    "RUN_RECOVERING": RecoveryBarrier,
}


def _block(run: Run, code: str) -> None:
    more = {"code": "input_unresolved"} if code == "RUN_CONTROL_FAILURE" else {}
    BLOCKS[code].objects.create(run=run, since=clock.now(), by="human:ann", reason="so", **more)


def _counts() -> dict[str, int]:
    """All that an admission writes."""
    return {
        each.__name__: each._default_manager.count()
        for each in (RunAttempt, ResourceLease, Workload, RunEvent)
    }


@dataclass
class Case:
    """A second attempt that would be admitted, and what is wrong with it."""

    world: World = field(default_factory=World)
    step: dict[str, Any] = field(
        default_factory=lambda: {
            "retry": {"max_attempts": 2},
            "input": {"$from": "run", "pointer": "/document"},
        }
    )
    run: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=lambda: {"attempt": 2})
    then: list[Callable[[Driven], object]] = field(default_factory=list)

    def make(self) -> Driven:
        one = driven_steps(self.world, [step_with("one", write("ledger"), **self.step)])
        settle(one.admit().attempt, OutcomeKind.FAILED, retryable=True)
        for each in self.then:
            each(one)
        if self.run:
            Run.objects.filter(pk=one.run.pk).update(**self.run)
        return one


def _hold_the_resource(one: Driven) -> None:
    driven(one.world, write("ledger")).admit()


def _block_later(code: str, case: Case) -> None:
    case.then.append(lambda one: _block(one.run, code))


def _limit_the_tenant(one: Driven) -> None:
    one.world.tenant.max_submissions_per_minute = 1
    one.world.tenant.save()


# What may be wrong, in the order in which it is told.
FAULTS: Mapping[str, Callable[[Case], object]] = {
    "PERMISSION_DENIED": lambda case: case.asked.update(caller=case.world.caller(Role.VIEWER)),
    "ADMISSION_INVALID attempt": lambda case: case.asked.update(attempt=0),
    "ADMISSION_INVALID resources": lambda case: case.asked.update(
        resources=[read(str(n)) for n in range(1_001)]
    ),
    "RUN_NOT_FOUND": lambda case: case.asked.update(run_id="nobody"),
    "ADMISSION_INVALID step": lambda case: case.asked.update(step="two"),
    "AUTHORITY_STALE": lambda case: case.asked.update(authority=rows.authority()),
    "RUN_TERMINAL": lambda case: case.run.update(status=RunStatus.FAILED, ended_at=clock.now()),
    **{code: partial(_block_later, code) for code in BLOCKS},
    "STEP_NOT_DUE": lambda case: case.then.append(
        lambda one: one.run.activations.update(state=StepState.PENDING)
    ),
    "LIMIT_REACHED deadline": lambda case: case.run.update(deadline=clock.now()),
    "LIMIT_REACHED attempt": lambda case: case.asked.update(attempt=3),
    "LIMIT_REACHED max_attempts": lambda case: case.step.update(retry={"max_attempts": 1}),
    "LIMIT_REACHED step_executions": lambda case: case.run.update(max_executions=1),
    "CONCURRENCY_FULL": lambda case: case.run.update(max_concurrency=1, active_attempts=1),
    "RESERVATION_MISMATCH": lambda case: case.asked.setdefault("resources", [read("ledger")]),
    "RESOURCE_BUSY": lambda case: case.then.append(_hold_the_resource),
    "ADMISSION_INVALID input": lambda case: case.run.update(input={"other": 1}),
    "LIMIT_EXCEEDED": lambda case: case.then.append(_limit_the_tenant),
}
ORDER = list(FAULTS)
FAR = [
    ("ADMISSION_INVALID attempt", "AUTHORITY_STALE"),
    ("RUN_NOT_FOUND", "RESOURCE_BUSY"),
    ("ADMISSION_INVALID step", "RUN_PAUSED"),
    ("AUTHORITY_STALE", "RUN_RECOVERING"),
    ("AUTHORITY_STALE", "RESERVATION_MISMATCH"),
    ("RUN_TERMINAL", "STEP_NOT_DUE"),
    ("RUN_PAUSED", "RUN_RECOVERING"),
    ("RUN_CANCELLING", "LIMIT_REACHED deadline"),
    ("STEP_NOT_DUE", "RESOURCE_BUSY"),
    ("LIMIT_REACHED deadline", "RESERVATION_MISMATCH"),
    ("LIMIT_REACHED attempt", "RESOURCE_BUSY"),
    ("CONCURRENCY_FULL", "RESOURCE_BUSY"),
    ("RESERVATION_MISMATCH", "LIMIT_EXCEEDED"),
]

# The last one, which nothing comes after.
ALONE = ("LIMIT_EXCEEDED", "LIMIT_EXCEEDED")


def _told(refused: DomainError) -> str:
    """As the table of faults names it."""
    facts = refused.facts
    if refused.code == "LIMIT_REACHED":
        return f"LIMIT_REACHED {facts['limit']}"
    if refused.code == "ADMISSION_INVALID":
        if facts.get("cause") == "input_unresolved":
            return "ADMISSION_INVALID input"
        return f"ADMISSION_INVALID {facts.get('field', 'step')}"
    return refused.code


def test_nothing_wrong_is_admitted() -> None:
    case = Case()
    assert case.make().admit(**case.asked).created


@pytest.mark.parametrize(("first", "second"), [*pairwise(ORDER), *FAR, ALONE])
def test_of_two_faults_the_earlier_in_the_order_is_told_and_nothing_is_left(
    first: str, second: str
) -> None:
    case = Case()
    FAULTS[second](case)
    FAULTS[first](case)
    one = case.make()
    before = _counts()
    with pytest.raises(DomainError) as refused:
        admission.admit(**{**one.asking(), **case.asked})
    assert _told(refused.value) == first
    assert _counts() == before


@pytest.mark.parametrize(
    "asked",
    [
        {"run_id": "a b"},
        {"step": "a/b"},
        {"attempt": 2**31},
        {"attempt": 2**80},
        {"authority": rows.authority("a b")},
        {"authority": rows.authority(target_artifact_id=" ")},
        {"authority": replace(rows.authority(), fencing_token=None)},
        {"resources": [read(" ")]},
    ],
)
def test_what_could_not_be_meant_is_refused(asked: dict[str, Any]) -> None:
    one = driven(World())
    with pytest.raises(DomainError, match="ADMISSION_INVALID"):
        admission.admit(**{**one.asking(), **asked})


def test_the_deadline_has_passed_at_that_very_moment() -> None:
    one, at = driven(World()), clock.now()
    Run.objects.filter(pk=one.run.pk).update(deadline=at)
    with clock.set_to(at), pytest.raises(DomainError, match="LIMIT_REACHED"):
        one.admit()
    with clock.set_to(at - timedelta(milliseconds=1)):
        assert one.admit().created


@pytest.mark.parametrize(
    ("outcome", "retryable", "is_allowed"),
    [
        (OutcomeKind.SUCCEEDED, False, False),
        (OutcomeKind.FAILED, False, False),
        (OutcomeKind.FAILED, True, True),
        (OutcomeKind.CANCELLED, False, False),
        (OutcomeKind.NOT_STARTED, False, True),
        (OutcomeKind.ABANDONED, False, True),
    ],
)
def test_a_further_attempt_follows_only_some_outcomes(
    outcome: str, retryable: bool, is_allowed: bool
) -> None:
    one = driven_steps(World(), [step_with("one", retry={"max_attempts": 9})])
    settle(one.admit().attempt, outcome, retryable=retryable)
    if is_allowed:
        assert one.admit(attempt=2).attempt.number == 2
    else:
        with pytest.raises(DomainError, match="LIMIT_REACHED"):
            one.admit(attempt=2)


def test_an_admission_brings_in_attempt_leases_and_workload_and_counts_them() -> None:
    one = driven(World(), read("a"), write("b", "run"))
    done = one.admit(resources=[write("b", "run"), read("a"), read("b", "run")])
    attempt, run = done.attempt, Run.objects.get(pk=one.run.pk)
    assert done.created
    assert (run.active_attempts, run.executions) == (1, 1)
    activation = run.activations.get()
    assert (activation.state, activation.last_number, activation.tries) == ("ACTIVE", 1, 1)
    assert (attempt.generation, attempt.outcome) == (1, None)
    assert attempt.dispatch_identity == one.identity()
    leases = run.leases.values_list("resource", "access", "scope", "generation", "acquired_at")
    assert list(leases) == [
        ("a", "read", "application", 1, attempt.admitted_at),
        ("b", "write", "run", 1, attempt.admitted_at),
    ]
    event = run.events.get()
    assert (event.event, event.actor) == ("run.attempt_admitted", "service:ops")
    assert event.evidence["workload_id"] == attempt.workload.workload_id
    assert str(one.owner.fencing_token) not in str(event.evidence)


def test_its_workload_is_what_the_step_says_within_its_run() -> None:
    steps = [
        rows.step(
            "one",
            definition_id="extract",
            delivery={"max_attempts": 7},
            timeouts={"execution_ms": 5_000},
            policy={"required_labels": {"zone": "a"}},
            input={"file": {"$from": "run", "pointer": "/document"}, "page": 1},
        )
    ]
    one = driven_steps(World(), steps, environment="staging")
    work = Workload.objects.get(pk=one.admit().attempt.workload.pk)
    assert work.state == State.READY
    assert (work.environment, work.trigger, work.definition_id) == (
        "staging",
        "workflow",
        "extract",
    )
    assert work.definition_revision == "1"
    assert work.idempotency_key == f"run:{one.identity()}"
    assert work.input == {"file": "a.pdf", "page": 1}
    assert work.capability_snapshot == [CAPABILITY]
    assert work.retry_policy == {**RETRY_DEFAULTS, "max_attempts": 7}
    assert work.timeouts["execution_ms"] == 5_000
    assert work.policy["required_labels"] == {"zone": "a"}
    assert not work.held


@pytest.mark.parametrize(
    ("effect", "replay", "lost_policy"),
    [
        ("mutating", "none", LostPolicy.HOLD),
        ("mutating", "idempotent", LostPolicy.REQUEUE),
        ("read_only", "none", LostPolicy.REQUEUE),
    ],
)
def test_lost_work_is_held_where_it_changes_what_must_not_be_changed_twice(
    effect: str, replay: str, lost_policy: str
) -> None:
    one = driven_steps(World(), [rows.step("one", effect=effect, replay=replay)])
    attempt = one.admit().attempt
    assert (attempt.effect, attempt.workload.lost_policy) == (effect, lost_policy)


def _move_authority(one: Driven) -> None:
    Run.objects.filter(pk=one.run.pk).update(
        instance_id="next", generation=2, token_hash=secret_hash("next")
    )


def _end(one: Driven) -> None:
    settle(one.run.attempts.get())
    Run.objects.filter(pk=one.run.pk).update(status=RunStatus.COMPLETED, ended_at=clock.now())


def _go_on(one: Driven) -> None:
    settle(one.run.attempts.get(), OutcomeKind.NOT_STARTED)
    one.run.activations.update(tries=0)
    one.admit(attempt=2)


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda one: None,
        _move_authority,
        _end,
        _go_on,
        lambda one: Run.objects.filter(pk=one.run.pk).update(deadline=clock.now()),
        *[lambda one, code=code: _block(one.run, code) for code in BLOCKS],
    ],
)
@pytest.mark.parametrize("resources", [None, [write("a"), read("a"), read("b", "run")]])
def test_the_exact_repeat_is_the_attempt_that_is_there_whatever_happened_since(
    meanwhile: Callable[[Driven], object], resources: list[Any] | None
) -> None:
    one = driven(World(), read("b", "run"), write("a"))
    first = one.admit().attempt
    meanwhile(one)
    before = _counts()
    again = one.admit(resources=resources)
    assert (again.attempt.pk, again.created) == (first.pk, False)
    assert again.attempt.workload.pk == first.workload.pk
    assert _counts() == before
    current = Run.objects.get(pk=one.run.pk)
    assert again.authority is not None
    assert again.authority.generation == current.generation
    assert again.authority.instance_id == current.instance_id
    assert again.authority.fencing_token is None


@pytest.mark.parametrize("is_settled", [False, True])
@pytest.mark.parametrize("resources", [[], [write("a")], [write("a"), read("b")]])
def test_an_attempt_that_is_there_has_no_other_resources(
    resources: list[Any], is_settled: bool
) -> None:
    one = driven(World(), read("b", "run"), write("a"))
    first = one.admit().attempt
    if is_settled:
        settle(first)
    with pytest.raises(DomainError, match="RESERVATION_MISMATCH"):
        one.admit(resources=resources)
    _move_authority(one)
    with pytest.raises(DomainError, match="AUTHORITY_STALE"):
        one.admit(resources=resources)


def test_a_stale_authority_is_told_who_is_current_but_not_the_token() -> None:
    one = driven(World())
    for stale in (
        replace(one.owner, fencing_token="wrong"),
        replace(one.owner, generation=2),
        replace(one.owner, instance_id="other"),
        replace(one.owner, target_artifact_id="other"),
    ):
        with pytest.raises(DomainError) as refused:
            one.admit(authority=stale)
        assert refused.value.code == "AUTHORITY_STALE"
        assert refused.value.facts["authority"] == one.owner.public()


def test_the_same_run_id_in_two_tenants_admits_in_both() -> None:
    both = [driven(World(), write("r"), run_id="monthly") for _ in range(2)]
    attempts = [each.admit().attempt for each in both]
    assert attempts[0].dispatch_identity == attempts[1].dispatch_identity
    assert attempts[0].workload.workload_id != attempts[1].workload.workload_id


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"delivery": {"max_attempts": 0}}, "WORKLOAD_INVALID"),
        ({"input": {"password": "x"}}, "WORKLOAD_SECRET_REJECTED"),
    ],
)
def test_what_a_submission_may_not_be_is_no_admission_and_leaves_nothing(
    said: dict[str, Any], code: str
) -> None:
    one = driven_steps(World(), [step_with("one", write("r"), **said)])
    before = _counts()
    with pytest.raises(DomainError) as refused:
        one.admit()
    assert refused.value.code == code
    assert _counts() == before
    assert Run.objects.get(pk=one.run.pk).active_attempts == 0


def test_work_of_an_earlier_run_with_this_id_is_not_taken_for_the_attempts_own() -> None:
    one = driven(World())
    settle(attempt := one.admit().attempt)
    attempt.delete()
    one.run.activations.update(last_number=0, tries=0)
    with pytest.raises(DomainError, match="WORKLOAD_IDEMPOTENCY_MISMATCH"):
        one.admit()


def test_an_admission_is_as_many_statements_whatever_the_number_of_resources() -> None:
    world, counted = World(), []
    driven(world, write(name("warm"))).admit()
    for number in (1, 300):
        one = driven(world, *[write(name("r")) for _ in range(number)])
        with CaptureQueriesContext(connection) as queries:
            one.admit()
        counted.append(len(queries))
    assert counted[0] == counted[1]
    assert counted[0] <= 25


def test_blocks_are_read_with_since_by_and_why() -> None:
    world = World()
    one = driven(world)
    viewer = world.caller(Role.VIEWER)
    assert not admission.blocks(caller=viewer, run_id=one.run.run_id).any
    _block(one.run, "RUN_PAUSED")
    told = admission.blocks(caller=viewer, run_id=one.run.run_id)
    assert told == blocks.standing(one.run.pk)
    assert told.user_paused is not None
    assert (told.user_paused.by, told.user_paused.reason) == ("human:ann", "so")
    with pytest.raises(DomainError, match="RUN_NOT_FOUND"):
        admission.blocks(caller=World().operator, run_id=one.run.run_id)
