"""Pull: a worker asks for work.

Guarantees: capacity is never exceeded; of what a worker may take it gets the highest priority
first, then the oldest. A pull is a constant number of statements whatever N is: lock the worker,
read what it must know (`claim_context.sql`), claim (`claim.sql`), write the worker. Where more than
slots must be counted, or a pause stands, the work is chosen by `mesh.choosing` in between.

Locks: the worker, then workloads with skip-locked. Deadlines, priorities and eligibility follow
`mesh.requirements` and `mesh.placement`; a pull does not rank workers, a placement does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction

from . import choosing, clock, giving, placement, requirements, statements, workers
from .errors import DomainError
from .giving import MAX_ANSWER_BYTES, MAX_CLAIMS, Claim, Room, Terms
from .models import Grant, GrantStatus, Worker
from .tenancy import Caller

_CONTEXT: Final = statements.load("claim_context")


@dataclass(frozen=True, slots=True)
class Claims:
    """The answer to a pull; `reason` says why no new claims could be given, if so."""

    claims: list[Claim]
    reason: str | None


def claim(*, caller: Caller, worker_id: str, maximum: int, lease_ms: int | None = None) -> Claims:
    """Give the worker up to `maximum` claims, bounded by its free slots and by 8 MiB of input.

    Claims that the server placed and that are not started come in the same answer. A worker that
    may not take work gets none and the reason. The lease lasts `lease_ms` (default: 30 s or three
    heartbeat intervals, whichever is longer). After a lost answer a repeat gives other work; what
    was claimed is told by the next heartbeat.

    Refuses with PERMISSION_DENIED, WORKER_NOT_FOUND, REQUEST_INVALID (`maximum`),
    WORKLOAD_INVALID (`lease_ms`), WORKER_RECOVERY_REQUIRED; LIMIT_EXCEEDED at the tenant's limit of
    live claims, which calls at the same moment may overshoot by what each of them takes.
    """
    if not 1 <= maximum <= MAX_CLAIMS:
        raise DomainError("REQUEST_INVALID", f"From 1 to {MAX_CLAIMS} claims a call.")
    giving.require_worker(caller)
    with transaction.atomic():
        worker = workers.lock_for(caller, worker_id)
        length = giving.lease_length(worker, lease_ms)
        workers.require_reconciled(worker)
        context = _read_context(worker)
        reason = _reason(worker, context)
        placed = giving.read_unstarted(worker, placed_only=True) if context["has_placed"] else []
        fresh: list[Claim] = []
        if not reason:
            slots = _slots(worker, context, maximum, is_answer=bool(placed))
            used = sum(map(giving.bytes_of, placed))
            room = Room(MAX_ANSWER_BYTES - used, at_least=0 if placed else 1)
            terms = Terms(worker, length, context["at"], caller.subject)
            fresh = _take(terms, context, slots, room)
        worker.last_poll_at = context["at"]
        workers.occupy(worker, worker.active + len(fresh), actor=caller.subject, at=context["at"])
        workers.save(worker)
        return Claims([*giving.in_full(placed, worker), *fresh], reason)


def _slots(worker: Worker, context: Mapping[str, Any], maximum: int, *, is_answer: bool) -> int:
    """How many claims the worker may have now.

    Refuses with LIMIT_EXCEEDED at its tenant's limit, unless there is another answer to give.
    """
    slots = min(maximum, worker.free_slots)
    limit = context["max_live_claims"]
    if limit is None:
        return slots
    left = giving.claims_left(worker.tenant_id, limit)
    if not left and not is_answer:
        raise giving.limit_exceeded()
    return min(slots, left)


def _read_context(worker: Worker) -> dict[str, Any]:
    values = {
        "fixed": clock.fixed(),
        "worker": worker.pk,
        "application": worker.application_id,
        "grant": worker.grant_id,
    }
    return statements.rows(_CONTEXT, values)[0]


def _reason(worker: Worker, context: Mapping[str, Any]) -> str | None:
    """Why the worker may take no work now; a revoked grant says so by its own code."""
    if context["status"] == GrantStatus.REVOKED:
        return "GRANT_REVOKED"
    grant = Grant(status=context["status"], expires_at=context["expires_at"])
    return next(iter(placement.passing_reasons(worker, grant, context["at"])), None)


def _take(terms: Terms, context: Mapping[str, Any], slots: int, room: Room) -> list[Claim]:
    """New claims that fit into the room."""
    is_bounded = context["has_bounds"]
    numbers = (context["epoch"], context["upto_number"])
    if numbers != (context["requirement_epoch"], context["requirement_number"]):
        eligible = requirements.refresh(terms.worker, workers.application_of(terms.worker))
        is_bounded = bool(eligible.bounded_ids)
    if is_bounded or context["has_pause"]:
        return choosing.take(terms, slots, room)
    return _take_next(terms, slots, room)


def _take_next(terms: Terms, slots: int, room: Room) -> list[Claim]:
    """New claims by slots alone."""
    taken: list[Claim] = []
    look = giving.look_for(slots)
    while len(taken) < slots:
        run = giving.give_next(terms, slots - len(taken), look, room)
        taken += run.claims
        room = room.after(run)
        # Neighbours held the rows that were looked at, and there may be more behind them.
        if run.is_cut or run.seen < look or look > 16 * giving.look_for(slots):
            break
        look *= 4
    return taken
