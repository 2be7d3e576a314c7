"""Whether a claim holds: asked by others, answered in the order of the rules, nothing changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mesh import validation, workloads
from mesh.models import Role
from tests.factories import CAPABILITY, Held, World
from tests.mesh.checks import MICRO, Clock, raises, unchanged


def validate(world: World, held: Held, **members: Any) -> datetime:
    said = {
        "caller": world.caller(Role.VIEWER),
        "claim_id": held.claim.claim_id,
        "fencing_token": held.claim.fencing_token,
        "worker_id": held.worker.worker_id,
        "workload_id": held.workload.workload_id,
        **members,
    }
    return validation.validate(**said)


def test_a_started_current_claim_holds_and_nothing_is_written(world: World) -> None:
    held = world.running()
    with unchanged():
        assert validate(world, held) == held.attempt.expires_at
        validate(world, held, capabilities=[CAPABILITY])
        validate(world, held, caller=held.worker.caller)


def test_work_that_is_to_be_cancelled_still_holds_its_claim(world: World) -> None:
    validate(world, world.cancelling())


@pytest.mark.parametrize("members", [{"worker_id": "worker_x"}, {"workload_id": "workload_x"}])
def test_a_claim_is_of_one_worker_and_one_work(world: World, members: dict[str, Any]) -> None:
    with raises("MESH_CLAIM_SCOPE_DENIED"):
        validate(world, world.running(), **members)


def test_a_worker_asks_about_its_own_claims_only(world: World) -> None:
    with raises("MESH_CLAIM_SCOPE_DENIED"):
        validate(world, world.running(), caller=world.worker().caller)


def test_another_tenants_claim_is_not_there(world: World) -> None:
    with raises("CLAIM_NOT_FOUND"):
        validate(World(), world.running())
    with raises("CLAIM_NOT_FOUND"):
        validate(world, world.running(), claim_id="claim_x")


def test_an_ended_claim_or_another_token_is_stale(world: World) -> None:
    with raises("MESH_STALE_FENCE"):
        validate(world, world.succeeded())
    with raises("MESH_STALE_FENCE"):
        validate(world, world.running(), fencing_token=9)


def test_a_claim_holds_to_the_end_of_its_lease_also_for_held_work(
    world: World, clock: Clock
) -> None:
    held = world.running(lost_policy="hold")
    clock.to(held.attempt.expires_at - MICRO)
    validate(world, held)
    clock.to(held.attempt.expires_at)
    with raises("MESH_STALE_FENCE"):
        validate(world, held)


def test_unstarted_work_may_do_nothing_yet(world: World) -> None:
    with raises("WORKLOAD_TRANSITION_DENIED"):
        validate(world, world.claimed())


def test_a_claim_holds_no_more_than_its_work_asked_for(world: World) -> None:
    with raises("MESH_CAPABILITY_DENIED"):
        validate(world, world.running(), capabilities=[CAPABILITY, "documents.print"])


def test_the_checks_stand_in_their_order(world: World) -> None:
    wrong: dict[str, Any] = {"worker_id": "x", "fencing_token": 9, "capabilities": ["x"]}
    held = world.claimed()
    for code, right in (
        ("MESH_CLAIM_SCOPE_DENIED", {"worker_id": held.worker.worker_id}),
        ("MESH_STALE_FENCE", {"fencing_token": held.claim.fencing_token}),
        ("WORKLOAD_TRANSITION_DENIED", {}),
    ):
        with raises(code):
            validate(world, held, **wrong)
        wrong |= right
    held.worker.start(held.claim)
    with raises("MESH_CAPABILITY_DENIED"):
        validate(world, held, **wrong)


def test_a_person_without_a_role_may_not_ask(world: World) -> None:
    held = world.running()
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    from mesh.tenancy import Caller

    nobody = Caller("service:x", world.tenant.pk, world.tenant.name)
    with raises("PERMISSION_DENIED"):
        validate(world, held, caller=nobody)
