"""Grants derived from grants, and constraints: what each lets in, how it refuses the rest."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from mesh import grants, intake, liveness
from mesh.canonical import identity
from mesh.intake import Submitted
from mesh.models import AuditEntry, Grant
from mesh.registration import Registered
from tests.factories import CAPABILITY, REGISTRAR, World
from tests.mesh.checks import MICRO, NOON, Clock, ms, refused

CREATE = ["workload:create"]
CALLER = "service:ops"


def register(world: World, token: str, **members: Any) -> Registered:
    said = world.registration(grant=token, **members)
    return liveness.register(registration=said, credential=None)


def submit(world: World, token: str, **members: Any) -> Submitted:
    said = world.submission(**members)
    return intake.submit(caller=world.operator, submission=said, grant=token)


def chain(world: World, depth: int, **members: Any) -> list[tuple[Grant, str]]:
    """A root and what was derived from it, each from the one before."""
    made = [world.grant(**members)]
    while len(made) < depth:
        made.append(world.delegated(made[-1][0], **members))
    return made


# --- Delegate -------------------------------------------------------------------------------------


def test_a_derived_grant_names_its_parent_and_has_its_application_and_revision(
    world: World,
) -> None:
    parent, _ = world.grant(revision=7)
    child, token = world.delegated(parent, subject="service:edge")
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (claims["parent"], claims["sub"], claims["revision"]) == (
        parent.grant_id,
        "service:edge",
        7,
    )
    assert (child.depth, child.application, child.issued_by) == (2, parent.application, CALLER)
    entry = AuditEntry.objects.get(target=child.grant_id)
    assert (entry.action, entry.evidence["parent"]) == ("grant.delegated", parent.grant_id)


def test_a_worker_registers_under_a_derived_grant_with_what_all_of_them_allow(
    world: World,
) -> None:
    parent, _ = world.grant(
        capabilities=["worker:register", "worker:capability:a", "worker:capability:b"]
    )
    _, token = world.delegated(parent, capabilities=["worker:register", "worker:capability:a"])
    worker = register(world, token, capabilities=["a", "b"]).worker
    assert worker.granted_capabilities == ["a"]


def test_a_parent_is_asked_with_its_own_subject(world: World) -> None:
    parent, _ = world.grant(subject="service:root", capabilities=CREATE)
    _, token = world.delegated(parent, subject=CALLER, capabilities=CREATE)
    assert submit(world, token).created


def test_a_grant_is_at_most_eight_deep(world: World) -> None:
    (*_, (eighth, token)) = chain(world, 8)
    assert eighth.depth == 8
    assert register(world, token).created
    with refused("GRANT_DELEGATION_INVALID"):
        world.delegated(eighth)


WIDER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "capabilities": ({}, {"capabilities": [*CREATE, "worker:register"]}, "capabilities"),
    "resources": (
        {"resources": [{"kind": "WORKLOAD", "uri": "flow://documents/workers"}]},
        {"resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/workers"}]},
        "resources",
    ),
    "no resources": (
        {"resources": [{"kind": "APPLICATION", "uri": "flow://documents/workers"}]},
        {},
        "resources",
    ),
    "no constraint": ({"constraints": {"worker_names": ["a"]}}, {}, "constraints.worker_names"),
    "wider name": (
        {"constraints": {"worker_names": ["ab*"]}},
        {"constraints": {"worker_names": ["a*"]}},
        "constraints.worker_names",
    ),
    "other environment": (
        {"constraints": {"environments": ["a"]}},
        {"constraints": {"environments": ["b"]}},
        "constraints.environments",
    ),
    "more runtimes": (
        {"constraints": {"runtimes": ["wasm"]}},
        {"constraints": {"runtimes": ["wasm", "edge"]}},
        "constraints.runtimes",
    ),
    "fewer labels": (
        {"constraints": {"labels": {"zone": "a"}}},
        {"constraints": {"labels": {}}},
        "constraints.labels",
    ),
    "longer": ({"expires_in_ms": 60_000}, {"expires_in_ms": 60_001}, "expires_at"),
}


@pytest.mark.parametrize(("parent", "child", "part"), WIDER.values(), ids=WIDER.keys())
def test_a_derived_grant_that_is_wider_is_refused_when_made(
    world: World, parent: dict[str, Any], child: dict[str, Any], part: str
) -> None:
    above, _ = world.grant(**parent)
    with refused("GRANT_DELEGATION_INVALID") as caught:
        world.delegated(above, **child)
    assert caught.value.facts["parts"] == [part]


def test_a_derived_grant_lasts_until_its_parent_ends_unless_told_otherwise(world: World) -> None:
    parent, _ = world.grant(expires_in_ms=60_000, not_before=NOON + ms(5))
    child, _ = world.delegated(parent)
    assert (child.not_before, child.expires_at) == (parent.not_before, parent.expires_at)
    assert world.delegated(world.grant(expires_in_ms=10**9)[0])[0].expires_at == NOON + ms(3.6e6)


def test_nothing_is_derived_from_a_grant_that_is_over_or_not_in_force(
    world: World, clock: Clock
) -> None:
    parent, _ = world.grant(expires_in_ms=60_000)
    world.grant(supersedes=parent.grant_id)
    with refused("GRANT_REVOKED"):
        world.delegated(parent)
    clock.to(parent.expires_at)
    with refused("GRANT_EXPIRED"):
        world.delegated(parent)


def test_delegate_needs_an_admin_and_a_grant_of_the_tenant(world: World) -> None:
    parent, _ = world.grant()
    with refused("GRANT_NOT_FOUND"):
        World().delegated(parent)
    with refused("PERMISSION_DENIED"):
        grants.delegate(
            caller=world.operator, grant_id=parent.grant_id, subject=CALLER, capabilities=CREATE
        )


@pytest.mark.parametrize("members", [{"subject": "x"}, {"expires_in_ms": 999}])
def test_delegate_refuses_what_issue_refuses(world: World, members: dict[str, Any]) -> None:
    parent, _ = world.grant()
    with refused("REQUEST_INVALID"):
        world.delegated(parent, **members)


# --- Verification walks up ------------------------------------------------------------------------

TAKEN_AWAY: dict[str, dict[str, Any]] = {
    "right": {"capabilities": ["worker:read"]},
    "resource": {"resources": [{"kind": "WORKLOAD", "uri": "flow://documents/x"}]},
    "constraint": {"constraints": {"worker_names": ["other"]}},
    "superseded": {"status": "SUPERSEDED"},
    "time": {"expires_at": NOON + MICRO},
}


@pytest.mark.parametrize("changed", TAKEN_AWAY.values(), ids=TAKEN_AWAY.keys())
@pytest.mark.parametrize("above", [0, 1])
def test_a_grant_allows_nothing_that_one_above_it_does_not(
    world: World, clock: Clock, changed: dict[str, Any], above: int
) -> None:
    """The rows of the grants above are believed, not what was true when the child was made."""
    everything = ["worker:register", "workload:create", f"worker:capability:{CAPABILITY}"]
    made = chain(world, 3, subject=CALLER, capabilities=everything)
    Grant.objects.filter(pk=made[above][0].pk).update(**changed)
    clock.to(NOON + MICRO)
    token = made[2][1]
    with refused("GRANT_DELEGATION_INVALID"):
        register(world, token, registered_by=CALLER)
    with refused("GRANT_DELEGATION_INVALID"):
        submit(world, token)


def test_a_grant_below_a_revoked_one_is_revoked(world: World) -> None:
    made = chain(world, 3, subject=CALLER, capabilities=["worker:register", *CREATE])
    Grant.objects.filter(pk=made[0][0].pk).update(status="REVOKED")
    with refused("GRANT_REVOKED"):
        register(world, made[2][1], registered_by=CALLER)
    with refused("GRANT_REVOKED"):
        submit(world, made[2][1])


def test_what_the_grant_itself_refuses_is_told_before_what_its_parent_does(world: World) -> None:
    parent, _ = world.grant(capabilities=["worker:register"])
    _, token = world.delegated(
        parent, capabilities=["worker:register"], constraints={"worker_names": ["a"]}
    )
    Grant.objects.filter(pk=parent.pk).update(capabilities=["worker:read"])
    with refused("GRANT_SCOPE_DENIED"):
        register(world, token, name="b")
    with refused("WORKER_UNAUTHORIZED"):
        register(world, token, name="a", registered_by="service:other")
    with refused("GRANT_DELEGATION_INVALID"):
        register(world, token, name="a", concurrency=0)


# --- Constraints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraints", "members", "is_met"),
    [
        ({"worker_names": ["edge-*"]}, {"name": "edge-1"}, True),
        ({"worker_names": ["edge-*"]}, {"name": "core-1"}, False),
        ({"worker_names": []}, {}, False),
        ({"runtimes": ["wasm", "edge"]}, {"runtime": "edge"}, True),
        ({"runtimes": ["wasm"]}, {"runtime": "edge"}, False),
        ({"labels": {"zone": "a"}}, {"labels": {"zone": "a", "disk": "ssd"}}, True),
        ({"labels": {"zone": "a"}}, {"labels": {"zone": "b"}}, False),
        ({"labels": {"zone": "a"}}, {}, False),
        # A worker has no environment and is no workload.
        ({"environments": ["*"]}, {}, False),
        ({"workload_id": "workload_" + "0" * 24}, {}, False),
        ({"worker_names": ["*"], "runtimes": ["wasm"]}, {"runtime": "edge"}, False),
    ],
)
def test_a_worker_registers_only_as_its_grant_constrains_it(
    world: World, constraints: dict[str, Any], members: dict[str, Any], is_met: bool
) -> None:
    _, token = world.grant(constraints=constraints)
    if is_met:
        assert register(world, token, **members).created
        return
    with refused("GRANT_SCOPE_DENIED"):
        register(world, token, **members)


@pytest.mark.parametrize(
    ("constraints", "members", "is_met"),
    [
        ({"environments": ["prod*"]}, {"environment": "production"}, True),
        ({"environments": ["prod*"]}, {"environment": "test"}, False),
        ({"labels": {"zone": "a"}}, {"policy": {"required_labels": {"zone": "a"}}}, True),
        ({"labels": {"zone": "a"}}, {"policy": {"required_labels": {}}}, False),
        ({"labels": {"zone": "a"}}, {}, False),
        # Which worker will run it is not known.
        ({"worker_names": ["*"]}, {}, False),
        ({"runtimes": ["container"]}, {}, False),
    ],
)
def test_work_is_submitted_only_as_its_grant_constrains_it(
    world: World, constraints: dict[str, Any], members: dict[str, Any], is_met: bool
) -> None:
    _, token = world.grant(subject=CALLER, capabilities=CREATE, constraints=constraints)
    if is_met:
        assert submit(world, token, **members).created
        return
    with refused("GRANT_SCOPE_DENIED"):
        submit(world, token, **members)


def test_a_grant_for_one_workload_is_for_the_id_that_it_will_have(world: World) -> None:
    workload_id = identity("workload", [world.tenant.name, world.application, "one"])
    _, token = world.grant(
        subject=CALLER, capabilities=CREATE, constraints={"workload_id": workload_id}
    )
    with refused("GRANT_SCOPE_DENIED"):
        submit(world, token, idempotency_key="two")
    assert submit(world, token, idempotency_key="one").workload.workload_id == workload_id


def test_the_registrar_is_still_the_subject_of_the_grant_it_uses(world: World) -> None:
    parent, _ = world.grant()
    _, token = world.delegated(parent, subject="service:edge")
    with refused("WORKER_UNAUTHORIZED"):
        register(world, token, registered_by=REGISTRAR)
    assert register(world, token, registered_by="service:edge").created
