"""Workloads: cancel and retry. Owns the moves of work.

Guarantees: a state changes only along a legal arrow, and each change has its event, numbered
without a gap, in the same transaction; SUCCEEDED and CANCELLED are never left. Work comes in by
`mesh.intake`; claims and their leases belong to `mesh.leases`.

Locks: cancel locks the workload only (it frees no slot); retry the application row, then the
workload.
"""

import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from . import clock, history, locking, requirements
from .changes import Changes
from .errors import DomainError
from .models import (
    ENDED_STATES,
    WORKLOAD_MOVES,
    Backoff,
    Role,
    State,
    Workload,
    WorkloadEvent,
)
from .tenancy import Caller

MAX_INPUT: Final = 1024 * 1024
_EVENTS: Final[Mapping[tuple[str, str], str]] = {
    (State.CLAIMED, State.READY): "released",
    (State.DEAD_LETTER, State.READY): "retried",
    (State.HELD, State.READY): "resolved",
}
_NAMES: Final[Mapping[str, str]] = {
    State.RUNNING: "started",
    State.RECOVERING: "recovered",
    State.SUCCEEDED: "completed",
    State.DEAD_LETTER: "dead_lettered",
}


@history.audited("workload.cancelled", on="workload_id")
def cancel(*, caller: Caller, workload_id: str, reason: str = "") -> Workload:
    """Ask that the work stops. Unclaimed work and a dead letter is CANCELLED at once.

    Claimed work becomes CANCELLATION_REQUESTED: its worker is told and confirms, or the grace
    passes. Cancelled or asked before: no change. SUCCEEDED, and HELD, which waits to be resolved:
    WORKLOAD_TRANSITION_DENIED.
    Locks the workload only, for no slot is freed here.
    """
    caller.require(Role.OPERATOR)
    pk = pk_for(caller, workload_id)
    with transaction.atomic():
        workload = _locked(pk)
        if workload.state in {State.CANCELLED, State.CANCELLATION_REQUESTED}:
            return workload
        if workload.state == State.HELD:
            raise denied(workload, State.CANCELLED)
        at = clock.now()
        to = State.CANCELLATION_REQUESTED if workload.is_claimed else State.CANCELLED
        event = move(workload, to, actor=caller.subject, at=at, evidence={"reason": reason})
        workload.cancel_requested_at = at
        set_deadline(workload)
        _write(workload, event)
    return workload


@history.audited("workload.retried", on="workload_id")
def retry(
    *, caller: Caller, workload_id: str, extra_attempts: int = 1, reason: str = ""
) -> Workload:
    """Make a dead letter READY now, with `extra_attempts` on top of its budget.

    The unstarted counter starts anew, and so do the retry delays and the overall timeout.
    Refuses with WORKLOAD_TRANSITION_DENIED unless it is DEAD_LETTER, so a repeat is refused.
    """
    caller.require(Role.OPERATOR)
    if not 1 <= extra_attempts <= 100:
        raise DomainError("REQUEST_INVALID", "From 1 to 100 extra attempts.")
    pk = pk_for(caller, workload_id)
    with transaction.atomic():
        requirements.keep_in_use(workload_pk=pk)
        workload = _locked(pk)
        if workload.state != State.DEAD_LETTER:
            raise denied(workload, State.READY)
        at = clock.now()
        evidence = {"reason": reason, "extra_attempts": extra_attempts}
        workload.extra_attempts += extra_attempts
        workload.unstarted_losses = workload.retries = 0
        workload.overall_from = at
        event = make_ready(workload, at, actor=caller.subject, at=at, evidence=evidence)
        _write(workload, event)
    return workload


