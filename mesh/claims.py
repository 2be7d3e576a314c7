"""Claims: how work gets to a worker, asked for (pull) or placed by the server (push).

Guarantees: a workload has one live claim; its fencing token rises at every claim; capacity is
never exceeded; of what a worker may take it gets the highest priority first, then the oldest.
A pull is a constant number of statements whatever N is: lock the worker, read what it must know
(`claim_context.sql`), claim (`claim.sql`), write the worker.

Locks: the worker, then workloads with skip-locked. Deadlines, priorities and eligibility follow
`mesh.requirements` and `mesh.placement`; a pull does not rank workers, a placement does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson
from django.db import transaction
from django.db.models import QuerySet

from . import clock, locking, placement, requirements, statements, workers
from .errors import DomainError
from .models import (
    Attempt,
    AttemptStatus,
    Checkpoint,
    Grant,
    GrantStatus,
    Health,
    Role,
    State,
    Worker,
    Workload,
)
from .models.workers import PLACEABLE
from .placement import Verdict
from .tenancy import Caller

LEASE_MS: Final = range(1_000, 900_001)
MAX_CLAIMS: Final = 100
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_CONTEXT: Final = statements.load("claim_context")
_CLAIM: Final = statements.load("claim")
_PLACE_TRIES: Final = 5
_PLACE_CANDIDATES: Final = 200


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to act on one workload, with all that the worker needs to do it."""

    claim_id: str
    attempt_id: str
    workload_id: str
    worker_id: str
    fencing_token: int
    capability_snapshot: list[str]
    issued_at: datetime
    expires_at: datetime
    definition_id: str
    definition_revision: str
    input: Any
    environment: str
    attempt_number: int
    timeouts: Mapping[str, int | None]
    connection_scopes: list[str]
    checkpoint: tuple[int, Any] | None
    lost_policy: str

    @property
    def lease_id(self) -> str:
        return f"lease_{self.attempt_id}"

    @property
    def execution_context_id(self) -> str:
        return f"context_{self.claim_id}"

    @property
    def runtime_policy(self) -> dict[str, int | None] | None:
        """Limits for the executor, or None where the work sets none."""
        limit = self.timeouts["execution_ms"]
        if limit is None:
            return None
        return {"max_duration_ms": limit, "max_cpu_millis": None, "max_memory_bytes": None}


@dataclass(frozen=True, slots=True)
class Claims:
    """The answer to a pull; `reason` says why no new claims could be given, if so."""

    claims: list[Claim]
    reason: str | None


class _Run(NamedTuple):
    """One run of `claim.sql`: what it gave, and whether it is worth asking again."""

    claims: list[Claim]
    bytes: int
    seen: int
    # More could be had, but not within the bytes.
    is_cut: bool


def claim(*, caller: Caller, worker_id: str, maximum: int, lease_ms: int | None = None) -> Claims:
    """Give the worker up to `maximum` claims, bounded by its free slots and by 8 MiB of input.

    Claims that the server placed and that are not started come in the same answer. A worker that
    may not take work gets none and the reason. The lease lasts `lease_ms` (default: 30 s or three
    heartbeat intervals, whichever is longer). After a lost answer a repeat gives other work; what
    was claimed is told by the next heartbeat.

    Refuses with PERMISSION_DENIED, WORKER_NOT_FOUND, REQUEST_INVALID (`maximum`),
    WORKLOAD_INVALID (`lease_ms`), WORKER_RECOVERY_REQUIRED.
    """
    if not 1 <= maximum <= MAX_CLAIMS:
        raise DomainError("REQUEST_INVALID", f"From 1 to {MAX_CLAIMS} claims a call.")
    require_worker(caller)
    with transaction.atomic():
        worker = workers.lock_for(caller, worker_id)
        length = lease_length(worker, lease_ms)
        workers.require_reconciled(worker)
        context = _read_context(worker)
        reason = _reason(worker, context)
        placed = _unstarted(worker, placed_only=True) if context["has_placed"] else []
        fresh: list[Claim] = []
        if not reason:
            room = MAX_ANSWER_BYTES - sum(map(_bytes_of, placed))
            slots = min(maximum, worker.free_slots)
            fresh = _take(worker, context, slots, length, room, may_be_empty=bool(placed))
        worker.last_poll_at = context["at"]
        workers.occupy(worker, worker.active + len(fresh), actor=caller.subject, at=context["at"])
        workers.save(worker)
        return Claims([*_in_full(placed, worker), *fresh], reason)


