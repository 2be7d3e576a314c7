"""Workloads: cancel and retry. Owns the moves of work.

Guarantees: a state changes only along a legal arrow, and each change has its event, numbered
without a gap, in the same transaction; SUCCEEDED and CANCELLED are never left. Work comes in by
`mesh.intake`; claims and their leases belong to `mesh.leases`.

Locks: cancel locks the workload only (it frees no slot); retry the application row, then the
workload with what it waits for, and what is retried with it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from . import clock, dependencies, history, locking, requirements
from .changes import Changes
from .dependencies import Tie
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


_before_retry: list[Callable[[Sequence[int]], None]] = []


def before_retry(lock: Callable[[Sequence[int]], None]) -> None:
    """Have `lock` called with the keys of work that is about to be retried, before it is locked.

    What stands above the mesh in the order of locks is locked there.
    """
    if lock not in _before_retry:
        _before_retry.append(lock)


@history.audited("workload.cancelled", on="workload_id")
def cancel(
    *, caller: Caller, workload_id: str, reason: str = "", if_claimed: bool = False
) -> Workload:
    """Ask that the work stops. Unclaimed work and a dead letter is CANCELLED at once.

    Claimed work becomes CANCELLATION_REQUESTED: its worker is told and confirms, or the grace
    passes. Cancelled or asked before: no change. SUCCEEDED, and HELD, which waits to be resolved:
    WORKLOAD_TRANSITION_DENIED; with `if_claimed` also whatever nobody has at the moment, so that a
    failure that was reported meanwhile stays one.
    Locks the workload only, for no slot is freed here.
    """
    caller.require(Role.OPERATOR)
    pk = pk_for(caller, workload_id)
    with transaction.atomic():
        workload = _locked(pk)
        if workload.state in {State.CANCELLED, State.CANCELLATION_REQUESTED}:
            return workload
        if workload.state == State.HELD or (if_claimed and not workload.is_claimed):
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
    *,
    caller: Caller,
    workload_id: str,
    extra_attempts: int = 1,
    dependents: bool = False,
    reason: str = "",
) -> Workload:
    """Make a dead letter READY now, with `extra_attempts` on top of its budget.

    The unstarted counter starts anew, and so do the retry delays and the overall timeout. Its
    dependencies that were met stay met; one that was not, and is under way again, is waited for.

    With `dependents` also the dead letters that its end buried (`dependency_failed`), directly or
    through others: they wait for it again, with the budget that they have. Left out are sealed ones
    and those that wait for something else that ended otherwise.

    Refuses in this order: REQUEST_INVALID (`extra_attempts`; more than 1 000 dependents);
    WORKLOAD_TRANSITION_DENIED unless it is DEAD_LETTER and not sealed, so a repeat is refused;
    WORKLOAD_DEPENDENCY_OPEN while a dependency of its own has ended otherwise than required.
    """
    caller.require(Role.OPERATOR)
    if not 1 <= extra_attempts <= 100:
        raise DomainError("REQUEST_INVALID", "From 1 to 100 extra attempts.")
    pk = pk_for(caller, workload_id)
    with transaction.atomic():
        pks = dependencies.buried_by(pk) if dependents else [pk]
        for lock in _before_retry:
            lock(pks)
        requirements.keep_in_use(pks)
        others = {each.depends_on_id for each in dependencies.ties_of(pks)}
        locked = locking.lock_workloads(sorted(others.union(pks)))
        if pk not in locked:
            raise not_found()
        workload = locked[pk]
        if workload.state != State.DEAD_LETTER or workload.sealed:
            raise denied(workload, State.READY)
        evidence = {"reason": reason, "extra_attempts": extra_attempts}
        workload.extra_attempts += extra_attempts
        changes = _retry(locked, pks, workload, actor=caller.subject, evidence=evidence)
        changes.write()
    return workload


def hold(workload_pks: Sequence[int]) -> None:
    """Start nothing of these any more, whatever their state. For workflows, which lift it too.

    Claimed work that is not started cannot start, work that runs goes on. Locks them in the order
    of their keys. A repeat changes nothing; it is no move, so no event is written.
    """
    _set_held(workload_pks, is_held=True)


def unhold(workload_pks: Sequence[int]) -> None:
    """Let these start again; the time that they wait in the queue counts anew."""
    _set_held(workload_pks, is_held=False)


def seal(workload_pks: Sequence[int]) -> None:
    """Have these never be retried, resolved or placed again: their run attempt is settled."""
    with transaction.atomic():
        locking.lock_workloads(list(workload_pks))
        Workload.objects.filter(pk__in=workload_pks).update(sealed=True)


def _set_held(workload_pks: Sequence[int], *, is_held: bool) -> None:
    with transaction.atomic():
        locked = locking.lock_workloads(list(workload_pks))
        at = clock.now()
        changes = Changes()
        for workload in locked.values():
            if workload.held == is_held:
                continue
            workload.held = is_held
            workload.updated_at = at
            if workload.state == State.READY:
                workload.ready_at = workload.ready_at if is_held else at
                workload.claimable = is_free(workload) and workload.available_at <= at
                set_deadline(workload)
            changes.add(workload, None)
        changes.write()


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
    # Set again where work waits for this end (`mesh.dependencies`).
    workload.dependents_pending = False
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


def _retry(
    locked: Mapping[int, Workload],
    pks: Sequence[int],
    asked: Workload,
    *,
    actor: str,
    evidence: Mapping[str, Any],
) -> Changes:
    """Bring back the dead letter that was asked for, then what it buried, in the order of keys."""
    at = clock.now()
    changes = Changes()
    ties: dict[int, list[Tie]] = {}
    for each in dependencies.ties_of(pks):
        ties.setdefault(each.workload_id, []).append(each)
    kept: list[Tie] = []
    for workload in (locked[pk] for pk in pks if pk in locked):
        own = ties.get(workload.pk, [])
        # A dependency has the lower key, so it was brought back before if it was.
        failed = [each for each in own if each.judge(locked[each.depends_on_id].state)]
        if workload is asked and failed:
            raise _unmet([locked[each.depends_on_id] for each in failed])
        if failed or not _is_buried(workload, asked):
            continue
        told = evidence if workload is asked else {**evidence, "with": asked.workload_id}
        workload.open_dependencies = sum(each.is_open for each in own)
        workload.unstarted_losses = workload.retries = 0
        workload.overall_from = at
        changes.add(workload, None, make_ready(workload, at, actor=actor, at=at, evidence=told))
        kept += own
    dependencies.write(kept)
    return changes


def _is_buried(workload: Workload, asked: Workload) -> bool:
    """Whether it is still what it was found as before it was locked."""
    kind = (workload.last_failure or {}).get("kind")
    is_dead = workload.state == State.DEAD_LETTER and not workload.sealed
    return is_dead and (workload is asked or kind == dependencies.FAILED)


def _unmet(failed: Sequence[Workload]) -> DomainError:
    named = [each.workload_id for each in failed[:20]]
    return DomainError(
        "WORKLOAD_DEPENDENCY_OPEN",
        f"It waits for work that ended otherwise ({named[0]}): retry that with its dependents.",
        dependencies=named,
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
