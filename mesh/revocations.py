"""Revocations: what ends a grant before its time, and the drains that follow.

Guarantees: from the moment the grant row commits, no claim is given and no lease renewed under it,
whether its workers are drained yet or not. The workers registered under it are then drained, one
transaction each; a sweep goes on with what a crash left.

Locks: the grant alone; then, apart, each worker.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q

from . import clock, history, locking, workers
from .errors import DomainError
from .models import DrainCause, Grant, GrantStatus, Lifecycle, Role, Worker
from .tenancy import Caller

# A register that verified the grant just before it was revoked may still be under way that long.
_SETTLING: Final = timedelta(seconds=30)
_AT_ONCE: Final = 100
_DRAINABLE: Final = (Lifecycle.REGISTERED, Lifecycle.READY, Lifecycle.BUSY)


def revoke_grant(*, caller: Caller, grant_id: str, reason: str = "") -> Grant:
    """Revoke a grant for good and drain the workers that rest on it. Needs the role admin.

    Refuses with PERMISSION_DENIED and GRANT_NOT_FOUND. A repeat changes nothing; the first time,
    person and reason stay. Workers that cannot be had now are drained by the sweep.
    """
    caller.require(Role.ADMIN)
    with transaction.atomic():
        locked = Grant.objects.visible_to(caller).select_for_update(of=("self",), no_key=True)
        grant = locked.filter(grant_id=grant_id).first()
        if grant is None:
            raise DomainError("GRANT_NOT_FOUND", "There is no such grant.")
        if grant.status == GrantStatus.REVOKED:
            return grant
        at = clock.now()
        grant.status = GrantStatus.REVOKED
        grant.revoked_at = at
        grant.revoked_by = caller.subject
        grant.revoke_reason = reason
        grant.drains_pending = True
        grant.save(
            update_fields=["status", "revoked_at", "revoked_by", "revoke_reason", "drains_pending"]
        )
        history.audit(
            tenant_id=caller.tenant_id,
            actor=caller.subject,
            action="grant.revoked",
            target=grant.grant_id,
            reason=reason,
            at=at,
        )
    drain_workers_of(grant)
    return grant


@contextmanager
def _unless_busy(pk: int) -> Iterator[None]:
    """The grant is revoked by now: a locked worker must not make that look refused."""
    try:
        yield
    except Exception as error:
        if not locking.is_busy(error):
            raise


def drain_workers_of(
    grant: Grant, guard: Callable[[int], AbstractContextManager[None]] = _unless_busy
) -> list[str]:
    """Drain up to 100 workers registered under a revoked grant; their ids.

    `guard` is entered with the key of each and decides what an error does to the others. Nothing
    is pending any more once none is left and no register can still be under way.
    """
    at = clock.now()
    resting = Worker.objects.filter(grant=grant, removed_at__isnull=True, lifecycle__in=_DRAINABLE)
    ripe = resting.filter(Q(sweep_after__isnull=True) | Q(sweep_after__lte=at)).order_by("pk")
    drained: list[str] = []
    for pk in list(ripe.values_list("pk", flat=True)[:_AT_ONCE]):
        with guard(pk):
            if worker_id := _drain(pk, grant):
                drained.append(worker_id)
    has_settled = grant.revoked_at is not None and at - grant.revoked_at > _SETTLING
    if has_settled and not resting.exists():
        Grant.objects.filter(pk=grant.pk).update(drains_pending=False)
    return drained


def _drain(pk: int, grant: Grant) -> str | None:
    with transaction.atomic():
        worker = locking.lock_worker(pk)
        if worker.grant_id != grant.pk or worker.lifecycle not in _DRAINABLE:
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