def move(
    workload: Workload,
    to: State,
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> WorkloadEvent:
    """Move a locked workload along a legal arrow, in memory; its event, to be written with it.

    The event has the name of the arrow, or `name`. Refuses with WORKLOAD_TRANSITION_DENIED where
    there is no such arrow.
    """
    if to not in WORKLOAD_MOVES[workload.state]:
        raise denied(workload, to)
    before, workload.state = workload.state, to
    workload.claimable = False
    workload.updated_at = at
    workload.ended_at = at if to in ENDED_STATES else None
    return history.of_workload(
        workload,
        event=name or _event_name(before, to),
        from_state=before,
        actor=actor,
        at=at,
        evidence=evidence or {},
    )


def make_ready(
    workload: Workload,
    available_at: datetime,
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> WorkloadEvent:
    """Move a locked workload to READY, claimable from `available_at` on."""
    told = {**(evidence or {}), "available_at": available_at.isoformat()}
    event = move(workload, State.READY, actor=actor, at=at, evidence=told)
    workload.available_at = available_at
    workload.ready_at = at
    # What was to be cancelled and was held, then sent back, is not to be cancelled any more.
    workload.cancel_requested_at = None
    workload.claimable = is_free(workload) and available_at <= at
    set_deadline(workload)
    return event


def is_free(workload: Workload) -> bool:
    """Neither held by its run nor waiting for other work; that it is due is another question."""
    return not workload.held and workload.open_dependencies == 0


def is_under_way(workload: Workload) -> bool:
    """Neither ended nor HELD for somebody to find out: the overall timeout counts."""
    return workload.state not in ENDED_STATES and workload.state != State.HELD


def set_deadline(workload: Workload, *, unpaused_at: datetime | None = None) -> None:
    """Work out the earliest deadline that applies to the workload in its present state.

    `unpaused_at` as in `queue_deadline_at`; without it the deadline may come too early, never late,
    and is put off when it does.
    """
    grace = timedelta(milliseconds=workload.timeouts["cancel_grace_ms"])
    candidates = []
    if is_under_way(workload):
        candidates.append(workload.overall_deadline_at)
    if workload.state == State.READY and is_free(workload):
        candidates.append(queue_deadline_at(workload, unpaused_at))
    if workload.state == State.CANCELLATION_REQUESTED and workload.cancel_requested_at:
        candidates.append(workload.cancel_requested_at + grace)
    workload.deadline_at = min((each for each in candidates if each), default=None)


def queue_deadline_at(workload: Workload, unpaused_at: datetime | None) -> datetime | None:
    """When waiting in the queue has taken too long; counts from READY and due.

    If pauses matched it, then from the end of the last one (`pauses.last_end`).
    """
    queue_ms = workload.timeouts["queue_ms"]
    if queue_ms is None:
        return None
    free_from = max(workload.ready_at, workload.available_at, unpaused_at or workload.ready_at)
    return free_from + timedelta(milliseconds=queue_ms)


def retry_delay(policy: Mapping[str, Any], n: int) -> timedelta:
    """The wait before retry `n` (1, 2, …): initial × 2^(n-1), or fixed; at most the maximum.

    `jitter` j, from 0 to 1, takes a random part of up to j off it, so that retries spread out.
    """
    growth = 2 ** min(n - 1, 40) if policy["backoff"] == Backoff.EXPONENTIAL else 1
    delay_ms = min(policy["initial_delay_ms"] * growth, policy["max_delay_ms"])
    spread = 1 - policy["jitter"] * random.random()  # noqa: S311  # no secret
    return timedelta(milliseconds=delay_ms * spread)


def denied(workload: Workload, to: State) -> DomainError:
    """The refusal of a move."""
    return DomainError(
        "WORKLOAD_TRANSITION_DENIED",
        f"{workload.state} work does not become {to}.",
        state=workload.state,
    )


def _write(workload: Workload, event: WorkloadEvent) -> None:
    changes = Changes()
    changes.add(workload, None, event)
    changes.write()


def _event_name(before: str, to: State) -> str:
    return _EVENTS.get((before, to)) or _NAMES.get(to) or to.lower()


def pk_for(caller: Caller, workload_id: str) -> int:
    """The key of a workload of the caller's tenant; WORKLOAD_NOT_FOUND."""
    found = Workload.objects.filter(tenant_id=caller.tenant_id, workload_id=workload_id)
    pk = found.values_list("pk", flat=True).first()
    if pk is None:
        raise not_found()
    return pk


def _locked(pk: int) -> Workload:
    workload = locking.lock_workload(pk)
    if workload is None:
        raise not_found()
    return workload


def not_found() -> DomainError:
    return DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")