def place(
    *, caller: Caller, workload_id: str, worker_id: str | None = None, lease_ms: int | None = None
) -> Claim:
    """Give one workload to the best eligible worker, or to the named one, which learns of it later.

    Refuses in this order: PERMISSION_DENIED; WORKLOAD_NOT_FOUND; WORKLOAD_NOT_READY;
    WORKLOAD_NOT_YET_ELIGIBLE; MESH_PLACEMENT_DENIED with `reasons` (the named worker);
    MESH_NO_ELIGIBLE_WORKER with the count of workers by reason, also when five eligible ones were
    busy in other calls; WORKLOAD_INVALID (`lease_ms`). A repeat is WORKLOAD_NOT_READY.
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
        tried = _ranked(workload, at)[:_PLACE_TRIES]
        for pk in tried:
            claim = _try(pk, workload, caller, lease_ms)
            if claim is not None:
                return claim
        raise _nobody(workload, at, busy=len(tried))


def lease_length(worker: Worker, lease_ms: int | None) -> int:
    """The length of a lease in ms; refuses with WORKLOAD_INVALID outside its bounds."""
    if lease_ms is None:
        return max(30_000, 3 * worker.heartbeat_interval_ms)
    if lease_ms not in LEASE_MS:
        raise DomainError("WORKLOAD_INVALID", "A lease lasts from 1 000 to 900 000 ms.")
    return lease_ms


def require_worker(caller: Caller) -> None:
    """Refuse with PERMISSION_DENIED anybody but a worker."""
    if not caller.is_worker:
        raise DomainError("PERMISSION_DENIED", "Only a worker with its credential may do this.")


def unstarted(worker: Worker, *, but: frozenset[UUID]) -> list[Claim]:
    """The worker's claims that it did not start, in full; they stop at 8 MiB."""
    return _in_full(_unstarted(worker, but=but), worker)


def _unstarted(
    worker: Worker, *, placed_only: bool = False, but: frozenset[UUID] = frozenset()
) -> list[Attempt]:
    attempts = (
        Attempt.objects.filter(worker=worker, status=AttemptStatus.CLAIMED)
        .select_related("workload")
        # Read once it is known which of them fit into the answer.
        .defer("workload__input")
        .order_by("pk")[: worker.concurrency + MAX_CLAIMS]
    )
    found: list[Attempt] = []
    total = 0
    for attempt in attempts:
        if (placed_only and not attempt.is_placed) or attempt.uid in but:
            continue
        total += _bytes_of(attempt)
        if found and total > MAX_ANSWER_BYTES:
            break
        found.append(attempt)
    return found


def _in_full(attempts: list[Attempt], worker: Worker) -> list[Claim]:
    if not attempts:
        return []
    pks = [each.workload_id for each in attempts]
    inputs = dict(Workload.objects.filter(pk__in=pks).values_list("pk", "input"))
    latest = _latest_checkpoints(pks)
    for each in attempts:
        each.workload.input = inputs[each.workload_id]
    return [_claim_of(each, worker, latest.get(each.workload_id)) for each in attempts]


def _bytes_of(attempt: Attempt) -> int:
    """What a claim weighs in an answer."""
    return attempt.workload.input_bytes + attempt.workload.checkpoint_bytes


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


def _take(
    worker: Worker,
    context: Mapping[str, Any],
    slots: int,
    lease_ms: int,
    room: int,
    *,
    may_be_empty: bool,
) -> list[Claim]:
    """New claims that fit into `room` bytes; but one at least, unless the answer holds others."""
    numbers = (context["epoch"], context["upto_number"])
    if numbers != (context["requirement_epoch"], context["requirement_number"]):
        requirements.refresh(worker, workers.application_of(worker))
    taken: list[Claim] = []
    look = _look(slots)
    while len(taken) < slots:
        run = _run(
            worker,
            slots - len(taken),
            look,
            lease_ms,
            context["at"],
            room=room,
            at_least=0 if taken or may_be_empty else 1,
        )
        taken += run.claims
        room -= run.bytes
        # Neighbours held the rows that were looked at, and there may be more behind them.
        if run.is_cut or run.seen < look or look > 16 * _look(slots):
            break
        look *= 4
    return taken


def _look(slots: int) -> int:
    """How many candidates to look at: some times the slots, in steps of a power of two.

    The number stands in the statement itself, for PostgreSQL plans well with a limit that it
    knows; the steps keep the number of prepared statements small.
    """
    return 1 << max(5, (4 * slots + 15).bit_length())


def _run(
    worker: Worker,
    slots: int,
    look: int,
    lease_ms: int,
    at: datetime,
    *,
    room: int = MAX_ANSWER_BYTES,
    at_least: int = 1,
    workload: Workload | None = None,
    actor: str | None = None,
) -> _Run:
    """Run `claim.sql`."""
    values = {
        "worker": worker.pk,
        "worker_id": worker.worker_id,
        "incarnation": worker.incarnation,
        "workload": None if workload is None else workload.pk,
        "is_placed": workload is not None,
        "slots": slots,
        "lease_ms": lease_ms,
        "at": at,
        "actor": actor or workers.subject_of(worker),
        "max_bytes": room,
        "at_least": at_least,
    }
    rows = statements.rows(_CLAIM.replace("%(look)s", str(look)), values)
    given = [row for row in rows if row["uid"] is not None]
    return _Run(
        claims=[_claim(row, worker, at) for row in given],
        bytes=sum(row["bytes"] for row in given),
        seen=rows[0]["seen"],
        is_cut=rows[0]["found"] > len(given),
    )


