"""Runs that the built-in coordinator drives, and workers that do their work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mesh.giving import Claim
from mesh.models import Workload
from tests.factories import Member, World
from workflows import coordinator, instances
from workflows.instances import Instance
from workflows.models import Run


@contextmanager
def acting_as(instance: Instance | None = None) -> Iterator[Instance]:
    """This process is that instance of the coordinator meanwhile."""
    before = instances.own_instance()
    chosen = instance or Instance.new()
    instances.become(chosen)
    try:
        yield chosen
    finally:
        instances.become(before)


def drive(run: Run) -> dict[str, int]:
    """One drive; what it did. The row is read anew."""
    done = coordinator.drive(run.pk).done
    run.refresh_from_db()
    return done


def claims_of(worker: Member, maximum: int = 10) -> dict[str, Claim]:
    """What the worker gets now, started, by step."""
    taken = worker.claim(maximum)
    for each in taken:
        worker.start(each)
    return {step_of(each): each for each in taken}


def step_of(claim: Claim) -> str:
    workload = Workload.objects.get(workload_id=claim.workload_id)
    name: str = workload.run_attempt.activation.step
    return name


def finish(world: World, run: Run, worker: Member, outputs: dict[str, Any] | None = None) -> None:
    """Drive the run to its end, every step succeeding."""
    for _ in range(50):
        drive(run)
        if not run.is_open:
            return
        for step, claim in claims_of(worker).items():
            worker.complete(claim, output=(outputs or {}).get(step))
    raise AssertionError("the run did not end")
