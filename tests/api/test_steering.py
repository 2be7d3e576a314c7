"""Pauses, and why work does not run, as a program sees them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from mesh import claims, clock
from mesh.models import Dependency, Role, Workload
from tests.factories import World

from .client import assert_refused, call, get, post
from .routes import pause_body


@pytest.fixture
def secret(world: World) -> str:
    return world.token(Role.OPERATOR)


def placement(work: Workload, secret: str) -> Any:
    answer = get(f"workloads/{work.workload_id}/placement", secret)
    assert answer.status == 200, answer.text
    return answer.json


# --- Pauses ---------------------------------------------------------------------------------------


def test_a_pause_is_answered_with_its_request_and_who_made_it_when(
    world: World, secret: str
) -> None:
    body = pause_body(world)
    made = post("pauses", body, secret)
    assert made.status == 201
    by, created_at = made.json["by"], made.json["created_at"]
    pause_id = made.json["pause_id"]
    assert made.json == {**body, "pause_id": pause_id, "by": by, "created_at": created_at}
    assert by.startswith("service:operator")
    assert get("pauses", secret).json["results"] == [made.json]


def test_what_a_pause_leaves_out_is_null(world: World, secret: str) -> None:
    made = post("pauses", {"application": world.application, "reason": "r"}, secret)
    assert (made.json["definition_id"], made.json["until"]) == (None, None)


def test_a_lifted_pause_is_gone(world: World, secret: str) -> None:
    path = f"pauses/{world.pause().pause_id}"
    assert call("DELETE", path, secret=secret).status == 204
    assert_refused(call("DELETE", path, secret=secret), "PAUSE_NOT_FOUND")
    assert get("pauses", secret).json["results"] == []


def test_pauses_of_one_application_are_listed(world: World, secret: str) -> None:
    made = world.pause()
    assert get("pauses?application=none", secret).json["results"] == []
    found = get(f"pauses?application={world.application}", secret).json["results"]
    assert [each["pause_id"] for each in found] == [made.pause_id]
    assert_refused(get("pauses?definition_id=x", secret), "REQUEST_INVALID")


@pytest.mark.parametrize(
    "members",
    [{"reason": " "}, {"until": "2020-01-01T00:00:00Z"}, {"until": "soon"}, {"by": "me"}],
)
def test_a_pause_out_of_bounds_is_refused(
    world: World, secret: str, members: dict[str, Any]
) -> None:
    assert_refused(post("pauses", pause_body(world, **members), secret), "REQUEST_INVALID")


def test_paused_work_is_not_claimed_until_the_pause_is_lifted(world: World, secret: str) -> None:
    worker, work = world.worker(), world.workload()
    pause_id = post("pauses", pause_body(world), secret).json["pause_id"]
    asked: dict[str, Any] = {"secret": worker.credential, "body": {"max": 1}}
    path = f"workers/{worker.worker_id}/claims"
    assert post(path, **asked).json == {"claims": [], "reason": None}
    found = placement(work, secret)
    assert (found["state"], found["counts"]) == ("held", {"PAUSED": 1})
    assert found["candidates"] == [
        {"worker_id": worker.worker_id, "eligible": False, "reasons": ["PAUSED"]}
    ]
    call("DELETE", f"pauses/{pause_id}", secret=secret)
    (claim,) = post(path, **asked).json["claims"]
    assert claim["workload_id"] == work.workload_id


# --- Placement ------------------------------------------------------------------------------------


def test_queued_work_tells_position_and_rate(world: World, secret: str) -> None:
    worker = world.worker()
    world.workload()
    work = world.workload()
    assert placement(work, secret) == {
        "state": "queued",
        "sentence": "It is queued behind 1 other of its kind; 1 worker may take it, but none of"
        " them has ever asked for work; none of the kind was claimed in the last 5 min.",
        "position": 2,
        "rate_per_minute": 0.0,
        "candidates": [{"worker_id": worker.worker_id, "eligible": True, "reasons": []}],
        "counts": {},
    }
    claims.claim(caller=worker.caller, worker_id=worker.worker_id, maximum=1)
    found = placement(work, secret)
    assert (found["position"], found["rate_per_minute"]) == (1, 0.2)


def test_work_that_nobody_may_take_tells_the_nearest(world: World, secret: str) -> None:
    worker = world.worker()
    work = world.workload(policy={"required_labels": {"zone": "a"}})
    found = placement(work, secret)
    assert (found["state"], found["counts"]) == ("unplaceable", {"LABEL": 1})
    assert found["nearest"] == {
        "worker_id": worker.worker_id,
        "lacks": ["label zone = a (it has none)"],
    }
    assert found.keys() == {"state", "sentence", "candidates", "counts", "nearest"}


def test_delayed_work_tells_when_it_is_due(world: World, secret: str) -> None:
    body = {"not_before": clock.now().replace(year=clock.now().year + 1)}
    found = placement(world.workload(**body), secret)
    assert found["state"] == "delayed"
    assert found["available_at"].startswith(str(body["not_before"].year))


def test_blocked_work_tells_what_it_waits_for(world: World, secret: str) -> None:
    held, work = world.running(), world.workload()
    Dependency.objects.create(workload=work, depends_on=held.workload)
    Workload.objects.filter(pk=work.pk).update(open_dependencies=1, claimable=False)
    found = placement(work, secret)
    assert found["state"] == "blocked"
    assert found["dependencies"] == [{"workload_id": held.workload.workload_id, "state": "RUNNING"}]


def test_work_that_is_not_ready_has_no_candidates(world: World, secret: str) -> None:
    held = world.running()
    found = placement(held.workload, secret)
    assert found.keys() == {"state", "sentence", "candidates", "counts"}
    assert (found["state"], found["candidates"], found["counts"]) == ("not_ready", [], {})


# --- Decisions ------------------------------------------------------------------------------------


def test_decisions_are_listed_latest_first(world: World, secret: str) -> None:
    work = world.workload(policy={"required_labels": {"zone": "a"}})
    unfit = world.worker()
    path = f"workloads/{work.workload_id}"
    assert_refused(post(f"{path}/place", {}, secret), "MESH_NO_ELIGIBLE_WORKER")
    fit = world.worker(labels={"zone": "a"})
    assert post(f"{path}/place", {}, secret).status == 200
    found = get(f"{path}/decisions?page_size=1", secret)
    (latest,) = found.json["results"]
    assert (latest["chosen"], latest["code"], latest["nearest"]) == (fit.worker_id, None, None)
    assert latest["candidates"] == [
        {"worker_id": fit.worker_id, "eligible": True, "reasons": []},
        {"worker_id": unfit.worker_id, "eligible": False, "reasons": ["LABEL"]},
    ]
    assert (latest["considered"], latest["counts"]) == (2, {"LABEL": 1})
    assert latest["actor"].startswith("service:operator")
    parts = urlsplit(found.json["next"])
    (first,) = get(f"{parts.path}?{parts.query}", secret).json["results"]
    assert (first["chosen"], first["code"]) == (None, "MESH_NO_ELIGIBLE_WORKER")
    assert first["nearest"] == {
        "worker_id": unfit.worker_id,
        "lacks": ["label zone = a (it has none)"],
    }
    assert first["decision_id"] != latest["decision_id"]
