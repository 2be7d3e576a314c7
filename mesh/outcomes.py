"""What becomes of work when an attempt ends: reported, lost or out of time.

Pure rules on rows that the caller has locked (worker first, then workload): they change rows in
memory and gather them in `Changes`. The caller frees the worker's slot and writes. Each ended
attempt leaves one path through the states, with an event at every step:

- lost, not started: RECOVERING → READY at once; counted in `unstarted_losses`, not in the budget
- lost, started: RECOVERING → READY after the retry delay, or DEAD_LETTER
- failed: FAILED → READY after the delay, or DEAD_LETTER
- out of time: TIMED_OUT → READY, or DEAD_LETTER
- any of them while a cancel was requested: CANCELLED

Work of the policy `hold` is never repeated by itself once it started, for nobody knows what it did:
lost or out of time it is HELD, with the cause, until its last worker reports after all or somebody
resolves it; failed it is buried, unless the report says that it had no effect.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from . import workloads
from .changes import Changes
from .models import Attempt, AttemptStatus, LostPolicy, State, Workload
from .workloads import make_ready, move, retry_delay

WORKER_FAILURE: Final = "worker_failure"
TIMEOUT: Final = "timeout"
NEVER_STARTED: Final = "never_started"
RESOLVED_FAILED: Final = "resolved_failed"
NEVER_RETRIED: Final = frozenset({"secret_rejected"})
# From the third loss before start in a row the work waits before it is offered again.
_PATIENCE: Final = 2


def end(
    attempt: Attempt,
    status: AttemptStatus,
    at: datetime,
    failure: Mapping[str, Any] | None = None,
) -> None:
    """End an attempt, in memory; one that was given up for lost ends anew."""
    attempt.status = status
    attempt.ended_at = at
    attempt.deadline_at = None
    if failure is not None:
        attempt.failure = dict(failure)
    elif status == AttemptStatus.SUCCEEDED:
        # It was taken for lost and reports after all.
        attempt.failure = None


def fail(
    changes: Changes,
    workload: Workload,
    attempt: Attempt,
    *,
    failure: Mapping[str, Any],
    actor: str,
    at: datetime,
) -> None:
    """A started attempt reports that it failed: retry while the policy allows, else bury.

    With `no_effect` in the failure also work of the policy `hold` is retried. Where a cancel was
    requested the failure ends it.
    """
    is_counted = workload.state == State.HELD
    end(attempt, AttemptStatus.FAILED, at, failure)
    evidence = {**of_attempt(attempt), "kind": failure["kind"]}
    event = move(workload, State.FAILED, actor=actor, at=at, evidence=evidence)
    changes.add(workload, attempt, event)
    if not is_counted:
        workload.retries += 1
    if workload.cancel_requested_at is not None:
        workload.last_failure = _told(failure)
        evidence = {"cause": "failed while a cancel was requested"}
        close(changes, workload, actor=actor, at=at, evidence=evidence)
    elif workload.lost_policy == LostPolicy.HOLD and not failure.get("no_effect"):
        _bury(changes, workload, failure, actor=actor, at=at)
    else:
        _retry_or_bury(changes, workload, failure, actor=actor, at=at)


def lose(
    changes: Changes,
    workload: Workload,
    attempt: Attempt,
    *,
    cause: str,
    actor: str,
    at: datetime,
    reason: str = "",
) -> None:
    """A live attempt is lost (lease over, silent, abandoned, forgotten, or reclaimed: `reason`)."""
    failure = {"kind": WORKER_FAILURE, "error": f"The worker was lost: {cause}."}
    evidence = {**of_attempt(attempt), "cause": cause}
    if reason:
        evidence["reason"] = reason
    is_held = _is_held_when_lost(workload, attempt)
    if workload.state == State.CANCELLATION_REQUESTED and not is_held:
        end(attempt, AttemptStatus.WORKER_LOST, at)
        changes.add(workload, attempt)
        close(changes, workload, actor=actor, at=at, evidence=evidence)
        return
    end(attempt, AttemptStatus.WORKER_LOST, at, failure)
    changes.add(workload, attempt)
    if is_held:
        _hold(changes, workload, failure, actor=actor, at=at, evidence=evidence)
        return
    event = move(workload, State.RECOVERING, actor=actor, at=at, evidence=evidence)
    changes.add(workload, None, event)
    if attempt.started_at is None:
        _offer_again(changes, workload, actor=actor, at=at)
    else:
        workload.retries += 1
        _retry_or_bury(changes, workload, failure, actor=actor, at=at)


def release(
    changes: Changes, workload: Workload, attempt: Attempt, *, actor: str, at: datetime
) -> None:
    """The worker gives back work that it did not start."""
    end(attempt, AttemptStatus.RELEASED, at)
    changes.add(workload, attempt)
    _offer_again(changes, workload, actor=actor, at=at, evidence=of_attempt(attempt))


def cancel(
    changes: Changes,
    workload: Workload,
    attempt: Attempt,
    *,
    cause: str,
    actor: str,
    at: datetime,
) -> None:
    """A requested cancel comes to its end: the worker confirmed it, or its time is over."""
    end(attempt, AttemptStatus.CANCELLED, at)
    changes.add(workload, attempt)
    evidence = {**of_attempt(attempt), "cause": cause}
    close(changes, workload, actor=actor, at=at, evidence=evidence)


def time_out(
    changes: Changes,
    workload: Workload,
    attempt: Attempt | None,
    *,
    cause: str,
    actor: str,
    at: datetime,
) -> None:
    """A deadline passed; `cause` is overall, cancel_grace, execution, heartbeat, claim or queue.

    While a cancel was requested it ends in CANCELLED. Otherwise overall and queue bury the work
    whatever is left; claim counts as a loss before start; the others follow the retry rule for kind
    `timeout`. Started work of the policy `hold` is HELD, whatever passed.
    """
    failure = {"kind": TIMEOUT, "error": f"{cause}_ms passed", "cause": cause}
    is_held = attempt is not None and _is_held_when_lost(workload, attempt)
    if attempt is not None and workload.state == State.CANCELLATION_REQUESTED and not is_held:
        cancel(changes, workload, attempt, cause=cause, actor=actor, at=at)
        return
    evidence: dict[str, Any] = {"cause": cause}
    if attempt is not None:
        end(attempt, AttemptStatus.TIMED_OUT, at, failure)
        evidence |= of_attempt(attempt)
    changes.add(workload, attempt)
    if workload.state != State.CANCELLATION_REQUESTED:
        event = move(workload, State.TIMED_OUT, actor=actor, at=at, evidence=evidence)
        changes.add(workload, None, event)
    if is_held:
        _hold(changes, workload, failure, actor=actor, at=at, evidence=evidence)
    elif cause == "claim":
        _offer_again(changes, workload, actor=actor, at=at)
    elif cause in {"overall", "queue"}:
        _bury(changes, workload, failure, actor=actor, at=at)
    else:
        workload.retries += 1
        _retry_or_bury(changes, workload, failure, actor=actor, at=at)


def give_up(
    changes: Changes,
    workload: Workload,
    *,
    reason: str,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any],
) -> None:
    """Somebody found out that HELD work failed: a dead letter, whatever is left of its budget."""
    event = move(workload, State.FAILED, actor=actor, at=at, evidence=evidence)
    changes.add(workload, None, event)
    failure = {"kind": RESOLVED_FAILED, "error": reason}
    _bury(changes, workload, failure, actor=actor, at=at)


def _is_held_when_lost(workload: Workload, attempt: Attempt) -> bool:
    return workload.lost_policy == LostPolicy.HOLD and attempt.started_at is not None


def _hold(
    changes: Changes,
    workload: Workload,
    failure: Mapping[str, Any],
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any],
) -> None:
    """Nobody knows what the attempt did: it waits for its report, or for somebody to find out."""
    workload.retries += 1
    workload.last_failure = _told(failure)
    event = move(workload, State.HELD, actor=actor, at=at, evidence=evidence)
    workloads.set_deadline(workload)
    changes.add(workload, None, event)


def close(
    changes: Changes,
    workload: Workload,
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any],
) -> None:
    """The work is CANCELLED; what was left to be done is not done."""
    event = move(workload, State.CANCELLED, actor=actor, at=at, evidence=evidence)
    workloads.set_deadline(workload)
    changes.add(workload, None, event)


def _retry_or_bury(
    changes: Changes,
    workload: Workload,
    failure: Mapping[str, Any],
    *,
    actor: str,
    at: datetime,
) -> None:
    policy = workload.retry_policy
    may_retry = failure["kind"] in policy["retry_on"] and failure["kind"] not in NEVER_RETRIED
    available_at = at + retry_delay(policy, workload.retries)
    if may_retry and workload.has_budget and not _is_too_late(workload, available_at):
        workload.last_failure = _told(failure)
        event = make_ready(workload, available_at, actor=actor, at=at)
        changes.add(workload, None, event)
    else:
        _bury(changes, workload, failure, actor=actor, at=at)


def _offer_again(
    changes: Changes,
    workload: Workload,
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Work that was never started goes back; too often in a row and it is buried."""
    policy = workload.retry_policy
    workload.unstarted_losses += 1
    losses = workload.unstarted_losses
    available_at = at if losses <= _PATIENCE else at + retry_delay(policy, losses - _PATIENCE)
    is_worn_out = losses > policy["max_unstarted"]
    may_wait = not is_worn_out and not _is_too_late(workload, available_at)
    if may_wait or workload.state == State.CLAIMED:
        # A released claim has no way to the dead letters but through READY.
        event = make_ready(workload, available_at, actor=actor, at=at, evidence=evidence)
        changes.add(workload, None, event)
    if not may_wait:
        failure = (
            {"kind": NEVER_STARTED, "error": f"Claimed {losses} times in a row and never started."}
            if is_worn_out
            else {"kind": TIMEOUT, "error": "It could only be offered after overall_ms passed."}
        )
        _bury(changes, workload, failure, actor=actor, at=at)


def _bury(
    changes: Changes,
    workload: Workload,
    failure: Mapping[str, Any],
    *,
    actor: str,
    at: datetime,
) -> None:
    workload.last_failure = _told(failure)
    evidence = {"kind": failure["kind"], "error": failure["error"][:1_000]}
    event = move(workload, State.DEAD_LETTER, actor=actor, at=at, evidence=evidence)
    workloads.set_deadline(workload)
    changes.add(workload, None, event)


def _is_too_late(workload: Workload, available_at: datetime) -> bool:
    deadline = workload.overall_deadline_at
    return deadline is not None and available_at >= deadline


def _told(failure: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": failure["kind"], "error": failure["error"]}


def of_attempt(attempt: Attempt) -> dict[str, Any]:
    """How an event names the attempt it is about."""
    return {
        "attempt_id": attempt.attempt_id,
        "worker_id": attempt.worker.worker_id,
        "fencing_token": attempt.fencing_token,
    }
