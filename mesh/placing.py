"""Push: the server, a service or a person gives one workload to a worker.

Guarantees: the worker is eligible at the moment of the claim, by all reasons of
`mesh.placement`; of the eligible ones the best is chosen. A candidate that another call has is
passed over and leaves no lock behind. Every placement leaves a decision, the refused ones too.

Locks: the worker; where the work names a pool, the worker's eligible set, so that changes of the
pool wait, and the pool if that has a limit; then the workload, which is not waited for while such a
pool is held.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from django.db import transaction

from . import (
    candidates,
    clock,
    decisions,
    giving,
    history,
    locking,
    pauses,
    refusals,
    requirements,
    survey,
    workers,
)
from .errors import DomainError
from .giving import Choice, Claim, Terms, lease_length
from .models import Pool, Requirement, Role, State, Tenant, Worker, Workload
from .survey import Survey
from .tenancy import Caller
from .words import count

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked for, and by whom."""

    workload: Workload
    caller: Caller
    lease_ms: int | None

    @property
    def need(self) -> Requirement:
        return self.workload.requirement

    def record(self, found: Survey, chosen: Worker, at: datetime) -> None:
        actor = self.caller.subject
        decisions.record(self.workload, found, chosen=chosen, actor=actor, at=at)


class _Seen(NamedTuple):
    """The locked workload, and what the locked worker fails at that moment."""

    workload: Workload
    at: datetime
    reasons: tuple[str, ...]


@history.audited("workload.placed", on="workload_id")
def place(
    *, caller: Caller, workload_id: str, worker_id: str | None = None, lease_ms: int | None = None
) -> Claim:
    """Give one workload to the best eligible worker, or to the named one, which learns of it later.

    Leaves a decision, also when it is refused. Refuses in this order: PERMISSION_DENIED;
    WORKLOAD_NOT_FOUND; WORKLOAD_TRANSITION_DENIED (sealed); WORKLOAD_NOT_READY; MESH_RUN_BLOCKED;
    WORKLOAD_NOT_YET_ELIGIBLE; WORKLOAD_DEPENDENCY_OPEN; WORKER_NOT_FOUND; MESH_PLACEMENT_DENIED
    with `reasons` (the work is paused, or the named worker may not take it);
    MESH_NO_ELIGIBLE_WORKER with the count of workers by reason, also when five eligible ones were
    busy in other calls; LIMIT_EXCEEDED at the tenant's limit of live claims; WORKLOAD_INVALID
    (`lease_ms`). A repeat is WORKLOAD_NOT_READY. STORAGE_BUSY at once where the work names a pool
    with a limit and is in another call.
    """
    caller.require(Role.OPERATOR)
    rows = Workload.objects.visible_to(caller).select_related("requirement")
    workload = rows.filter(workload_id=workload_id).first()
    if workload is None:
        raise DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")
    asked = _Asked(workload, caller, lease_ms)
    with refusals.kept(), decisions.remembered(workload, caller.subject), transaction.atomic():
        _require_placeable(workload, clock.now())
        if worker_id is not None:
            return _place_on_named(asked, worker_id)
        return _place_on_best(asked)


def _require_placeable(workload: Workload, at: datetime) -> None:
    if workload.sealed:
        raise DomainError(
            "WORKLOAD_TRANSITION_DENIED",
            "The run settled this attempt; its work is not placed any more.",
            state=workload.state,
        )
    if workload.state != State.READY:
        raise DomainError(
            "WORKLOAD_NOT_READY", f"The work is {workload.state}.", state=workload.state
        )
    if workload.held:
        raise DomainError("MESH_RUN_BLOCKED", "Its run lets nothing of it start now.")
    if workload.available_at > at:
        raise DomainError("WORKLOAD_NOT_YET_ELIGIBLE", "The work is not due yet.")
    if workload.open_dependencies:
        raise DomainError(
            "WORKLOAD_DEPENDENCY_OPEN",
            f"The work waits for {count(workload.open_dependencies, 'other')}.",
            open_dependencies=workload.open_dependencies,
        )


def _place_on_named(asked: _Asked, worker_id: str) -> Claim:
    worker = locking.lock_worker(_named(asked.caller, worker_id).pk)
    seen = _look_again(asked, worker)
    found = survey.of_one(asked.need, worker, seen.reasons)
    if seen.reasons:
        raise _denied(asked, found, list(seen.reasons), seen.at)
    claim = _give(asked, worker, seen)
    asked.record(found, worker, seen.at)
    return claim


