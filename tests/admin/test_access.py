"""Who sees and may do what, over every page that the console has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from mesh.admin.base import ConsoleAdmin
from mesh.models import Grant, Membership, Role, Tenant, Worker

from . import rows
from .conftest import one_of_each

SignIn = Callable[[User | None], Client]
PAGES: dict[str, Any] = {
    page.opts.model_name or "": page for page in django_admin.site._registry.values()
}
# Of the server, not of a tenant: every member sees it.
SHARED = {"sweeprun"}
# What operators make too.
OF_OPERATORS = {"pause", "pool"}


def change_url(row: Any) -> str:
    return url_of(row._meta.model_name, "change", row.pk)


def list_url(model: str) -> str:
    return url_of(model, "changelist")


def act_url(model: str, act: str) -> str:
    return url_of(model, "act", act)


def url_of(model: str, what: str, *args: Any) -> str:
    return reverse(f"admin:{PAGES[model].opts.app_label}_{model}_{what}", args=args)


def acts() -> list[tuple[str, str]]:
    return [(model, act.name) for model, page in PAGES.items() for act in page.acts]


def makers() -> list[str]:
    return [model for model, page in PAGES.items() if page.maker]


def every_url(rows_by_model: dict[str, Any]) -> Iterator[str]:
    yield from (reverse(f"admin:{name}") for name in ("index", "live", "find", "search"))
    for model, row in rows_by_model.items():
        yield list_url(model)
        yield change_url(row)
        yield url_of(model, "history", row.pk)
        yield url_of(model, "delete", row.pk)
        yield url_of(model, "add")
    for model, act in acts():
        yield f"{act_url(model, act)}?id={rows_by_model[model].pk}"
    for model in makers():
        yield url_of(model, "maker")


def test_only_pages_of_the_console_are_registered() -> None:
    assert PAGES
    assert all(isinstance(each, ConsoleAdmin) for each in PAGES.values())


def test_there_is_a_row_for_every_page(tenant: Tenant) -> None:
    assert set(one_of_each(tenant)) == set(PAGES)


def test_nobody_sees_anything_without_signing_in(tenant: Tenant, as_: SignIn) -> None:
    client = as_(None)
    for url in every_url(one_of_each(tenant)):
        answer = client.get(url)
        assert answer.status_code == 302, url
        assert answer["Location"].startswith(reverse("admin:login")), url


@pytest.mark.parametrize("role", list(Role))
def test_a_member_sees_every_list_and_page_of_the_tenant(
    tenant: Tenant, as_: SignIn, role: Role
) -> None:
    client = as_(rows.person(tenant, role))
    for model, row in one_of_each(tenant).items():
        assert client.get(list_url(model)).status_code == 200, model
        assert client.get(change_url(row)).status_code == 200, model


def test_rows_of_another_tenant_are_in_no_list(admin: Client) -> None:
    for model, row in one_of_each(rows.tenant("other")).items():
        if model in SHARED:
            continue
        answer = admin.get(list_url(model))
        assert row.pk not in {each.pk for each in answer.context["cl"].result_list}, model


def test_the_page_of_another_tenants_row_does_not_exist(admin: Client) -> None:
    for model, row in one_of_each(rows.tenant("other")).items():
        if model in SHARED:
            continue
        assert admin.get(change_url(row)).status_code == 404, model
        history = url_of(model, "history", row.pk)
        assert admin.get(history).status_code == 404, model


@pytest.mark.parametrize(("model", "act"), acts())
def test_acts_do_not_reach_another_tenants_row(admin: Client, model: str, act: str) -> None:
    row = one_of_each(rows.tenant("other"))[model]
    before = type(row).objects.filter(pk=row.pk).values().get()
    shown = admin.get(f"{act_url(model, act)}?id={row.pk}", follow=True)
    assert str(row) not in shown.content.decode()
    filled = {"extra_attempts": 1, "name": "x", "resolution": "cancelled"}
    filled |= {"subject": "service:x", "capabilities": "worker:register", "expires_in_s": 0}
    given = {"id": row.pk, "reason": "x", **filled}
    answer = admin.post(act_url(model, act), given)
    assert "0 done, 1 refused: NOT_FOUND" in answer.content.decode()
    assert type(row).objects.filter(pk=row.pk).values().get() == before


def test_a_superuser_who_is_no_member_sees_no_tenants_rows(tenant: Tenant, as_: SignIn) -> None:
    client = as_(rows.person(None))
    for model, row in one_of_each(tenant).items():
        assert client.get(list_url(model)).status_code == 403, model
        assert client.get(change_url(row)).status_code == 404, model
    assert "member of no tenant" in client.get(reverse("admin:index")).content.decode()


def test_a_person_of_two_tenants_sees_both_and_which_is_which(tenant: Tenant, as_: SignIn) -> None:
    person = rows.person(tenant, Role.VIEWER)
    other = rows.tenant("other")
    Membership.objects.create(user=person, tenant=other, role=Role.OPERATOR)
    for of in (tenant, other):
        rows.worker(rows.application(of), f"worker-of-{of.name}")
    answer = as_(person).get(list_url("worker"))
    text = answer.content.decode()
    assert "worker-of-acme" in text
    assert "worker-of-other" in text
    assert "show_tenant" in answer.context["cl"].list_display


def test_a_role_counts_in_its_own_tenant_only(tenant: Tenant, as_: SignIn) -> None:
    person = rows.person(tenant, Role.VIEWER)
    other = rows.tenant("other")
    Membership.objects.create(user=person, tenant=other, role=Role.OPERATOR)
    seen, acted_on = (rows.worker(rows.application(of)) for of in (tenant, other))
    answer = as_(person).post(
        act_url("worker", "drain"), {"id": [seen.pk, acted_on.pk], "reason": "move"}
    )
    assert "1 done, 1 refused: PERMISSION_DENIED" in answer.content.decode()
    assert Worker.objects.get(pk=seen.pk).lifecycle == "READY"
    assert Worker.objects.get(pk=acted_on.pk).lifecycle == "OFFLINE"


def test_a_member_who_was_taken_out_sees_nothing_more(tenant: Tenant, as_: SignIn) -> None:
    person = rows.person(tenant)
    client = as_(person)
    worker = rows.worker(rows.application(tenant))
    assert client.get(change_url(worker)).status_code == 200
    Membership.objects.filter(user=person).delete()
    assert client.get(change_url(worker)).status_code == 404
    answer = client.post(act_url("worker", "drain"), {"id": worker.pk, "reason": "x"})
    assert answer.status_code == 403


@pytest.mark.parametrize(("model", "act"), acts())
def test_a_viewer_can_do_no_act(tenant: Tenant, viewer: Client, model: str, act: str) -> None:
    row = one_of_each(tenant)[model]
    before = type(row).objects.filter(pk=row.pk).values().get()
    given = {"id": row.pk, "reason": "x", "extra_attempts": 1}
    assert viewer.get(f"{act_url(model, act)}?id={row.pk}").status_code == 403
    assert viewer.post(act_url(model, act), given).status_code == 403
    chosen = {"action": act, "_selected_action": row.pk, "index": 0, "select_across": 0}
    viewer.post(list_url(model), chosen)
    assert type(row).objects.filter(pk=row.pk).values().get() == before


@pytest.mark.parametrize("model", ["grant", "apitoken"])
def test_an_operator_revokes_no_rights(tenant: Tenant, operator: Client, model: str) -> None:
    row = one_of_each(tenant)[model]
    answer = operator.post(act_url(model, "revoke"), {"id": row.pk, "reason": "x"})
    assert answer.status_code == 403
    row.refresh_from_db()
    assert row.revoked_at is None


@pytest.mark.parametrize("model", makers())
def test_only_admins_make_rights_and_members(operator: Client, viewer: Client, model: str) -> None:
    url = url_of(model, "maker")
    for client in (viewer,) if model in OF_OPERATORS else (operator, viewer):
        assert client.get(url).status_code == 403
        assert client.post(url, {"name": "x"}).status_code == 403


def test_an_admin_of_one_tenant_makes_nothing_in_another(
    tenant: Tenant, as_: SignIn, grant_key: None
) -> None:
    person = rows.person(tenant)
    other = rows.tenant("other")
    Membership.objects.create(user=person, tenant=other, role=Role.OPERATOR)
    foreign = {
        "grant": {"application": rows.application(other).pk, "capabilities": "worker:register"},
        "apitoken": {"tenant": other.pk, "name": "spy", "role": "admin", "expires_in_s": 3600},
        "membership": {
            "tenant": other.pk,
            "name": "spy",
            "role": "admin",
            "password": rows.PASSWORD,
        },
    }
    for model, given in foreign.items():
        answer = as_(person).post(url_of(model, "maker"), given)
        assert answer.context["form"].errors, model
    assert not Grant.objects.filter(tenant=other).exists()
    assert not other.tokens.exists()
    assert not User.objects.filter(username="spy").exists()


def test_no_row_is_added_changed_or_deleted_by_djangos_forms(tenant: Tenant, admin: Client) -> None:
    for model, row in one_of_each(tenant).items():
        before = type(row).objects.filter(pk=row.pk).values().get()
        for url in (
            change_url(row),
            url_of(model, "add"),
            url_of(model, "delete", row.pk),
        ):
            assert admin.post(url, {"post": "yes", "name": "changed"}).status_code == 403, url
        assert type(row).objects.filter(pk=row.pk).values().get() == before


def _tables() -> dict[str, list[Any]]:
    models = [each.model for each in PAGES.values()] + [User]
    return {each.__name__: list(each.objects.order_by("pk").values()) for each in models}


def test_reading_any_page_changes_nothing(tenant: Tenant, admin: Client, grant_key: None) -> None:
    rows_by_model = one_of_each(tenant)
    before = _tables()
    for url in every_url(rows_by_model):
        for method in (admin.get, admin.head, admin.options):
            assert method(url).status_code in {200, 302, 403}, url
        asked = f"{url}{'&' if '?' in url else '?'}reason=x&confirm=1&extra_attempts=1"
        admin.get(asked)
    assert _tables() == before


@pytest.mark.parametrize(("model", "act"), acts())
def test_acts_need_the_forgery_token(tenant: Tenant, model: str, act: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(rows.person(tenant))
    row = one_of_each(tenant)[model]
    given = {"id": row.pk, "reason": "x", "extra_attempts": 1}
    assert client.post(act_url(model, act), given).status_code == 403


@pytest.mark.parametrize("model", makers())
def test_forms_that_make_something_need_the_forgery_token(tenant: Tenant, model: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(rows.person(tenant))
    assert client.post(url_of(model, "maker"), {}).status_code == 403


def test_somebody_who_may_not_use_the_console_is_told_so(tenant: Tenant, as_: SignIn) -> None:
    person = User.objects.create_user("guest", password=rows.PASSWORD)
    Membership.objects.create(user=person, tenant=tenant, role=Role.ADMIN)
    answer = as_(person).get(list_url("worker"), follow=True)
    assert "who may not use the console" in answer.content.decode()
