"""Grants with all their constraints, issued and derived by forms."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from mesh.models import AuditEntry, Grant, GrantStatus, Tenant

from . import rows
from .test_access import act_url, change_url
from .test_making import assert_shown_once, issue

BOUND = {
    "resources": "APPLICATION flow://documents\r\n",
    "worker_names": "billing-*\r\n",
    "environments": "production\r\nstaging-*",
    "runtimes": "container\nprocess",
    "labels": "zone=eu-1\nurl=a=b",
    "workload_id": f"workload_{'a' * 24}",
}
SAID = {
    "worker_names": ["billing-*"],
    "environments": ["production", "staging-*"],
    "runtimes": ["container", "process"],
    "labels": {"zone": "eu-1", "url": "a=b"},
    "workload_id": f"workload_{'a' * 24}",
}


def issued(admin: Client, tenant: Tenant, **data: Any) -> Grant:
    application = rows.application(tenant)
    bound = {**BOUND, "resources": f"APPLICATION flow://{application.name}"}
    issue(admin, tenant, application=application.pk, **{**bound, **data})
    return Grant.objects.latest("pk")


def derive(admin: Client, parent: Grant, **data: Any) -> Any:
    """The form as it is shown, with what is changed on it."""
    shown = admin.get(f"{act_url('grant', 'derive')}?id={parent.pk}").context["form"]
    fields = {name: shown[name].value() for name in shown.fields}
    del fields["reason"]
    given = {**fields, "id": parent.pk, "reason": "for the night shift", **data}
    return admin.post(act_url("grant", "derive"), given, follow=True)


def test_a_grant_is_issued_with_every_constraint(
    admin: Client, tenant: Tenant, grant_key: None
) -> None:
    grant = issued(admin, tenant)
    assert grant.constraints == SAID
    uri = f"flow://{grant.application.name}"
    assert grant.resources == [{"kind": "APPLICATION", "uri": uri}]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("labels", "zone", "key=value"),
        ("labels", "a=1\na=2", "each key once"),
        ("resources", "APPLICATION", "KIND uri"),
        ("resources", "PLANET flow://documents", "REQUEST_INVALID"),
        ("runtimes", "steam", "REQUEST_INVALID"),
        ("workload_id", "x", "REQUEST_INVALID"),
    ],
)
def test_a_constraint_that_means_nothing_is_sent_back(
    admin: Client, tenant: Tenant, grant_key: None, field: str, value: str, told: str
) -> None:
    answer = issue(admin, tenant, **{field: value})
    assert told in str(answer.context["form"].errors)
    assert not Grant.objects.exists()


def test_a_derived_grant_begins_as_its_parent_and_is_shown_once(
    admin: Client, tenant: Tenant, grant_key: None
) -> None:
    parent = issued(admin, tenant, expires_in_s=86_400)
    answer = derive(admin, parent, subject="service:night", worker_names="billing-7")
    child = Grant.objects.get(parent=parent)
    assert_shown_once(admin, answer, answer.context["secret"], child)
    assert (child.subject, child.depth) == ("service:night", 2)
    assert child.constraints == {**SAID, "worker_names": ["billing-7"]}
    assert (child.capabilities, child.resources) == (parent.capabilities, parent.resources)
    assert (child.expires_at - child.issued_at).total_seconds() == 3600
    entry = AuditEntry.objects.get(target=child.grant_id)
    assert (entry.action, entry.reason) == ("grant.delegated", "for the night shift")


def test_a_grant_wider_than_its_parent_is_refused(
    admin: Client, tenant: Tenant, grant_key: None
) -> None:
    parent = issued(admin, tenant)
    for wider in ({"labels": ""}, {"expires_in_s": 365 * 86_400}, {"capabilities": "worker:read"}):
        answer = derive(admin, parent, **wider)
        assert "0 done, 1 refused: GRANT_DELEGATION_INVALID" in answer.content.decode()
    assert Grant.objects.count() == 1


def test_nothing_is_derived_from_a_grant_that_is_not_in_force(
    admin: Client, tenant: Tenant, grant_key: None
) -> None:
    parent = issued(admin, tenant)
    Grant.objects.update(status=GrantStatus.REVOKED)
    assert "The grant is revoked." in admin.get(change_url(parent)).content.decode()
    answer = derive(admin, parent)
    assert "0 done, 1 refused: GRANT_REVOKED" in answer.content.decode()
    assert Grant.objects.count() == 1
