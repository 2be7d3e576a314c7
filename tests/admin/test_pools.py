"""Pools in the console: made, changed and deleted by forms; who counts, and why others do not."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from mesh.models import Application, AuditEntry, Pool, State, Tenant

from . import rows
from .test_access import act_url, change_url, list_url

GIVEN = {"name": "GPU", "capabilities": "", "required_labels": "", "worker_ids": ""}


@pytest.fixture
def application(tenant: Tenant) -> Application:
    return rows.application(tenant)


def make(client: Client, application: Application, **data: Any) -> Any:
    given = {**GIVEN, "application": application.pk, "pool_id": "gpu", "max_concurrency": ""}
    return client.post(reverse("admin:mesh_pool_maker"), {**given, **data})


def change(client: Client, pool: Pool, **data: Any) -> Any:
    given = {**GIVEN, "id": pool.pk, "reason": "more machines", "max_concurrency": ""}
    return client.post(act_url("pool", "change"), {**given, **data}, follow=True)


def test_an_operator_makes_a_pool(operator: Client, application: Application) -> None:
    worker = rows.worker(application)
    answer = make(
        operator,
        application,
        capabilities="documents.extract\n",
        required_labels="zone=eu-1\nurl=a=b",
        worker_ids=f"{worker.worker_id}\n\n",
        max_concurrency=3,
    )
    pool = Pool.objects.get()
    assert reverse("admin:mesh_pool_change", args=[pool.pk]) in answer.content.decode()
    assert (pool.pool_id, pool.capabilities, pool.max_concurrency) == (
        "gpu",
        ["documents.extract"],
        3,
    )
    assert pool.required_labels == {"zone": "eu-1", "url": "a=b"}
    assert list(pool.workers.all()) == [worker]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"pool_id": "a/b"}, "WORKER_INVALID"),
        ({"worker_ids": "worker_x"}, "WORKER_NOT_FOUND"),
        ({"required_labels": "zone"}, "key=value"),
        ({"max_concurrency": 0}, "greater than or equal to 1"),
    ],
)
def test_a_form_that_is_refused_says_why_and_makes_nothing(
    operator: Client, application: Application, data: dict[str, Any], told: str
) -> None:
    assert told in make(operator, application, **data).content.decode()
    assert not Pool.objects.exists()


def test_the_form_to_change_a_pool_begins_with_what_it_is(
    operator: Client, application: Application
) -> None:
    worker = rows.worker(application)
    pool = rows.pool(application, worker, required_labels={"zone": "a"}, max_concurrency=2)
    answer = operator.get(act_url("pool", "change"), {"id": pool.pk})
    shown = answer.context["form"].initial
    assert (shown["name"], shown["worker_ids"], shown["required_labels"]) == (
        pool.name,
        worker.worker_id,
        "zone=a",
    )
    answer = change(operator, pool, worker_ids="", max_concurrency=5)
    assert "1 done" in answer.content.decode()
    pool.refresh_from_db()
    assert (pool.name, pool.max_concurrency, pool.workers.count()) == ("GPU", 5, 0)
    entry = AuditEntry.objects.get(action="pool.changed")
    assert (entry.actor, entry.reason) == ("human:ben", "more machines")


def test_one_run_changes_one_pool(operator: Client, application: Application) -> None:
    two = [rows.pool(application).pk, rows.pool(application).pk]
    answer = operator.get(act_url("pool", "change"), {"id": two}, follow=True)
    assert "At most 1 row in one run" in answer.content.decode()
    listed = operator.get(list_url("pool")).context["list_acts"]
    assert [each.name for each in listed] == ["delete-pool"]


def test_deleting_a_pool_says_first_how_much_work_will_wait(
    operator: Client, application: Application
) -> None:
    pool = rows.pool(application)
    work = rows.workload(application, State.READY)
    type(work.requirement).objects.filter(pk=work.requirement_id).update(pool_id=pool.pool_id)
    asked = operator.get(act_url("pool", "delete-pool"), {"id": pool.pk}).content.decode()
    assert "1 claimable workloads name it" in asked
    given = {"id": [pool.pk, 0], "reason": "spare"}
    report = operator.post(act_url("pool", "delete-pool"), given)
    assert "1 done, 1 refused: NOT_FOUND" in report.content.decode()
    assert not Pool.objects.exists()


def test_a_pool_page_says_who_counts_and_why_others_do_not(
    viewer: Client, application: Application
) -> None:
    good, bad = rows.worker(application, "good"), rows.worker(application, "bad", labels={})
    pool = rows.pool(application, good, bad, required_labels={"zone": "eu-1"}, max_concurrency=1)
    text = viewer.get(change_url(pool)).content.decode()
    assert "lacks zone=eu-1" in text
    assert text.count("lacks") == 1
    assert "lacks zone=eu-1" in viewer.get(change_url(bad)).content.decode()
    assert "lacks" not in viewer.get(change_url(good)).content.decode()


def test_a_pool_page_tells_what_counts_against_its_limit(
    viewer: Client, application: Application
) -> None:
    worker = rows.worker(application)
    pool = rows.pool(application, worker, max_concurrency=1)
    work = rows.workload(application, State.RUNNING, worker)
    assert "FULL" not in viewer.get(change_url(pool)).content.decode()
    work.attempts.update(pool_id=pool.pool_id)
    text = viewer.get(change_url(pool)).content.decode()
    assert "FULL" in text
    assert work.workload_id in text


def test_the_list_of_workers_shows_those_of_a_pool(
    viewer: Client, application: Application
) -> None:
    inside, _ = rows.worker(application), rows.worker(application)
    pool = rows.pool(application, inside)
    shown = viewer.get(list_url("worker"), {"pool": pool.pk}).context["cl"].result_list
    assert [each.pk for each in shown] == [inside.pk]
