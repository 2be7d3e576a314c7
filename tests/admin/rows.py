"""Rows in a state, written straight into the tables: what a screen may have to show.

Unlike work done through the domain this reaches every state at once, at any age.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib.auth.models import User

from mesh import clock, tenancy
from mesh.models import (
    ENDED_STATES,
    LIVE_ATTEMPT,
    ApiToken,
    Application,
    Attempt,
    AttemptStatus,
    Checkpoint,
    Grant,
    Health,
    Incident,
    Lifecycle,
    Pause,
    Pool,
    Requirement,
    Result,
    Revocation,
    Role,
    Runtime,
    State,
    Tenant,
    Worker,
    WorkerEvent,
    Workload,
    WorkloadEvent,
)

PASSWORD: Final = "a long enough passphrase"
POLICY: Final = {
    "max_attempts": 3,
    "initial_delay_ms": 1000,
    "max_delay_ms": 300_000,
    "backoff": "exponential",
    "retry_on": ["timeout", "worker_failure", "transient_connection"],
    "jitter": 0,
    "max_unstarted": 10,
}
TIMEOUTS: Final = {
    "queue_ms": None,
    "claim_ms": None,
    "execution_ms": 900_000,
    "heartbeat_ms": None,
    "overall_ms": None,
    "cancel_grace_ms": 60_000,
}
_numbers = itertools.count(1)
_STATUS_OF: Final = {
    State.CLAIMED: AttemptStatus.CLAIMED,
    State.RUNNING: AttemptStatus.RUNNING,
    State.CHECKPOINTED: AttemptStatus.CHECKPOINTED,
    State.CANCELLATION_REQUESTED: AttemptStatus.RUNNING,
    State.HELD: AttemptStatus.WORKER_LOST,
    State.SUCCEEDED: AttemptStatus.SUCCEEDED,
    State.CANCELLED: AttemptStatus.CANCELLED,
    State.DEAD_LETTER: AttemptStatus.FAILED,
}


def number() -> int:
    return next(_numbers)


def ago(**length: float) -> datetime:
    return clock.now() - timedelta(**length)


def tenant(name: str = "", *applications: str) -> Tenant:
    return tenancy.create_tenant(
        name=name or f"tenant-{number()}",
        applications=applications or ["documents"],
        actor="system:test",
    )


def application(of: Tenant, name: str = "documents") -> Application:
    return Application.objects.get(tenant=of, name=name)


def person(of: Tenant | None, role: Role = Role.ADMIN, name: str = "") -> User:
    """Somebody who may sign in; without a tenant, a superuser who is a member of none."""
    chosen = name or f"{role.value}-{number()}"
    if of is None:
        return User.objects.create_superuser(chosen, password=PASSWORD)
    return tenancy.create_user(
        name=chosen, tenant=of, role=role, password=PASSWORD, actor="system:test"
    )


def grant(of: Application, **fields: Any) -> Grant:
    given: dict[str, Any] = {
        "grant_id": f"grant_{uuid.uuid4().hex}",
        "subject": "service:registrar",
        "capabilities": ["worker:capability:documents.extract", "worker:register"],
        "token_digest": "0" * 64,
        "key_id": "k1",
        "issued_at": ago(days=2),
        "not_before": ago(days=2),
        "expires_at": ago(days=-30),
        "issued_by": "human:ann",
    }
    return Grant.objects.create(tenant=of.tenant, application=of, **{**given, **fields})


def revocation(of: Tenant, **fields: Any) -> Revocation:
    given: dict[str, Any] = {
        "kind": "subject",
        "target": "service:registrar",
        "reason": "its key got out",
        "revoked_by": "human:ann",
        "revoked_at": ago(hours=2),
    }
    return Revocation.objects.create(tenant=of, **{**given, **fields})


def worker(of: Application, name: str = "", **fields: Any) -> Worker:
    chosen = name or f"worker-{number()}"
    hashed = hashlib.sha256(f"{of.pk} {chosen}".encode()).hexdigest()
    given: dict[str, Any] = {
        "worker_id": f"worker_{hashed[:24]}",
        "runtime": Runtime.CONTAINER,
        "version": "1.4.2",
        "declared_capabilities": ["documents.extract", "documents.ocr"],
        "granted_capabilities": ["documents.extract"],
        "labels": {"zone": "eu-1"},
        "resource_profile": {"cpu_millis": 4000},
        "concurrency": 4,
        "capability_version": 1,
        "credential_hash": hashed,
        "registered_by": "service:registrar",
        "registered_at": ago(hours=5),
        "lifecycle": Lifecycle.READY,
        "health": Health.HEALTHY,
        "last_seen_at": ago(seconds=3),
        "last_poll_at": ago(seconds=3),
        "last_progress_at": ago(minutes=1),
    }
    if "grant" not in fields:
        fields["grant"] = grant(of)
    return Worker.objects.create(
        tenant=of.tenant, application=of, name=chosen, **{**given, **fields}
    )


def requirement(of: Application, definition: str = "documents.extract") -> Requirement:
    digest = hashlib.sha256(definition.encode()).hexdigest()
    made, _ = Requirement.objects.get_or_create(
        application=of,
        digest=digest,
        defaults={"definition_id": definition, "capabilities": [definition]},
    )
    return made


def workload(
    of: Application,
    state: State = State.READY,
    on: Worker | None = None,
    definition: str = "documents.extract",
    created_at: datetime | None = None,
    **fields: Any,
) -> Workload:
    """Work in that state; with `on`, an attempt by that worker that fits the state."""
    key = fields.pop("idempotency_key", f"order-{number()}")
    hashed = hashlib.sha256(f"{of.pk} {key}".encode()).hexdigest()
    at = created_at or ago(minutes=12)
    is_ended = state in ENDED_STATES
    given: dict[str, Any] = {
        "workload_id": f"workload_{hashed[:24]}",
        "requirement": requirement(of, definition),
        "environment": "production",
        "definition_revision": "7",
        "trigger": "upload",
        "input": {"document": f"s3://inbox/{key}.pdf", "pages": [1, 2, 3], "language": "en"},
        "requested_by": "service:inbox",
        "capability_snapshot": [definition],
        "idempotency_key": key,
        "content_digest": hashed,
        "retry_policy": POLICY,
        "timeouts": TIMEOUTS,
        "policy": {},
        "created_at": at,
        "updated_at": at,
        "state": state,
        "claimable": state == State.READY,
        "available_at": at,
        "ready_at": at,
        "overall_from": at,
        "ended_at": ago(minutes=4) if is_ended else None,
        "event_sequence": 2 if on else 1,
        "fencing_token": 1 if on else 0,
        "attempt_count": 1 if on else 0,
        "started_attempts": 1 if on and state != State.CLAIMED else 0,
        "definition_id": definition,
    }
    made = Workload.objects.create(tenant=of.tenant, application=of, **{**given, **fields})
    event(made, 1, "ready", "CREATED", "READY", "service:inbox", at)
    if on is not None:
        attempt(made, on, _STATUS_OF[state])
        event(made, 2, "claimed", "READY", "CLAIMED", f"worker:{on.worker_id}", at)
    return made


def held(of: Application, on: Worker, **fields: Any) -> Workload:
    """Work that had begun when its worker was lost."""
    failure = {"kind": "worker_failure", "error": "The worker was lost: lease over."}
    said = {"lost_policy": "hold", "last_failure": failure, **fields}
    return workload(of, State.HELD, on, **said)


def event(
    of: Workload, no: int, name: str, before: str, after: str, actor: str, at: datetime
) -> WorkloadEvent:
    Workload.objects.filter(pk=of.pk).update(event_sequence=no)
    return WorkloadEvent.objects.create(
        workload=of,
        sequence=no,
        event=f"workload.{name}",
        from_state=before,
        to_state=after,
        actor=actor,
        at=at,
        evidence={"note": "as it was"},
    )


def pool(of: Application, *members: Worker, **fields: Any) -> Pool:
    chosen = f"pool-{number()}"
    given: dict[str, Any] = {"pool_id": chosen, "name": chosen, "created_by": "human:ann"}
    made = Pool.objects.create(tenant=of.tenant, application=of, **{**given, **fields})
    made.workers.add(*members)
    return made


def pause(of: Application, **fields: Any) -> Pause:
    given: dict[str, Any] = {
        "reason": "release 9 loses pages",
        "created_at": ago(minutes=8),
        "created_by": "human:ben",
    }
    return Pause.objects.create(tenant=of.tenant, application=of, **{**given, **fields})


def worker_event(of: Worker, no: int, name: str, before: str, after: str) -> WorkerEvent:
    Worker.objects.filter(pk=of.pk).update(event_sequence=no)
    return WorkerEvent.objects.create(
        worker=of,
        sequence=no,
        event=f"worker.{name}",
        from_state=before,
        to_state=after,
        actor="human:ann",
        at=ago(minutes=no),
        evidence={"reason": "kernel update"},
    )


def attempt(
    of: Workload,
    by: Worker,
    status: AttemptStatus = AttemptStatus.RUNNING,
    no: int = 1,
    **fields: Any,
) -> Attempt:
    is_live = status in LIVE_ATTEMPT
    is_started = status not in {AttemptStatus.CLAIMED, AttemptStatus.RELEASED}
    given: dict[str, Any] = {
        "uid": uuid.uuid4(),
        "incarnation": by.incarnation,
        "fencing_token": no,
        "lease_ms": 60_000,
        "claimed_at": ago(minutes=6),
        "started_at": ago(minutes=6) if is_started else None,
        "ended_at": None if is_live else ago(minutes=4),
        "expires_at": ago(seconds=-50) if is_live else ago(minutes=4),
        "last_progress_at": ago(minutes=1) if is_started else None,
    }
    return Attempt.objects.create(
        workload=of, worker=by, number=no, status=status, **{**given, **fields}
    )


def result(of: Workload, by: Attempt) -> Result:
    return Result.objects.create(
        workload=of,
        attempt=by,
        result_id=f"result-{number()}",
        digest="0" * 64,
        output={"words": 1204, "text": "s3://outbox/text.txt"},
        artifacts=["https://files.example/text.txt", "javascript:alert(1)"],
        logs="opened\nread 3 pages\ndone\n",
        created_at=ago(minutes=4),
    )


def checkpoint(of: Workload, by: Attempt, no: int = 1) -> Checkpoint:
    return Checkpoint.objects.create(
        workload=of,
        attempt=by,
        sequence=no,
        state={"page": no},
        digest="0" * 64,
        created_at=ago(minutes=2),
    )


def token(of: Tenant, name: str = "") -> ApiToken:
    chosen = name or f"service-{number()}"
    return ApiToken.objects.create(
        tenant=of,
        name=chosen,
        role=Role.OPERATOR,
        token_hash=hashlib.sha256(f"{of.pk} {chosen}".encode()).hexdigest(),
        created_at=ago(days=3),
        created_by="human:ann",
    )


def incident(of: Application, *workers: Worker) -> Incident:
    made = Incident.objects.create(
        tenant=of.tenant,
        application=of,
        sweep="detect_silent_workers",
        reason="too_many_silent",
        opened_at=ago(minutes=2),
    )
    made.workers.set(workers)
    return made
