"""Adoption: a run is turned over to the built-in coordinator, never without evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mesh.models import AuditEntry, Role
from tests.factories import World
from tests.mesh.checks import Clock, ms
from workflows import adoption, attestations, blocks
from workflows.authority import Authority
from workflows.models import CoordinatorKind, Handoff, HandoffMode, RecoveryBarrier, Run
from workflows.transitions import Transition

from . import rows
from .checks import PEM, events, refused


@pytest.fixture
def old() -> Authority:
    return rows.authority("old")


@pytest.fixture
def run(world: World, old: Authority) -> Run:
    return rows.make_run(world, owner=old)


@pytest.fixture
def builtin(world: World, clock: Clock) -> Authority:
    """The next owner: a built-in instance that lives."""
    rows.make_coordinator(world, "builtin-1", lease_ends_at=clock.at + ms(600_000))
    return rows.authority("builtin-1", 2)


def adopt(world: World, run: Run, replacement: Authority, **members: Any) -> Run:
    said = {"caller": world.operator, "run_id": run.run_id, "reason": "it is ours", **members}
    return adoption.adopt(replacement=replacement, **said)


def assert_adopted(run: Run, owner: Authority) -> None:
    run.refresh_from_db()
    assert Authority.of(run) == owner.without_token()
    assert run.coordinator == CoordinatorKind.BUILTIN
    noted = AuditEntry.objects.get(action="run.adopted", target=run.run_id)
    assert (noted.reason, noted.actor) == ("it is ours", "service:ops")


def test_a_run_that_nobody_has_is_claimed(world: World, builtin: Authority) -> None:
    run = rows.make_run(world, coordinator=CoordinatorKind.EXTERNAL)
    first = replace(builtin, generation=1)
    assert adoption.next_generation(run) == 1
    assert adopt(world, run, first).coordinator == CoordinatorKind.BUILTIN
    assert_adopted(run, first)
    assert events(run) == ["authority_claimed", "adopted"]
    adopt(world, run, first)
    assert_adopted(run, first)


def test_a_quiet_run_of_a_stopped_owner_is_handed_over_normally(
    world: World, run: Run, builtin: Authority, clock: Clock
) -> None:
    rows.make_coordinator(world, "old", relinquished_at=clock.at)
    assert adoption.next_generation(run) == 2
    done = adopt(world, run, builtin)
    assert Authority.of(done) == builtin.without_token()
    assert_adopted(run, builtin)
    assert Handoff.objects.get(run=run).mode == HandoffMode.NORMAL
    assert events(run) == ["handed_over", "adopted"]
    assert not RecoveryBarrier.objects.exists()
    adopt(world, run, builtin)
    assert_adopted(run, builtin)


def test_a_run_with_work_under_way_is_handed_over_in_recovery(
    world: World, run: Run, builtin: Authority, clock: Clock
) -> None:
    rows.make_coordinator(world, "old", relinquished_at=clock.at)
    attempt = rows.make_attempt(world, run)
    adopt(world, run, builtin)
    assert_adopted(run, builtin)
    assert Handoff.objects.get(run=run).mode == HandoffMode.RECOVERY
    assert RecoveryBarrier.objects.get(run=run).instance_id == "builtin-1"
    attempt.workload.refresh_from_db()
    assert attempt.workload.held


def test_a_run_under_a_barrier_is_handed_over_in_recovery(
    world: World, run: Run, old: Authority, builtin: Authority, clock: Clock
) -> None:
    rows.make_coordinator(world, "old", relinquished_at=clock.at)
    blocks.open_barrier(run, owner=old, by="x", reason="restored")
    adopt(world, run, builtin)
    assert Handoff.objects.get(run=run).mode == HandoffMode.RECOVERY
    assert RecoveryBarrier.objects.get(run=run).instance_id == "builtin-1"


def test_an_attestation_is_evidence_for_it(
    world: World, run: Run, old: Authority, builtin: Authority
) -> None:
    row = attestations.attest(
        caller=world.caller(Role.ADMIN),
        run_id=run.run_id,
        transition=Transition(HandoffMode.NORMAL, old, builtin),
        statement="I stopped it",
    )
    adopt(world, run, builtin)
    assert_adopted(run, builtin)
    assert Handoff.objects.get(run=run).receipt.receipt_id == row.receipt_id


def test_a_run_whose_owner_may_be_at_work_is_not_adopted(
    world: World, run: Run, builtin: Authority
) -> None:
    with refused("EVIDENCE_UNKNOWN"):
        adopt(world, run, builtin)
    rows.make_coordinator(world, "old")
    with refused("EVIDENCE_UNKNOWN"):
        adopt(world, run, builtin)
    assert not AuditEntry.objects.filter(action="run.adopted").exists()


def test_what_a_living_built_in_coordinator_drives_stays_as_it_is(
    world: World, builtin: Authority, clock: Clock
) -> None:
    owner = rows.authority("builtin-2")
    run = rows.make_run(world, owner=owner, coordinator=CoordinatorKind.BUILTIN)
    row = rows.make_coordinator(world, "builtin-2")
    assert Authority.of(adopt(world, run, builtin)) == owner.without_token()
    assert events(run) == []
    clock.to(row.lease_ends_at + ms(5_000))
    adopt(world, run, builtin)
    assert_adopted(run, builtin)


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ({"caller": "viewer", "replacement": "bad"}, "PERMISSION_DENIED"),
        ({"reason": " ", "run_id": "nothing"}, "ADMISSION_INVALID"),
        ({"reason": PEM, "replacement": "bad"}, "WORKLOAD_SECRET_REJECTED"),
        ({"replacement": "bad", "run_id": "nothing"}, "ADMISSION_INVALID"),
        ({"run_id": "nothing", "replacement": "late"}, "RUN_NOT_FOUND"),
        ({"replacement": "late"}, "TRANSITION_INVALID"),
        ({}, "EVIDENCE_UNKNOWN"),
    ],
)
def test_of_two_faults_the_earlier_one_is_told(
    faults: dict[str, Any], code: str, world: World, run: Run, builtin: Authority
) -> None:
    replacement = {
        "bad": builtin.without_token(),
        "late": replace(builtin, generation=3),
    }.get(faults.pop("replacement", ""), builtin)
    if "caller" in faults:
        faults["caller"] = world.caller(Role.VIEWER)
    with refused(code):
        adopt(world, run, replacement, **faults)


def test_a_first_authority_of_another_generation_is_refused(
    world: World, builtin: Authority
) -> None:
    run = rows.make_run(world)
    with refused("TRANSITION_INVALID"):
        adopt(world, run, builtin)
