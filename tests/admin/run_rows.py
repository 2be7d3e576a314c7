"""Runs in a state, with what belongs to them, for tests and pictures of the console."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db.models import Model

from mesh.models import AttemptStatus, LostPolicy, State, Tenant, Workload
from tests.factories import World
from tests.workflows import rows as flows
from tests.workflows.rows import step
from workflows.authority import Authority
from workflows.models import (
    Access,
    Attestation,
    CancellationRequest,
    ControlFailure,
    Coordinator,
    CoordinatorKind,
    Definition,
    Handoff,
    HandoffMode,
    LeaseScope,
    OutcomeKind,
    OutcomeSource,
    Receipt,
    RecoveryBarrier,
    RefusedWriter,
    ResourceLease,
    Run,
    RunAttempt,
    RunEvent,
    Statement,
    StepState,
    UserPause,
    Verdict,
)
from workflows.transitions import Transition

from . import rows

STEPS: Final = (
    step("check"),
    step("count", needs=["check"], on_failure="continue"),
    step(
        "publish",
        needs=["count"],
        effect="mutating",
        resources=[{"resource": "catalogue", "access": "write", "scope": "application"}],
        retry={"max_attempts": 3},
    ),
)
# Work that a worker took, and what became of that.
_TRIED: Final = {
    State.RUNNING: AttemptStatus.RUNNING,
    State.CANCELLATION_REQUESTED: AttemptStatus.RUNNING,
    State.HELD: AttemptStatus.WORKER_LOST,
}


def world(of: Tenant) -> World:
    return World(tenant=of)


def definition(of: Tenant, **members: Any) -> Definition:
    return flows.make_definition(world(of), STEPS, **members)


def run(of: Tenant, steps: Sequence[Mapping[str, Any]] = STEPS, **members: Any) -> Run:
    """An open run that nobody has, unless `owner` is its authority."""
    return flows.make_run(world(of), steps, **members)


def owned(of: Tenant, coordinator: Coordinator, **members: Any) -> Run:
    """An open run of that coordinator, which is built in or not as the coordinator is."""
    owner = Authority(coordinator.artifact, coordinator.instance_id, 1, "token")
    kind = CoordinatorKind.BUILTIN if coordinator.is_builtin else CoordinatorKind.EXTERNAL
    return run(of, owner=owner, **{"coordinator": kind, **members})


def builtin(of: Tenant, **members: Any) -> Coordinator:
    return flows.make_coordinator(world(of), **members)


def service(of: Tenant, **members: Any) -> Coordinator:
    """A coordinator that a service registered by its token."""
    return flows.make_coordinator(world(of), **{"token": rows.token(of), **members})


def gone(at: datetime | None = None) -> dict[str, Any]:
    """Of a coordinator whose lease ended long ago."""
    return {"lease_ends_at": at or rows.ago(minutes=5), "heartbeat_at": rows.ago(minutes=6)}


def attempt(of: Run, name: str = "check", *, number: int = 1, **work: Any) -> RunAttempt:
    """An unsettled attempt; `work` says how its workload is, by default READY."""
    made = flows.make_attempt(world(of.tenant), of, name, number=number)
    if work:
        state = work.get("state", State.READY)
        work.setdefault("claimable", state == State.READY)
        if state in _TRIED:
            worker = rows.worker(rows.application(of.tenant))
            rows.attempt(made.workload, worker, _TRIED[state])
            work |= {"fencing_token": 1, "attempt_count": 1, "started_attempts": 1}
        Workload.objects.filter(pk=made.workload_id).update(**work)
        made.workload.refresh_from_db()
    return made


def ambiguous(of: Run, name: str = "publish") -> RunAttempt:
    """An attempt of which nobody knows what it did."""
    return attempt(of, name, state=State.HELD, lost_policy=LostPolicy.HOLD)


def settled(of: Run, name: str = "check", *, number: int = 1, **members: Any) -> RunAttempt:
    """An attempt that succeeded, unless `members` says otherwise, with its step."""
    made = attempt(
        of,
        name,
        number=number,
        state=State.SUCCEEDED,
        claimable=False,
        sealed=True,
        ended_at=rows.ago(minutes=1),
    )
    said = {
        "outcome": OutcomeKind.SUCCEEDED,
        "outcome_digest": "0" * 64,
        "source": OutcomeSource.WORKER,
        "settled_at": rows.ago(seconds=40),
        "settled_by": "system:coordinator",
        "output": {"words": 4711},
        **members,
    }
    RunAttempt.objects.filter(pk=made.pk).update(**said)
    did = said["outcome"] == OutcomeKind.SUCCEEDED
    of.activations.filter(step=name).update(
        state=StepState.SUCCEEDED if did else StepState.FAILED,
        output=said["output"] if did else None,
    )
    Run.objects.filter(pk=of.pk).update(active_attempts=of.active_attempts - 1)
    of.refresh_from_db()
    made.refresh_from_db()
    return made


def lease(of: RunAttempt, resource: str = "catalogue") -> ResourceLease:
    return ResourceLease.objects.create(
        run=of.run,
        attempt=of,
        application=of.run.application,
        resource=resource,
        access=Access.WRITE,
        scope=LeaseScope.RUN,
        generation=of.generation,
        acquired_at=rows.ago(minutes=3),
    )


def refused(of: Run, resource: str = "catalogue") -> RefusedWriter:
    return RefusedWriter.objects.create(
        run=of,
        application=of.application,
        resource=resource,
        scope=LeaseScope.APPLICATION,
        dispatch_identity="0" * 64,
        first_asked_at=rows.ago(seconds=30),
        asked_at=rows.ago(seconds=1),
    )


def paused(of: Run, **members: Any) -> UserPause:
    return UserPause.objects.create(run=of, **_block("the index is rebuilt", **members))


def cancelling(of: Run, **members: Any) -> CancellationRequest:
    return CancellationRequest.objects.create(run=of, **_block("wrong document", **members))


def failing(of: Run, code: str = "never_started", **members: Any) -> ControlFailure:
    said = {"step": "count", **_block("withdrawn 21 times in a row", **members)}
    return ControlFailure.objects.create(run=of, code=code, **said)


def barred(of: Run, **members: Any) -> RecoveryBarrier:
    said = _block("handed over from builtin-1", **members)
    return RecoveryBarrier.objects.create(run=of, **said)


def _block(why: str, **members: Any) -> dict[str, Any]:
    return {"since": rows.ago(minutes=7), "by": "human:ben", "reason": why, **members}


def attestation(of: Run, by: str = "human:ann", **members: Any) -> Attestation:
    """What somebody stated about the owner of the run; complete where `completed_at` says so."""
    current = Authority.of(of)
    assert current is not None
    step_ = Transition(
        HandoffMode.RECOVERY,
        current,
        Authority("fencepost.coordinator", "builtin-next", current.generation + 1),
    )
    given: dict[str, Any] = {
        "attestation_id": f"attestation_{uuid.uuid4().hex}",
        "transition": step_.shown(),
        "transition_digest": step_.digest(),
        "required": 1,
        "created_at": rows.ago(seconds=20),
    }
    made = Attestation.objects.create(tenant=of.tenant, run=of, **{**given, **members})
    Statement.objects.create(
        attestation=made, by=by, statement="its host burnt down", at=made.created_at
    )
    return made


def handoff(of: Run, generation: int = 2) -> Handoff:
    """A hand-over that was made, with its receipt."""
    receipt = Receipt.objects.create(
        tenant=of.tenant,
        run=of,
        receipt_id=f"receipt_{uuid.uuid4().hex}",
        resolver="coordinator",
        verdict=Verdict.CONFIRMED,
        transition={},
        saw={"old": "builtin-1", "lease_ended_at": "2026-01-01T00:00:00+00:00"},
        at=rows.ago(minutes=2),
    )
    return Handoff.objects.create(
        run=of,
        generation=generation,
        mode=HandoffMode.RECOVERY,
        expected_artifact_id="coordinator:1.0",
        expected_instance_id=f"builtin-{generation - 1}",
        replacement_artifact_id="coordinator:1.0",
        replacement_instance_id=f"builtin-{generation}",
        receipt=receipt,
        verified_at=rows.ago(minutes=2),
        by="system:coordinator",
        at=rows.ago(minutes=2),
    )


def event(of: Run, no: int, name: str = "started", **evidence: Any) -> RunEvent:
    Run.objects.filter(pk=of.pk).update(event_sequence=no)
    return RunEvent.objects.create(
        run=of,
        sequence=no,
        event=f"run.{name}",
        actor="service:inbox",
        at=rows.ago(minutes=no),
        evidence=evidence,
    )


def ended(of: Run, status: str) -> Run:
    """The run as it is after its end."""
    Run.objects.filter(pk=of.pk).update(
        status=status, ended_at=rows.ago(minutes=1), active_attempts=0
    )
    of.refresh_from_db()
    return of


def one_of_each(of: Tenant) -> list[Model]:
    """A row of every page of workflows: a run that a gone service left with an attempt open."""
    coordinator = service(of, **gone())
    left = owned(of, coordinator)
    tried = attempt(left)
    lease(tried)
    event(left, 1)
    return [left.definition, coordinator, left, tried, attestation(left)]
