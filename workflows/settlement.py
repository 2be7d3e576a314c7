"""Settlement: what an attempt came to, said once by the run's authority, and all that follows.

Guarantees: an attempt has at most one outcome, for ever, and it agrees with what became of its
workload:

| the workload | outcomes that agree |
|---|---|
| SUCCEEDED | `succeeded`; its output is left out or equals the stored result's |
| DEAD_LETTER | `failed`; not `retryable` where a repeat might do something twice |
| CANCELLED | `cancelled`; `not_started` if it never started; `abandoned` by a person's resolution |

Work that is held when lost is retryable only where its last report said that it had no effect.

READY work is withdrawn, and so CANCELLED, by its settlement; other work that has not ended keeps
its attempt open. In one transaction with the outcome the attempt's leases are released, its
workload is sealed, so that nobody retries or resolves it any more, and the next steps are due.
Blocks do not stop facts: an attempt is settled whatever stands.

Locks: the run, then the workload.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from mesh import clock, outcomes, workloads
from mesh import locking as mesh_locking
from mesh.canonical import digest
from mesh.changes import Changes
from mesh.errors import DomainError
from mesh.history import audited
from mesh.models import (
    ENDED_STATES,
    Attempt,
    LostPolicy,
    Result,
    Role,
    State,
    Workload,
    WorkloadEvent,
)
from mesh.screening import require_no_secrets
from mesh.tenancy import Caller

from . import blocks, history, runs, steering
from .authority import Authority, require_current
from .locking import lock_run
from .models import (
    CancellationRequest,
    OutcomeKind,
    OutcomeSource,
    ResourceLease,
    Run,
    RunAttempt,
    StepState,
)
from .steps import Steps

# As many attempts in a row may come to nothing before they started; one more fails the run.
MAX_UNSTARTED: Final = 20
# What an outcome may say beside its kind.
_MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    OutcomeKind.SUCCEEDED: frozenset({"has_output"}),
    OutcomeKind.FAILED: frozenset({"message", "retryable"}),
    OutcomeKind.ABANDONED: frozenset({"reason"}),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a coordinator says of an attempt. `output` counts where `has_output`."""

    kind: str
    output: Any = None
    message: str = ""
    retryable: bool = False
    reason: str = ""
    has_output: bool = False

    def require_sound(self) -> None:
        """Refuse with ADMISSION_INVALID what is no outcome; WORKLOAD_SECRET_REJECTED."""
        said = {
            "has_output": self.has_output or self.output is not None,
            "message": bool(self.message),
            "retryable": self.retryable,
            "reason": bool(self.reason),
        }
        known = _MEMBERS.get(self.kind, frozenset())
        if self.kind not in OutcomeKind.values or any(
            is_said and name not in known for name, is_said in said.items()
        ):
            raise DomainError(
                "ADMISSION_INVALID",
                "An outcome is succeeded {output}, failed {message, retryable}, cancelled,"
                " not_started or abandoned {reason}.",
                field="outcome",
            )
        blocks.require_reason(self.message, what="message", may_be_blank=True)
        blocks.require_reason(self.reason, may_be_blank=True)
        require_no_secrets(output=self.output)

    def digest(self, output: Any) -> str:
        """By it an identical repeat is known; an output left out is the stored one."""
        said = self.output if self.has_output else output
        return digest([self.kind, said, self.message, self.retryable, self.reason])


@audited("run.attempt_settled", on="dispatch_identity")
def settle(
    *,
    caller: Caller,
    run_id: str,
    authority: Authority,
    dispatch_identity: str,
    outcome: Outcome,
) -> RunAttempt:
    """Record what an attempt came to. An identical repeat by the current authority is answered.

    What the step becomes: `succeeded` → SUCCEEDED with the output; `failed` → READY again if
    retryable and tries are left, else FAILED; `abandoned` → READY if tries are left, else FAILED;
    `cancelled` → CANCELLED, but READY where a take-over alone had it withdrawn (decision 9), and
    the try does not count; `not_started` → READY, and the try does not count, but the 21st in a row
    sets the control failure `never_started`.

    Refuses in this order: PERMISSION_DENIED (operator); ADMISSION_INVALID (no outcome),
    WORKLOAD_SECRET_REJECTED; RUN_NOT_FOUND; AUTHORITY_STALE; ATTEMPT_NOT_FOUND; OUTCOME_CONFLICT
    (settled otherwise); WORK_OUTSTANDING (the work is under way or held); OUTCOME_CONFLICT (it
    does not agree with the work, which is then not withdrawn either).
    """
    caller.require(Role.OPERATOR)
    outcome.require_sound()
    with transaction.atomic():
        run = lock_run(caller, run_id)
        require_current(run, authority)
        attempt = _find(run, dispatch_identity)
        if attempt.is_settled:
            if outcome.digest(attempt.output) != attempt.outcome_digest:
                raise _conflict("The attempt was settled otherwise.", attempt)
            return attempt
        work = mesh_locking.lock_workloads([attempt.workload_id])[attempt.workload_id]
        at = clock.now()
        is_withdrawn = work.state == State.READY
        if is_withdrawn:
            _withdraw(work, caller.subject, at)
        elif work.state not in ENDED_STATES:
            raise DomainError(
                "WORK_OUTSTANDING",
                f"The work of the attempt is {work.state}.",
                workload_id=work.workload_id,
                state=work.state,
            )
        truth = _Truth.of(work)
        if refusal := truth.objection(outcome):
            raise _conflict(refusal, attempt)
        attempt.retryable = outcome.retryable or (
            is_withdrawn and truth.may_be_retried and _is_interrupted(run, outcome)
        )
        _record(run, attempt, outcome, truth, by=caller.subject, at=at)
        workloads.seal([work.pk])
        _advance(run, attempt, by=caller.subject, at=at)
        _tell(run, attempt, authority, caller.subject, at)
    return attempt


