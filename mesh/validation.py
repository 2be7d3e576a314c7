"""Validation: whether a claim holds, for somebody who is asked to do something under it.

Read-only, and so an answer about the moment it was given; nothing is locked. It is as strict as
the fence: no exception holds for work that may still report after its lease.
"""

from collections.abc import Sequence
from datetime import datetime

from . import clock
from .errors import DomainError
from .models import Attempt, Role, uid_of
from .tenancy import Caller


def validate(
    *,
    caller: Caller,
    claim_id: str,
    fencing_token: int,
    worker_id: str,
    workload_id: str,
    capabilities: Sequence[str] = (),
) -> datetime:
    """When the lease ends of a claim that is current, started and holds these capabilities.

    Asked by a resource server with a token, or by the worker that has the claim. Refuses in this
    order: PERMISSION_DENIED; CLAIM_NOT_FOUND (unknown, another tenant's); MESH_CLAIM_SCOPE_DENIED
    (not of that worker, not of that workload; a worker asks about another's); MESH_STALE_FENCE
    (ended, another token, or the lease is over); WORKLOAD_TRANSITION_DENIED (not started);
    MESH_CAPABILITY_DENIED. Each call asks anew.
    """
    if not caller.is_worker:
        caller.require(Role.VIEWER)
    uid = uid_of(claim_id, "claim")
    shown = (
        Attempt.objects.filter(uid=uid, workload__tenant_id=caller.tenant_id)
        .select_related("workload", "worker")
        .defer("workload__input")
        .first()
        if uid
        else None
    )
    if shown is None:
        raise DomainError("CLAIM_NOT_FOUND", "There is no such claim.")
    work = shown.workload
    is_other = caller.is_worker and shown.worker_id != caller.worker_pk
    if is_other or (worker_id, workload_id) != (shown.worker.worker_id, work.workload_id):
        raise DomainError("MESH_CLAIM_SCOPE_DENIED", "The claim is not of that worker and work.")
    is_current = shown.is_live and shown.fencing_token == fencing_token
    if not is_current or shown.is_lease_over(clock.now()):
        raise DomainError("MESH_STALE_FENCE", "The claim is not current any more.")
    if shown.started_at is None:
        raise DomainError("WORKLOAD_TRANSITION_DENIED", "The work was not started.")
    missing = sorted(set(capabilities) - set(work.capability_snapshot))
    if missing:
        raise DomainError("MESH_CAPABILITY_DENIED", "The claim does not hold these capabilities.")
    return shown.expires_at
