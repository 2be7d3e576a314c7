"""Workers: registration, drain, recovery, removal. Owns the lifecycle moves.

Guarantees: a worker holds only capabilities that it declared and its grant allows; a name belongs
to one worker of its application; a live worker is displaced only by its own credential or by a
grant for exactly its name; READY and BUSY follow from live claims against capacity and nobody sets
them by hand; `active` is the number of live attempts, never what a worker says.

Locks: the worker row. Does not end claims: what a register abandons is ended by `mesh.liveness`.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from . import clock, grants, history, locking, requirements, statements
from .canonical import identity, secret_hash
from .errors import DomainError
from .models import (
    WORKER_MOVES,
    Application,
    Attempt,
    DrainCause,
    Grant,
    Health,
    Lifecycle,
    Role,
    Runtime,
    Worker,
)
from .tenancy import Caller

CREDENTIAL_PREFIX: Final = "fpw_"
RESOURCES: Final = ("cpu_millis", "memory_bytes", "disk_bytes", "gpu_count")
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
    "drain_reason",
    "event_sequence",
    "sweep_after",
]

_OF_CREDENTIAL: Final = """
    select w.credential_hash, w.id, w.worker_id, w.incarnation, w.tenant_id, t.name
    from mesh_worker w join mesh_tenant t on t.id = w.tenant_id
    where w.credential_hash = %(hash)s and w.removed_at is null
