"""What becomes of work when an attempt ends: reported, lost or out of time.

Pure rules on rows that the caller has locked (worker first, then workload): they change rows in
memory and gather them in `Changes`. The caller frees the worker's slot and writes. Each ended
attempt leaves one path through the states, with an event at every step:

- lost, not started: RECOVERING → READY at once; counted in `unstarted_losses`, not in the budget
- lost, started: RECOVERING → READY after the retry delay, or DEAD_LETTER
- failed: FAILED → READY after the delay, or DEAD_LETTER
- out of time: TIMED_OUT → READY, or DEAD_LETTER
- any of them while a cancel was requested: CANCELLED
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from . import workloads
from .changes import Changes
from .models import Attempt, AttemptStatus, State, Workload
from .workloads import make_ready, move, retry_delay

WORKER_FAILURE: Final = "worker_failure"
TIMEOUT: Final = "timeout"
NEVER_STARTED: Final = "never_started"
NEVER_RETRIED: Final = frozenset({"secret_rejected"})
# From the third loss before start in a row the work waits before it is offered again.
_PATIENCE: Final = 2


def end(
    attempt: Attempt,
    status: AttemptStatus,
    at: datetime,
    failure: Mapping[str, Any] | None = None,
) -> None:
    """End a live attempt, in memory."""
    attempt.status = status
    attempt.ended_at = at
    attempt.deadline_at = None
    if failure is not None:
        attempt.failure = dict(failure)


def fail(
    changes: Changes,
    workload: Workload,
    attempt: Attempt,
    *,
    failure: Mapping[str, Any],
    actor: str,
    at: datetime,
) -> None:
    """A started attempt reports that it failed: retry while the policy allows, else bury."""
    end(attempt, AttemptStatus.FAILED, at, failure)
    evidence = {**of_attempt(attempt), "kind": failure["kind"]}
    event = move(workload, State.FAILED, actor=actor, at=at, evidence=evidence)
    changes.add(workload, attempt, event)
    _retry_or_bury(changes, workload, failure, actor=actor, at=at)


def lose(
    changes: Changes,
    workload: Workload,
    attempt: Attempt,
    *,
    cause: str,
    actor: str,
    at: datetime,
) -> None:
    """A live attempt is lost with its worker (lease over, silent, abandoned, forgotten)."""
    if workload.state == State.CANCELLATION_REQUESTED:
        cancel(
            changes, workload, attempt, AttemptStatus.WORKER_LOST, cause=cause, actor=actor, at=at
        )
        return
    was_started = workload.is_started
    failure = {"kind": WORKER_FAILURE, "error": f"The worker was lost: {cause}."}
    end(attempt, AttemptStatus.WORKER_LOST, at, failure)
    evidence = {**of_attempt(attempt), "cause": cause}
    event = move(workload, State.RECOVERING, actor=actor, at=at, evidence=evidence)
    changes.add(workload, attempt, event)
    if was_started:
        _retry_or_bury(changes, workload, failure, actor=actor, at=at)
    else:
        _offer_again(changes, workload, actor=actor, at=at)


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
    status: AttemptStatus,
    *,
    cause: str,
    actor: str,
    at: datetime,
) -> None:
    """A requested cancel comes to its end, confirmed or not."""
    end(attempt, status, at)
    evidence = {**of_attempt(attempt), "cause": cause}
    event = move(workload, State.CANCELLED, actor=actor, at=at, evidence=evidence)
    workloads.set_deadline(workload)
    changes.add(workload, attempt, event)


def time_out(
    changes: Changes,
    workload: Workload,
    attempt: Attempt | None,
    *,
    cause: str,
    actor: str,
    at: datetime,
) -> None:
    """A deadline passed; `cause` is overall, execution, heartbeat, claim or queue.

    Overall and queue bury the work whatever is left; claim counts as a loss before start; the
    others follow the retry rule for kind `timeout`.
    """
    failure = {"kind": TIMEOUT, "error": f"{cause}_ms passed", "cause": cause}
    evidence: dict[str, Any] = {"cause": cause}
    if attempt is not None:
        end(attempt, AttemptStatus.TIMED_OUT, at, failure)
        evidence |= of_attempt(attempt)
    event = move(workload, State.TIMED_OUT, actor=actor, at=at, evidence=evidence)
    changes.add(workload, attempt, event)
    if cause == "claim":
        _offer_again(changes, workload, actor=actor, at=at)
    elif cause in {"overall", "queue"}:
        _bury(changes, workload, failure, actor=actor, at=at)
    else:
        _retry_or_bury(changes, workload, failure, actor=actor, at=at)


def _retry_or_bury(
    changes: Changes,
    workload: Workload,
    failure: Mapping[str, Any],
    *,
    actor: str,
    at: datetime,
) -> None:
    policy = workload.retry_policy
    workload.retries += 1
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