def _place_on_best(asked: _Asked) -> Claim:
    at = clock.now()
    is_paused = bool(pauses.matching(asked.need, at))
    found = survey.take(asked.need, at, is_paused=is_paused)
    if is_paused:
        raise _denied(asked, found, ["PAUSED"], at)
    tried = candidates.best(asked.need, at, _TRIES)
    for number, pk in enumerate(tried):
        claim = _try(pk, asked)
        if claim is not None:
            found = survey.with_busy(found, _ids(tried[:number]))
            asked.record(found, Worker.objects.get(pk=pk), claim.issued_at)
            return claim
    raise _nobody(asked, tried)


def _named(caller: Caller, worker_id: str) -> Worker:
    worker = Worker.objects.visible_to(caller).filter(worker_id=worker_id).first()
    if worker is None or worker.is_removed:
        raise DomainError("WORKER_NOT_FOUND", "There is no such worker.")
    return worker


def _try(pk: int, asked: _Asked) -> Claim | None:
    """Place on one candidate unless another call has it; a failed try leaves no lock behind."""
    with transaction.atomic():
        locked = Worker.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
        worker = locked.filter(pk=pk).first()
        if worker is not None and not _reasons(asked, worker, clock.now()):
            seen = _look_again(asked, worker)
            if not seen.reasons:
                return _give(asked, worker, seen)
        transaction.set_rollback(True)
    return None


def _reasons(asked: _Asked, worker: Worker, at: datetime) -> tuple[str, ...]:
    (verdict,) = candidates.judge(asked.need, [worker], at)
    return verdict.reasons


def _look_again(asked: _Asked, worker: Worker) -> _Seen:
    """Lock pool and workload after the worker, and judge as things stand then."""
    pools: list[Pool] = []
    if asked.need.pool_id:
        requirements.hold(worker)
        pools = locking.lock_pools(asked.workload.application_id, [asked.need.pool_id])
    # A pull makes due work claimable, and so has it locked, before it waits for pools: to wait for
    # work while holding a pool would be a deadlock.
    fresh = locking.lock_workload(asked.workload.pk, nowait=bool(pools))
    if fresh is None:
        raise DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")
    at = clock.now()
    _require_placeable(fresh, at)
    return _Seen(fresh, at, _reasons(asked, worker, at))


def _give(asked: _Asked, worker: Worker, seen: _Seen) -> Claim:
    """Claim the locked workload, whose reasons are none, for the locked worker."""
    fresh, at, actor = seen.workload, seen.at, asked.caller.subject
    _require_below_limit(fresh)
    if not fresh.claimable:
        Workload.objects.filter(pk=fresh.pk).update(claimable=True)
    terms = Terms(worker, lease_length(worker, asked.lease_ms), at, actor, is_placed=True)
    run = giving.give_chosen(terms, Choice([fresh.pk], [asked.need.pk], {asked.need.pk: 1}))
    workers.occupy(worker, worker.active + 1, actor=actor, at=at)
    workers.save(worker)
    return run.claims[0]


def _require_below_limit(workload: Workload) -> None:
    tenants = Tenant.objects.filter(pk=workload.tenant_id)
    limit = tenants.values_list("max_live_claims", flat=True).get()
    if limit is not None and not giving.claims_left(workload.tenant_id, limit):
        raise giving.limit_exceeded()


def _denied(asked: _Asked, found: Survey, reasons: list[str], at: datetime) -> DomainError:
    code = "MESH_PLACEMENT_DENIED"
    whose = "The work is paused" if reasons == ["PAUSED"] else "The worker may not take it"
    return DomainError(
        code,
        f"{whose}: {', '.join(reasons)}.",
        keep=decisions.refused(asked.workload, found, code, asked.caller.subject, at),
        reasons=reasons,
    )


def _nobody(asked: _Asked, tried: list[int]) -> DomainError:
    """Nobody may take it as things stand now, or all that were tried were in other calls."""
    code, at = "MESH_NO_ELIGIBLE_WORKER", clock.now()
    is_paused = bool(pauses.matching(asked.need, at))
    found = survey.take(asked.need, at, is_paused=is_paused)
    known = survey.with_busy(found, _ids(tried))
    told = ", ".join(f"{reason}: {number}" for reason, number in known.counts.items())
    nearest = found.nearest
    return DomainError(
        code,
        f"No worker may take it now ({told or 'the application has none'}).",
        keep=decisions.refused(asked.workload, known, code, asked.caller.subject, at),
        counts=dict(found.counts),
        reasons=list(known.counts),
        busy=len(tried),
        nearest=nearest and {"worker_id": nearest.worker_id, "lacks": list(nearest.lacks)},
    )


def _ids(pks: list[int]) -> set[str]:
    return set(Worker.objects.filter(pk__in=pks).values_list("worker_id", flat=True))
