"""Authority: the first claim, who is current, and the secrecy of the fencing token."""

from __future__ import annotations

import hmac
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mesh.models import AuditEntry, Role
from tests.factories import World
from tests.mesh.checks import Clock
from workflows import authority as authorities
from workflows import blocks
from workflows.authority import Authority
from workflows.models import RecoveryBarrier, Run, RunStatus

from . import rows
from .checks import events, frames_with, refused, tables_with

SECRET = "s3cret-fencing-token"


def claim(world: World, run: Run, owner: Authority) -> Run:
    return authorities.claim(caller=world.operator, run_id=run.run_id, authority=owner)


def test_a_run_that_nobody_has_is_claimed(world: World) -> None:
    run = rows.make_run(world)
    owner = rows.authority()
    assert Authority.of(claim(world, run, owner)) == owner.without_token()
    run.refresh_from_db()
    authorities.require_current(run, owner)
    assert events(run) == ["authority_claimed"]


def test_the_same_authority_again_is_fine_and_changes_nothing(world: World) -> None:
    run = rows.make_run(world)
    owner = rows.authority()
    claim(world, run, owner)
    ended = {"status": RunStatus.COMPLETED, "ended_at": run.created_at}
    for members in ({}, ended):
        Run.objects.filter(pk=run.pk).update(**{"updated_at": run.created_at, **members})
        claim(world, run, owner)
    assert events(run) == ["authority_claimed"]


@pytest.mark.parametrize(
    "other",
    [
        {"instance_id": "other"},
        {"target_artifact_id": "other:1"},
        {"fencing_token": "other"},
        {"fencing_token": SECRET.upper()},
    ],
)
def test_what_differs_anywhere_is_another_authority(world: World, other: dict[str, Any]) -> None:
    owner = rows.authority(fencing_token=SECRET)
    run = rows.make_run(world, owner=owner)
    with refused("AUTHORITY_STALE") as caught:
        claim(world, run, replace(owner, **other))
    assert caught.value.facts == {"authority": owner.public()}


def test_nothing_but_generation_one_is_claimed(world: World) -> None:
    run = rows.make_run(world)
    for generation in (-1, 0, 2):
        with refused("TRANSITION_INVALID"):
            claim(world, run, rows.authority(generation=generation))


def test_an_ended_run_that_nobody_had_is_not_claimed(world: World, clock: Clock) -> None:
    run = rows.make_run(world, status=RunStatus.CANCELLED, ended_at=clock.at)
    with refused("RUN_TERMINAL"):
        claim(world, run, rows.authority())


@pytest.mark.parametrize(
    "faults",
    [
        ["PERMISSION_DENIED", "ADMISSION_INVALID"],
        ["ADMISSION_INVALID", "RUN_NOT_FOUND"],
        ["RUN_NOT_FOUND", "TRANSITION_INVALID"],
        ["TRANSITION_INVALID", "AUTHORITY_STALE"],
        ["AUTHORITY_STALE", "RUN_TERMINAL"],
        ["TRANSITION_INVALID", "RUN_TERMINAL"],
    ],
)
def test_of_two_faults_the_earlier_one_is_told(
    world: World, clock: Clock, faults: list[str]
) -> None:
    owned = rows.authority() if "AUTHORITY_STALE" in faults else None
    members: dict[str, Any] = {}
    if "RUN_TERMINAL" in faults:
        members = {"status": RunStatus.COMPLETED, "ended_at": clock.at}
    run = rows.make_run(world, owner=owned, **members)
    owner = rows.authority(generation=2 if "TRANSITION_INVALID" in faults else 1)
    if "ADMISSION_INVALID" in faults:
        owner = replace(owner, target_artifact_id=" blank ")
    caller = world.caller(Role.VIEWER if "PERMISSION_DENIED" in faults else Role.OPERATOR)
    run_id = "nothing" if "RUN_NOT_FOUND" in faults else run.run_id
    with refused(faults[0]):
        authorities.claim(caller=caller, run_id=run_id, authority=owner)


@pytest.mark.parametrize(
    "said",
    [
        {"instance_id": "a b"},
        {"instance_id": ""},
        {"instance_id": "a" * 201},
        {"target_artifact_id": ""},
        {"target_artifact_id": "ä" * 257},
        {"fencing_token": None},
        {"fencing_token": ""},
        {"fencing_token": " " + SECRET},
        {"fencing_token": SECRET * 30},
    ],
)
def test_ids_and_tokens_out_of_shape_are_refused_without_showing_them(
    world: World, said: dict[str, Any]
) -> None:
    run = rows.make_run(world)
    with refused("ADMISSION_INVALID") as caught:
        claim(world, run, replace(rows.authority(fencing_token=SECRET), **said))
    assert frames_with(caught.value, SECRET) == []


def test_a_run_of_another_tenant_is_not_there(world: World) -> None:
    run = rows.make_run(world)
    with refused("RUN_NOT_FOUND"):
        claim(World(), run, rows.authority())


def test_a_barrier_of_nobody_goes_to_the_first_authority(world: World, clock: Clock) -> None:
    run = rows.make_run(world)
    blocks.open_barrier(run, owner=None, by="system:restore", reason="restored")
    owner = rows.authority()
    claim(world, run, owner)
    barrier = RecoveryBarrier.objects.get(run=run)
    assert (barrier.instance_id, barrier.generation) == (owner.instance_id, 1)


def test_a_stale_authority_is_told_who_is_current(world: World) -> None:
    owner = rows.authority(fencing_token=SECRET)
    run = rows.make_run(world, owner=owner)
    for stale in (owner.without_token(), replace(owner, generation=2), rows.authority()):
        with refused("AUTHORITY_STALE") as caught:
            authorities.require_current(run, stale)
        assert caught.value.facts["authority"] == owner.public()
    ownerless = rows.make_run(world)
    with refused("AUTHORITY_STALE") as caught:
        authorities.require_current(ownerless, owner)
    assert caught.value.facts["authority"] is None


def test_the_token_is_nowhere_but_as_a_hash_in_the_run(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    run = rows.make_run(world)
    owner = rows.authority(fencing_token=SECRET)
    claimed = claim(world, run, owner)
    with refused("AUTHORITY_STALE") as caught:
        claim(world, run, replace(owner, instance_id="other"))
    assert SECRET not in caplog.text + repr(owner) + str(owner) + repr(owner.public())
    assert tables_with(SECRET) == []
    assert tables_with(str(claimed.token_hash)) == ["workflows_run"]
    assert frames_with(caught.value, SECRET) == []
    assert SECRET not in repr(caught.value) + repr(caught.value.facts)


def test_tokens_are_compared_in_constant_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def compare(a: str, b: str) -> bool:
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    monkeypatch.setattr("workflows.authority.hmac", SimpleNamespace(compare_digest=compare))
    owner = rows.authority()
    run = rows.make_run(world, owner=owner)
    assert owner.has_token_of(run)
    assert not replace(owner, fencing_token="other").has_token_of(run)
    assert owner.has_token_like(owner)
    assert len(compared) == 3


def test_who_claims_is_audited(world: World) -> None:
    run = rows.make_run(world)
    claim(world, run, rows.authority())
    noted = AuditEntry.objects.get(action="run.authority_claimed")
    assert (noted.target, noted.actor) == (run.run_id, world.operator.subject)
