"""What the sweeps did, and incidents of the brake, over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from config.celery import SWEEPS
from mesh import clock, recovery
from mesh.models import Incident, SweepRun
from tests.factories import World

from .client import assert_refused, get, post


def test_every_sweep_is_listed_also_one_that_never_ran(world: World) -> None:
    recovery.run("promote_due")
    answered = get("sweeps", world.token()).json
    found = {each["name"]: each for each in answered["results"]}
    assert found.keys() == SWEEPS.keys()
    assert 0 <= found["promote_due"]["lag_ms"] < 60_000
    assert found["promote_due"]["last_finished_at"] is not None
    never = found["recover_expired_leases"]
    assert (never["lag_ms"], never["last_finished_at"], never["incident"]) == (None, None, None)


def test_the_lag_is_the_time_since_the_last_finished_pass(world: World) -> None:
    at = clock.now()
    with clock.set_to(at - timedelta(seconds=90)):
        recovery.run("promote_due")
    with clock.set_to(at):
        answered = get("sweeps", world.token()).json
    lags = {each["name"]: each["lag_ms"] for each in answered["results"]}
    assert lags["promote_due"] == 90_000


@pytest.fixture
def held(world: World) -> list[str]:
    """Workers that an incident of that world's tenant holds."""
    members = [world.worker() for _ in range(5)]
    at = clock.now() + timedelta(seconds=31)
    SweepRun.objects.create(name="detect_silent_workers", last_finished_at=at)
    with clock.set_to(at):
        recovery.run("detect_silent_workers")
    return [each.worker_id for each in members]


def _holding(answered: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["incident"] for each in answered["results"] if each["incident"]}


def test_an_incident_is_told_to_its_own_tenant_alone(world: World, held: list[str]) -> None:
    mine, theirs = world.token(), World().token()
    shown = _holding(get("sweeps", mine).json)["detect_silent_workers"]
    assert shown["workers"] == held
    assert get("incidents", mine).json["results"] == [shown]
    assert _holding(get("sweeps", theirs).json) == {}
    assert get("incidents", theirs).json["results"] == []
    path = f"incidents/{shown['incident_id']}/resume"
    assert_refused(post(path, {"reason": "r"}, theirs), "INCIDENT_NOT_FOUND")


def test_a_resume_is_told_in_full(world: World, held: list[str]) -> None:
    incident_id = Incident.objects.get().incident_id
    path = f"incidents/{incident_id}/resume"
    answered = post(path, {"reason": "the rack burnt"}, world.token()).json
    assert answered.keys() == {
        *("incident_id", "sweep", "application", "opened_at", "workers"),
        *("resumed_at", "resumed_by", "reason"),
    }
    assert (answered["incident_id"], answered["application"]) == (incident_id, "documents")
    assert answered["resumed_at"] is not None
    assert answered["resumed_by"].startswith("service:operator")
    assert answered["reason"] == "the rack burnt"
    assert_refused(post(path, {}, world.token()), "REQUEST_INVALID")
