"""Workers: drain, recovery, removal. Owns the lifecycle moves.

Guarantees: a credential speaks for its worker only, and only until the next register; READY and
BUSY follow from live claims against capacity and nobody sets them by hand; `active` is the number
of live attempts, never what a worker says. How workers come in stands in `mesh.registration`.

Locks: the worker row.
"""

import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from . import clock, history, locking, requirements, statements
from .canonical import secret_hash
from .errors import DomainError
from .models import (
    WORKER_MOVES,
    Application,
    DrainCause,
    Grant,
    GrantStatus,
    Lifecycle,
    PoolMember,
    Role,
    Worker,
)
from .placement import RESOURCES
from .tenancy import Caller

MAX_LABELS: Final = 64
CONCURRENCY: Final = range(1, 1_001)
_MAX_LIST: Final = 256
_MAX_DRAIN_MS: Final = 30 * 86_400_000
# What drains, beats and moves change; the rest of the row changes only by registering.
_MOVING: Final = [
    "lifecycle",
    "health",
    "is_unreconciled",
    "active",
    "concurrency",
    "last_seen_at",
    "last_poll_at",
    "last_progress_at",
    "reported_at",
    "clock_skew_ms",
    "recovering_since",
    "drain_cause",
    "drain_requested_at",
    "drain_deadline_at",
    "drain_passed_at",
    "drain_reason",
    "event_sequence",
    "sweep_after",
]

_SAVE: Final = (
    f"update mesh_worker set {', '.join(f'{name} = %({name})s' for name in _MOVING)}"  # noqa: S608  # our own column names
    " where id = %(pk)s"
)
_OF_CREDENTIAL: Final = """
    select w.credential_hash, w.id, w.worker_id, w.incarnation, w.tenant_id, t.name
    from mesh_worker w join mesh_tenant t on t.id = w.tenant_id
    where w.credential_hash = %(hash)s and w.removed_at is null
"""


# Whom credentials spoke for when they were looked up last, by hash.
_heard: dict[str, Caller] = {}
_MAX_HEARD: Final = 20_000


def authenticate(secret: str) -> Caller:
    """The worker that a credential speaks for; TOKEN_INVALID if it is unknown or was replaced."""
    hashed = secret_hash(secret)
    found = statements.first(_OF_CREDENTIAL, {"hash": hashed})
    if found is None or not hmac.compare_digest(found[0], hashed):
        raise DomainError("TOKEN_INVALID", "The credential is unknown or was replaced.")
    _, pk, worker_id, incarnation, tenant_id, tenant = found
    caller = Caller(f"worker:{worker_id}", tenant_id, tenant, worker_pk=pk, incarnation=incarnation)
    if len(_heard) >= _MAX_HEARD:
        _heard.clear()
    _heard[hashed] = caller
    return caller


def recall(secret: str) -> Caller:
    """As `authenticate`, but from memory where this process heard the credential before.

    Only for calls that lock the worker before anything else (`lock_self`): there it shows whether
    the credential was replaced meanwhile.
    """
    return _heard.get(secret_hash(secret)) or authenticate(secret)


def subject_of(worker: Worker) -> str:
    """The worker as actor in histories."""
    return f"worker:{worker.worker_id}"


def lock_self(caller: Caller) -> Worker:
    """Lock the worker that calls.

    Refuses with TOKEN_INVALID a process that was let in and then displaced while it waited: the
    register that replaced its credential has committed, so it may no more act for the worker.
    """
    worker = locking.lock_worker(caller.worker_pk or 0)
    is_displaced = caller.incarnation not in {None, worker.incarnation}
    if is_displaced or (worker.is_removed and caller.incarnation is not None):
        raise DomainError("TOKEN_INVALID", "The credential was replaced.")
    return worker


def lock_for(caller: Caller, worker_id: str) -> Worker:
    """Lock the worker that a call is about.

    Refuses with WORKER_NOT_FOUND (unknown, removed, another tenant's), with PERMISSION_DENIED
    where a worker names another one and with TOKEN_INVALID as `lock_self` does.
    """
    if caller.is_worker and caller.subject == f"worker:{worker_id}":
        worker: Worker | None = lock_self(caller)
    else:
        found = Worker.objects.filter(tenant_id=caller.tenant_id, worker_id=worker_id)
        pk = found.values_list("pk", flat=True).first()
        if pk is not None and caller.is_worker:
            raise DomainError("PERMISSION_DENIED", "A worker may act only as itself.")
        worker = None if pk is None else locking.lock_worker(pk)
    if worker is None or worker.is_removed:
        raise DomainError("WORKER_NOT_FOUND", "There is no such worker.")
    return worker


def require_reconciled(worker: Worker) -> None:
    """Refuse with WORKER_RECOVERY_REQUIRED a worker whose claims are not known to agree."""
    lost = {Lifecycle.OFFLINE, Lifecycle.RECOVERING}
    if worker.lifecycle in lost or worker.is_unreconciled:
        raise DomainError("WORKER_RECOVERY_REQUIRED", _way_back(worker))


