"""Push: the server, a service or a person gives one workload to a worker.

Guarantees: the worker is eligible at the moment of the claim, by all reasons of
`mesh.placement`; of the eligible ones the best is chosen. A candidate that another call has is
passed over and leaves no lock behind.

Locks: the worker, then the pool that the work names if that has a limit, then the workload.
"""

from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import QuerySet

from . import candidates, clock, giving, history, locking, placement, workers
from .errors import DomainError
from .giving import Choice, Claim, Terms, lease_length
from .models import Role, State, Tenant, Worker, Workload
from .tenancy import Caller

_TRIES: Final = 5
_CANDIDATES: Final = 200


@history.audited("workload.placed", on="workload_id")
def place(
    *, caller: Caller, workload_id: str, worker_id: str | None = None, lease_ms: int | None = None
) -> Claim:
    """Give one workload to the best eligible worker, or to the named one, which learns of it later.

    Refuses in this order: PERMISSION_DENIED; WORKLOAD_NOT_FOUND; WORKLOAD_NOT_READY;
    WORKLOAD_NOT_YET_ELIGIBLE; MESH_PLACEMENT_DENIED with `reasons` (the named worker);
    MESH_NO_ELIGIBLE_WORKER with the count of workers by reason, also when five eligible ones were
    busy in other calls; LIMIT_EXCEEDED at the tenant's limit of live claims; WORKLOAD_INVALID
    (`lease_ms`). A repeat is WORKLOAD_NOT_READY.
    """
    caller.require(Role.OPERATOR)
    workload = (
        Workload.objects.visible_to(caller)
        .select_related("requirement")
        .filter(workload_id=workload_id)
        .first()
    )
    if workload is None:
        raise DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")
    with transaction.atomic():
        at = clock.now()
        _require_placeable(workload, at)
        if worker_id is not None:
            worker = locking.lock_worker(_named(caller, worker_id).pk)
            return _place_on(worker, workload, caller, lease_ms)
        tried = candidates.best(workload.requirement, at, _TRIES)
        for pk in tried:
            claim = _try(pk, workload, caller, lease_ms)
            if claim is not None:
                return claim
        raise _nobody(workload, at, busy=len(tried))


def _require_placeable(workload: Workload, at: datetime) -> None:
    if workload.state != State.READY:
        raise DomainError(
            "WORKLOAD_NOT_READY", f"The work is {workload.state}.", state=workload.state
        )
    if workload.available_at > at:
        raise DomainError("WORKLOAD_NOT_YET_ELIGIBLE", "The work is not due yet.")


def _named(caller: Caller, worker_id: str) -> Worker:
    worker = Worker.objects.visible_to(caller).filter(worker_id=worker_id).first()
    if worker is None or worker.is_removed:
        raise DomainError("WORKER_NOT_FOUND", "There is no such worker.")
    return worker


def _try(pk: int, workload: Workload, caller: Caller, lease_ms: int | None) -> Claim | None:
    """Place on one candidate unless another call has it; a failed try leaves no lock behind."""
    with transaction.atomic():
        locked = Worker.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
        worker = locked.filter(pk=pk).first()
        if worker is not None and not _reasons(worker, workload, clock.now()):
            return _place_on(worker, workload, caller, lease_ms)
        transaction.set_rollback(True)
    return None


def _reasons(worker: Worker, workload: Workload, at: datetime) -> tuple[str, ...]:
    (verdict,) = candidates.judge(workload.requirement, [worker], at)
    return verdict.reasons


def _place_on(worker: Worker, workload: Workload, caller: Caller, lease_ms: int | None) -> Claim:
    """Claim for a locked worker; pool and workload are locked and looked at again here."""
    if workload.requirement.pool_id:
        locking.lock_pools(workload.application_id, [workload.requirement.pool_id])
    fresh = locking.lock_workload(workload.pk)
    if fresh is None:
        raise DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")
    at = clock.now()
    _require_placeable(fresh, at)
    reasons = _reasons(worker, workload, at)
    if reasons:
        raise DomainError(
            "MESH_PLACEMENT_DENIED",
            f"The worker may not take it: {', '.join(reasons)}.",
            reasons=list(reasons),
        )
    _require_below_limit(fresh)
    if not fresh.claimable:
        Workload.objects.filter(pk=fresh.pk).update(claimable=True)
    terms = Terms(worker, lease_length(worker, lease_ms), at, caller.subject, is_placed=True)
    need = workload.requirement_id
    run = giving.give_chosen(terms, Choice([fresh.pk], [need], {need: 1}))
    workers.occupy(worker, worker.active + 1, actor=caller.subject, at=at)
    workers.save(worker)
    return run.claims[0]


def _require_below_limit(workload: Workload) -> None:
    tenants = Tenant.objects.filter(pk=workload.tenant_id)
    limit = tenants.values_list("max_live_claims", flat=True).get()
    if limit is not None and not giving.claims_left(workload.tenant_id, limit):
        raise giving.limit_exceeded()


def _nobody(workload: Workload, at: datetime, *, busy: int) -> DomainError:
    considered = _workers_of(workload).select_related("grant").order_by("worker_id")
    verdicts = candidates.judge(workload.requirement, list(considered[:_CANDIDATES]), at)
    counts = placement.count_reasons(verdicts)
    told = ", ".join(f"{reason}: {count}" for reason, count in counts.items())
    return DomainError(
        "MESH_NO_ELIGIBLE_WORKER",
        f"No worker may take it now ({told or 'no other reasons'}; busy in other calls: {busy}).",
        counts=counts,
        busy=busy,
    )


def _workers_of(workload: Workload) -> QuerySet[Worker]:
    return Worker.objects.filter(application_id=workload.application_id, removed_at__isnull=True)
