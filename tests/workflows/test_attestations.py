"""Attestations: who states that an old owner has stopped, how many must, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mesh import tenancy
from mesh.models import AuditEntry, Role
from mesh.tenancy import Caller
from tests.factories import World
from tests.mesh.checks import MICRO, Clock, ms
from workflows import attestations
from workflows.models import Attestation, HandoffMode, Receipt, Run
from workflows.transitions import Transition

from . import rows
from .checks import PEM, events, refused

AGE = ms(60_000)


@pytest.fixture
def run(world: World) -> Run:
    return rows.make_run(world, owner=rows.authority("old"))


@pytest.fixture
def step() -> Transition:
    return Transition(HandoffMode.RECOVERY, rows.authority("old"), rows.authority("new", 2))


@pytest.fixture
def careful(world: World) -> World:
    """A world in which two people are needed."""
    tenancy.create_tenant(
        name=world.tenant.name, applications=[], actor="system:test", attestations=2
    )
    world.tenant.refresh_from_db()
    return world


def person(world: World, who: str) -> Caller:
    return replace(world.caller(Role.VIEWER, f"human:{who}"), is_attester=True)


def attest(caller: Caller, run: Run, step: Transition, statement: str = "gone") -> Attestation:
    return attestations.attest(
        caller=caller, run_id=run.run_id, transition=step, statement=statement
    )


def confirm(caller: Caller, row: Attestation, statement: str = "I saw it") -> Attestation:
    return attestations.confirm(
        caller=caller, attestation_id=row.attestation_id, statement=statement
    )


def test_one_person_is_enough_where_the_tenant_says_one(
    world: World, run: Run, step: Transition, clock: Clock
) -> None:
    row = attest(person(world, "ann"), run, step, "the host is gone")
    assert row.completed_at == clock.at
    receipt = Receipt.objects.get(receipt_id=row.receipt_id)
    assert (receipt.resolver, receipt.run_id, receipt.at) == ("attestation", run.pk, clock.at)
    assert receipt.transition == step.shown()
    assert [each["by"] for each in receipt.saw["statements"]] == ["human:ann"]
    assert receipt.saw["statements"][0]["statement"] == "the host is gone"
    assert events(run) == ["handoff_attested"]
    noted = AuditEntry.objects.get(action="run.handoff_attested")
    assert (noted.actor, noted.evidence) == ("human:ann", {"statement": "the host is gone"})


def test_two_people_are_needed_where_the_tenant_says_two(
    careful: World, run: Run, step: Transition, clock: Clock
) -> None:
    row = attest(person(careful, "ann"), run, step)
    assert (row.completed_at, row.receipt_id, Receipt.objects.count()) == (None, "", 0)
    at = clock.pass_(ms(5_000))
    row = confirm(person(careful, "bob"), row)
    assert row.completed_at == at
    receipt = Receipt.objects.get(receipt_id=row.receipt_id)
    assert [each["by"] for each in receipt.saw["statements"]] == ["human:ann", "human:bob"]


def test_the_first_person_does_not_confirm_themselves(
    careful: World, run: Run, step: Transition
) -> None:
    row = attest(person(careful, "ann"), run, step)
    with refused("PERMISSION_DENIED"):
        confirm(person(careful, "ann"), row)
    assert AuditEntry.objects.filter(code="PERMISSION_DENIED", actor="human:ann").exists()


def test_a_second_person_who_repeats_it_changes_nothing(
    careful: World, run: Run, step: Transition, clock: Clock
) -> None:
    row = attest(person(careful, "ann"), run, step)
    first = confirm(person(careful, "bob"), row)
    clock.pass_(ms(1))
    assert confirm(person(careful, "bob"), row).completed_at == first.completed_at
    assert row.statements.count() == 2
    assert confirm(person(careful, "eve"), row).completed_at == first.completed_at
    assert Receipt.objects.count() == 1


def test_the_same_person_gets_the_same_row_until_it_is_too_old(
    world: World, run: Run, step: Transition, clock: Clock
) -> None:
    ann = person(world, "ann")
    row = attest(ann, run, step)
    clock.pass_(AGE)
    assert attest(ann, run, step).pk == row.pk
    clock.pass_(MICRO)
    assert attest(ann, run, step).pk != row.pk


def test_another_person_or_another_step_is_another_row(
    world: World, run: Run, step: Transition
) -> None:
    ann = person(world, "ann")
    other = replace(step, replacement=rows.authority("third", 2))
    made = [
        attest(ann, run, step),
        attest(ann, run, other),
        attest(ann, run, replace(step, mode=HandoffMode.NORMAL)),
        attest(person(world, "bob"), run, step),
    ]
    assert len({each.pk for each in made}) == 4


def test_an_incomplete_one_waits_for_its_second_person(
    careful: World, run: Run, step: Transition, clock: Clock
) -> None:
    ann = person(careful, "ann")
    row = attest(ann, run, step)
    clock.pass_(2 * AGE)
    assert attest(ann, run, step).pk == row.pk
    assert attestations.complete(run.pk, careful.tenant.pk, step) is None


def test_one_made_when_one_was_enough_does_not_do_where_two_are_needed(
    world: World, run: Run, step: Transition
) -> None:
    row = attest(person(world, "ann"), run, step)
    assert attestations.complete(run.pk, world.tenant.pk, step) == row
    tenancy.create_tenant(
        name=world.tenant.name, applications=[], actor="system:test", attestations=2
    )
    assert attestations.complete(run.pk, world.tenant.pk, step) is None
    assert attest(person(world, "ann"), run, step).pk != row.pk


def _said(world: World, run: Run, step: Transition) -> dict[str, Any]:
    return {
        "caller": person(world, "ann"),
        "run_id": run.run_id,
        "transition": step,
        "statement": "gone",
    }


FAULTS: dict[str, Callable[[World, dict[str, Any]], dict[str, Any]]] = {
    "PERMISSION_DENIED": lambda world, said: {"caller": world.operator},
    "ADMISSION_INVALID": lambda world, said: {
        "transition": replace(said["transition"], expected=rows.authority("a b"))
    },
    "WORKLOAD_SECRET_REJECTED": lambda world, said: {"statement": PEM},
    "RUN_NOT_FOUND": lambda world, said: {"run_id": "nothing"},
    "TRANSITION_INVALID": lambda world, said: {
        "transition": replace(said["transition"], replacement=rows.authority("new", 3))
    },
}
CODES = list(FAULTS)


@pytest.mark.parametrize(
    ("first", "then"), [(CODES[n], CODES[m]) for n in range(5) for m in range(n, 5) if m <= n + 1]
)
def test_of_two_faults_the_earlier_one_is_told(
    first: str, then: str, world: World, run: Run, step: Transition
) -> None:
    said = _said(world, run, step)
    for fault in (then, first):
        said.update(FAULTS[fault](world, said))
    with refused(first):
        attestations.attest(**said)


def test_of_two_faults_of_a_confirmation_the_earlier_one_is_told(
    world: World, run: Run, step: Transition
) -> None:
    ann = person(world, "ann")
    row = attest(ann, run, step)
    for caller, attestation_id, statement, code in (
        (world.operator, row.attestation_id, "", "PERMISSION_DENIED"),
        (ann, "nothing", " \n", "ADMISSION_INVALID"),
        (ann, row.attestation_id, "x" * 100_000, "ADMISSION_INVALID"),
        (ann, "nothing", PEM, "WORKLOAD_SECRET_REJECTED"),
        (ann, "nothing", "x", "ATTESTATION_NOT_FOUND"),
        (person(World(), "eve"), row.attestation_id, "x", "ATTESTATION_NOT_FOUND"),
    ):
        with refused(code):
            attestations.confirm(caller=caller, attestation_id=attestation_id, statement=statement)


def test_admins_attest_and_a_run_of_another_tenant_is_not_there(
    world: World, run: Run, step: Transition
) -> None:
    assert attest(world.caller(Role.ADMIN), run, step).completed_at is not None
    with refused("RUN_NOT_FOUND"):
        attest(World().caller(Role.ADMIN), run, step)
