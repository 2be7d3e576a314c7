"""Lists: what they show, find and filter, and that they stay cheap however much there is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from mesh.admin import paging
from mesh.models import AttemptStatus, GrantStatus, Lifecycle, Role, State, Tenant, Workload

from . import rows, run_rows
from .conftest import one_of_each
from .test_access import PAGES, change_url, list_url

SignIn = Callable[[User | None], Client]


def listed(client: Client, model: str, **query: Any) -> set[int]:
    """The keys of the rows on the list."""
    answer = client.get(list_url(model), query)
    assert answer.status_code == 200, answer.headers
    return {each.pk for each in answer.context["cl"].result_list}


def queries(client: Client, url: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert client.get(url).status_code == 200
    return len(seen)


def more_of_each(tenant: Tenant) -> None:
    application = rows.application(tenant)
    for i in range(6):
        worker = rows.worker(application)
        workload = rows.workload(application, State.RUNNING, worker, f"kind.{i}")
        rows.attempt(workload, worker, AttemptStatus.WORKER_LOST, 2)
        rows.worker_event(worker, 1, "ready", "REGISTERED", "READY")
        rows.pool(application, worker)
        rows.pause(application)
        rows.token(tenant)
        rows.person(tenant, Role.VIEWER)
        rows.incident(application, worker)
        rows.tenant(tenant.name, f"application-{i}")
        run_rows.one_of_each(tenant)


def test_no_list_asks_more_for_more_rows(tenant: Tenant, admin: Client) -> None:
    one_of_each(tenant)
    admin.get(reverse("admin:index"))
    few = {model: queries(admin, list_url(model)) for model in PAGES}
    more_of_each(tenant)
    many = {model: queries(admin, list_url(model)) for model in PAGES}
    assert many == few
    assert max(many.values()) <= 10


def test_the_page_of_a_row_asks_no_more_for_more_around_it(tenant: Tenant, admin: Client) -> None:
    made = one_of_each(tenant)
    few = {model: queries(admin, change_url(row)) for model, row in made.items()}
    worker, workload, grant = made["worker"], made["workload"], made["grant"]
    for i in range(6):
        other = rows.workload(made["application"], State.RUNNING, worker)
        rows.attempt(workload, worker, AttemptStatus.WORKER_LOST, 10 + i)
        rows.checkpoint(workload, other.attempts.get(), 1 + i)
        rows.worker_event(worker, 2 + i, "ready", "REGISTERED", "READY")
        rows.worker(made["application"], grant=grant)
    assert {model: queries(admin, change_url(row)) for model, row in made.items()} == few


def test_the_home_page_asks_no_more_for_more_rows(tenant: Tenant, admin: Client) -> None:
    one_of_each(tenant)
    few = queries(admin, reverse("admin:index"))
    more_of_each(tenant)
    assert queries(admin, reverse("admin:index")) == few <= 25


def test_counting_stops_at_the_cap(
    tenant: Tenant, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "CAP", 3)
    monkeypatch.setattr(paging.capped_count, "__defaults__", (3,))
    monkeypatch.setattr(paging.capped_text, "__defaults__", (3,))
    for _ in range(5):
        rows.worker(rows.application(tenant))
    with CaptureQueriesContext(connection) as seen:
        answer = admin.get(list_url("worker"))
    assert "3+ workers" in answer.content.decode()
    counting = [each["sql"] for each in seen if "COUNT(" in each["sql"]]
    assert counting
    assert all("LIMIT 4" in each for each in counting)


def test_big_counts_read_as_capped() -> None:
    assert paging.capped_text(10_001) == "10 000+"
    assert paging.capped_text(10_000) == "10 000"


def test_a_long_list_has_pages(tenant: Tenant, admin: Client) -> None:
    application = rows.application(tenant)
    grant = rows.grant(application)
    made = [rows.worker(application, grant=grant).pk for _ in range(53)]
    first, second = listed(admin, "worker"), listed(admin, "worker", p=2)
    assert (len(first), len(second)) == (50, 3)
    assert first | second == set(made)


def test_workers_are_found_by_the_beginning_of_name_or_id(tenant: Tenant, admin: Client) -> None:
    application = rows.application(tenant)
    wanted, other = rows.worker(application, "alpha-1"), rows.worker(application, "beta-1")
    assert listed(admin, "worker", q="alpha") == {wanted.pk}
    assert listed(admin, "worker", q=other.worker_id[:16]) == {other.pk}
    assert listed(admin, "worker", q="pha") == set()


def test_workloads_are_found_by_the_beginning_of_the_id_or_the_whole_key(
    tenant: Tenant, admin: Client
) -> None:
    application = rows.application(tenant)
    wanted = rows.workload(application, idempotency_key="order-77")
    other = rows.workload(application, idempotency_key="order-78")
    assert listed(admin, "workload", q="order-77") == {wanted.pk}
    assert listed(admin, "workload", q=other.workload_id[:18]) == {other.pk}
    assert listed(admin, "workload", q="order") == set()


def test_attempts_are_found_by_attempt_or_claim_id(tenant: Tenant, admin: Client) -> None:
    worker = rows.worker(rows.application(tenant))
    made = [rows.workload(worker.application, State.RUNNING, worker) for _ in range(2)]
    wanted = made[0].attempts.get()
    assert listed(admin, "attempt", q=wanted.claim_id) == {wanted.pk}
    assert listed(admin, "attempt", q=wanted.attempt_id[:18]) == {wanted.pk}
    assert listed(admin, "attempt", q="attempt_xyz") == set()


def test_a_percent_sign_is_no_wildcard(tenant: Tenant, admin: Client) -> None:
    rows.worker(rows.application(tenant))
    assert listed(admin, "worker", q="%") == set()
    assert listed(admin, "worker", q="_") == set()


def test_filters_narrow_by_state_application_and_window(tenant: Tenant, admin: Client) -> None:
    rows.tenant("acme", "billing")
    documents, billing = (rows.application(tenant, each) for each in ("documents", "billing"))
    offline = rows.worker(documents, lifecycle=Lifecycle.OFFLINE)
    ready = rows.worker(billing)
    assert listed(admin, "worker", lifecycle="OFFLINE") == {offline.pk}
    assert listed(admin, "worker", application=billing.pk) == {ready.pk}
    old = rows.workload(documents, created_at=rows.ago(days=3))
    new = rows.workload(documents, State.RUNNING, ready)
    assert listed(admin, "workload", state="RUNNING") == {new.pk}
    assert listed(admin, "workload", window="24h") == {new.pk}
    assert listed(admin, "workload", window="7d") == {new.pk, old.pk}


def test_an_expired_grant_is_told_apart_from_an_active_one(tenant: Tenant, admin: Client) -> None:
    application = rows.application(tenant)
    active, expired = rows.grant(application), rows.grant(application, expires_at=rows.ago(hours=1))
    assert listed(admin, "grant", status=GrantStatus.ACTIVE) == {active.pk}
    assert listed(admin, "grant", status=GrantStatus.EXPIRED) == {expired.pk}


def test_stuck_attempts_are_those_without_progress_for_ten_minutes(
    tenant: Tenant, admin: Client
) -> None:
    worker = rows.worker(rows.application(tenant))
    made = [rows.workload(worker.application, State.RUNNING, worker) for _ in range(2)]
    stuck = made[0].attempts.get()
    stuck.last_progress_at = rows.ago(minutes=11)
    stuck.save()
    assert listed(admin, "attempt", focus="stuck") == {stuck.pk}


def test_history_shows_the_last_day_until_asked_for_more(tenant: Tenant, admin: Client) -> None:
    application = rows.application(tenant)
    old = rows.workload(application, created_at=rows.ago(days=2)).events.get()
    new = rows.workload(application).events.get()
    assert listed(admin, "workloadevent") == {new.pk}
    assert listed(admin, "workloadevent", window="all") == {new.pk, old.pk}
    assert listed(admin, "workloadevent", window="all", workload=old.workload_id) == {old.pk}


@pytest.mark.parametrize("model", sorted(PAGES))
@pytest.mark.parametrize(
    "query",
    [
        {"q": "a\0b"},
        {"q": "x" * 5000},
        {"p": "99999999999999999999"},
        {"p": "-1"},
        {"p": "x"},
        {"o": "1.2.-3.x"},
        {"all": "1"},
        {"lifecycle": "NOPE", "state": "' or 1=1", "application": "9" * 40, "window": "1y"},
        {"worker": "9" * 30, "workload": "-1", "tenant": "x\0"},
    ],
)
def test_a_list_answers_any_query_without_breaking(
    tenant: Tenant, admin: Client, model: str, query: dict[str, str]
) -> None:
    answer = admin.get(list_url(model), query)
    assert answer.status_code in {200, 302, 400}


@pytest.mark.parametrize(
    ("model", "lookup"),
    [
        ("apitoken", "token_hash__startswith"),
        ("worker", "credential_hash__startswith"),
        ("membership", "user__password__startswith"),
        ("workload", "input__isnull"),
        ("grant", "token_digest"),
    ],
)
def test_a_list_cannot_be_filtered_by_what_it_does_not_show(
    tenant: Tenant, admin: Client, model: str, lookup: str
) -> None:
    assert admin.get(list_url(model), {lookup: "0"}).status_code == 400


@pytest.mark.parametrize("model", sorted(PAGES))
def test_an_empty_list_says_what_to_do(tenant: Tenant, admin: Client, model: str) -> None:
    answer = admin.get(list_url(model))
    if answer.context["cl"].result_count == 0:
        assert PAGES[model].empty_title in answer.content.decode()
        assert PAGES[model].empty_text


def test_a_filter_that_matches_nothing_can_be_cleared(tenant: Tenant, admin: Client) -> None:
    text = admin.get(list_url("worker"), {"q": "nobody"}).content.decode()
    assert "Nothing matches" in text
    assert "Clear the filters" in text


def test_an_id_leads_to_its_page(tenant: Tenant, admin: Client) -> None:
    application = rows.application(tenant)
    worker = rows.worker(application, "alpha-1")
    workload = rows.workload(application, State.RUNNING, worker, idempotency_key="order-9")
    attempt = workload.attempts.get()
    wanted = {
        "alpha-1": worker,
        worker.worker_id: worker,
        workload.workload_id: workload,
        "order-9": workload,
        attempt.claim_id: attempt,
        worker.grant.grant_id: worker.grant,
    }
    for text, row in wanted.items():
        answer = admin.get(reverse("admin:find"), {"q": f" {text} "})
        assert answer["Location"] == change_url(row), text


def test_nothing_of_another_tenant_is_found(admin: Client) -> None:
    made = one_of_each(rows.tenant("other"))
    for text in (
        made["worker"].name,
        made["workload"].idempotency_key,
        made["workload"].workload_id,
        made["attempt"].claim_id,
        made["grant"].grant_id,
    ):
        for url, name in (("find", "q"), ("search", "s")):
            answer = admin.get(reverse(f"admin:{url}"), {name: text, "extended": 1})
            assert answer.status_code == 200
            assert "/change/" not in answer.content.decode()


def test_a_page_may_be_addressed_by_the_public_id(tenant: Tenant, admin: Client) -> None:
    worker = rows.worker(rows.application(tenant))
    url = reverse("admin:mesh_worker_change", args=[worker.worker_id])
    assert worker.name in admin.get(url).content.decode()
    missing = reverse("admin:mesh_worker_change", args=["worker_000"])
    assert admin.get(missing).status_code == 404


def test_waiting_work_says_what_it_waits_for(tenant: Tenant, admin: Client) -> None:
    Workload.objects.all()
    rows.workload(
        rows.application(tenant),
        claimable=False,
        available_at=rows.ago() + timedelta(minutes=5, seconds=30),
        last_failure={"kind": "timeout", "error": "took too long"},
    )
    text = admin.get(list_url("workload")).content.decode()
    assert "due in 5 min, after timeout: took too long" in text