"""


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


def authenticate(secret: str) -> Caller:
    """The worker that a credential speaks for; TOKEN_INVALID if it is unknown or was replaced."""
    hashed = secret_hash(secret)
    found = statements.first(_OF_CREDENTIAL, {"hash": hashed})
    if found is None or not hmac.compare_digest(found[0], hashed):
        raise DomainError("TOKEN_INVALID", "The credential is unknown or was replaced.")
    _, pk, worker_id, incarnation, tenant_id, tenant = found
    return Caller(f"worker:{worker_id}", tenant_id, tenant, worker_pk=pk, incarnation=incarnation)


def subject_of(worker: Worker) -> str:
    """The worker as actor in histories."""
    return f"worker:{worker.worker_id}"


def lock_self(caller: Caller) -> Worker:
    """Lock the worker that calls.

    Refuses with TOKEN_INVALID a process that was let in and then displaced while it waited: the
    register that replaced its credential has committed, so it may no more act for the worker.
    """
    worker = locking.lock_worker(caller.worker_pk or 0)
    if caller.incarnation is not None and caller.incarnation != worker.incarnation:
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
        raise DomainError("WORKER_RECOVERY_REQUIRED", "Reconcile first.")


def register(*, registration: Registration, credential: str | None) -> Registered:
    """Take a worker in, anew or again, on the proof of a signed grant.

    Refuses in this order: CONTRACT_VERSION_UNSUPPORTED; GRANT_INVALID; GRANT_EXPIRED;
    GRANT_REVOKED; GRANT_SCOPE_DENIED (right); WORKER_UNAUTHORIZED (subject, tenant, application);
    GRANT_SCOPE_DENIED (constraints); WORKER_INVALID; WORKER_UNAUTHORIZED (over a worker that is
    heard of without its credential or a grant for exactly its name; older revision); WORKER_BUSY
    (other version or lost capability while claims are live).

    Each call is a new incarnation with a fresh credential, which locks the process before out; so
    a repeat after a lost answer registers again. An operator's drain survives it. Runs inside
    `mesh.liveness.register`, which ends the claims that are abandoned.
    """
    grant = _require_grant(registration)
    _require_values(registration)
    with transaction.atomic():
        worker = _lock_or_create(registration, grant)
        at = clock.now()
        if worker.incarnation == 0 or worker.is_removed:
            return _register_new(worker, registration, grant, at)
        _require_takeover(worker, registration, grant, credential, at)
        has_claims = Attempt.objects.live().filter(worker=worker).exists()
        if has_claims and not registration.abandon_claims:
            _require_same_work(worker, registration, grant)
        return _register_again(worker, registration, grant, at, has_claims=has_claims)


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


def undrain(*, caller: Caller, worker_id: str, reason: str = "") -> Worker:
    """Let a draining worker take work again: READY, or BUSY when full.

    Refuses with WORKER_TRANSITION_DENIED unless it is DRAINING, so a repeat is refused.
    """
    caller.require(Role.OPERATOR)
    with transaction.atomic():
        worker = lock_for(caller, worker_id)
        if worker.lifecycle != Lifecycle.DRAINING:
            raise denied(worker, Lifecycle.READY)
        at = clock.now()
        clear_drain(worker)
        move(worker, _resting(worker), actor=caller.subject, at=at, evidence={"reason": reason})
        save(worker)
    return worker


def recover(*, caller: Caller, worker_id: str, reason: str = "") -> Worker:
    """Ask an OFFLINE worker back: RECOVERING until it reconciles. Clears its drain.

    Refuses with WORKER_TRANSITION_DENIED unless it is OFFLINE, so a repeat is refused.
    """
    caller.require(Role.OPERATOR)
    with transaction.atomic():
        worker = lock_for(caller, worker_id)
        at = clock.now()
        move(worker, Lifecycle.RECOVERING, actor=caller.subject, at=at, evidence={"reason": reason})
        clear_drain(worker)
        worker.recovering_since = at
        save(worker)
    return worker


def remove(*, caller: Caller, worker_id: str, reason: str = "") -> None:
    """Retire a worker: the row stays for history, its name is free, its credential is gone.

    Refuses with WORKER_BUSY while it holds live claims; a repeat finds no worker.
    """
    caller.require(Role.OPERATOR)
    with transaction.atomic():
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
        resting = _resting(worker)
        if worker.lifecycle != resting:
            move(worker, resting, actor=actor, at=at, evidence={"active": active})
    elif worker.lifecycle == Lifecycle.DRAINING and active == 0:
        move(worker, Lifecycle.OFFLINE, actor=actor, at=at, evidence={"drained": True})


def save(worker: Worker) -> None:
    """Write what moves of a locked worker; one statement."""
    worker.save(update_fields=_MOVING)


def denied(worker: Worker, to: Lifecycle) -> DomainError:
    """The refusal of a lifecycle move."""
    return DomainError(
        "WORKER_TRANSITION_DENIED", f"A {worker.lifecycle} worker does not become {to}."
    )


def _resting(worker: Worker) -> Lifecycle:
    return Lifecycle.READY if worker.active < worker.concurrency else Lifecycle.BUSY


def clear_drain(worker: Worker) -> None:
    """Forget a drain of a locked worker, in memory."""
    worker.drain_cause = ""
    worker.drain_requested_at = worker.drain_deadline_at = None
    worker.drain_reason = ""


def _require_grant(registration: Registration) -> Grant:
    if registration.contract_version != 1:
        raise DomainError("CONTRACT_VERSION_UNSUPPORTED", "This server speaks version 1.")
    grant = grants.decode(registration.grant)
    grants.require_in_time(grant, clock.now())
    grants.require_in_force(grant)
    uri = f"flow://{registration.application}/workers"
    grants.require_scope(grant, "worker:register", uri)
    said = (registration.registered_by, registration.tenant, registration.application)
    if said != (grant.subject, grant.tenant.name, grant.application.name):
        raise DomainError(
            "WORKER_UNAUTHORIZED", "The grant is for another subject, tenant or application."
        )
    grants.require_constraints(grant, worker_name=registration.name)
    return grant


def _require_values(registration: Registration) -> None:
    interval, timeout = registration.heartbeat_interval_ms, registration.heartbeat_timeout_ms
    labels = registration.labels.items()
    rules = {
        "runtime": registration.runtime in Runtime.values,
        "name": _is_name(registration.name),
        "version": 1 <= len(registration.version) <= 200 and bool(registration.version.strip()),
        "capacity.concurrency": registration.concurrency in CONCURRENCY,
        "heartbeat_interval_ms": 1_000 <= interval <= 300_000,
        "heartbeat_timeout_ms": 3_000 <= timeout <= 900_000 and timeout >= 3 * interval,
        "labels": len(labels) <= MAX_LABELS and all(is_label(*each) for each in labels),
        "capabilities": are_names(registration.capabilities),
        "workload_kinds": are_names(registration.workload_kinds),
        "resource_profile": set(registration.resource_profile) <= set(RESOURCES)
        and all(0 <= each < 2**63 for each in registration.resource_profile.values()),
    }
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise DomainError("WORKER_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken)


def require_concurrency(concurrency: int) -> None:
    """Refuse with WORKER_INVALID a capacity out of bounds."""
    if concurrency not in CONCURRENCY:
        raise DomainError(
            "WORKER_INVALID", "The concurrency is from 1 to 1 000.", fields=["capacity.concurrency"]
        )


def is_label(key: str, value: str) -> bool:
    """A label pair within its bounds: key of 1 to 63, value of up to 255 characters."""
    return 1 <= len(key) <= 63 and len(value) <= 255


def are_names(names: Sequence[str]) -> bool:
    """A list of at most 256 names (capabilities, kinds), none blank or over 255 characters."""
    return len(names) <= _MAX_LIST and all(
        1 <= len(each) <= 255 and each == each.strip() for each in names
    )


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
) -> None:
    """Only its own credential, or a grant for exactly its name, displaces a heard worker."""
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
    clear_drain(worker)
    _finish(worker, said, at, displaced=False)
    return Registered(worker, credential, reconcile_required=False, created=True)


def _register_again(
    worker: Worker, said: Registration, grant: Grant, at: datetime, *, has_claims: bool
) -> Registered:
    interval = timedelta(milliseconds=worker.heartbeat_interval_ms)
    was_beating = worker.lifecycle != Lifecycle.OFFLINE and at - worker.last_seen_at <= interval
    credential = _apply(worker, said, grant, at)
    away = worker.lifecycle in {Lifecycle.OFFLINE, Lifecycle.RECOVERING}
    worker.is_unreconciled = away or (has_claims and not said.abandon_claims)
    if worker.drain_cause in {DrainCause.WORKER, DrainCause.REVOCATION}:
        clear_drain(worker)
        if worker.lifecycle == Lifecycle.DRAINING:
            move(worker, _resting(worker), actor=subject_of(worker), at=at)
    occupy(worker, worker.active, actor=subject_of(worker), at=at)
    _finish(worker, said, at, displaced=was_beating)
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
        record(worker, "displaced", actor=actor, at=at, evidence=evidence)
    record(worker, "registered", actor=actor, at=at, evidence=evidence)
    worker.save()
    requirements.forget(worker)


def application_of(worker: Worker) -> Application:
    """The worker's application with its present requirement numbers."""
    return Application.objects.get(pk=worker.application_id)
