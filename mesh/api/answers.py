"""Rows as they are sent. Plain functions, for they run in every hot call; `shapes` describes them.

None of them asks the database if the row came with its relations.
"""

from datetime import datetime
from typing import Any, Final

from ..dockets import Judged
from ..giving import Claim
from ..models import (
    Attempt,
    Checkpoint,
    Grant,
    Incident,
    Pool,
    Result,
    Revocation,
    SweepRun,
    Worker,
    Workload,
    WorkloadEvent,
)

# Stored only where they are asked for.
_NO_BOUNDS: Final[dict[str, Any]] = {"pool_id": None, "resources": {}}


def worker(row: Worker) -> dict[str, Any]:
    return {
        "worker_id": row.worker_id,
        "tenant": row.tenant.name,
        "application": row.application.name,
        "name": row.name,
        "runtime": row.runtime,
        "version": row.version,
        "contract_version": row.contract_version,
        "declared_capabilities": row.declared_capabilities,
        "granted_capabilities": row.granted_capabilities,
        "workload_kinds": row.workload_kinds,
        "resource_profile": row.resource_profile,
        "labels": row.labels,
        "capacity": {"concurrency": row.concurrency, "active": row.active},
        "health": row.health,
        "lifecycle": row.lifecycle,
        "heartbeat_interval_ms": row.heartbeat_interval_ms,
        "heartbeat_timeout_ms": row.heartbeat_timeout_ms,
        "capability_version": row.capability_version,
        "incarnation": row.incarnation,
        "grant_id": row.grant.grant_id,
        "last_seen_at": row.last_seen_at,
        "last_poll_at": row.last_poll_at,
        "last_progress_at": row.last_progress_at,
        "clock_skew_ms": row.clock_skew_ms,
        "drain_requested_at": row.drain_requested_at,
        "drain_deadline_at": row.drain_deadline_at,
        "registered_at": row.registered_at,
    }


