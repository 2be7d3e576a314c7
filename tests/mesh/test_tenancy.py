"""Tenants, people, tokens and what their roles allow."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User

from mesh import tenancy
from mesh.models import ApiToken, Application, AuditEntry, Membership, Role, Tenant
from tests.factories import World, name
from tests.mesh.checks import MICRO, NOON, Clock, ms, raises, refused


@pytest.mark.parametrize(
    ("held", "asked", "is_allowed"),
    [
        (Role.VIEWER, Role.VIEWER, True),
        (Role.VIEWER, Role.OPERATOR, False),
        (Role.OPERATOR, Role.VIEWER, True),
        (Role.OPERATOR, Role.ADMIN, False),
        (Role.ADMIN, Role.OPERATOR, True),
        (Role.ADMIN, Role.ADMIN, True),
        (None, Role.VIEWER, False),
    ],
)
def test_a_role_includes_the_weaker_ones(held: Role | None, asked: Role, is_allowed: bool) -> None:
    caller = tenancy.Caller("service:x", 1, "t", held)
    assert caller.can(asked) is is_allowed
    if not is_allowed:
        with raises("PERMISSION_DENIED"):
            caller.require(asked)


def test_a_token_speaks_for_its_service_with_its_role(world: World) -> None:
    row, secret = tenancy.create_token(caller=world.caller(), name="billing", role=Role.OPERATOR)
    caller = tenancy.authenticate(secret)
    assert (caller.subject, caller.role) == ("service:billing", Role.OPERATOR)
    assert (caller.tenant_id, caller.tenant) == (world.tenant.pk, world.tenant.name)
    assert row.token_hash == sha256(secret.encode()).hexdigest()
    assert secret not in str(ApiToken.objects.filter(pk=row.pk).values())


def test_a_token_ends_at_its_very_end(world: World, clock: Clock) -> None:
    _, secret = tenancy.create_token(
        caller=world.caller(), name="t", role=Role.VIEWER, expires_in_s=5
    )
    clock.to(NOON + ms(5_000) - MICRO)
    assert tenancy.authenticate(secret).subject == "service:t"
    clock.to(NOON + ms(5_000))
    with refused("TOKEN_INVALID"):
        tenancy.authenticate(secret)


def test_a_revoked_token_ends_at_once_and_frees_its_name(world: World) -> None:
    _, secret = tenancy.create_token(caller=world.caller(), name="t", role=Role.VIEWER)
    with refused("REQUEST_INVALID"):
        tenancy.create_token(caller=world.caller(), name="t", role=Role.ADMIN)
    tenancy.revoke_token(caller=world.caller(), name="t")
    with refused("TOKEN_INVALID"):
        tenancy.authenticate(secret)
    with refused("REQUEST_INVALID"):
        tenancy.revoke_token(caller=world.caller(), name="t")
    _, fresh = tenancy.create_token(caller=world.caller(), name="t", role=Role.VIEWER)
    assert tenancy.authenticate(fresh).subject == "service:t"


@pytest.mark.parametrize("secret", ["", "fpt_", "fpt_unknown", "x" * 5_000])
def test_an_unknown_token_is_invalid(world: World, secret: str) -> None:
    with refused("TOKEN_INVALID"):
        tenancy.authenticate(secret)


@pytest.mark.parametrize("act", [tenancy.create_token, tenancy.revoke_token])
def test_only_an_admin_makes_and_revokes_tokens(world: World, act: Any) -> None:
    extra = {"role": Role.VIEWER} if act is tenancy.create_token else {}
    with refused("PERMISSION_DENIED"):
        act(caller=world.operator, name="t", **extra)


def test_no_token_of_another_tenant_is_revoked(world: World) -> None:
    _, secret = tenancy.create_token(caller=world.caller(), name="t", role=Role.VIEWER)
    with refused("REQUEST_INVALID"):
        tenancy.revoke_token(caller=World().caller(), name="t")
    assert tenancy.authenticate(secret).subject == "service:t"


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "ä", "a" * 201, "a\n"])
def test_a_name_that_could_not_stand_in_a_path_is_refused(world: World, bad: str) -> None:
    with refused("REQUEST_INVALID"):
        tenancy.create_tenant(name=bad, applications=[], actor="system:test")
    with refused("REQUEST_INVALID"):
        tenancy.create_tenant(name=name("t"), applications=[bad], actor="system:test")
    with refused("REQUEST_INVALID"):
        tenancy.create_token(caller=world.caller(), name=bad, role=Role.VIEWER)


def test_making_a_tenant_again_adds_what_is_missing(world: World) -> None:
    for _ in range(2):
        tenancy.create_tenant(
            name=world.tenant.name, applications=["documents", "mail"], actor="system:test"
        )
    assert Tenant.objects.filter(name=world.tenant.name).count() == 1
    found = Application.objects.filter(tenant=world.tenant)
    assert {each.name for each in found} == {"documents", "mail"}
    assert AuditEntry.objects.filter(action="tenant.extended").count() == 1


def person(world: World, role: Role = Role.VIEWER) -> User:
    return tenancy.create_user(
        name=name("ann"),
        tenant=world.tenant,
        role=role,
        password="correct-horse-battery",
        actor="system:test",
    )


def test_a_person_is_a_caller_in_their_only_tenant(world: World) -> None:
    user = person(world, Role.OPERATOR)
    caller = tenancy.caller_for_user(user, None)
    assert (caller.subject, caller.role) == (f"human:{user.username}", Role.OPERATOR)
    assert tenancy.caller_for_user(user, world.tenant.name) == caller


def test_a_person_of_two_tenants_names_one(world: World) -> None:
    user, other = person(world), World()
    Membership.objects.create(user=user, tenant=other.tenant, role=Role.ADMIN)
    with refused("REQUEST_INVALID"):
        tenancy.caller_for_user(user, None)
    assert tenancy.caller_for_user(user, other.tenant.name).role == Role.ADMIN


def test_nobody_is_a_caller_where_they_are_no_member(world: World) -> None:
    user = person(world)
    with refused("PERMISSION_DENIED"):
        tenancy.caller_for_user(user, World().tenant.name)
    user.is_active = False
    with refused("AUTHENTICATION_REQUIRED"):
        tenancy.caller_for_user(user, None)
    with refused("AUTHENTICATION_REQUIRED"):
        tenancy.caller_for_user(AnonymousUser(), None)


def test_how_many_people_attest_is_set_by_name_and_audited(world: World) -> None:
    def make(number: int | None) -> Tenant:
        return tenancy.create_tenant(
            name=world.tenant.name, applications=[], actor="system:test", attestations=number
        )

    assert make(None).attestations == 1
    assert make(2).attestations == 2
    assert make(None).attestations == 2
    noted = AuditEntry.objects.get(action="tenant.limited")
    assert noted.evidence["limits"] == {"attestations": [1, 2]}
    for bad in (0, 3):
        with refused("REQUEST_INVALID"):
            make(bad)


def test_admins_attest_and_people_to_whom_it_was_given(world: World) -> None:
    assert world.caller(Role.ADMIN).can_attest
    assert not world.caller(Role.OPERATOR).can_attest
    user = person(world, Role.VIEWER)
    assert not tenancy.caller_for_user(user, None).can_attest
    user.user_permissions.add(Permission.objects.get(codename="attest_handoff"))
    user = User.objects.get(pk=user.pk)
    assert tenancy.caller_for_user(user, None).can_attest


@pytest.mark.parametrize("password", ["", "k3x-9Qz!a", "9386027415", "basketball"])
def test_a_weak_password_is_refused(world: World, password: str) -> None:
    with refused("REQUEST_INVALID"):
        tenancy.create_user(
            name="ann", tenant=world.tenant, role=Role.ADMIN, password=password, actor="system:x"
        )
    assert not User.objects.exists()