def _way_back(worker: Worker) -> str:
    # A reconcile is refused after a drain: it must not be what the worker is told to do.
    if worker.lifecycle == Lifecycle.OFFLINE and worker.drain_cause == DrainCause.REVOCATION:
        return "The grant was revoked and the worker drained: register under one in force."
    if worker.lifecycle == Lifecycle.OFFLINE and worker.drain_cause == DrainCause.OPERATOR:
        return "The worker was drained: an operator's recover lets it back."
    return "Reconcile first."


@history.audited("worker.drained", on="worker_id")
def drain(
    *, caller: Caller, worker_id: str, reason: str = "", deadline_ms: int | None = None
) -> Worker:
    """Give the worker no new claims; OFFLINE at once if it holds none, else when the last ends.

    After `deadline_ms` from now its leases are no longer renewed. Asked by an operator or by the
    worker itself, which is recorded and decides what lifts it. A repeat changes nothing while it
    drains; once it is OFFLINE there is nothing to drain: WORKER_TRANSITION_DENIED.
    Refuses with WORKER_NOT_FOUND, PERMISSION_DENIED, WORKER_INVALID, WORKER_TRANSITION_DENIED.
    """
    cause = DrainCause.WORKER if caller.is_worker else DrainCause.OPERATOR
    if cause is DrainCause.OPERATOR:
        caller.require(Role.OPERATOR)
    if deadline_ms is not None and not 0 <= deadline_ms <= _MAX_DRAIN_MS:
        raise DomainError("WORKER_INVALID", "A drain's deadline is within 30 days.")
    with transaction.atomic():
        worker = lock_for(caller, worker_id)
        at = clock.now()
        start_drain(
            worker, cause, actor=caller.subject, at=at, reason=reason, deadline_ms=deadline_ms
        )
        save(worker)
    return worker


@history.audited("worker.undrained", on="worker_id")
def undrain(*, caller: Caller, worker_id: str, reason: str = "") -> Worker:
    """Let a draining worker take work again: READY, or BUSY when full.

    Refuses with WORKER_TRANSITION_DENIED unless it is DRAINING, so a repeat is refused, and with
    GRANT_REVOKED where its grant is revoked: only registering under a good one lifts that.
    """
    caller.require(Role.OPERATOR)
    with transaction.atomic():
        worker = lock_for(caller, worker_id)
        if worker.lifecycle != Lifecycle.DRAINING:
            raise denied(worker, Lifecycle.READY)
        _require_grant_in_force(worker)
        at = clock.now()
        clear_drain(worker)
        move(worker, resting(worker), actor=caller.subject, at=at, evidence={"reason": reason})
        save(worker)
    return worker


@history.audited("worker.recovered", on="worker_id")
def recover(*, caller: Caller, worker_id: str, reason: str = "") -> Worker:
    """Ask an OFFLINE worker back: RECOVERING until it reconciles. Clears its drain.

    Refuses with WORKER_TRANSITION_DENIED unless it is OFFLINE, so a repeat is refused, and with
    GRANT_REVOKED where its grant is revoked: only registering under a good one lifts that.
    """
    caller.require(Role.OPERATOR)
    with transaction.atomic():
        worker = lock_for(caller, worker_id)
        at = clock.now()
        move(worker, Lifecycle.RECOVERING, actor=caller.subject, at=at, evidence={"reason": reason})
        _require_grant_in_force(worker)
        clear_drain(worker)
        worker.recovering_since = at
        save(worker)
    return worker


@history.audited("worker.removed", on="worker_id")
def remove(*, caller: Caller, worker_id: str, reason: str = "") -> None:
    """Retire a worker: the row stays for history, its name is free, its credential is gone.

    Its places in pools are gone too. Locks the application row first, as changes of pools do.
    Refuses with WORKER_BUSY while it holds live claims; a repeat finds no worker.
    """
    caller.require(Role.OPERATOR)
    with transaction.atomic():
        _lock_application_of(caller, worker_id)
        worker = lock_for(caller, worker_id)
        if worker.active:
            raise DomainError("WORKER_BUSY", "The worker still holds claims.", active=worker.active)
        at = clock.now()
        if worker.lifecycle != Lifecycle.OFFLINE:
            move(worker, Lifecycle.OFFLINE, actor=caller.subject, at=at)
        record(worker, "removed", actor=caller.subject, at=at, evidence={"reason": reason})
        worker.removed_at = at
        worker.credential_hash = None
        worker.save(update_fields=[*_MOVING, "removed_at", "credential_hash"])
        PoolMember.objects.filter(worker=worker).delete()