def workload(
    row: Workload, live: Attempt | None, waits_for: list[dict[str, str]]
) -> dict[str, Any]:
    """The workload with its live attempt, which is its current claim, and its dependencies."""
    return {
        "workload_id": row.workload_id,
        "application": row.application.name,
        "environment": row.environment,
        "definition_id": row.definition_id,
        "definition_revision": row.definition_revision,
        "trigger": row.trigger,
        "input": row.input,
        "idempotency_key": row.idempotency_key,
        "capability_snapshot": row.capability_snapshot,
        "priority": row.priority,
        "retry_policy": row.retry_policy,
        "timeouts": row.timeouts,
        "policy": {**_NO_BOUNDS, **row.policy},
        "lost_policy": row.lost_policy,
        "not_before": row.not_before,
        "connection_scopes": row.connection_scopes,
        "session_id": row.session_id,
        "dependencies": waits_for,
        "state": row.state,
        "attempt_count": row.attempt_count,
        "fencing_token": row.fencing_token,
        "available_at": row.available_at,
        "last_failure": _failure(row.last_failure),
        "current_claim": None if live is None else _current_claim(live),
        "cancel_requested_at": row.cancel_requested_at,
        "ended_at": row.ended_at,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def attempt(row: Attempt, worker_id: str) -> dict[str, Any]:
    return {
        "attempt_id": row.attempt_id,
        "number": row.number,
        "worker_id": worker_id,
        "claim_id": row.claim_id,
        "fencing_token": row.fencing_token,
        "status": row.status,
        "claimed_at": row.claimed_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "expires_at": row.expires_at,
        "failure": row.failure,
        "resource_usage": row.resource_usage,
    }


def claim(given: Claim) -> dict[str, Any]:
    latest = given.checkpoint
    return {
        "claim_id": given.claim_id,
        "workload_id": given.workload_id,
        "attempt_id": given.attempt_id,
        "worker_id": given.worker_id,
        "lease_id": given.lease_id,
        "fencing_token": given.fencing_token,
        "capability_snapshot": given.capability_snapshot,
        "execution_context_id": given.execution_context_id,
        "issued_at": given.issued_at,
        "expires_at": given.expires_at,
        "workload": {
            "definition_id": given.definition_id,
            "definition_revision": given.definition_revision,
            "input": given.input,
            "environment": given.environment,
            "attempt_number": given.attempt_number,
            "timeouts": given.timeouts,
            "connection_scopes": given.connection_scopes,
        },
        "checkpoint": None if latest is None else {"sequence": latest[0], "state": latest[1]},
        "runtime_policy": given.runtime_policy,
        "lost_policy": given.lost_policy,
    }


def judged(each: Judged) -> dict[str, Any]:
    if each.refusal is not None:
        code, detail = each.refusal.code, each.refusal.detail
        return {"claim_id": each.claim_id, "code": code, "detail": detail}
    return {"claim_id": each.claim_id, "status": each.attempt and each.attempt.status}


def checkpoint(row: Checkpoint) -> dict[str, Any]:
    return {"sequence": row.sequence, "state": row.state, "created_at": row.created_at}


def result(row: Result) -> dict[str, Any]:
    return {
        "result_id": row.result_id,
        "output": row.output,
        "artifacts": row.artifacts,
        "logs": row.logs,
        "resource_usage": row.resource_usage,
        "created_at": row.created_at,
    }


def event(row: WorkloadEvent) -> dict[str, Any]:
    return {
        "sequence": row.sequence,
        "event": row.event,
        "from": row.from_state,
        "to": row.to_state,
        "actor": row.actor,
        "at": row.at,
        "evidence": row.evidence,
    }


def grant(row: Grant, status: str) -> dict[str, Any]:
    """The grant as remembered; its token is not among it."""
    return {
        "grant_id": row.grant_id,
        "application": row.application.name,
        "subject": row.subject,
        "capabilities": row.capabilities,
        "resources": row.resources,
        "constraints": row.constraints,
        "parent": None if row.parent is None else row.parent.grant_id,
        "depth": row.depth,
        "revision": row.revision,
        "status": status,
        "issued_at": row.issued_at,
        "issued_by": row.issued_by,
        "not_before": row.not_before,
        "expires_at": row.expires_at,
        "supersedes": None if row.supersedes is None else row.supersedes.grant_id,
        "revoked_at": row.revoked_at,
        "revoked_by": row.revoked_by,
        "revoke_reason": row.revoke_reason,
    }


def incident(row: Incident) -> dict[str, Any]:
    return {
        "incident_id": row.incident_id,
        "sweep": row.sweep,
        "application": row.application.name,
        "opened_at": row.opened_at,
        "workers": [each.worker_id for each in row.listed],  # type: ignore[attr-defined]  # read with it
        "resumed_at": row.resumed_at,
        "resumed_by": row.resumed_by,
        "reason": row.resume_reason,
    }


def sweep(row: SweepRun, holding: Incident | None, at: datetime) -> dict[str, Any]:
    last = row.last_finished_at
    return {
        "name": row.name,
        "last_started_at": row.last_started_at,
        "last_finished_at": last,
        "duration_ms": row.duration_ms,
        "counts": row.counts,
        "lag_ms": None if last is None else max(round((at - last).total_seconds() * 1_000), 0),
        "incident": None if holding is None else incident(holding),
    }


def revocation(row: Revocation, grants: int) -> dict[str, Any]:
    return {
        "revocation_id": f"revocation_{row.pk}",
        "kind": row.kind,
        "id": row.target,
        "reason": row.reason,
        "by": row.revoked_by,
        "created_at": row.revoked_at,
        "grants": grants,
    }


def pool(row: Pool) -> dict[str, Any]:
    """The pool with its members, which `reading` has put to it."""
    return {
        "pool_id": row.pool_id,
        "application": row.application.name,
        "name": row.name,
        "capabilities": row.capabilities,
        "required_labels": row.required_labels,
        "worker_ids": row.worker_ids,  # type: ignore[attr-defined]
        "max_concurrency": row.max_concurrency,
    }


def _failure(failure: dict[str, Any] | None) -> dict[str, Any] | None:
    return failure and {"kind": failure["kind"], "error": failure["error"]}


def _current_claim(live: Attempt) -> dict[str, Any]:
    return {
        "claim_id": live.claim_id,
        "worker_id": live.worker.worker_id,
        "expires_at": live.expires_at,
    }
