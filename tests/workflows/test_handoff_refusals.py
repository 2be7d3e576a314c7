"""The order in which a hand-over is refused, when there is more than one reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from pytest_django import Settings

from mesh.models import Role
from mesh.tenancy import Caller
from tests.factories import World
from tests.mesh.checks import MICRO, Clock, ms
from workflows import blocks, handoffs
from workflows.authority import Authority
from workflows.models import (
    Handoff,
    HandoffMode,
    Receipt,
    ResourceLease,
    Run,
    RunAttempt,
    RunStatus,
)

from . import resolvers, rows
from .checks import refused

TOO_OLD = ms(60_000) + MICRO
NORMAL, RECOVERY = HandoffMode.NORMAL, HandoffMode.RECOVERY


def settle(attempt: RunAttempt, clock: Clock) -> None:
    """As a settlement leaves it, but for its leases."""
    RunAttempt.objects.filter(pk=attempt.pk).update(
        outcome="cancelled", outcome_digest="x", source="never_claimed", settled_at=clock.at
    )
    Run.objects.filter(pk=attempt.run_id).update(active_attempts=0)


def lease(attempt: RunAttempt, clock: Clock) -> ResourceLease:
    return ResourceLease.objects.create(
        run=attempt.run,
        attempt=attempt,
        application=attempt.run.application,
        resource="r",
        access="write",
        scope="run",
        generation=1,
        acquired_at=clock.at,
    )


@dataclass
class Case:
    """A hand-over that would be fine, until faults are brought in."""

    world: World
    run: Run
    expected: Authority
    replacement: Authority
    clock: Clock
    mode: HandoffMode = NORMAL
    caller: Caller = field(init=False)
    run_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.caller, self.run_id = self.world.operator, self.run.run_id

    def ask(self) -> None:
        handoffs.hand_over(
            caller=self.caller,
            run_id=self.run_id,
            mode=self.mode,
            expected=self.expected,
            replacement=self.replacement,
        )

    def denied(self) -> None:
        self.caller = self.world.caller(Role.VIEWER)

    def bad_id(self) -> None:
        self.replacement = replace(self.replacement, target_artifact_id=" ")

    def no_run(self) -> None:
        self.run_id = "nothing"

    def no_step(self) -> None:
        self.replacement = replace(self.replacement, fencing_token=self.expected.fencing_token)

    def stored(self) -> None:
        receipt = Receipt.objects.create(
            tenant=self.world.tenant,
            run=self.run,
            receipt_id="r",
            resolver="x",
            verdict="confirmed",
            transition={},
            at=self.clock.at,
        )
        Handoff.objects.create(
            run=self.run,
            generation=2,
            mode=self.mode,
            expected_artifact_id="coordinator:1.0",
            expected_instance_id="old",
            replacement_artifact_id="coordinator:1.0",
            replacement_instance_id="third",
            receipt=receipt,
            verified_at=self.clock.at,
            by="x",
            at=self.clock.at,
        )

    def mismatch(self) -> None:
        resolvers.Outside.says = staticmethod(resolvers.other)

    def unknown(self) -> None:
        resolvers.Outside.says = staticmethod(resolvers.unknown)

    def expired(self) -> None:
        resolvers.Outside.says = staticmethod(resolvers.confirmed(TOO_OLD))

    def stale(self) -> None:
        Run.objects.filter(pk=self.run.pk).update(target_artifact_id="other")

    def ended(self) -> None:
        Run.objects.filter(pk=self.run.pk).update(
            active_attempts=0, status=RunStatus.FAILED, ended_at=self.clock.at
        )

    def unsettled(self) -> None:
        rows.make_attempt(self.world, Run.objects.get(pk=self.run.pk), "one")

    def leased(self) -> None:
        attempt = rows.make_attempt(self.world, Run.objects.get(pk=self.run.pk), "two")
        lease(attempt, self.clock)
        settle(attempt, self.clock)

    def barred(self) -> None:
        blocks.open_barrier(self.run, owner=rows.authority("third"), by="x", reason="")


_BEFORE: list[tuple[str, Callable[[Case], None]]] = [
    ("PERMISSION_DENIED", Case.denied),
    ("ADMISSION_INVALID", Case.bad_id),
    ("RUN_NOT_FOUND", Case.no_run),
    ("TRANSITION_INVALID", Case.no_step),
    ("HANDOFF_CONFLICT", Case.stored),
    ("EVIDENCE_MISMATCH", Case.mismatch),
    ("EVIDENCE_UNKNOWN", Case.unknown),
    ("EVIDENCE_EXPIRED", Case.expired),
    ("AUTHORITY_STALE", Case.stale),
    ("RUN_TERMINAL", Case.ended),
]
ORDER = {
    NORMAL: [
        *_BEFORE,
        ("WORK_OUTSTANDING", Case.unsettled),
        ("LEASES_OUTSTANDING", Case.leased),
        ("RECOVERY_PENDING", Case.barred),
    ],
    RECOVERY: [*_BEFORE, ("BARRIER_FOREIGN", Case.barred)],
}


@pytest.fixture
def case(world: World, clock: Clock, settings: Settings) -> Case:
    settings.EVIDENCE_RESOLVERS = ["tests.workflows.resolvers.Outside"]
    resolvers.Outside.says = staticmethod(resolvers.confirmed())
    old = rows.authority("old")
    run = rows.make_run(world, [rows.step("one"), rows.step("two")], owner=old)
    return Case(world, run, old, rows.authority("new", 2), clock)


@pytest.mark.parametrize("mode", ORDER)
def test_without_a_fault_it_is_done(mode: HandoffMode, case: Case) -> None:
    case.mode = mode
    case.ask()
    assert Handoff.objects.filter(run=case.run, mode=mode).exists()


@pytest.mark.parametrize(
    ("mode", "place"), [(mode, n) for mode, order in ORDER.items() for n in range(len(order))]
)
def test_of_several_faults_the_earliest_is_told(mode: HandoffMode, place: int, case: Case) -> None:
    """This fault and every later one at once: whichever two are swapped, one of these tells."""
    case.mode = mode
    order = ORDER[mode][place:]
    for _, fault in reversed(order):
        fault(case)
    with refused(order[0][0]):
        case.ask()


@pytest.mark.parametrize("place", range(len(ORDER[NORMAL])))
def test_each_fault_alone_is_told(place: int, case: Case) -> None:
    code, fault = ORDER[NORMAL][place]
    fault(case)
    with refused(code):
        case.ask()
