"""Liveness: heartbeat, reconcile, and the register that abandons claims.

Guarantees: a worker is heard only when its row is; what it says about claims is compared with the
rows and never believed; a claim that it forgot is lost, one that it keeps without a right to it is
told to it as fenced. Beating, accepting and progressing are three facts, kept apart.

Locks: the worker, then workloads of claims that end. A usual heartbeat is one statement
(`mesh.beats`), any other a constant number of them whatever the number of claims.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from django.db import transaction

from . import beats, clock, leases, locking, refusals, settlement, statements, workers
from .beats import CLOCK_LEEWAY, Renewed, Said
from .beats import Beat as Beat
from .errors import DomainError
from .giving import require_worker, unstarted
from .models import (
    Application,
    Attempt,
    AttemptStatus,
    DrainCause,
    Grant,
    Health,
    Lifecycle,
    State,
    Tenant,
    Worker,
    Workload,
    uid_of,
)
from .registration import Registered, Registration
from .registration import register as take_in
from .tenancy import Caller

_CONTEXT: Final = """
    select coalesce(%(fixed)s::timestamptz, clock_timestamp()) as at,
        g.grant_id, g.status, g.expires_at, t.name as tenant, a.name as application
    from mesh_grant g, mesh_tenant t, mesh_application a
    where g.id = %(grant)s and t.id = %(tenant)s and a.id = %(application)s
"""
_ATTEMPT: Final = statements.Reader(Attempt)
_STATE: Final = statements.Reader(
    Workload,
    but=[each.attname for each in Workload._meta.fields if each.name not in {"id", "state"}],
)
_LIVE: Final = (
    f"select {_ATTEMPT.columns('a')}, {_STATE.columns('w')}"  # noqa: S608  # our own column names
    " from mesh_attempt a join mesh_workload w on w.id = a.workload_id"
    " where a.worker_id = %(worker)s and a.status in ('CLAIMED', 'RUNNING', 'CHECKPOINTED')"
    " order by a.id"
)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What is true after a restart; `reports` has a verdict for each reported ended attempt."""

    worker: Worker
    authoritative_claims: list[str]
    fenced_claims: list[str]
    cancel_attempts: list[str]
    reports: dict[str, str]


def register(*, registration: Registration, credential: str | None) -> Registered:
    """Register a worker; with `abandon_claims` its live claims end here as lost.

    See `mesh.registration.register` for checks, codes and what a repeat does.
    """
    with refusals.kept(), transaction.atomic():
        registered = take_in(registration=registration, credential=credential)
        worker = registered.worker
        if registration.abandon_claims and not registered.created:
            abandoned = list(Attempt.objects.live().filter(worker=worker))
            actor = workers.subject_of(worker)
            at = worker.registered_at
            leases.lose(worker, abandoned, cause="abandoned", actor=actor, at=at)
            if worker.lifecycle == Lifecycle.OFFLINE and not worker.is_unreconciled:
                # A drain that an operator asked for ended with the last claim.
                worker.is_unreconciled = True
                registered = replace(registered, reconcile_required=True)
            workers.save(worker)
    return registered


def heartbeat(
    *,
    caller: Caller,
    worker_id: str,
    version: str,
    capability_version: int,
    health: str,
    timestamp: datetime,
    running_claims: Sequence[str],
    concurrency: int | None = None,
) -> Beat:
    """Hear a worker: liveness, health, capacity; renew the claims it lists; tell it what it lacks.

    The listed claims are renewed by the length each was claimed with. A draining worker without
    claims goes OFFLINE, a new one becomes READY. Each call beats anew. Refuses in this order:
    WORKER_NOT_FOUND; WORKER_HEARTBEAT_REJECTED (other version or capability version);
    WORKER_CLOCK_INVALID (reported time over 5 s before the last one); WORKER_RECOVERY_REQUIRED;
    WORKER_INVALID (capacity).
    """
    require_worker(caller)
    said = Said(version, capability_version, Health(health), timestamp, running_claims, concurrency)
    is_itself = caller.subject == f"worker:{worker_id}"
    return (beats.hear(caller, said) if is_itself else None) or _hear_out(caller, worker_id, said)


