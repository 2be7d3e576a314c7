"""Rows as they are sent. No answer holds a fencing token."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from mesh.models import State

from ..authority import Authority
from ..blocks import Standing
from ..models import (
    Activation,
    Attestation,
    Block,
    ControlFailure,
    Coordinator,
    Definition,
    Handoff,
    OutcomeKind,
    Receipt,
    RecoveryBarrier,
    ResourceLease,
    Run,
    RunAttempt,
    RunEvent,
)
from ..steps import Steps
from .reading import is_omitted


def definition(row: Definition) -> dict[str, Any]:
    return {
        "application": row.application.name,
        "definition_id": row.definition_id,
        "version": row.version,
        "steps": row.steps,
        "checksum": row.checksum,
        "created_at": row.created_at,
        "created_by": row.created_by,
    }


def authority(row: Run) -> dict[str, Any] | None:
    current = Authority.of(row)
    return None if current is None else current.public()


def run(row: Run) -> dict[str, Any]:
    return {
        "run_id": row.run_id,
        "application": row.application.name,
        "definition_id": row.definition.definition_id,
        "version": row.definition.version,
        "environment": row.environment,
        "status": row.status,
        "coordinator": row.coordinator,
        "authority": authority(row),
        "active_attempts": row.active_attempts,
        "limits": {
            "concurrency": row.max_concurrency,
            "step_executions": row.max_executions,
            "deadline": row.deadline,
        },
        "requested_by": row.requested_by,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "ended_at": row.ended_at,
    }


def run_detail(
    row: Run,
    *,
    standing: Standing,
    activations: Iterable[Activation],
    attempts: Iterable[RunAttempt],
    leases: Iterable[ResourceLease],
    at: datetime,
) -> dict[str, Any]:
    steps = Steps.of(row.definition)
    return {
        **run(row),
        "input": row.input,
        "blocks": admission(standing),
        "activations": [activation(each, steps[each.step].needs) for each in activations],
        "attempts": [attempt(each, row.run_id) for each in attempts],
        "leases": [lease(each, at) for each in leases],
    }


def activation(row: Activation, needs: Iterable[str]) -> dict[str, Any]:
    return {
        "step": row.step,
        "activation_id": row.activation_id,
        "state": row.state,
        "needs": list(needs),
        "attempts": row.last_number,
        "output": None if is_omitted(row) else row.output,
        "output_omitted": is_omitted(row),
        "updated_at": row.updated_at,
    }


def attempt(row: RunAttempt, run_id: str) -> dict[str, Any]:
    return {
        "dispatch_identity": row.dispatch_identity,
        "run_id": run_id,
        "step": row.activation.step,
        "attempt": row.number,
        "activation_id": row.activation.activation_id,
        "effect": row.effect,
        "generation": row.generation,
        "workload_id": row.workload.workload_id,
        "workload_state": row.workload.state,
        "ambiguous": row.outcome is None and row.workload.state == State.HELD,
        "outcome": outcome(row),
        "source": row.source or None,
        "admitted_at": row.admitted_at,
        "settled_at": row.settled_at,
        "settled_by": row.settled_by or None,
    }


def outcome(row: RunAttempt) -> dict[str, Any] | None:
    if row.outcome is None:
        return None
    said: dict[str, Any] = {"kind": row.outcome}
    if row.outcome == OutcomeKind.SUCCEEDED:
        said |= {"output_omitted": True} if is_omitted(row) else {"output": row.output}
    elif row.outcome == OutcomeKind.FAILED:
        said |= {"message": row.message, "retryable": row.retryable}
    elif row.outcome == OutcomeKind.ABANDONED:
        said["reason"] = row.message
    return said


def lease(row: ResourceLease, at: datetime) -> dict[str, Any]:
    return {
        "resource": row.resource,
        "access": row.access,
        "scope": row.scope,
        "step": row.attempt.activation.step,
        "dispatch_identity": row.attempt.dispatch_identity,
        "generation": row.generation,
        "acquired_at": row.acquired_at,
        "age_ms": max(0, round((at - row.acquired_at).total_seconds() * 1_000)),
    }


def admission(standing: Standing) -> dict[str, Any]:
    return {name: _block(row) for name, row in standing.rows().items()}


def _block(row: Block | None) -> dict[str, Any]:
    if row is None:
        return {"blocked": False, "since": None, "by": None, "reason": None}
    said: dict[str, Any] = {
        "blocked": True,
        "since": row.since,
        "by": row.by,
        "reason": row.reason,
    }
    if isinstance(row, ControlFailure):
        said |= {"code": row.code, "step": row.step or None}
    if isinstance(row, RecoveryBarrier):
        said["owner"] = _owner(row)
    return said


def _owner(row: RecoveryBarrier) -> dict[str, Any] | None:
    if row.instance_id is None or row.target_artifact_id is None or row.generation is None:
        return None
    return Authority(row.target_artifact_id, row.instance_id, row.generation).public()


def receipt(row: Receipt) -> dict[str, Any]:
    return {
        "receipt_id": row.receipt_id,
        "resolver": row.resolver,
        "verdict": row.verdict,
        "saw": row.saw,
        "at": row.at,
    }


def handoff(row: Handoff) -> dict[str, Any]:
    expected = Authority(row.expected_artifact_id, row.expected_instance_id, row.generation - 1)
    replacement = Authority(
        row.replacement_artifact_id, row.replacement_instance_id, row.generation
    )
    return {
        "generation": row.generation,
        "mode": row.mode,
        "expected": expected.public(),
        "replacement": replacement.public(),
        "receipt": receipt(row.receipt),
        "verified_at": row.verified_at,
        "by": row.by,
        "at": row.at,
    }


def attestation(row: Attestation) -> dict[str, Any]:
    return {
        "attestation_id": row.attestation_id,
        "receipt_id": row.receipt_id or None,
        "transition": row.transition,
        "statements": [
            {"by": each.by, "at": each.at, "statement": each.statement}
            for each in row.statements.all()
        ],
        "complete": row.completed_at is not None,
    }


def coordinator(row: Coordinator, at: datetime) -> dict[str, Any]:
    return {
        "instance_id": row.instance_id,
        "artifact": row.artifact,
        "lease_ms": row.lease_ms,
        "registered_by": row.registered_by,
        "registered_at": row.registered_at,
        "heartbeat_at": row.heartbeat_at,
        "lease_ends_at": row.lease_ends_at,
        "relinquished_at": row.relinquished_at,
        "alive": row.is_alive(at),
    }


def event(row: RunEvent) -> dict[str, Any]:
    return {
        "sequence": row.sequence,
        "event": row.event,
        "actor": row.actor,
        "at": row.at,
        "evidence": row.evidence,
    }
