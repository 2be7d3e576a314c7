"""The routes of workers: what they answer, and their refusals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mesh import clock
from mesh.api.renderers import at
from mesh.models import Lifecycle, Worker
from tests.factories import CAPABILITY, World, offline

from .client import assert_refused, call, get, post
from .routes import beat_body, reconcile_body, register_body

MEMBERS = {
    "worker_id",
    "tenant",
    "application",
    "name",
    "runtime",
    "version",
    "contract_version",
    "declared_capabilities",
    "granted_capabilities",
    "workload_kinds",
    "resource_profile",
    "labels",
    "capacity",
    "health",
    "lifecycle",
    "heartbeat_interval_ms",
    "heartbeat_timeout_ms",
    "capability_version",
    "incarnation",
    "grant_id",
    "last_seen_at",
    "last_poll_at",
    "last_progress_at",
    "clock_skew_ms",
    "drain_requested_at",
    "drain_deadline_at",
    "registered_at",
}


def test_register_answers_with_the_worker_and_its_credential(world: World) -> None:
    body = register_body(world, capabilities=[CAPABILITY, "not.granted"])
    answer = post("workers", body)
    assert answer.status == 201
    worker = answer.json["worker"]
    assert worker.keys() == MEMBERS
    assert worker["granted_capabilities"] == [CAPABILITY]
    assert worker["capacity"] == {"concurrency": 2, "active": 0}
    assert (worker["lifecycle"], worker["health"]) == ("REGISTERED", "UNKNOWN")
    assert answer.json["credential"].startswith("fpw_")
    assert answer.json["reconcile_required"] is False
    again = post("workers", body, answer.json["credential"])
    assert (again.status, again.json["worker"]["incarnation"]) == (200, 2)
    assert again.json["worker"]["worker_id"] == worker["worker_id"]


def test_times_are_utc_with_milliseconds(world: World) -> None:
    member = world.worker()
    found = get(f"workers/{member.worker_id}", world.token()).json
    assert found["registered_at"] == at(member.refresh().registered_at)
    assert len(found["registered_at"]) == len("2030-01-31T12:00:00.000Z")


def test_a_time_with_another_offset_is_taken(world: World) -> None:
    member = world.worker()
    moment = clock.now().astimezone().isoformat()
    body = beat_body(member, timestamp=moment)
    assert post(f"workers/{member.worker_id}/heartbeat", body, member.credential).status == 200


def test_a_beat_renews_and_tells_what_the_worker_lacks(world: World) -> None:
    held = world.running()
    silent = world.running(held.worker)
    placed = world.claimed(held.worker)
    member = held.worker
    body = beat_body(member, running_claims=[held.claim.claim_id, "claim_unknown"])
    answer = post(f"workers/{member.worker_id}/heartbeat", body, member.credential)
    assert answer.status == 200
    assert [each["claim_id"] for each in answer.json["renewed"]] == [held.claim.claim_id]
    assert answer.json["fenced_claims"] == ["claim_unknown"]
    assert answer.json["missing_claims"] == [silent.claim.claim_id]
    (assigned,) = answer.json["assigned_claims"]
    assert assigned["claim_id"] == placed.claim.claim_id
    assert assigned["workload"]["input"] == {"document": "a.pdf"}
    assert answer.json["worker"]["capacity"] == {"concurrency": 4, "active": 3}
    assert answer.json["worker"].keys() == MEMBERS


def test_a_beat_is_refused_with_the_codes_of_its_rules(world: World) -> None:
    member = world.worker()
    path = f"workers/{member.worker_id}/heartbeat"
    old = at(clock.now() - timedelta(minutes=1))
    for members, code in (
        ({"version": "2.0"}, "WORKER_HEARTBEAT_REJECTED"),
        ({"capability_version": 9}, "WORKER_HEARTBEAT_REJECTED"),
        ({"timestamp": old}, "WORKER_CLOCK_INVALID"),
        ({"capacity": {"concurrency": 0}}, "WORKER_INVALID"),
        ({"health": "healthy"}, "REQUEST_INVALID"),
        ({"running_claims": ["c"] * 1001}, "REQUEST_INVALID"),
        ({"running_claims": ["c" * 201]}, "REQUEST_INVALID"),
    ):
        assert_refused(post(path, beat_body(member, **members), member.credential), code)
    many = beat_body(member, running_claims=["c"] * 1000)
    assert len(post(path, many, member.credential).json["fenced_claims"]) == 1000


def test_claims_are_given_in_full(world: World) -> None:
    member, row = world.worker(), world.workload(timeouts={"execution_ms": 60_000})
    path = f"workers/{member.worker_id}/claims"
    answer = post(path, {"max": 5, "lease_ms": 60_000}, member.credential)
    assert answer.json["reason"] is None
    (claim,) = answer.json["claims"]
    assert claim.keys() == {
        *("claim_id", "workload_id", "attempt_id", "worker_id", "lease_id", "fencing_token"),
        *("capability_snapshot", "execution_context_id", "issued_at", "expires_at", "workload"),
        *("checkpoint", "runtime_policy", "lost_policy"),
    }
    assert claim["lease_id"] == f"lease_{claim['attempt_id']}"
    assert claim["execution_context_id"] == f"context_{claim['claim_id']}"
    assert claim["workload_id"] == row.workload_id
    assert claim["runtime_policy"]["max_duration_ms"] == 60_000
    assert claim["workload"]["attempt_number"] == claim["fencing_token"] == 1


def test_claims_are_refused_out_of_bounds(world: World) -> None:
    member = world.worker()
    path = f"workers/{member.worker_id}/claims"
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"max": 0}, "REQUEST_INVALID"),
        ({"max": 101}, "REQUEST_INVALID"),
        ({"max": 1, "lease_ms": 999}, "WORKLOAD_INVALID"),
        ({"max": 1, "lease_ms": 900_001}, "WORKLOAD_INVALID"),
        ({"max": 1, "wait_ms": -1}, "REQUEST_INVALID"),
        ({"max": 1, "wait_ms": 20_001}, "REQUEST_INVALID"),
        ({"lease_ms": 30_000}, "REQUEST_INVALID"),
    ]
    for body, code in bodies:
        assert_refused(post(path, body, member.credential), code)


def test_a_worker_that_may_take_no_work_is_told_why(world: World) -> None:
    member = world.registered()
    member.beat(health="DEGRADED")
    answer = post(f"workers/{member.worker_id}/claims", {"max": 1}, member.credential)
    assert (answer.status, answer.json) == (200, {"claims": [], "reason": "HEALTH"})


def test_a_worker_that_came_back_reconciles(world: World) -> None:
    held, forgotten = world.running(), None
    member = held.worker
    forgotten = world.running(member)
    body = register_body(
        world, name=member.row.name, grant=world.grant()[1], capacity={"concurrency": 4}
    )
    back = post("workers", body, member.credential).json
    assert back["reconcile_required"] is True
    secret, path = back["credential"], f"workers/{member.worker_id}"
    assert_refused(post(f"{path}/claims", {"max": 1}, secret), "WORKER_RECOVERY_REQUIRED")
    refused = reconcile_body(member, worker_version="9")
    assert_refused(post(f"{path}/reconcile", refused, secret), "WORKER_RECONCILIATION_DENIED")
    known = [held.claim.claim_id, "claim_x"]
    completed = [held.claim.attempt_id, "attempt_x"]
    said = reconcile_body(member, known_claims=known, completed_attempts=completed)
    answer = post(f"{path}/reconcile", said, secret)
    assert answer.json["authoritative_claims"] == [held.claim.claim_id]
    assert answer.json["fenced_claims"] == ["claim_x"]
    assert answer.json["reports"] == {
        held.claim.attempt_id: "accepted",
        "attempt_x": "fenced",
    }
    assert forgotten.attempt.status == "WORKER_LOST"


def test_drain_undrain_recover_and_remove(world: World) -> None:
    held, token = world.claimed(), world.token()
    path = f"workers/{held.worker.worker_id}"
    drained = post(f"{path}/drain", {"reason": "update", "deadline_ms": 60_000}, token)
    assert drained.json["lifecycle"] == "DRAINING"
    assert drained.json["drain_deadline_at"] is not None
    assert_refused(call("DELETE", path, secret=token), "WORKER_BUSY")
    assert post(f"{path}/undrain", None, token).json["lifecycle"] == "READY"
    assert_refused(post(f"{path}/undrain", None, token), "WORKER_TRANSITION_DENIED")
    assert_refused(post(f"{path}/recover", None, token), "WORKER_TRANSITION_DENIED")
    assert_refused(post(f"{path}/drain", {"deadline_ms": -1}, token), "WORKER_INVALID")
    gone = offline(world)
    path = f"workers/{gone.worker_id}"
    assert post(f"{path}/recover", {"reason": "back"}, token).json["lifecycle"] == "RECOVERING"
    answer = call("DELETE", path, secret=token)
    assert (answer.status, answer.text) == (204, "")
    assert_refused(get(path, token), "WORKER_NOT_FOUND")
    assert gone.worker_id not in get("workers", token).text
    assert_refused(get(path, gone.credential), "TOKEN_INVALID")


def test_reasons_are_kept(world: World) -> None:
    member, token = world.worker(), world.token()
    post(f"workers/{member.worker_id}/drain", {"reason": "Ünder repair"}, token)
    row = Worker.objects.get(pk=member.row.pk)
    assert (row.lifecycle, row.drain_reason) == (Lifecycle.OFFLINE, "Ünder repair")
    too_long = {"reason": "x" * 4_001}
    assert_refused(post(f"workers/{member.worker_id}/recover", too_long, token), "REQUEST_INVALID")


def test_a_worker_drains_itself(world: World) -> None:
    member = world.worker()
    answer = post(f"workers/{member.worker_id}/drain", None, member.credential)
    assert answer.json["lifecycle"] == "OFFLINE"
    assert Worker.objects.get(pk=member.row.pk).drain_cause == "worker"