def reconcile(
    *,
    caller: Caller,
    worker_id: str,
    worker_version: str,
    capability_version: int,
    known_claims: Sequence[str],
    running_attempts: Sequence[str],
    completed_attempts: Sequence[str],
    failed_attempts: Sequence[str],
    timestamp: datetime,
) -> Reconciliation:
    """Agree with a worker that came back on which claims are its own; it may work again after it.

    Live, unexpired claims that it names anywhere stay; live claims that it forgot are lost. Each
    reported ended attempt gets a verdict: `accepted` (send the result), `already_recorded`,
    `fenced`. Started work that is held when lost is not given away while its latest claim may still
    be settled: it may run on, and its result is accepted, after its lease too. The reported time
    gives the skew and begins anew with the worker's clock: it may have been set back meanwhile. A
    repeat answers from the rows as they are then. Refuses in this order:
    WORKER_NOT_FOUND; WORKER_RECONCILIATION_DENIED (versions); WORKER_DRAINED (it is OFFLINE
    after an operator's drain, until it is recovered; or out of service under a revoked grant,
    until it registers under one in force).
    """
    require_worker(caller)
    with transaction.atomic():
        worker = workers.lock_for(caller, worker_id)
        at = clock.now()
        if (worker_version, capability_version) != (worker.version, worker.capability_version):
            raise DomainError(
                "WORKER_RECONCILIATION_DENIED", "The worker is registered with other versions."
            )
        if _stays_drained(worker):
            raise DomainError(
                "WORKER_DRAINED",
                "The worker was drained; an operator's recover, or registering under a grant in"
                " force, brings it back.",
            )
        # Before claims are lost: a drain that ends with the last of them stays a drain.
        was_offline = worker.lifecycle == Lifecycle.OFFLINE
        named_claims = set(known_claims)
        named_attempts = {*running_attempts, *completed_attempts, *failed_attempts}
        live = list(Attempt.objects.live().filter(worker=worker).order_by("pk"))
        kept: list[Attempt] = []
        forgotten: list[Attempt] = []
        for each in live:
            is_named = each.claim_id in named_claims or each.attempt_id in named_attempts
            (kept if is_named else forgotten).append(each)
        leases.lose(worker, forgotten, cause="forgotten", actor=caller.subject, at=at)
        kept = [each for each in kept if not each.is_lease_over(at)]
        _set_clock(worker, timestamp, at)
        _come_back(worker, caller.subject, at, was_offline=was_offline)
        workers.save(worker)
        authoritative = {each.claim_id for each in kept}
        named = [*running_attempts, *completed_attempts, *failed_attempts]
        settling, settled = _reported(worker, named)
        settling |= {each.attempt_id for each in kept}
        return Reconciliation(
            worker=worker,
            authoritative_claims=sorted(authoritative),
            fenced_claims=[each for each in known_claims if each not in authoritative],
            cancel_attempts=[each for each in running_attempts if each not in settling],
            reports={
                each: _verdict(each, settling, settled)
                for each in [*completed_attempts, *failed_attempts]
            },
        )


def silence(*, worker_pk: int, actor: str) -> Worker | None:
    """Take a worker that is silent OFFLINE; None if it was heard again or is OFFLINE already.

    Unstarted claims go back at once; started ones run to the end of their lease.
    """
    with transaction.atomic():
        worker = locking.lock_worker(worker_pk)
        at = clock.now()
        if worker.lifecycle == Lifecycle.OFFLINE or worker.is_removed or not worker.is_silent(at):
            return None
        evidence = {"last_seen_at": worker.last_seen_at.isoformat()}
        workers.move(worker, Lifecycle.OFFLINE, actor=actor, at=at, evidence=evidence)
        worker.health = Health.UNHEALTHY
        unstarted_claims = list(
            Attempt.objects.filter(worker=worker, status=AttemptStatus.CLAIMED).order_by("pk")
        )
        leases.lose(worker, unstarted_claims, cause="silent", actor=actor, at=at)
        workers.save(worker)
    return worker


def _hear_out(caller: Caller, worker_id: str, said: Said) -> Beat:
    """Any heartbeat, with what is to be refused, moved and told."""
    with transaction.atomic():
        worker = workers.lock_for(caller, worker_id)
        grant, at = _read_context(worker)
        if (said.version, said.capability_version) != (worker.version, worker.capability_version):
            raise DomainError(
                "WORKER_HEARTBEAT_REJECTED", "The worker is registered with other versions."
            )
        _hear(worker, said.timestamp, at)
        workers.require_reconciled(worker)
        if said.concurrency is not None:
            workers.require_concurrency(said.concurrency)
            worker.concurrency = said.concurrency
        worker.health = said.health
        live = _read_live(worker)
        listed = set(said.running_claims)
        own = [each for each in live if each.claim_id in listed]
        renewed = leases.renew_listed(worker, own, grant, at)
        _advance(worker, len(live), caller.subject, at)
        workers.save(worker)
        return _tell(worker, live, said.running_claims, renewed, grant, at)


