"""What probes and monitoring are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from config import health
from config.celery import SWEEPS
from mesh import clock, workers
from mesh.models import SweepRun, Tenant
from tests.factories import World

pytestmark = pytest.mark.django_db


def finished(name: str, seconds_ago: float) -> None:
    at = clock.now() - timedelta(seconds=seconds_ago)
    SweepRun.objects.update_or_create(name=name, defaults={"last_finished_at": at})


@pytest.fixture(autouse=True)
def all_on_time() -> Iterator[None]:
    with clock.set_to(clock.now()):
        for name in SWEEPS:
            finished(name, 1)
        yield


def part(client: Client, name: str) -> dict[str, object]:
    answer: dict[str, object] = client.get("/readyz").json()[name]
    return answer


def test_the_process_answers_whatever_else_is_wrong(client: Client) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert client.get("/healthz").json() == {"status": "ok"}
    assert len(queries) == 0


def test_a_broker_that_does_not_answer_is_named(client: Client) -> None:
    answer = client.get("/readyz")  # tests have no broker
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "unavailable",
        "database": {"ok": True},
        "migrations": {"ok": True},
        "broker": {"ok": False, "detail": "no connection"},
        "sweeps": {"ok": True},
    }


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_that_stopped_is_named(client: Client, name: str) -> None:
    # Late after half a minute, or after three of its own intervals.
    late = max(30, round(3 * SWEEPS[name])) + 1
    finished(name, late)
    assert part(client, "sweeps") == {"ok": False, "detail": f"{name} finished {late} s ago"}


def test_sweeps_that_are_a_little_late_are_no_alarm(client: Client) -> None:
    for name in SWEEPS:
        finished(name, 25)
    assert part(client, "sweeps") == {"ok": True}


def test_a_system_in_which_no_lease_was_ever_swept_is_not_ready(client: Client) -> None:
    SweepRun.objects.all().delete()
    assert part(client, "sweeps") == {"ok": False, "detail": "recover_expired_leases never ran"}


def test_a_migration_that_was_not_applied_is_told(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_is_migrated", False)
    with connection.cursor() as cursor:
        cursor.execute("delete from django_migrations where app = 'mesh'")
    assert part(client, "migrations")["ok"] is False


def test_metrics_are_closed_unless_opened(client: Client, settings: Settings) -> None:
    settings.METRICS_OPEN = False
    assert client.get("/metrics").status_code == 404
    settings.METRICS_OPEN = True
    assert client.get("/metrics").status_code == 200


def test_metrics_count_and_name_nobody(client: Client) -> None:
    Tenant.objects.create(name="acme-and-sons")
    text = client.get("/metrics").content.decode()
    assert "fencepost_database_up 1.0" in text
    assert 'fencepost_workers{lifecycle="READY"} 0.0' in text
    assert 'fencepost_workloads{state="READY"} 0.0' in text
    assert 'fencepost_sweep_lag_seconds{sweep="promote_due"}' in text
    assert "acme" not in text


def test_metrics_do_not_count_workers_that_were_removed(client: Client) -> None:
    world = World()
    workers.remove(caller=world.operator, worker_id=world.worker().worker_id)
    world.registered()
    text = client.get("/metrics").content.decode()
    assert 'fencepost_workers{lifecycle="OFFLINE"} 0.0' in text
    assert 'fencepost_workers{lifecycle="REGISTERED"} 1.0' in text


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_only_read(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405
    assert "no-cache" in client.get(path)["Cache-Control"]


def test_an_answer_tells_nothing_about_the_inside(client: Client) -> None:
    body = json.dumps(client.get("/readyz").json())
    assert "/" not in body