def move(
    worker: Worker,
    to: Lifecycle,
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Move a locked worker along a legal arrow and write the event; the caller saves the row.

    Refuses with WORKER_TRANSITION_DENIED where there is no such arrow.
    """
    if to not in WORKER_MOVES[worker.lifecycle]:
        raise denied(worker, to)
    before, worker.lifecycle = worker.lifecycle, to
    history.of_worker(
        worker, event=to.lower(), from_state=before, actor=actor, at=at, evidence=evidence
    )


def record(
    worker: Worker, event: str, *, actor: str, at: datetime, evidence: Mapping[str, Any]
) -> None:
    """Write an event of a locked worker that moves nothing."""
    history.of_worker(
        worker, event=event, from_state=worker.lifecycle, actor=actor, at=at, evidence=evidence
    )


def start_drain(
    worker: Worker,
    cause: DrainCause,
    *,
    actor: str,
    at: datetime,
    reason: str = "",
    deadline_ms: int | None = None,
) -> None:
    """Begin the drain of a locked worker; while it is DRAINING this changes nothing."""
    if worker.lifecycle == Lifecycle.DRAINING:
        return
    evidence = {"by": cause, "reason": reason, "deadline_ms": deadline_ms}
    move(worker, Lifecycle.DRAINING, actor=actor, at=at, evidence=evidence)
    worker.drain_cause = cause
    worker.drain_requested_at = at
    worker.drain_reason = reason
    if deadline_ms is not None:
        worker.drain_deadline_at = at + timedelta(milliseconds=deadline_ms)
    occupy(worker, worker.active, actor=actor, at=at)


def occupy(worker: Worker, active: int, *, actor: str, at: datetime) -> None:
    """Set the number of live claims of a locked worker, and move it where that leads.

    READY and BUSY follow from it; a draining worker whose last claim ended goes OFFLINE.
    """
    worker.active = active
    if worker.lifecycle in {Lifecycle.READY, Lifecycle.BUSY}:
        where = resting(worker)
        if worker.lifecycle != where:
            move(worker, where, actor=actor, at=at, evidence={"active": active})
    elif worker.lifecycle == Lifecycle.DRAINING and active == 0:
        move(worker, Lifecycle.OFFLINE, actor=actor, at=at, evidence={"drained": True})


def save(worker: Worker) -> None:
    """Write what moves of a locked worker; one statement, prepared: claims and beats run it."""
    values = {name: getattr(worker, name) for name in _MOVING}
    statements.change(_SAVE, {"pk": worker.pk, **values})


def denied(worker: Worker, to: Lifecycle) -> DomainError:
    """The refusal of a lifecycle move."""
    return DomainError(
        "WORKER_TRANSITION_DENIED", f"A {worker.lifecycle} worker does not become {to}."
    )


def resting(worker: Worker) -> Lifecycle:
    """READY, or BUSY when full: where a worker that takes work rests."""
    return Lifecycle.READY if worker.active < worker.concurrency else Lifecycle.BUSY


def has_revoked_grant(worker: Worker) -> bool:
    """Whether the grant that the worker registered under is revoked by now."""
    return Grant.objects.filter(pk=worker.grant_id, status=GrantStatus.REVOKED).exists()


def _require_grant_in_force(worker: Worker) -> None:
    """It would be given no work, and the sweep would drain it again."""
    if has_revoked_grant(worker):
        raise DomainError(
            "GRANT_REVOKED", "The worker's grant is revoked: register it under another one."
        )


def clear_drain(worker: Worker) -> None:
    """Forget a drain of a locked worker, in memory."""
    worker.drain_cause = ""
    worker.drain_requested_at = worker.drain_deadline_at = worker.drain_passed_at = None
    worker.drain_reason = ""


def require_concurrency(concurrency: int) -> None:
    """Refuse with WORKER_INVALID a capacity out of bounds."""
    if concurrency not in CONCURRENCY:
        raise DomainError(
            "WORKER_INVALID", "The concurrency is from 1 to 1 000.", fields=["capacity.concurrency"]
        )


def is_label(key: str, value: str) -> bool:
    """A label pair within its bounds: key of 1 to 63, value of up to 255 characters."""
    return 1 <= len(key) <= 63 and len(value) <= 255


def are_amounts(amounts: Mapping[str, int]) -> bool:
    """Resources within their bounds: known names, from nothing to what a column can hold."""
    return amounts.keys() <= set(RESOURCES) and all(0 <= each < 2**63 for each in amounts.values())


def are_names(names: Sequence[str]) -> bool:
    """A list of at most 256 names (capabilities, kinds), none blank or over 255 characters."""
    return len(names) <= _MAX_LIST and all(
        1 <= len(each) <= 255 and each == each.strip() for each in names
    )


def _lock_application_of(caller: Caller, worker_id: str) -> None:
    found = Worker.objects.filter(tenant_id=caller.tenant_id, worker_id=worker_id)
    pk = found.values_list("application_id", flat=True).first()
    if pk is not None:
        requirements.lock_application(pk)


def application_of(worker: Worker) -> Application:
    """The worker's application with its present requirement numbers."""
    return Application.objects.get(pk=worker.application_id)
