"""Settlement: the reports that end claims (complete, fail, cancelled, release), one or many.

Guarantees: one result per workload, at most one SUCCEEDED attempt; a slot is freed once; an exact
repeat of a report (same claim, token, step and body) is answered from what is stored, before the
fence, and writes nothing. Of many reports in one call each is judged by itself, in order; the
later of two on one claim is judged after what the first did.

Of started work that is held rather than repeated (`lost_policy` hold) the truth is never turned
away for its age: complete and fail of the latest claim ever issued settle it after the end of its
lease too, and while it is HELD. What such work reports under an older claim, or after somebody
resolved it, changes nothing and is kept as evidence (`LateReport`), without its body if that may
not be stored.

Locks: the worker, then the workloads, by key. Many at once skip workloads that are locked.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.db import transaction

from . import outcomes, refusals, reports, statements, workers, workloads
from .dockets import Docket, Judged, judged, keep_late
from .errors import DomainError
from .giving import require_worker
from .leases import Presented, require_fence
from .models import (
    STARTED_STATES,
    Attempt,
    AttemptStatus,
    LateReport,
    LostPolicy,
    Result,
    State,
    Worker,
    Workload,
)
from .reports import CANCELLED, COMPLETE, FAIL, RELEASE, Report
from .tenancy import Caller

MAX_REPORTS: Final = 100


def settle(*, caller: Caller, worker_id: str, said: Sequence[Report]) -> list[Judged]:
    """Settle many claims of one worker in one call, each report by itself and in order.

    A constant number of statements, however many they are. A claim whose workload another call
    holds at this moment is answered STORAGE_BUSY and holds up nobody; otherwise a report is
    refused with the codes that it would be refused with alone. A repeat of the call repeats each
    report. Refuses as a whole with REQUEST_INVALID (none, or over 100), WORKER_NOT_FOUND,
    PERMISSION_DENIED (no worker, or another one).
    """
    require_worker(caller)
    if not 1 <= len(said) <= MAX_REPORTS:
        raise DomainError("REQUEST_INVALID", f"From 1 to {MAX_REPORTS} reports.")
    with transaction.atomic():
        worker = workers.lock_for(caller, worker_id)
        docket = _docket(caller, worker, said, skip_locked=True)
        settled = [judged(each.claim_id, partial(_STEPS[each.step], docket, each)) for each in said]
        docket.write()
        if docket.late:
            keep_late(docket.late)
    return settled


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
    running, or a cancel was requested of work that is requeued when lost);
    WORKLOAD_SECRET_REJECTED; WORKLOAD_INVALID (bounds).
    """
    report = reports.complete(
        claim_id,
        fencing_token,
        result_id=result_id,
        output=output,
        artifacts=artifacts,
        logs=logs,
        resource_usage=resource_usage,
    )
    return _settle_one(caller, report)


def fail(
    *,
    caller: Caller,
    claim_id: str,
    fencing_token: int,
    kind: str,
    error: str,
    details: Mapping[str, Any] | None = None,
    no_effect: bool = False,
) -> Attempt:
    """Report that the attempt failed: READY again after a delay, or a dead letter.

    Retried while the budget lasts and `kind` is in the retry policy's `retry_on`;
    `secret_rejected` never, and work that is held when lost only with `no_effect`. Where such work
    was to be cancelled it ends CANCELLED. Refuses in this order: CLAIM_NOT_FOUND; the fence's
    codes; WORKLOAD_TRANSITION_DENIED (not running; release instead); WORKLOAD_SECRET_REJECTED;
    WORKLOAD_INVALID (bounds).
    """
    report = reports.fail(
        claim_id, fencing_token, kind=kind, error=error, details=details, no_effect=no_effect
    )
    return _settle_one(caller, report)


def cancelled(*, caller: Caller, claim_id: str, fencing_token: int) -> Attempt:
    """Confirm a requested cancel: attempt and workload are CANCELLED.

    Refuses in this order: CLAIM_NOT_FOUND; the fence's codes; WORKLOAD_TRANSITION_DENIED.
    """
    return _settle_one(caller, reports.cancelled(claim_id, fencing_token))


def release(*, caller: Caller, claim_id: str, fencing_token: int) -> Attempt:
    """Give back work that was not started: READY again; it costs no attempt of the budget.

    Where a cancel was requested this confirms it. Refuses in this order: CLAIM_NOT_FOUND; the
    fence's codes; WORKLOAD_TRANSITION_DENIED (started).
    """
    return _settle_one(caller, reports.release(claim_id, fencing_token))


def can_still_report(attempt: Attempt, workload: Workload) -> bool:
    """Whether complete and fail of this attempt count whatever became of its lease.

    So it is for started work that is held when lost, under the latest claim ever issued, until
    that claim was settled or somebody resolved the work.
    """
    return (
        _is_of_held_kind(attempt, workload)
        and attempt.fencing_token == workload.fencing_token
        and (attempt.is_live or workload.state == State.HELD)
    )


def _settle_one(caller: Caller, report: Report) -> Attempt:
    """A call of one report: it waits for the workload, and its refusal is the call's."""
    require_worker(caller)
    with refusals.kept(), transaction.atomic():
        docket = _docket(caller, workers.lock_self(caller), [report], skip_locked=False)
        attempt = _STEPS[report.step](docket, report)
        docket.write()
    return attempt


def _docket(caller: Caller, worker: Worker, said: Sequence[Report], *, skip_locked: bool) -> Docket:
    return Docket(
        caller,
        worker,
        [each.claim_id for each in said],
        skip_locked=skip_locked,
        wants_results=any(each.step == COMPLETE for each in said),
    )