def _claim(row: Mapping[str, Any], worker: Worker, at: datetime) -> Claim:
    sequence = row["checkpoint_sequence"]
    return Claim(
        claim_id=f"claim_{row['uid'].hex}",
        attempt_id=f"attempt_{row['uid'].hex}",
        workload_id=row["workload_id"],
        worker_id=worker.worker_id,
        fencing_token=row["fencing_token"],
        capability_snapshot=row["capability_snapshot"],
        issued_at=at,
        expires_at=row["expires_at"],
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        input=row["input"],
        environment=row["environment"],
        attempt_number=row["number"],
        # `jsonb` comes as text.
        timeouts=orjson.loads(row["timeouts"]),
        connection_scopes=row["connection_scopes"],
        checkpoint=None if sequence is None else (sequence, row["checkpoint_state"]),
        lost_policy=row["lost_policy"],
    )


def _claim_of(attempt: Attempt, worker: Worker, latest: Checkpoint | None) -> Claim:
    work = attempt.workload
    return Claim(
        claim_id=attempt.claim_id,
        attempt_id=attempt.attempt_id,
        workload_id=work.workload_id,
        worker_id=worker.worker_id,
        fencing_token=attempt.fencing_token,
        capability_snapshot=work.capability_snapshot,
        issued_at=attempt.claimed_at,
        expires_at=attempt.expires_at,
        definition_id=work.definition_id,
        definition_revision=work.definition_revision,
        input=work.input,
        environment=work.environment,
        attempt_number=attempt.number,
        timeouts=work.timeouts,
        connection_scopes=work.connection_scopes,
        checkpoint=None if latest is None else (latest.sequence, latest.state),
        lost_policy=work.lost_policy,
    )


def _latest_checkpoints(workload_pks: list[int]) -> dict[int, Checkpoint]:
    latest = Checkpoint.objects.filter(workload_id__in=workload_pks)
    ordered = latest.order_by("workload_id", "-sequence").distinct("workload_id")
    return {each.workload_id: each for each in ordered}


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
        if worker is not None and not _judge(worker, workload, clock.now()).reasons:
            return _place_on(worker, workload, caller, lease_ms)
        transaction.set_rollback(True)
    return None


def _judge(worker: Worker, workload: Workload, at: datetime) -> Verdict:
    return placement.judge(workload.requirement, worker, worker.grant, at)


def _place_on(worker: Worker, workload: Workload, caller: Caller, lease_ms: int | None) -> Claim:
    """Claim for a locked worker; the workload is locked and looked at again here."""
    fresh = locking.lock_workload(workload.pk)
    if fresh is None:
        raise DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")
    at = clock.now()
    _require_placeable(fresh, at)
    verdict = _judge(worker, workload, at)
    if verdict.reasons:
        raise DomainError(
            "MESH_PLACEMENT_DENIED",
            f"The worker may not take it: {', '.join(verdict.reasons)}.",
            reasons=list(verdict.reasons),
        )
    if not fresh.claimable:
        Workload.objects.filter(pk=fresh.pk).update(claimable=True)
    length = lease_length(worker, lease_ms)
    run = _run(worker, 1, 1, length, at, workload=fresh, actor=caller.subject)
    workers.occupy(worker, worker.active + 1, actor=caller.subject, at=at)
    workers.save(worker)
    return run.claims[0]


def _ranked(workload: Workload, at: datetime) -> list[int]:
    """Keys of the workers that may take it, best first; read without locks."""
    need = workload.requirement
    fitting = (
        _workers_of(workload)
        .filter(
            lifecycle__in=PLACEABLE,
            is_unreconciled=False,
            health=Health.HEALTHY,
            granted_capabilities__contains=need.capabilities,
            labels__contains=need.required_labels,
        )
        .select_related("grant")
        .order_by("active", "-concurrency", "worker_id")[:1_000]
    )
    verdicts = [placement.judge(need, each, each.grant, at) for each in fitting]
    return [each.pk for each in placement.rank(need, verdicts)]


def _nobody(workload: Workload, at: datetime, *, busy: int) -> DomainError:
    considered = _workers_of(workload).select_related("grant").order_by("worker_id")
    verdicts = [_judge(each, workload, at) for each in considered[:_PLACE_CANDIDATES]]
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