def _read_context(worker: Worker) -> tuple[Grant, datetime]:
    """The worker's grant, and the time; read after the lock.

    The worker comes to know what its answer names, which never changes.
    """
    values = {
        "fixed": clock.fixed(),
        "tenant": worker.tenant_id,
        "application": worker.application_id,
        "grant": worker.grant_id,
    }
    row = statements.rows(_CONTEXT, values)[0]
    grant = Grant(
        pk=worker.grant_id,
        grant_id=row["grant_id"],
        status=row["status"],
        expires_at=row["expires_at"],
    )
    worker.tenant = Tenant(pk=worker.tenant_id, name=row["tenant"])
    worker.application = Application(pk=worker.application_id, name=row["application"])
    worker.grant = grant
    return grant, row["at"]


def _read_live(worker: Worker) -> list[Attempt]:
    """Its live claims with the states of their work."""
    found = []
    for row in statements.all_rows(_LIVE, {"worker": worker.pk}):
        attempt = _ATTEMPT.read(row[: len(_ATTEMPT.names)])
        attempt.workload = _STATE.read(row[len(_ATTEMPT.names) :])
        found.append(attempt)
    return found


def _hear(worker: Worker, timestamp: datetime, at: datetime) -> None:
    if worker.reported_at is not None and timestamp < worker.reported_at - CLOCK_LEEWAY:
        raise DomainError("WORKER_CLOCK_INVALID", "The worker's clock went back.")
    worker.last_seen_at = at
    _set_clock(worker, timestamp, at)


def _set_clock(worker: Worker, timestamp: datetime, at: datetime) -> None:
    worker.reported_at = min(timestamp, at)
    worker.clock_skew_ms = round((timestamp - at).total_seconds() * 1_000)


def _advance(worker: Worker, active: int, actor: str, at: datetime) -> None:
    """Where a beat leads: REGISTERED → READY, READY and BUSY by capacity, drained → OFFLINE."""
    if worker.lifecycle == Lifecycle.REGISTERED:
        workers.move(worker, Lifecycle.READY, actor=actor, at=at)
    workers.occupy(worker, active, actor=actor, at=at)
    if not worker.free_slots:
        # A full worker does not ask for work; it is not deaf.
        worker.last_poll_at = at


def _tell(
    worker: Worker,
    live: Sequence[Attempt],
    listed: Sequence[str],
    renewed: list[Attempt],
    grant: Grant,
    at: datetime,
) -> Beat:
    named = set(listed)
    own = {each.claim_id: each for each in live if not each.is_lease_over(at)}
    silent = [each for each in live if each.claim_id not in named]
    has_unstarted = any(each.started_at is None for each in silent)
    known = frozenset(each.uid for each in live if each.claim_id in named)
    return Beat(
        worker=worker,
        renewed=[Renewed(each.claim_id, each.expires_at) for each in renewed],
        fenced_claims=[each for each in listed if each not in own],
        cancel_claims=[
            each.claim_id for each in live if each.workload.state == State.CANCELLATION_REQUESTED
        ],
        missing_claims=[each.claim_id for each in silent if each.started_at is not None],
        assigned_claims=unstarted(worker, but=known) if has_unstarted else [],
        grant_ends_at=grant.expires_at,
    )


def _stays_drained(worker: Worker) -> bool:
    """Out of service, and drained by somebody else, or it would be if it came back."""
    if worker.lifecycle not in {Lifecycle.OFFLINE, Lifecycle.RECOVERING}:
        return False
    by_others = {DrainCause.OPERATOR, DrainCause.REVOCATION}
    return worker.drain_cause in by_others or workers.has_revoked_grant(worker)


def _come_back(worker: Worker, actor: str, at: datetime, *, was_offline: bool) -> None:
    worker.last_seen_at = at
    worker.is_unreconciled = False
    if was_offline:
        workers.clear_drain(worker)
        workers.move(worker, Lifecycle.RECOVERING, actor=actor, at=at)
        worker.recovering_since = at
    if worker.lifecycle == Lifecycle.RECOVERING:
        workers.move(worker, Lifecycle.READY, actor=actor, at=at)
    worker.health = Health.UNKNOWN
    workers.occupy(worker, worker.active, actor=actor, at=at)
    workers.record(worker, "reconciled", actor=actor, at=at, evidence={"active": worker.active})


def _reported(worker: Worker, named: Iterable[str]) -> tuple[set[str], set[str]]:
    """Of the worker's own attempts: those that may report whatever their lease, and the settled."""
    uids = [uid for each in named if (uid := uid_of(each, "attempt"))]
    own = Attempt.objects.filter(worker=worker, uid__in=uids).select_related("workload")
    rows = list(own.defer("workload__input"))
    return (
        {each.attempt_id for each in rows if settlement.can_still_report(each, each.workload)},
        {each.attempt_id for each in rows if each.report_step},
    )


def _verdict(attempt_id: str, settling: set[str], settled: set[str]) -> str:
    if attempt_id in settling:
        return "accepted"
    return "already_recorded" if attempt_id in settled else "fenced"
