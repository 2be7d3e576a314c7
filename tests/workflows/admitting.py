"""Runs whose steps reserve resources, and admissions to them, for tests of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mesh import clock
from tests.factories import World
from workflows import admission, names
from workflows.admission import Admitted
from workflows.authority import Authority
from workflows.models import (
    OutcomeKind,
    OutcomeSource,
    ResourceLease,
    Run,
    RunAttempt,
    StepState,
)
from workflows.steps import Resource

from . import rows


def read(resource: str, scope: str = "application") -> Resource:
    return Resource(resource, "read", scope)


def write(resource: str, scope: str = "application") -> Resource:
    return Resource(resource, "write", scope)


@dataclass
class Driven:
    """A run and the authority that may move it."""

    world: World
    run: Run
    owner: Authority

    def asking(self, step: str = "one", attempt: int = 1, **members: Any) -> dict[str, Any]:
        """The arguments of an admission."""
        return {
            "caller": self.world.operator,
            "run_id": self.run.run_id,
            "authority": self.owner,
            "step": step,
            "attempt": attempt,
            **members,
        }

    def admit(self, step: str = "one", attempt: int = 1, **members: Any) -> Admitted:
        return admission.admit(**self.asking(step, attempt, **members))

    def identity(self, step: str = "one", attempt: int = 1) -> str:
        return names.dispatch_identity(self.run.run_id, step, attempt)


def driven(world: World, *resources: Resource, **members: Any) -> Driven:
    """A run of one step `one` that reserves these."""
    return driven_steps(world, [step_with("one", *resources)], **members)


def driven_steps(world: World, steps: Sequence[dict[str, Any]], **members: Any) -> Driven:
    owner = rows.authority()
    return Driven(world, rows.make_run(world, steps, owner=owner, **members), owner)


def step_with(name: str, *resources: Resource, **members: Any) -> dict[str, Any]:
    return rows.step(name, resources=[each.shown() for each in resources], **members)


def settle(
    attempt: RunAttempt, outcome: str = OutcomeKind.SUCCEEDED, *, retryable: bool = False
) -> None:
    """As a settlement leaves the attempt: its outcome, no lease, its step ready for another try."""
    attempt.outcome, attempt.retryable = outcome, retryable
    attempt.outcome_digest, attempt.source = "digest", OutcomeSource.WORKER
    attempt.settled_at = clock.now()
    attempt.save()
    ResourceLease.objects.filter(attempt=attempt).delete()
    activation = attempt.activation
    activation.state = StepState.READY
    activation.save()
    run = Run.objects.get(pk=attempt.run_id)
    run.active_attempts -= 1
    run.save(update_fields=["active_attempts"])
