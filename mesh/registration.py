"""Registration: how a worker comes in, anew or again, on the proof of a signed grant.

Guarantees: a worker holds only capabilities that it declared and its grant allows; a name belongs
to one worker of its application; a live worker is displaced only by its own credential or by a
grant for exactly its name. Each register is a new incarnation with a fresh credential, which locks
the process before out.

Locks: the worker row. Does not end claims: what a register abandons is ended by `mesh.liveness`.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from django.db import transaction

from . import clock, grants, history, refusals, requirements, workers
from .canonical import identity, secret_hash
from .errors import DomainError
from .models import Attempt, DrainCause, Grant, Health, Lifecycle, Runtime, Worker
from .scopes import Facts, Request

CREDENTIAL_PREFIX: Final = "fpw_"


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker says of itself, and the grant that proves it may."""

    tenant: str
    application: str
    name: str
    runtime: str
    version: str
    contract_version: int
    registered_by: str
    grant: str
    concurrency: int
    capabilities: Sequence[str] = ()
    workload_kinds: Sequence[str] = ()
    resource_profile: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    heartbeat_interval_ms: int = 10_000
    heartbeat_timeout_ms: int = 30_000
    abandon_claims: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer: the row, the credential (only here), and whether a reconcile must follow."""

    worker: Worker
    credential: str
    reconcile_required: bool
    created: bool


def register(*, registration: Registration, credential: str | None) -> Registered:
    """Take a worker in, anew or again, on the proof of a signed grant.

    Refuses in this order: CONTRACT_VERSION_UNSUPPORTED; GRANT_INVALID; GRANT_EXPIRED;
    GRANT_REVOKED; GRANT_SCOPE_DENIED (right); WORKER_UNAUTHORIZED (subject, tenant, application);
    GRANT_SCOPE_DENIED (constraints); GRANT_DELEGATION_INVALID; WORKER_INVALID;
    WORKER_UNAUTHORIZED (over a worker that is heard of without its credential or a grant for
    exactly its name; older revision); WORKER_BUSY (other version or lost capability while claims
    are live).

    Each call is a new incarnation with a fresh credential, which locks the process before out; so
    a repeat after a lost answer registers again. An operator's drain survives it. Runs inside
    `mesh.liveness.register`, which ends the claims that are abandoned.
    """
    grant = _decode(registration)
    row = partial(
        history.audit,
        tenant_id=grant.tenant_id,
        actor=grant.subject,
        action="worker.registered",
        target=registration.name,
        reason=f"under {grant.grant_id}",
    )
    with refusals.kept(), history.keeping(row):
        return _take_in(registration, grant, credential)


def _take_in(registration: Registration, grant: Grant, credential: str | None) -> Registered:
    _require_grant(registration, grant)
    _require_values(registration)
    with transaction.atomic():
        worker = _lock_or_create(registration, grant)
        at = clock.now()
        if worker.incarnation == 0 or worker.is_removed:
            return _register_new(worker, registration, grant, at)
        is_itself = _require_takeover(worker, registration, grant, credential, at)
        has_claims = Attempt.objects.live().filter(worker=worker).exists()
        if has_claims and not registration.abandon_claims:
            _require_same_work(worker, registration, grant)
        return _register_again(
            worker, registration, grant, at, has_claims=has_claims, is_itself=is_itself
        )


def _decode(registration: Registration) -> Grant:
    if registration.contract_version != 1:
        raise DomainError("CONTRACT_VERSION_UNSUPPORTED", "This server speaks version 1.")
    return grants.decode(registration.grant)


def _require_grant(registration: Registration, grant: Grant) -> None:
    """That the grant lets it in. A worker has no environment and is no workload: see `scopes`."""
    above = grants.ancestors(grant)
    at = clock.now()
    asked = Request(
        "worker:register",
        f"flow://{registration.application}/workers",
        Facts(
            worker_name=registration.name,
            runtime=registration.runtime,
            labels=registration.labels,
        ),
    )
    grants.require_in_time(grant, at)
    grants.require_in_force(grant, above)
    grants.require_scope(grant, asked)
    said = (registration.registered_by, registration.tenant, registration.application)
    if said != (grant.subject, grant.tenant.name, grant.application.name):
        raise DomainError(
            "WORKER_UNAUTHORIZED", "The grant is for another subject, tenant or application."
        )
    grants.require_constraints(grant, asked)
    grants.require_lineage(grant, above, asked, at)


def _require_values(registration: Registration) -> None:
    interval, timeout = registration.heartbeat_interval_ms, registration.heartbeat_timeout_ms
    labels = registration.labels.items()
    rules = {
        "runtime": registration.runtime in Runtime.values,
        "name": _is_name(registration.name),
        "version": 1 <= len(registration.version) <= 200 and bool(registration.version.strip()),
        "capacity.concurrency": registration.concurrency in workers.CONCURRENCY,
        "heartbeat_interval_ms": 1_000 <= interval <= 300_000,
        "heartbeat_timeout_ms": 3_000 <= timeout <= 900_000 and timeout >= 3 * interval,
        "labels": len(labels) <= workers.MAX_LABELS
        and all(workers.is_label(*each) for each in labels),
        "capabilities": workers.are_names(registration.capabilities),
        "workload_kinds": workers.are_names(registration.workload_kinds),
        "resource_profile": workers.are_amounts(registration.resource_profile),
    }
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise DomainError("WORKER_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken)


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= 200 and all(c.isascii() and (c.isalnum() or c in "._:-") for c in name)


def _lock_or_create(registration: Registration, grant: Grant) -> Worker:
    """The locked row of that name; a row made here has incarnation 0 until it is registered."""
    mine = Worker.objects.filter(application_id=grant.application_id, name=registration.name)
    locked = mine.select_for_update(of=("self",), no_key=True)
    found = locked.first()
    if found is not None:
        return found
    parts = [registration.tenant, registration.application, registration.name]
    blank = Worker(
        worker_id=identity("worker", parts),
        tenant_id=grant.tenant_id,
        application_id=grant.application_id,
        name=registration.name,
        incarnation=0,
    )
    _apply(blank, registration, grant, clock.now())
    blank.incarnation = 0
    # Where another call takes the name in this very moment, this waits for it and finds its row.
    Worker.objects.bulk_create([blank], ignore_conflicts=True)
    return locked.get()


def _require_takeover(
    worker: Worker, said: Registration, grant: Grant, credential: str | None, at: datetime
) -> bool:
    """Only its own credential, or a grant for exactly its name, displaces a heard worker.

    Whether it was its own: then it renews itself, and nobody is displaced.
    """
    is_heard = worker.lifecycle != Lifecycle.OFFLINE and not worker.is_silent(at)
    is_itself = credential is not None and hmac.compare_digest(
        worker.credential_hash or "", secret_hash(credential)
    )
    if is_heard and not is_itself and not grants.names_worker(grant, said.name):
        raise DomainError("WORKER_UNAUTHORIZED", "A worker of that name is alive.")
    if grant.revision < worker.capability_version:
        raise DomainError(
            "WORKER_UNAUTHORIZED", "The worker is registered under a newer grant revision."
        )
    return is_itself


def _require_same_work(worker: Worker, said: Registration, grant: Grant) -> None:
    lost = set(worker.granted_capabilities) - _granted(said, grant)
    if said.version != worker.version or lost:
        raise DomainError(
            "WORKER_BUSY", "Claims are live: version and capabilities must stay until they end."
        )


def _granted(said: Registration, grant: Grant) -> set[str]:
    return set(said.capabilities) & grants.granted_capabilities(grant)


def _register_new(worker: Worker, said: Registration, grant: Grant, at: datetime) -> Registered:
    """A name that nobody holds: REGISTERED until the first beat."""
    credential = _apply(worker, said, grant, at)
    worker.lifecycle = Lifecycle.REGISTERED
    worker.health = Health.UNKNOWN
    worker.is_unreconciled = False
    worker.active = 0
    worker.removed_at = None
    worker.recovering_since = None
    workers.clear_drain(worker)
    _finish(worker, said, at, displaced=False)
    return Registered(worker, credential, reconcile_required=False, created=True)


def _register_again(
    worker: Worker,
    said: Registration,
    grant: Grant,
    at: datetime,
    *,
    has_claims: bool,
    is_itself: bool,
) -> Registered:
    interval = timedelta(milliseconds=worker.heartbeat_interval_ms)
    was_beating = worker.lifecycle != Lifecycle.OFFLINE and at - worker.last_seen_at <= interval
    credential = _apply(worker, said, grant, at)
    away = worker.lifecycle in {Lifecycle.OFFLINE, Lifecycle.RECOVERING}
    worker.is_unreconciled = away or (has_claims and not said.abandon_claims)
    if worker.drain_cause in {DrainCause.WORKER, DrainCause.REVOCATION}:
        workers.clear_drain(worker)
        if worker.lifecycle == Lifecycle.DRAINING:
            workers.move(worker, workers.resting(worker), actor=workers.subject_of(worker), at=at)
    workers.occupy(worker, worker.active, actor=workers.subject_of(worker), at=at)
    _finish(worker, said, at, displaced=was_beating and not is_itself)
    return Registered(worker, credential, worker.is_unreconciled, created=False)


def _apply(worker: Worker, said: Registration, grant: Grant, at: datetime) -> str:
    """Take over what was said; the fresh credential."""
    credential = CREDENTIAL_PREFIX + secrets.token_urlsafe(32)
    worker.runtime = said.runtime
    worker.version = said.version
    worker.contract_version = said.contract_version
    worker.declared_capabilities = sorted(set(said.capabilities))
    worker.granted_capabilities = sorted(_granted(said, grant))
    worker.workload_kinds = sorted(set(said.workload_kinds))
    worker.resource_profile = dict(said.resource_profile)
    worker.labels = dict(said.labels)
    worker.concurrency = said.concurrency
    worker.heartbeat_interval_ms = said.heartbeat_interval_ms
    worker.heartbeat_timeout_ms = said.heartbeat_timeout_ms
    worker.capability_version = grant.revision
    worker.grant = grant
    worker.registered_by = said.registered_by
    worker.registered_at = worker.last_seen_at = at
    worker.reported_at = None
    worker.clock_skew_ms = None
    worker.incarnation += 1
    worker.credential_hash = secret_hash(credential)
    return credential


def _finish(worker: Worker, said: Registration, at: datetime, *, displaced: bool) -> None:
    """Events and the row itself; its eligible set is worked out anew."""
    evidence = {
        "incarnation": worker.incarnation,
        "version": said.version,
        "grant_id": worker.grant.grant_id,
        "reconcile_required": worker.is_unreconciled,
        "abandon_claims": said.abandon_claims,
    }
    actor = said.registered_by
    if displaced:
        workers.record(worker, "displaced", actor=actor, at=at, evidence=evidence)
    workers.record(worker, "registered", actor=actor, at=at, evidence=evidence)
    worker.save()
    requirements.forget(worker)