def outcome_of(attempt: RunAttempt) -> Outcome | None:
    """What the work of an unsettled attempt comes to, if it were settled now; None if it cannot be.

    Of READY work it is what its withdrawal comes to. Locks nothing, so it is only a proposal.
    """
    work = Workload.objects.defer("input").get(pk=attempt.workload_id)
    if work.state != State.READY and work.state not in ENDED_STATES:
        return None
    return _Truth.of(work).proposal()


@dataclass(frozen=True, slots=True)
class _Truth:
    """What became of a workload that ended, or of READY work that is withdrawn."""

    work: Workload
    output: Any
    source: OutcomeSource
    # Started work that is held when lost may have changed something that must not be repeated.
    may_be_retried: bool
    # The reason of the person who resolved it as cancelled; None if nobody did.
    resolution: str | None

    @classmethod
    def of(cls, work: Workload) -> "_Truth":
        result = Result.objects.filter(workload=work).first()
        last = work.attempts.filter(started_at__isnull=False).order_by("-number").first()
        resolved = _resolution(work)
        return cls(
            work,
            None if result is None else result.output,
            _source(work, result, resolved),
            work.lost_policy != LostPolicy.HOLD or _had_no_effect(last),
            None if resolved is None else str(resolved.evidence.get("reason", "")),
        )

    def objection(self, outcome: Outcome) -> str | None:
        """Why the outcome does not agree with the work; None if it does."""
        agreeing = {
            State.SUCCEEDED: {OutcomeKind.SUCCEEDED},
            State.DEAD_LETTER: {OutcomeKind.FAILED},
        }.get(State(self.work.state), self._of_cancelled())
        if outcome.kind not in agreeing:
            return f"The work is {self.work.state}: the attempt is {' or '.join(sorted(agreeing))}."
        if outcome.has_output and digest(outcome.output) != digest(self.output):
            return "The output is not that of the stored result."
        if outcome.retryable and not self.may_be_retried:
            return "Work that may have had an effect is not repeated by itself."
        return None

    def proposal(self) -> Outcome:
        failure = self.work.last_failure or {}
        if self.work.state == State.SUCCEEDED:
            return Outcome(OutcomeKind.SUCCEEDED)
        if self.work.state == State.DEAD_LETTER:
            is_final = failure.get("kind") in outcomes.NEVER_RETRIED
            message = str(failure.get("error", ""))[: blocks.MAX_REASON]
            retryable = self.may_be_retried and not is_final
            return Outcome(OutcomeKind.FAILED, message=message, retryable=retryable)
        if not self.work.started_attempts:
            return Outcome(OutcomeKind.NOT_STARTED)
        if self.resolution is not None:
            return Outcome(OutcomeKind.ABANDONED, reason=self.resolution)
        return Outcome(OutcomeKind.CANCELLED)

    def _of_cancelled(self) -> set[OutcomeKind]:
        agreeing = {OutcomeKind.CANCELLED}
        if not self.work.started_attempts:
            agreeing.add(OutcomeKind.NOT_STARTED)
        if self.resolution is not None:
            agreeing.add(OutcomeKind.ABANDONED)
        return agreeing


# What an unsettled attempt lacks. A reason is kept where a message is.
_OUTCOME: Final = (
    "outcome",
    "output",
    "message",
    "retryable",
    "outcome_digest",
    "source",
    "settled_at",
    "settled_by",
)


def _find(run: Run, dispatch_identity: str) -> RunAttempt:
    found = run.attempts.select_related("activation", "workload")
    attempt = found.filter(dispatch_identity=dispatch_identity).defer("workload__input").first()
    if attempt is None:
        raise DomainError("ATTEMPT_NOT_FOUND", "The run has no such attempt.")
    return attempt


def _withdraw(work: Workload, by: str, at: datetime) -> None:
    """Nobody has it: it is not to be done any more."""
    changes = Changes()
    work.cancel_requested_at = at
    evidence = {"cause": "withdrawn by the run that it belongs to"}
    outcomes.close(changes, work, actor=by, at=at, evidence=evidence)
    changes.write()


