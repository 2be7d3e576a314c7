"""Resolutions: what a person does about work that a worker has, or had, and that does not end.

Guarantees: HELD work ends once, by its last worker's late report or by a person, whichever comes
first; who resolved it and why stands in its history. A reclaimed claim ends as lost work does, its
worker is not judged.

Locks: the worker of the latest attempt, then the workload.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from . import clock, history, locking, outcomes, workers, workloads
from .canonical import digest, size
from .changes import Changes
from .errors import DomainError
from .locking import Held
from .models import Attempt, AttemptStatus, Resolution, Result, Role, State, Workload
from .reports import require_bounds
from .screening import require_no_secrets
from .tenancy import Caller

MAX_REASON: Final = 4_000


@history.audited("workload.resolved", on="workload_id")
def resolve(
    *, caller: Caller, workload_id: str, resolution: str, reason: str, output: Any = None
) -> Workload:
    """Say what became of HELD work, or send it back, where nobody else can know.

    - `succeeded`: SUCCEEDED; `output` is stored as its result under the name of the person, and
      the attempt that was given up counts as the one that succeeded
    - `failed`: a dead letter of the kind `resolved_failed` that is not retried by itself
    - `cancelled`: CANCELLED
    - `requeue`: READY at once with one attempt more, its overall timeout from now on; a report of
      the old claim changes nothing any more once this is done

    `reason` is the message that stays. Refuses in this order: PERMISSION_DENIED; REQUEST_INVALID
    (no such resolution, an output that is not that of a success); WORKLOAD_NOT_FOUND;
    WORKLOAD_TRANSITION_DENIED (not HELD, or its run is settled; so a repeat is refused);
    WORKLOAD_SECRET_REJECTED; WORKLOAD_INVALID (bounds); STORAGE_BUSY.
    """
    caller.require(Role.OPERATOR)
    if resolution not in Resolution.values:
        raise DomainError("REQUEST_INVALID", f"One of {', '.join(Resolution.values)}.")
    if output is not None and resolution != Resolution.SUCCEEDED:
        raise DomainError("REQUEST_INVALID", "Only work that succeeded has an output.")
    pk = workloads.pk_for(caller, workload_id)
    with transaction.atomic():
        held = locking.lock_latest(pk)
        workload, at = held.workload, clock.now()
        to = _TO[resolution]
        if workload.sealed or workload.state != State.HELD:
            raise workloads.denied(workload, to)
        require_no_secrets(output=output, reason=reason)
        require_bounds(output=size(output) <= workloads.MAX_INPUT, reason=_is_reason(reason))
        changes = Changes()
        evidence = {"resolution": resolution, "reason": reason}
        if to == State.SUCCEEDED:
            _succeed(changes, held, output, caller.subject, at, evidence)
        elif to == State.READY:
            workload.extra_attempts += 1
            workload.overall_from = at
            event = workloads.make_ready(
                workload, at, actor=caller.subject, at=at, evidence=evidence
            )
            changes.add(workload, None, event)
        elif to == State.CANCELLED:
            outcomes.close(changes, workload, actor=caller.subject, at=at, evidence=evidence)
        else:
            outcomes.give_up(
                changes, workload, reason=reason, actor=caller.subject, at=at, evidence=evidence
            )
        changes.write()
    return workload


@history.audited("workload.reclaimed", on="workload_id")
def reclaim(*, caller: Caller, workload_id: str, reason: str) -> Workload:
    """End the claim of a workload at once, as lost work, without waiting for its lease.

    What becomes of the work is said in `mesh.outcomes`; a slot of its worker is free. What the
    worker still reports is judged by the fence. Refuses in this order: PERMISSION_DENIED;
    WORKLOAD_NOT_FOUND; WORKLOAD_TRANSITION_DENIED (nobody has it; so a repeat is refused, unless
    somebody claimed it meanwhile); WORKLOAD_SECRET_REJECTED; WORKLOAD_INVALID (reason);
    STORAGE_BUSY.
    """
    caller.require(Role.OPERATOR)
    pk = workloads.pk_for(caller, workload_id)
    with transaction.atomic():
        held = locking.lock_held(pk)
        workload, worker, attempt = held.workload, held.worker, held.attempt
        at = clock.now()
        if worker is None or attempt is None:
            raise workloads.denied(workload, State.RECOVERING)
        require_no_secrets(reason=reason)
        require_bounds(reason=_is_reason(reason))
        attempt.worker = worker
        changes = Changes()
        outcomes.lose(
            changes,
            workload,
            attempt,
            cause="reclaimed",
            actor=caller.subject,
            at=at,
            reason=reason,
        )
        changes.write()
        workers.occupy(worker, worker.active - 1, actor=caller.subject, at=at)
        workers.save(worker)
    return workload


def _succeed(
    changes: Changes, held: Held, output: Any, actor: str, at: datetime, evidence: dict[str, Any]
) -> None:
    """The given up attempt is the one that succeeded; the result is the person's."""
    workload, attempt = held.workload, _tried(held)
    outcomes.end(attempt, AttemptStatus.SUCCEEDED, at)
    result_id = f"resolution_{attempt.uid.hex}"
    evidence |= {**outcomes.of_attempt(attempt), "result_id": result_id}
    event = workloads.move(
        workload, State.SUCCEEDED, actor=actor, at=at, evidence=evidence, name="resolved"
    )
    workloads.set_deadline(workload)
    changes.add(workload, attempt, event)
    changes.results.append(
        Result(
            workload=workload,
            attempt=attempt,
            result_id=result_id,
            digest=digest(output),
            output=output,
            author=actor,
            created_at=at,
        )
    )


def _tried(held: Held) -> Attempt:
    """The attempt that HELD work was given up with; there always is one."""
    if held.attempt is None or held.worker is None:
        raise AssertionError(f"{held.workload} is held and was never tried")
    held.attempt.worker = held.worker
    return held.attempt


def _is_reason(reason: str) -> bool:
    return bool(reason.strip()) and len(reason) <= MAX_REASON


_TO: Final[Mapping[str, State]] = {
    Resolution.SUCCEEDED: State.SUCCEEDED,
    Resolution.FAILED: State.FAILED,
    Resolution.CANCELLED: State.CANCELLED,
    Resolution.REQUEUE: State.READY,
}
