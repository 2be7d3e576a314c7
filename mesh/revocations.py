"""Revocations: what ends grants before their time, and the drains that follow.

A grant is revoked by itself, or with all of its subject, application or tenant; whatever was
derived from it goes with it. Grants that are issued later are not concerned.

Guarantees: from the moment the grant rows commit, no claim is given and no lease renewed under
them, whether their workers are drained yet or not; no grant that is being made meanwhile slips
through. The workers registered under them are then drained, one transaction each; a sweep goes on
with what is left.

Locks: the tenant's lock on rights, then the grants; then, apart, each worker.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from . import clock, history, locking, scopes, statements, workers
from .errors import DomainError
from .models import (
    DrainCause,
    Grant,
    GrantStatus,
    Lifecycle,
    Revocation,
    RevocationKind,
    Role,
    Worker,
    not_pushed_back,
)
from .tenancy import Caller, get_application

# A register that verified the grant just before it was revoked may still be under way that long.
_SETTLING: Final = timedelta(seconds=30)
_AT_ONCE: Final = 100
_DRAINABLE: Final = (Lifecycle.REGISTERED, Lifecycle.READY, Lifecycle.BUSY)
_REVOKE: Final = statements.load("revoke")


@dataclass(frozen=True, slots=True)
class Revoked:
    """A revocation as it was recorded, and how many grants it ended."""

    revocation: Revocation
    grants: int


@history.audited("rights.revoked", on="target", writes=False)
def revoke(*, caller: Caller, kind: str, target: str, reason: str = "") -> Revoked:
    """Revoke a grant, or all grants of a subject, an application or the caller's own tenant.

    Needs the role admin. Each call is recorded, also where nothing was left to revoke; grants that
    were revoked before keep the first person and reason. Workers that cannot be had now are
    drained by the sweep. Refuses with PERMISSION_DENIED, REQUEST_INVALID (no such kind, not a
    subject, not the caller's tenant), GRANT_NOT_FOUND, APPLICATION_NOT_FOUND.
    """
    caller.require(Role.ADMIN)
    with transaction.atomic():
        locking.hold_rights(caller.tenant_id)
        found = _concerned(caller, kind, target)
        done = _apply(caller, kind, found, target, reason)
    drain_some(caller.tenant_id)
    return done


@history.audited("grant.revoked", on="grant_id", writes=False)
def revoke_grant(*, caller: Caller, grant_id: str, reason: str = "") -> Grant:
    """Revoke a grant for good and drain the workers that rest on it. Needs the role admin.

    Refuses with PERMISSION_DENIED and GRANT_NOT_FOUND. A repeat changes nothing; the first time,
    person and reason stay. Grants derived from it are revoked with it.
    """
    caller.require(Role.ADMIN)
    with transaction.atomic():
        locking.hold_rights(caller.tenant_id)
        found = _concerned(caller, RevocationKind.GRANT, grant_id)
        grant = found.get()
        if grant.status == GrantStatus.REVOKED:
            return grant
        _apply(caller, RevocationKind.GRANT, found, grant_id, reason)
    drain_some(caller.tenant_id)
    return found.get()


def drain_some(tenant_id: int) -> None:
    """Drain up to 100 workers of a tenant that rest on revoked grants; the sweep goes on.

    The grants are revoked by now: a locked worker must not make that look refused.
    """
    mine = pending_drains(clock.now()).filter(tenant_id=tenant_id).order_by("pk")
    for pk in list(mine.values_list("pk", flat=True)[:_AT_ONCE]):
        with locking.unless_busy():
            drain(pk)


def pending_drains(at: datetime) -> QuerySet[Worker]:
    """The workers that are still to be drained because their grant was revoked."""
    return _resting().filter(not_pushed_back(at), grant__drains_pending=True)


def drain(worker_pk: int) -> str | None:
    """Drain one worker if its grant is revoked by now; its id, or None for nothing to do."""
    with transaction.atomic():
        worker = locking.lock_worker(worker_pk)
        grant = Grant.objects.get(pk=worker.grant_id)
        if grant.status != GrantStatus.REVOKED or worker.lifecycle not in _DRAINABLE:
            return None
        workers.start_drain(
            worker,
            DrainCause.REVOCATION,
            actor=grant.revoked_by,
            at=clock.now(),
            reason=f"{grant.grant_id} revoked: {grant.revoke_reason}",
        )
        workers.save(worker)
        return worker.worker_id


def settle(at: datetime) -> None:
    """Close what is pending of grants whose workers are all drained; one statement.

    Nothing is pending any more once none is left and no register can still be under way.
    """
    Grant.objects.filter(drains_pending=True, revoked_at__lt=at - _SETTLING).exclude(
        Exists(_resting().filter(grant=OuterRef("pk")))
    ).update(drains_pending=False)


def _resting() -> QuerySet[Worker]:
    return Worker.objects.filter(removed_at__isnull=True, lifecycle__in=_DRAINABLE)


def _concerned(caller: Caller, kind: str, target: str) -> QuerySet[Grant]:
    """The grants that are named, without those derived from them; refuses what is not there."""
    mine = Grant.objects.visible_to(caller)
    if kind == RevocationKind.GRANT:
        found = mine.filter(grant_id=target)
        if not found.exists():
            raise DomainError("GRANT_NOT_FOUND", "There is no such grant.")
        return found
    if kind == RevocationKind.APPLICATION:
        return mine.filter(application=get_application(caller, target))
    if kind == RevocationKind.SUBJECT:
        if not scopes.is_subject(target):
            raise DomainError("REQUEST_INVALID", "A subject is written kind:id.")
        return mine.filter(subject=target)
    if kind == RevocationKind.TENANT and target == caller.tenant:
        return mine
    raise DomainError("REQUEST_INVALID", "Only a grant, subject, application or one's own tenant.")


def _apply(
    caller: Caller, kind: str, concerned: QuerySet[Grant], target: str, reason: str
) -> Revoked:
    """Revoke the grants and all below them in one statement, and record it."""
    at = clock.now()
    pks = list(concerned.exclude(status=GrantStatus.REVOKED).values_list("pk", flat=True))
    number = statements.change(
        _REVOKE, {"grants": pks, "at": at, "by": caller.subject, "reason": reason}
    )
    row = Revocation.objects.create(
        tenant_id=caller.tenant_id,
        kind=kind,
        target=target,
        reason=reason,
        revoked_by=caller.subject,
        revoked_at=at,
    )
    history.audit(
        tenant_id=caller.tenant_id,
        actor=caller.subject,
        action=f"{kind}.revoked",
        target=target,
        reason=reason,
        at=at,
        evidence={"grants": number},
    )
    return Revoked(row, number)
