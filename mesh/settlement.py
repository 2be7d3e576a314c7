"""Settlement: the reports that end a claim (complete, fail, cancelled, release).

Guarantees: one result per workload, at most one SUCCEEDED attempt; a slot is freed once; an exact
repeat of a report (same claim, token, step and body) is answered from what is stored, before the
fence, and writes nothing. A report that comes too late changes nothing.

Locks: the worker, then the workload.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import transaction

from . import outcomes, workers, workloads
from .canonical import digest, size
from .changes import Changes
from .errors import DomainError
from .leases import Presented, present, require_fence, require_running
from .models import Attempt, AttemptStatus, Result, State
from .screening import require_no_secrets
from .tenancy import Caller
from .workloads import MAX_INPUT

MAX_LOGS: Final = 256 * 1024
MAX_DETAILS: Final = 256 * 1024
MAX_ARTIFACTS: Final = 100
MAX_ERROR: Final = 64 * 1024


def complete(
    *,
    caller: Caller,
    claim_id: str,
    fencing_token: int,
    result_id: str,
    output: Any,
    artifacts: Sequence[str] = (),
    logs: str = "",
    resource_usage: Mapping[str, Any] | None = None,
) -> Attempt:
    """Store the result; attempt and workload are SUCCEEDED and the slot is free.

    The same result id with the same claim and content is a repeat. Refuses in this order:
    CLAIM_NOT_FOUND; WORKLOAD_RESULT_DUPLICATE; the fence's codes; WORKLOAD_TRANSITION_DENIED (not
    running, or a cancel was requested); WORKLOAD_SECRET_REJECTED; WORKLOAD_INVALID (bounds).
    """
    body = {
        "result_id": result_id,
        "output": output,
        "artifacts": list(artifacts),
        "logs": logs,
        "resource_usage": resource_usage,
    }
    with transaction.atomic():
        shown = present(caller, claim_id)
        report = digest([fencing_token, body])
        # Only work that succeeded has a result.
        stored = (
            Result.objects.filter(workload=shown.workload, result_id=result_id).first()
            if shown.workload.state == State.SUCCEEDED
            else None
        )
        if stored is not None:
            if stored.attempt_id == shown.attempt.pk and _is_repeat(shown, "complete", report):
                return shown.attempt
            raise DomainError("WORKLOAD_RESULT_DUPLICATE", "That result id has other content.")
        attempt, at = require_fence(shown, fencing_token), shown.at
        require_running(shown.workload, State.SUCCEEDED)
        require_no_secrets(output=output, artifacts=artifacts, logs=logs)
        _require_bounds(
            result_id=1 <= len(result_id) <= 200 and bool(result_id.strip()),
            output=size(output) <= MAX_INPUT,
            artifacts=len(artifacts) <= MAX_ARTIFACTS and all(len(a) <= 2_000 for a in artifacts),
            logs=len(logs.encode()) <= MAX_LOGS,
            resource_usage=size(resource_usage) <= MAX_DETAILS,
        )
        outcomes.end(attempt, AttemptStatus.SUCCEEDED, at)
        attempt.resource_usage = dict(resource_usage) if resource_usage is not None else None
        event = workloads.move(
            shown.workload,
            State.SUCCEEDED,
            actor=caller.subject,
            at=at,
            evidence={**outcomes.of_attempt(attempt), "result_id": result_id},
        )
        workloads.set_deadline(shown.workload)
        changes = Changes()
        changes.add(shown.workload, attempt, event)
        changes.results.append(
            Result(workload=shown.workload, attempt=attempt, digest=report, created_at=at, **body)
        )
        _settle(shown, attempt, changes, "complete", report)
    return attempt


def fail(
    *,
    caller: Caller,
    claim_id: str,
    fencing_token: int,
    kind: str,
    error: str,
    details: Mapping[str, Any] | None = None,
) -> Attempt:
    """Report that the attempt failed: READY again after a delay, or a dead letter.

    Retried while the budget lasts and `kind` is in the retry policy's `retry_on`;
    `secret_rejected` never. Refuses in this order: CLAIM_NOT_FOUND; the fence's codes;
    WORKLOAD_TRANSITION_DENIED (not running; release instead); WORKLOAD_SECRET_REJECTED;
    WORKLOAD_INVALID (bounds).
    """
    failure = {"kind": kind, "error": error, "details": dict(details or {})}
    with transaction.atomic():
        shown = present(caller, claim_id)
        report = digest([fencing_token, failure])
        if _is_repeat(shown, "fail", report):
            return shown.attempt
        attempt = require_fence(shown, fencing_token)
        require_running(shown.workload, State.FAILED)
        require_no_secrets(error=error, details=details)
        _require_bounds(
            kind=1 <= len(kind) <= 200 and bool(kind.strip()),
            error=len(error.encode()) <= MAX_ERROR,
            details=size(details) <= MAX_DETAILS,
        )
        changes = Changes()
        outcomes.fail(
            changes, shown.workload, attempt, failure=failure, actor=caller.subject, at=shown.at
        )
        _settle(shown, attempt, changes, "fail", report)
    return attempt


def cancelled(*, caller: Caller, claim_id: str, fencing_token: int) -> Attempt:
    """Confirm a requested cancel: attempt and workload are CANCELLED.

    Refuses in this order: CLAIM_NOT_FOUND; the fence's codes; WORKLOAD_TRANSITION_DENIED.
    """
    with transaction.atomic():
        shown = present(caller, claim_id)
        report = digest([fencing_token])
        if _is_repeat(shown, "cancelled", report):
            return shown.attempt
        attempt = require_fence(shown, fencing_token)
        if shown.workload.state != State.CANCELLATION_REQUESTED:
            raise workloads.denied(shown.workload, State.CANCELLED)
        _confirm(shown, attempt, "cancelled", report)
    return attempt


def release(*, caller: Caller, claim_id: str, fencing_token: int) -> Attempt:
    """Give back work that was not started: READY again; it costs no attempt of the budget.

    Where a cancel was requested this confirms it. Refuses in this order: CLAIM_NOT_FOUND; the
    fence's codes; WORKLOAD_TRANSITION_DENIED (started).
    """
    with transaction.atomic():
        shown = present(caller, claim_id)
        report = digest([fencing_token])
        if _is_repeat(shown, "release", report):
            return shown.attempt
        attempt = require_fence(shown, fencing_token)
        if shown.workload.state == State.CANCELLATION_REQUESTED:
            _confirm(shown, attempt, "release", report)
            return attempt
        if shown.workload.state != State.CLAIMED:
            raise workloads.denied(shown.workload, State.READY)
        changes = Changes()
        outcomes.release(changes, shown.workload, attempt, actor=caller.subject, at=shown.at)
        _settle(shown, attempt, changes, "release", report)
    return attempt


def _confirm(shown: Presented, attempt: Attempt, step: str, report: str) -> None:
    changes = Changes()
    outcomes.cancel(
        changes,
        shown.workload,
        attempt,
        AttemptStatus.CANCELLED,
        cause="confirmed",
        actor=workers.subject_of(shown.worker),
        at=shown.at,
    )
    _settle(shown, attempt, changes, step, report)


def _settle(shown: Presented, attempt: Attempt, changes: Changes, step: str, report: str) -> None:
    """Write the end of the claim with the digest that its repeat is known by; free the slot."""
    attempt.report_step = step
    attempt.report_digest = report
    worker = shown.worker
    worker.last_progress_at = shown.at
    workers.occupy(worker, worker.active - 1, actor=workers.subject_of(worker), at=shown.at)
    changes.add_worker(worker)
    changes.write()


def _is_repeat(shown: Presented, step: str, report: str) -> bool:
    attempt = shown.attempt
    known = (attempt.worker_id, attempt.report_step, attempt.report_digest)
    return known == (shown.worker.pk, step, report)


def _require_bounds(**rules: bool) -> None:
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise DomainError("WORKLOAD_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken)
