"""Runs in every state that an operator meets, for tests and pictures of the console."""

from __future__ import annotations

from typing import Any, Final

from demo import flow
from mesh.models import State, Tenant, Workload
from tests.admin import rows, run_rows
from tests.factories import World
from tests.workflows import rows as flows
from workflows import steps
from workflows.models import (
    Coordinator,
    Definition,
    OutcomeKind,
    OutcomeSource,
    Run,
    RunAttempt,
    StepState,
)

NAME: Final = "documents.pipeline"
STUCK: Final = "invoice-2026-000417"
_DONE: Final = ("check", "count", "summarize", "catalogue")


def fill(tenant: Tenant) -> None:
    """A pipeline of six steps, driven by two instances of which one is gone."""
    world = World(tenant=tenant)
    stored = steps.parse(flow.steps()).stored()
    definition = flows.make_definition(world, stored, definition_id=NAME, created_by="human:ann")
    lives = {"lease_ends_at": rows.ago(minutes=-30)}
    alive = run_rows.builtin(tenant, instance_id="builtin-node-3-4711-9f2c11aa", **lives)
    gone = run_rows.builtin(tenant, instance_id="builtin-node-2-1203-77aa01bc", **run_rows.gone())
    lost = run_rows.service(tenant, instance_id="importer-7", **run_rows.gone())
    for i in range(14):
        done = _run(tenant, definition, alive, f"invoice-2026-{i:06}", minutes=40 + 9 * i)
        for each in done.activations.all():
            run_rows.settled(done, each.step)
        run_rows.ended(done, "COMPLETED")
    _stuck(tenant, definition, alive)
    _others(tenant, definition, alive)
    _handed_over(tenant, definition, gone)
    left = _run(tenant, definition, lost, "import-2026-w14", minutes=21)
    run_rows.settled(left, "check")
    run_rows.attempt(left, "count", state=State.RUNNING)
    run_rows.attestation(left, required=2)


def _run(
    tenant: Tenant, definition: Definition, by: Coordinator | None, name: str, *, minutes: int
) -> Run:
    at = rows.ago(minutes=minutes)
    said: dict[str, Any] = {"definition": definition, "run_id": name, "created_at": at}
    made = run_rows.owned(tenant, by, **said) if by else run_rows.run(tenant, **said)
    run_rows.event(made, 1, definition_id=definition.definition_id, version=definition.version)
    return made


def _stuck(tenant: Tenant, definition: Definition, by: Coordinator) -> None:
    """Nobody knows whether its document was published."""
    run = _run(tenant, definition, by, STUCK, minutes=16)
    for each in _DONE:
        run_rows.settled(run, each)
    held = run_rows.ambiguous(run)
    run_rows.lease(held, "catalogue")
    for i, name in enumerate(("authority_claimed", "attempt_admitted", "attempt_settled")):
        run_rows.event(run, 2 + i, name, step="check", instance_id=by.instance_id)


def _others(tenant: Tenant, definition: Definition, by: Coordinator) -> None:
    """One for each thing that a run may wait for."""
    going = _run(tenant, definition, by, "invoice-2026-000418", minutes=2)
    run_rows.settled(going, "check")
    run_rows.attempt(going, "count", state=State.RUNNING)
    run_rows.attempt(going, "summarize")
    waiting = _run(tenant, definition, by, "invoice-2026-000419", minutes=3)
    for each in _DONE[:3]:
        run_rows.settled(waiting, each)
    waiting.activations.filter(step="catalogue").update(state=StepState.READY)
    run_rows.refused(waiting)
    paused = _run(tenant, definition, by, "invoice-2026-000420", minutes=30)
    run_rows.paused(paused)
    cancelling = _run(tenant, definition, by, "invoice-2026-000421", minutes=31)
    run_rows.attempt(cancelling, state=State.CANCELLATION_REQUESTED)
    run_rows.cancelling(cancelling)
    never = _run(tenant, definition, by, "invoice-2026-000422", minutes=55)
    run_rows.failing(never)
    never.activations.filter(step="count").update(unstarted=21, last_number=21)
    failed = _run(tenant, definition, by, "invoice-2026-000423", minutes=70)
    run_rows.settled(
        failed,
        outcome=OutcomeKind.FAILED,
        output=None,
        message="PDF is encrypted: no password was given, and the owner did not answer",
    )
    run_rows.ended(failed, "FAILED")
    _run(tenant, definition, None, "invoice-2026-000424", minutes=0)


def _handed_over(tenant: Tenant, definition: Definition, old: Coordinator) -> None:
    """Its first coordinator died with work under way."""
    run = _run(tenant, definition, old, "invoice-2026-000425", minutes=12)
    run_rows.settled(run, "check", source=OutcomeSource.WORKER)
    running = run_rows.attempt(run, "summarize", state=State.RUNNING)
    run_rows.lease(running, "model:summaries")
    new = run_rows.builtin(
        tenant, instance_id="builtin-node-4-0815-0b0b0b0b", lease_ends_at=rows.ago(minutes=-30)
    )
    run_rows.handoff(run)
    run_rows.barred(run, by="system:coordinator")
    Run.objects.filter(pk=run.pk).update(instance_id=new.instance_id, generation=2)


def stuck() -> tuple[Run, RunAttempt, Workload]:
    """The run that waits for a person, its attempt and the work of that."""
    run = Run.objects.get(run_id=STUCK)
    attempt = run.attempts.unsettled().get()
    return run, attempt, attempt.workload
