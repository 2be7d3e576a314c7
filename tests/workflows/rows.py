"""Runs in a state, for tests of one operation: rows as the others leave them.

What an operation does is tested with the operation itself; here only its surroundings are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from mesh import clock, intake
from mesh.canonical import digest, secret_hash
from mesh.models import LostPolicy, Workload
from mesh.submissions import Submission
from tests.factories import CAPABILITY, World, name
from workflows import names
from workflows.authority import Authority
from workflows.models import (
    Activation,
    Coordinator,
    CoordinatorKind,
    Definition,
    Run,
    RunAttempt,
    StepState,
)
from workflows.steps import Step, Steps

DEFAULTS: Mapping[str, Any] = {
    "definition_id": "extract",
    "needs": [],
    "capabilities": [CAPABILITY],
    "resources": [],
    "effect": "read_only",
    "replay": "none",
    "on_failure": "fail",
    "retry": {"max_attempts": 1},
    "delivery": {"max_attempts": 3},
    "timeouts": {},
    "policy": {},
    "input": None,
}


def step(name: str, **members: Any) -> dict[str, Any]:
    """A step as it is stored: with all defaults."""
    return {"step": name, **DEFAULTS, **members}


def make_definition(
    world: World, steps: Sequence[Mapping[str, Any]] | None = None, **members: Any
) -> Definition:
    stored = list(steps) if steps is not None else [step("one")]
    said = {"definition_id": name("flow"), "version": 1, "created_by": "service:ops", **members}
    application = world.tenant.applications.get(name=world.application)
    return Definition.objects.create(
        tenant=world.tenant,
        application=application,
        steps=stored,
        checksum=digest([application.name, stored]),
        **said,
    )


def authority(instance: str = "", generation: int = 1, **members: str) -> Authority:
    said = {
        "target_artifact_id": "coordinator:1.0",
        "instance_id": instance or name("instance"),
        "fencing_token": name("token"),
        **members,
    }
    return Authority(generation=generation, **said)


def make_run(
    world: World,
    steps: Sequence[Mapping[str, Any]] | None = None,
    *,
    definition: Definition | None = None,
    owner: Authority | None = None,
    **members: Any,
) -> Run:
    """An open run; steps without needs are READY. `owner` is its authority, if it has one."""
    definition = definition or make_definition(world, steps)
    at = clock.now()
    said: dict[str, Any] = {
        "run_id": name("run"),
        "environment": "production",
        "input": {"document": "a.pdf"},
        "content_digest": "",
        "coordinator": CoordinatorKind.EXTERNAL if owner else CoordinatorKind.BUILTIN,
        "requested_by": "service:ops",
        "created_at": at,
        "updated_at": at,
        **members,
    }
    run = Run(
        tenant=world.tenant, application=definition.application, definition=definition, **said
    )
    if owner is not None:
        run.target_artifact_id = owner.target_artifact_id
        run.instance_id = owner.instance_id
        run.generation = owner.generation
        run.token_hash = secret_hash(owner.fencing_token or "")
    run.save()
    Activation.objects.bulk_create(
        Activation(
            run=run,
            step=each.step,
            position=each.position,
            activation_id=names.activation_id(run.run_id, each.step),
            state=StepState.PENDING if each.needs else StepState.READY,
            updated_at=at,
        )
        for each in Steps.of(definition).values()
    )
    return run


def step_of(run: Run, name: str = "one") -> Step:
    return Steps.of(run.definition)[name]


def make_attempt(world: World, run: Run, name: str = "one", *, number: int = 1) -> RunAttempt:
    """An unsettled attempt with its READY workload, as an admission leaves it; no leases."""
    one = step_of(run, name)
    identity = names.dispatch_identity(run.run_id, name, number)
    activation = run.activations.get(step=name)
    attempt = RunAttempt.objects.create(
        tenant=run.tenant,
        run=run,
        activation=activation,
        number=number,
        dispatch_identity=identity,
        effect=one.effect,
        generation=run.generation or 1,
        workload=_workload(world, run, one, identity),
        admitted_at=clock.now(),
    )
    activation.state = StepState.ACTIVE
    activation.last_number = number
    activation.tries += 1
    activation.save()
    run.active_attempts += 1
    run.executions += 1
    run.save()
    return attempt


def make_coordinator(world: World, instance: str = "", **members: Any) -> Coordinator:
    """A built-in coordinator that lives for another half minute, unless `members` says more."""
    at = clock.now()
    said: dict[str, Any] = {
        "instance_id": instance or name("instance"),
        "artifact": "coordinator:1.0",
        "registered_by": "system:coordinator",
        "registered_at": at,
        "heartbeat_at": at,
        "lease_ms": 30_000,
        "lease_ends_at": at + timedelta(seconds=30),
        **members,
    }
    return Coordinator.objects.create(tenant=world.tenant, **said)


def _workload(world: World, run: Run, one: Step, identity: str) -> Workload:
    submission = Submission(
        application=run.application.name,
        environment=run.environment,
        definition_id=one.definition_id,
        definition_revision=str(run.definition.version),
        trigger="workflow",
        input=one.input,
        idempotency_key=names.workload_key(identity),
        capability_snapshot=one.capabilities,
        retry_policy=one.delivery,
        lost_policy=LostPolicy.HOLD if one.is_held_when_lost else LostPolicy.REQUEUE,
    )
    done = intake.submit(caller=world.operator, submission=submission, is_of_run=True)
    return done.workload