def _is_interrupted(run: Run, outcome: Outcome) -> bool:
    """Whether only the barrier of a take-over stopped it: the run is to go on, and so is the step.

    See docs/decisions/0009.
    """
    standing = blocks.standing(run.pk)
    is_going_on = standing.cancelled is None and standing.control_failure is None
    return outcome.kind == OutcomeKind.CANCELLED and standing.recovery is not None and is_going_on


def _record(
    run: Run, attempt: RunAttempt, outcome: Outcome, truth: _Truth, *, by: str, at: datetime
) -> None:
    """Write the outcome, free what the attempt reserved, and count."""
    attempt.outcome = outcome.kind
    attempt.output = truth.output
    attempt.message = outcome.message or outcome.reason
    attempt.outcome_digest = outcome.digest(truth.output)
    attempt.source, attempt.settled_at, attempt.settled_by = truth.source, at, by
    said = {name: getattr(attempt, name) for name in _OUTCOME}
    if RunAttempt.objects.unsettled().filter(pk=attempt.pk).update(**said) != 1:
        raise _conflict("The attempt was settled meanwhile.", attempt)
    ResourceLease.objects.filter(attempt=attempt).delete()
    run.active_attempts -= 1
    if outcome.kind == OutcomeKind.NOT_STARTED:
        run.executions -= 1
    run.save(update_fields=["active_attempts", "executions"])


def _advance(run: Run, attempt: RunAttempt, *, by: str, at: datetime) -> None:
    """Move the step on, and make due what follows from that, unless the run is to end."""
    step = attempt.activation
    is_unstarted = attempt.outcome == OutcomeKind.NOT_STARTED
    is_interrupted = attempt.outcome == OutcomeKind.CANCELLED and attempt.retryable
    step.tries -= is_unstarted or is_interrupted
    step.unstarted = step.unstarted + 1 if is_unstarted else 0
    step.state = _becomes(run, attempt)
    if step.state == StepState.SUCCEEDED:
        step.output = attempt.output
    step.updated_at = at
    step.save(update_fields=["state", "output", "tries", "unstarted", "updated_at"])
    if step.unstarted > MAX_UNSTARTED:
        message = f"{step.unstarted} attempts in a row never started."
        steering.set_failure(
            run, code=steering.NEVER_STARTED, message=message, step=step.step, by=by, at=at
        )
    if not CancellationRequest.objects.filter(run=run).exists():
        runs.make_due(run, at)


def _becomes(run: Run, attempt: RunAttempt) -> StepState:
    step = attempt.activation
    may_try = step.tries < Steps.of(run.definition)[step.step].max_attempts
    match attempt.outcome:
        case OutcomeKind.SUCCEEDED:
            return StepState.SUCCEEDED
        case OutcomeKind.CANCELLED:
            return StepState.READY if attempt.retryable else StepState.CANCELLED
        case OutcomeKind.NOT_STARTED:
            return StepState.READY
        case OutcomeKind.FAILED:
            return StepState.READY if attempt.retryable and may_try else StepState.FAILED
        case _:
            return StepState.READY if may_try else StepState.FAILED


def _tell(run: Run, attempt: RunAttempt, authority: Authority, by: str, at: datetime) -> None:
    evidence = {
        "dispatch_identity": attempt.dispatch_identity,
        "step": attempt.activation.step,
        "attempt": attempt.number,
        "outcome": attempt.outcome,
        "source": attempt.source,
        "authority": authority.public(),
    }
    history.record(run, "attempt_settled", actor=by, at=at, evidence=evidence)
    runs.wake(run)


def _conflict(detail: str, attempt: RunAttempt) -> DomainError:
    return DomainError(
        "OUTCOME_CONFLICT",
        detail,
        dispatch_identity=attempt.dispatch_identity,
        outcome=attempt.outcome if attempt.is_settled else None,
    )


def _had_no_effect(last: Attempt | None) -> bool:
    """Whether the report of the last attempt that started said so; without one nobody said it."""
    return last is not None and bool((last.failure or {}).get("no_effect"))


def _resolution(work: Workload) -> WorkloadEvent | None:
    """The act of the person who said that held work is not to be done."""
    if work.state != State.CANCELLED:
        return None
    return work.events.filter(from_state=State.HELD, to_state=State.CANCELLED).first()


def _source(work: Workload, result: Result | None, resolved: WorkloadEvent | None) -> OutcomeSource:
    kind = (work.last_failure or {}).get("kind")
    is_given_up = work.state == State.DEAD_LETTER and kind == outcomes.RESOLVED_FAILED
    if resolved is not None or is_given_up or (result is not None and result.author):
        return OutcomeSource.OPERATOR
    return OutcomeSource.WORKER if work.attempt_count else OutcomeSource.NEVER_CLAIMED
