"""Grants, tokens and members are made by forms; a secret is shown once and kept nowhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse

from mesh import tenancy
from mesh.models import ApiToken, AuditEntry, Grant, Membership, Role, Tenant

from . import rows

SignIn = Callable[[User | None], Client]


def make(client: Client, model: str, **data: Any) -> Any:
    return client.post(reverse(f"admin:mesh_{model}_maker"), data)


def issue(client: Client, tenant: Tenant, **data: Any) -> Any:
    given = {
        "application": rows.application(tenant).pk,
        "subject": "service:registrar",
        "capabilities": "worker:register\r\nworker:capability:documents.extract\r\n",
        "worker_names": "",
        "expires_in_s": 3600,
        "revision": 1,
    }
    return make(client, "grant", **{**given, **data})


def create(client: Client, tenant: Tenant, **data: Any) -> Any:
    given = {"tenant": tenant.pk, "name": "inbox", "role": "operator", "expires_in_s": 0}
    return make(client, "apitoken", **{**given, **data})


def assert_shown_once(client: Client, answer: Any, secret: str, row: Any) -> None:
    """In that one answer, uncached; on no other page and in no session."""
    assert answer.content.decode().count(secret) == 1
    assert "no-store" in answer["Cache-Control"]
    assert answer["Referrer-Policy"] == "no-referrer"
    model = row._meta.model_name
    for url in (
        reverse(f"admin:mesh_{model}_change", args=[row.pk]),
        reverse(f"admin:mesh_{model}_changelist"),
        reverse("admin:mesh_auditentry_changelist"),
        reverse("admin:index"),
    ):
        assert secret not in client.get(url).content.decode(), url
    assert all(secret not in str(each.get_decoded()) for each in Session.objects.all())
    assert not list(answer.context["messages"])
    stored = [*Grant.objects.values(), *ApiToken.objects.values(), *AuditEntry.objects.values()]
    assert secret not in str(stored)


def test_an_issued_grant_is_shown_once(
    admin: Client, tenant: Tenant, grant_key: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = issue(admin, tenant, worker_names="billing-1\nbilling-2")
    secret = answer.context["secret"]
    grant = Grant.objects.get()
    assert_shown_once(admin, answer, secret, grant)
    assert secret not in caplog.text
    claims = jwt.decode(secret, options={"verify_signature": False})
    assert claims["capabilities"] == ["worker:capability:documents.extract", "worker:register"]
    assert grant.constraints == {"worker_names": ["billing-1", "billing-2"]}
    assert (grant.tenant, grant.issued_by) == (tenant, "human:ann")
    assert (grant.expires_at - grant.issued_at).total_seconds() == 3600


def test_a_grant_that_the_domain_refuses_leaves_nothing(
    admin: Client, tenant: Tenant, grant_key: None
) -> None:
    answer = issue(admin, tenant, capabilities="worker:fly")
    assert "REQUEST_INVALID" in str(answer.context["form"].errors)
    assert not Grant.objects.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capabilities", ""),
        ("subject", ""),
        ("expires_in_s", "7"),
        ("revision", "0"),
        ("revision", str(2**63)),
        ("application", "999999"),
        ("application", "x"),
        ("subject", "a\0b"),
    ],
)
def test_a_grant_form_out_of_shape_is_sent_back(
    admin: Client, tenant: Tenant, grant_key: None, field: str, value: str
) -> None:
    answer = issue(admin, tenant, **{field: value})
    assert answer.status_code == 200
    assert answer.context["form"].errors[field]
    assert not Grant.objects.exists()


def test_a_created_token_is_shown_once_and_works(
    admin: Client, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = create(admin, tenant)
    secret = answer.context["secret"]
    assert_shown_once(admin, answer, secret, ApiToken.objects.get())
    assert "API token inbox" in answer.content.decode()
    assert secret not in caplog.text
    caller = tenancy.authenticate(secret)
    assert (caller.subject, caller.tenant, caller.role) == ("service:inbox", "acme", "operator")


def test_a_second_token_of_a_name_in_force_is_refused(admin: Client, tenant: Tenant) -> None:
    create(admin, tenant)
    answer = create(admin, tenant)
    assert "REQUEST_INVALID" in str(answer.context["form"].errors)
    assert ApiToken.objects.count() == 1


def test_a_new_member_can_sign_in(admin: Client, tenant: Tenant) -> None:
    answer = make(
        admin,
        "membership",
        tenant=tenant.pk,
        name="carl",
        role="operator",
        password=rows.PASSWORD,
    )
    assert rows.PASSWORD not in answer.content.decode()
    member = Membership.objects.get(user__username="carl")
    assert (member.tenant, member.role) == (tenant, Role.OPERATOR)
    said = {"username": "carl", "password": rows.PASSWORD}
    assert Client().post("/admin/login/", said).status_code == 302
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.actor, entry.target) == (
        "member.created",
        "human:ann",
        "human:carl",
    )


def test_a_new_member_gets_no_short_password(admin: Client, tenant: Tenant) -> None:
    answer = make(
        admin, "membership", tenant=tenant.pk, name="carl", role="viewer", password="a" * 9
    )
    assert answer.context["form"].errors["password"]
    assert not User.objects.filter(username="carl").exists()


def test_adding_a_member_never_touches_a_person_who_exists(admin: Client, tenant: Tenant) -> None:
    stranger = rows.person(rows.tenant("other"), Role.ADMIN, "dora")
    before = User.objects.filter(pk=stranger.pk).values().get()
    answer = make(
        admin, "membership", tenant=tenant.pk, name="dora", role="admin", password="taken over now"
    )
    assert "exists already" in str(answer.context["form"].errors)
    assert User.objects.filter(pk=stranger.pk).values().get() == before
    assert not Membership.objects.filter(user=stranger, tenant=tenant).exists()


def test_making_something_offers_only_tenants_where_one_is_admin(
    tenant: Tenant, as_: SignIn
) -> None:
    person = rows.person(tenant)
    Membership.objects.create(user=person, tenant=rows.tenant("other"), role=Role.OPERATOR)
    page = as_(person).get(reverse("admin:mesh_apitoken_maker"))
    assert [str(each) for each in page.context["form"].fields["tenant"].queryset] == ["acme"]
