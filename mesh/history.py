"""The append-only record of accepted changes, and of refusals worth keeping.

Each row is written in the transaction that made the change, by the function that made it. Events
of one workload or worker are numbered 1, 2, 3 … by a counter on its own row, which is locked
whenever an event is written.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .models import AuditEntry, Worker, WorkerEvent, Workload, WorkloadEvent


def of_workload(
    workload: Workload,
    *,
    event: str,
    from_state: str,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any],
) -> WorkloadEvent:
    """The next event of a locked workload, not yet written; the counter moves in memory."""
    workload.event_sequence += 1
    return WorkloadEvent(
        workload_id=workload.pk,
        sequence=workload.event_sequence,
        event=f"workload.{event}",
        from_state=from_state,
        to_state=workload.state,
        actor=actor,
        at=at,
        evidence=dict(evidence),
    )


def of_worker(
    worker: Worker,
    *,
    event: str,
    from_state: str,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> WorkerEvent:
    """Write the next event of a locked worker; the caller saves the counter with its row."""
    worker.event_sequence += 1
    return WorkerEvent.objects.create(
        worker_id=worker.pk,
        sequence=worker.event_sequence,
        event=f"worker.{event}",
        from_state=from_state,
        to_state=worker.lifecycle,
        actor=actor,
        at=at,
        evidence=dict(evidence or {}),
    )


def write(events: Sequence[WorkloadEvent]) -> None:
    """Append workload events, all in one statement."""
    WorkloadEvent.objects.bulk_create(events)


def audit(
    *,
    tenant_id: int | None,
    actor: str,
    action: str,
    target: str,
    at: datetime,
    reason: str = "",
    code: str = "",
    evidence: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Append an act on rights, or a refusal (with its code) worth keeping."""
    return AuditEntry.objects.create(
        tenant_id=tenant_id,
        actor=actor,
        action=action,
        target=target,
        reason=reason,
        code=code,
        evidence=dict(evidence or {}),
        at=at,
    )
