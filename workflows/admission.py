"""Admission: the one way in which work of a run comes into being.

Guarantees: an attempt, all leases of its resources and its one workload come in together or not
at all; "the workload is the receipt". A lost reply never becomes a refusal: the exact repeat of an
admission is answered for ever. Of attempts that conflict over a resource two are never unsettled.

Does not choose what is tried next: that is the coordinator's. What an admission costs does not
depend on how many resources there are.

Locks: the run; then the keys of its resources of scope `application`, in their order, made where
missing; then what `intake.submit` locks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import transaction

from mesh import clock, intake, refusals
from mesh.errors import DomainError
from mesh.models import LostPolicy, Role, Workload
from mesh.submissions import Submission
from mesh.tenancy import Caller

from . import history, inputs, names, runs
from .authority import Authority, require_current, terminal
from .blocks import Standing, require_none, standing
from .locking import lock_resources, lock_run
from .models import (
    Access,
    Activation,
    LeaseScope,
    OutcomeKind,
    ResourceLease,
    Run,
    RunAttempt,
    StepState,
)
from .resources import conflicts, forget, normalize, remember
from .steps import Resource, Step, Steps, normalized

TRIGGER: Final = "workflow"
_MAX_NUMBER: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Admitted:
    """An attempt, and its run as it is now."""

    attempt: RunAttempt
    run: Run
    created: bool

    @property
    def authority(self) -> Authority | None:
        """The current one, without its token; after a repeat not always the one that asked."""
        return Authority.of(self.run)


@dataclass(frozen=True, slots=True)
class _Ask:
    """What is asked for, of a locked run."""

    caller: Caller
    run: Run
    authority: Authority
    step: Step
    number: int
    identity: str
    # Normalized, as the step has them; `given` are those that were named, if any.
    wanted: tuple[Resource, ...]
    given: tuple[Resource, ...] | None

    @property
    def is_agreed(self) -> bool:
        """Whether no resources were named, or those of the step.

        Every attempt at the step has these, for a definition never changes: so an attempt that was
        settled, whose leases are gone, is judged like one that still has them.
        """
        return self.given is None or self.given == self.wanted

    @property
    def writes(self) -> bool:
        return any(each.access == Access.WRITE for each in self.wanted)


def admit(
    *,
    caller: Caller,
    run_id: str,
    authority: Authority,
    step: str,
    attempt: int,
    resources: Iterable[Resource] | None = None,
) -> Admitted:
    """Admit an attempt at a step, with its leases and its workload, which may then be claimed.

    The exact repeat (same step and number; resources left out or the same) answers the attempt that
    is there, whoever asks and whatever became of the run, with the authority that is current now.

    Refuses in this order: PERMISSION_DENIED (operator); ADMISSION_INVALID (ids, token, number,
    resources that are none or too many); RUN_NOT_FOUND; ADMISSION_INVALID (no such step);
    AUTHORITY_STALE; RUN_TERMINAL; RUN_PAUSED, RUN_CANCELLING, RUN_CONTROL_FAILURE, RUN_RECOVERING;
    STEP_NOT_DUE; LIMIT_REACHED (the deadline; a number that is not the next, or what came before
    allows none; attempts at the step; step executions of the run); CONCURRENCY_FULL;
    RESERVATION_MISMATCH (not the step's resources); RESOURCE_BUSY (names key and holder);
    ADMISSION_INVALID with the cause `input_unresolved`; what `intake.submit` refuses. An attempt
    that is there, asked for with other resources, is RESERVATION_MISMATCH where this order comes to
    what only a new one must keep to. A writer that was refused is remembered (see `resources`).
    """
    caller.require(Role.OPERATOR)
    _require_sound(run_id, authority, step, attempt)
    given = None if resources is None else normalize(resources)
    with refusals.kept(), transaction.atomic():
        run = lock_run(caller, run_id)
        ask = _ask(caller, run, authority, step, attempt, given)
        there = _find(ask)
        if there is not None and ask.is_agreed:
            return Admitted(there, run, created=False)
        _require_going_on(ask)
        if there is not None:
            raise _mismatch()
        activation = _require_room(ask)
        if not ask.is_agreed:
            raise _mismatch()
        return Admitted(_admit(ask, activation), run, created=True)


def blocks(*, caller: Caller, run_id: str) -> Standing:
    """What blocks admissions to the run, as of one moment; grants nothing.

    Refuses with PERMISSION_DENIED (viewer) and RUN_NOT_FOUND.
    """
    return standing(runs.get(caller=caller, run_id=run_id).pk)


def _require_sound(run_id: str, authority: Authority, step: str, number: int) -> None:
    names.require_id(run_id, "run_id")
    names.require_id(step, "step")
    authority.require_sound()
    names.require_name(authority.fencing_token or "", "fencing_token")
    if not 1 <= number <= _MAX_NUMBER:
        raise DomainError("ADMISSION_INVALID", "Attempts are numbered from 1.", field="attempt")


def _ask(
    caller: Caller,
    run: Run,
    authority: Authority,
    step: str,
    number: int,
    given: tuple[Resource, ...] | None,
) -> _Ask:
    known = Steps.of(run.definition).get(step)
    if known is None:
        raise DomainError("ADMISSION_INVALID", f"The run has no step {step}.", step=step)
    return _Ask(
        caller,
        run,
        authority,
        known,
        number,
        names.dispatch_identity(run.run_id, step, number),
        normalized(known.resources),
        given,
    )


def _find(ask: _Ask) -> RunAttempt | None:
    found = RunAttempt.objects.select_related("activation", "workload__application").filter(
        tenant_id=ask.run.tenant_id, dispatch_identity=ask.identity
    )
    there = found.first()
    if there is not None:
        there.run = ask.run
    return there


def _require_going_on(ask: _Ask) -> None:
    """AUTHORITY_STALE, RUN_TERMINAL, and the codes of the blocks."""
    require_current(ask.run, ask.authority)
    if not ask.run.is_open:
        raise terminal(ask.run)
    require_none(standing(ask.run.pk))


def _require_room(ask: _Ask) -> Activation:
    """The activation; STEP_NOT_DUE, LIMIT_REACHED, CONCURRENCY_FULL."""
    run = ask.run
    activation = run.activations.get(step=ask.step.step)
    if activation.state != StepState.READY:
        raise DomainError(
            "STEP_NOT_DUE", f"The step is {activation.state}.", step_state=activation.state
        )
    _require_before_deadline(run, clock.now())
    if ask.number != activation.last_number + 1:
        raise _limit("attempt", f"The next attempt at the step is {activation.last_number + 1}.")
    if not _is_another_allowed(activation):
        raise _limit("attempt", "What the attempt before came to allows no further one.")
    if activation.tries >= ask.step.max_attempts:
        raise _limit("max_attempts", f"The step may be tried {ask.step.max_attempts} times.")
    if run.executions >= run.max_executions:
        raise _limit("step_executions", f"The run may try {run.max_executions} times in all.")
    if run.active_attempts >= run.max_concurrency:
        raise DomainError(
            "CONCURRENCY_FULL",
            f"The run has {run.max_concurrency} attempts under way, as many as it may.",
            concurrency=run.max_concurrency,
        )
    return activation


def _require_before_deadline(run: Run, at: datetime) -> None:
    if run.deadline is not None and run.deadline <= at:
        raise _limit("deadline", "The deadline of the run has passed.", deadline=run.deadline)


def _is_another_allowed(activation: Activation) -> bool:
    if activation.last_number == 0:
        return True
    last = activation.attempts.get(number=activation.last_number)
    if last.outcome in {OutcomeKind.FAILED, OutcomeKind.CANCELLED}:
        return last.retryable
    return last.outcome in {OutcomeKind.NOT_STARTED, OutcomeKind.ABANDONED}


def _limit(limit: str, detail: str, **facts: Any) -> DomainError:
    return DomainError("LIMIT_REACHED", detail, limit=limit, **facts)


def _mismatch() -> DomainError:
    return DomainError(
        "RESERVATION_MISMATCH", "The resources are not those that the step reserves."
    )


def _admit(ask: _Ask, activation: Activation) -> RunAttempt:
    """Everything is checked but the resources, the input, and what a submission must keep to."""
    at = _require_free(ask)
    run, workload = ask.run, _submit(ask)
    attempt = RunAttempt.objects.create(
        tenant_id=run.tenant_id,
        run=run,
        activation=activation,
        number=ask.number,
        dispatch_identity=ask.identity,
        effect=ask.step.effect,
        generation=ask.authority.generation,
        workload=workload,
        admitted_at=at,
    )
    _reserve(ask, attempt)
    _count(run, activation, ask.number, at)
    history.record(
        run,
        "attempt_admitted",
        actor=ask.caller.subject,
        at=at,
        evidence={
            "step": activation.step,
            "attempt": ask.number,
            "dispatch_identity": ask.identity,
            "workload_id": workload.workload_id,
            "generation": attempt.generation,
            "resources": len(ask.wanted),
        },
    )
    return attempt


def _require_free(ask: _Ask) -> datetime:
    """Lock the keys and refuse with RESOURCE_BUSY what is not free; the time after the locks.

    To wait for them may take until the deadline.
    """
    shared = {each.resource for each in ask.wanted if each.scope == LeaseScope.APPLICATION}
    if shared:
        lock_resources(ask.run.application_id, shared)
    at = clock.now()
    _require_before_deadline(ask.run, at)
    found = conflicts(ask.run, ask.wanted, at, dispatch_identity=ask.identity)
    if found:
        refusal = found[0].refusal()
        if ask.writes:
            busy = [each.wanted for each in found if each.wanted.access == Access.WRITE]
            refusal.keep = partial(remember, ask.run.pk, ask.identity, busy, at)
        raise refusal
    return at


def _submit(ask: _Ask) -> Workload:
    run, step = ask.run, ask.step
    try:
        work_input = runs.step_input(run, step)
    except inputs.Unresolved as error:
        raise DomainError(
            "ADMISSION_INVALID", str(error), cause="input_unresolved", step=step.step
        ) from error
    except inputs.TooLong as error:
        # As `intake.submit` says it, which need not be shown the whole of it.
        raise DomainError(
            "WORKLOAD_INVALID", "Out of bounds: input.", fields=["input"], step=step.step
        ) from error
    submission = Submission(
        application=run.application.name,
        environment=run.environment,
        definition_id=step.definition_id,
        definition_revision=str(run.definition.version),
        trigger=TRIGGER,
        input=work_input,
        idempotency_key=names.workload_key(ask.identity),
        capability_snapshot=step.capabilities,
        retry_policy=step.delivery,
        timeouts=step.timeouts,
        policy=step.policy,
        lost_policy=LostPolicy.HOLD if step.is_held_when_lost else LostPolicy.REQUEUE,
    )
    done = intake.submit(caller=ask.caller, submission=submission, is_of_run=True)
    if not done.created:
        # Of a run of the same id that is gone: what it came to is no answer to this attempt.
        raise DomainError(
            "WORKLOAD_IDEMPOTENCY_MISMATCH",
            "The key of the attempt stands for work of an earlier run with this id.",
            workload_id=done.workload.workload_id,
        )
    return done.workload


def _reserve(ask: _Ask, attempt: RunAttempt) -> None:
    ResourceLease.objects.bulk_create(
        ResourceLease(
            run=ask.run,
            attempt=attempt,
            application_id=ask.run.application_id,
            resource=each.resource,
            access=each.access,
            scope=each.scope,
            generation=attempt.generation,
            acquired_at=attempt.admitted_at,
        )
        for each in ask.wanted
    )
    if ask.writes:
        forget(ask.run, ask.identity)


def _count(run: Run, activation: Activation, number: int, at: datetime) -> None:
    activation.state = StepState.ACTIVE
    activation.last_number = number
    activation.tries += 1
    activation.updated_at = at
    activation.save(update_fields=["state", "last_number", "tries", "updated_at"])
    run.active_attempts += 1
    run.executions += 1
    run.save(update_fields=["active_attempts", "executions"])