def _complete(docket: Docket, report: Report) -> Attempt:
    shown, body = docket.present(report.claim_id), report.body
    stored = docket.result_of(shown.workload, body["result_id"])
    if stored is not None:
        if stored.attempt_id == shown.attempt.pk and _is_repeat(shown, report):
            return shown.attempt
        raise DomainError("WORKLOAD_RESULT_DUPLICATE", "That result id has other content.")
    attempt, workload = _require_fence(docket, shown, report), shown.workload
    _require_open(attempt, workload, State.SUCCEEDED)
    report.require_sound()
    was_live = attempt.is_live
    outcomes.end(attempt, AttemptStatus.SUCCEEDED, docket.at)
    usage = body["resource_usage"]
    attempt.resource_usage = dict(usage) if usage is not None else None
    event = workloads.move(
        workload,
        State.SUCCEEDED,
        actor=workers.subject_of(docket.worker),
        at=docket.at,
        evidence={**outcomes.of_attempt(attempt), "result_id": body["result_id"]},
    )
    workloads.set_deadline(workload)
    docket.end(report, attempt, event, was_live=was_live)
    docket.store(
        statements.fresh(
            Result,
            workload_id=workload.pk,
            attempt_id=attempt.pk,
            digest=report.digest,
            created_at=docket.at,
            **body,
        )
    )
    return attempt


def _fail(docket: Docket, report: Report) -> Attempt:
    shown = docket.present(report.claim_id)
    if _is_repeat(shown, report):
        return shown.attempt
    attempt = _require_fence(docket, shown, report)
    _require_open(attempt, shown.workload, State.FAILED)
    report.require_sound()
    was_live = attempt.is_live
    outcomes.fail(
        docket.changes,
        shown.workload,
        attempt,
        failure=report.body,
        actor=workers.subject_of(docket.worker),
        at=docket.at,
    )
    docket.end(report, attempt, was_live=was_live)
    return attempt


def _cancelled(docket: Docket, report: Report) -> Attempt:
    shown = docket.present(report.claim_id)
    if _is_repeat(shown, report):
        return shown.attempt
    attempt = require_fence(shown, report.token)
    if shown.workload.state != State.CANCELLATION_REQUESTED:
        raise workloads.denied(shown.workload, State.CANCELLED)
    return _confirm(docket, shown, attempt, report)


def _release(docket: Docket, report: Report) -> Attempt:
    shown = docket.present(report.claim_id)
    if _is_repeat(shown, report):
        return shown.attempt
    attempt = require_fence(shown, report.token)
    if shown.workload.state == State.CANCELLATION_REQUESTED:
        return _confirm(docket, shown, attempt, report)
    if shown.workload.state != State.CLAIMED:
        raise workloads.denied(shown.workload, State.READY)
    outcomes.release(
        docket.changes,
        shown.workload,
        attempt,
        actor=workers.subject_of(docket.worker),
        at=docket.at,
    )
    docket.end(report, attempt)
    return attempt


def _confirm(docket: Docket, shown: Presented, attempt: Attempt, report: Report) -> Attempt:
    outcomes.cancel(
        docket.changes,
        shown.workload,
        attempt,
        cause="confirmed",
        actor=workers.subject_of(docket.worker),
        at=docket.at,
    )
    docket.end(report, attempt)
    return attempt


def _require_fence(docket: Docket, shown: Presented, report: Report) -> Attempt:
    """The fence for complete and fail, which started work of the policy hold may pass late.

    What it refuses of such work is kept as evidence.
    """
    attempt, workload = shown.attempt, shown.workload
    is_own = (attempt.worker_id, attempt.fencing_token) == (shown.worker.pk, report.token)
    if not (is_own and _is_of_held_kind(attempt, workload)):
        return require_fence(shown, report.token)
    if can_still_report(attempt, workload):
        return attempt
    try:
        if attempt.fencing_token != workload.fencing_token:
            raise DomainError("WORKLOAD_STALE_FENCE", "A later claim was issued.")
        return require_fence(shown, report.token)
    except DomainError as refusal:
        late = _late(docket, attempt, report, refusal.code)
        docket.late.append(late)
        refusal.keep = partial(keep_late, [late])
        raise


def _late(docket: Docket, attempt: Attempt, report: Report, code: str) -> LateReport:
    """The evidence. What holds a secret or is out of bounds leaves only that it came."""
    late = LateReport(attempt=attempt, step=report.step, code=code, reported_at=docket.at)
    try:
        report.require_sound()
    except DomainError as unsound:
        late.digest = unsound.code
    else:
        late.digest, late.body = report.digest, dict(report.body)
    return late


def _is_of_held_kind(attempt: Attempt, workload: Workload) -> bool:
    """Started work that is held, when lost, for somebody to find out what happened."""
    return workload.lost_policy == LostPolicy.HOLD and attempt.started_at is not None


def _require_open(attempt: Attempt, workload: Workload, to: State) -> None:
    """Refuse with WORKLOAD_TRANSITION_DENIED what can have no outcome now.

    Of work that is held when lost the truth is taken even where a cancel was requested.
    """
    is_open = workload.state in STARTED_STATES or (
        _is_of_held_kind(attempt, workload)
        and workload.state in {State.HELD, State.CANCELLATION_REQUESTED}
    )
    if not is_open:
        raise workloads.denied(workload, to)


def _is_repeat(shown: Presented, report: Report) -> bool:
    attempt = shown.attempt
    is_alike = (attempt.worker_id, attempt.report_step) == (shown.worker.pk, report.step)
    return is_alike and attempt.report_digest == report.digest


_STEPS: Final[Mapping[str, Callable[[Docket, Report], Attempt]]] = {
    COMPLETE: _complete,
    FAIL: _fail,
    CANCELLED: _cancelled,
    RELEASE: _release,
}
