"""Grants are made while others are taken away."""

from __future__ import annotations

from functools import partial

import pytest

from mesh import grants, revocations
from mesh.models import Grant
from tests.factories import REGISTRAR, World

from .steering import Actor, Gate, at_once


def _revocation(world: World, kind: str, target: str) -> partial[revocations.Revoked]:
    return partial(revocations.revoke, caller=world.caller(), kind=kind, target=target)


@pytest.mark.parametrize("kind", ["subject", "application", "tenant", "grant"])
def test_a_grant_that_is_being_made_does_not_slip_through_a_revocation(
    world: World, kind: str
) -> None:
    """The revocation waits for it, then ends it."""
    root, _ = world.grant()
    target = {
        "subject": REGISTRAR,
        "application": world.application,
        "tenant": world.tenant.name,
        "grant": root.grant_id,
    }[kind]
    with Gate(grants, "_sign_and_save", after=True) as written:
        making = Actor(partial(world.delegated, root))
        written.wait_for_arrival()
        revocation = Actor(_revocation(world, kind, target))
        revocation.wait_until_blocked(by=making)
        written.let_through()
    child, _ = making.value()
    assert revocation.value().grants == 2
    assert Grant.objects.get(pk=child.pk).status == "REVOKED"


def test_a_grant_whose_making_waits_for_the_revocation_is_judged_after_it(world: World) -> None:
    root, _ = world.grant()
    with Gate(revocations, "_apply", after=True) as revoked:
        revocation = Actor(_revocation(world, "subject", REGISTRAR))
        revoked.wait_for_arrival()
        derived = Actor(partial(world.delegated, root))
        derived.wait_until_blocked(by=revocation)
        issued = Actor(world.grant)
        issued.wait_until_blocked(by=revocation)
        revoked.let_through()
    assert revocation.value().grants == 1
    assert derived.code() == "GRANT_REVOKED"
    assert Grant.objects.get(pk=issued.value()[0].pk).status == "ACTIVE"


def test_grants_of_one_tenant_are_made_at_once(world: World) -> None:
    with Gate(grants, "_sign_and_save", after=True) as written:
        first = Actor(world.grant)
        written.wait_for_arrival()
        second = Actor(world.grant)
        written.wait_for_arrival()
        written.let_through()
        written.let_through()
    assert first.value()[0].pk != second.value()[0].pk


def test_revocations_at_once_end_each_grant_once(world: World) -> None:
    for _ in range(4):
        world.grant()
    ended = at_once(
        *[_revocation(world, "subject", REGISTRAR)] * 2,
        *[_revocation(world, "tenant", world.tenant.name)] * 2,
    )
    assert sum(each.grants for each in ended if isinstance(each, revocations.Revoked)) == 4
