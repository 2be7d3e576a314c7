"""The routes of workloads and claims: what they answer, and their refusals."""

from __future__ import annotations

from typing import Any

import pytest

from mesh.models import Role, State
from tests.factories import Held, World, expire, in_state

from .client import Answer, assert_refused, get, post
from .routes import submit_body

MEMBERS = {
    "application",
    "environment",
    "definition_id",
    "definition_revision",
    "trigger",
    "input",
    "idempotency_key",
    "capability_snapshot",
    "priority",
    "retry_policy",
    "timeouts",
    "policy",
    "lost_policy",
    "not_before",
    "connection_scopes",
    "session_id",
    "dependencies",
    "workload_id",
    "state",
    "attempt_count",
    "fencing_token",
    "available_at",
    "last_failure",
    "current_claim",
    "cancel_requested_at",
    "ended_at",
    "created_at",
    "updated_at",
}
ATTEMPT = {
    "attempt_id",
    "number",
    "worker_id",
    "claim_id",
    "fencing_token",
    "status",
    "claimed_at",
    "started_at",
    "ended_at",
    "expires_at",
    "failure",
    "resource_usage",
}


def report(held: Held, action: str, **members: Any) -> Answer:
    body = {"fencing_token": held.claim.fencing_token, **members}
    return post(f"claims/{held.claim.claim_id}/{action}", body, held.worker.credential)


def test_submit_answers_with_the_work_once(world: World) -> None:
    token, body = world.token(), submit_body(world)
    first, second = post("workloads", body, token), post("workloads", body, token)
    assert (first.status, first.json["created"]) == (201, True)
    assert (second.status, second.json["created"]) == (200, False)
    assert first.json["workload"] == second.json["workload"]
    assert first.json["workload"].keys() == MEMBERS
    assert first.json["workload"]["retry_policy"]["max_delay_ms"] == 300_000
    other = {**body, "input": {"document": "b.pdf"}}
    assert_refused(post("workloads", other, token), "WORKLOAD_IDEMPOTENCY_MISMATCH")


def test_a_viewer_submits_with_a_grant_that_names_it(world: World) -> None:
    secret = world.token(Role.VIEWER)
    assert_refused(post("workloads", submit_body(world), secret), "PERMISSION_DENIED")
    subject = f"service:{world.tenant.tokens.get(role='viewer').name}"
    grant = world.grant(subject=subject, capabilities=["workload:create"])[1]
    assert post("workloads", submit_body(world, grant=grant), secret).status == 201
    others = world.grant(subject="service:other", capabilities=["workload:create"])[1]
    assert_refused(
        post("workloads", submit_body(world, grant=others), secret), "WORKLOAD_UNAUTHORIZED"
    )
    body = submit_body(world, grant="x.y.z")
    assert_refused(post("workloads", body, secret), "GRANT_INVALID")


def test_detail_has_attempts_checkpoint_and_result(world: World) -> None:
    held, token = world.checkpointed(), world.token(Role.VIEWER)
    path = f"workloads/{held.workload.workload_id}"
    running = get(path, token).json
    assert running.keys() == MEMBERS | {"attempts", "checkpoint", "result"}
    assert running["checkpoint"]["state"] == {"page": 1}
    assert running["result"] is None
    assert running["current_claim"]["worker_id"] == held.worker.worker_id
    held.worker.complete(held.claim, {"pages": 3})
    done = get(path, token).json
    assert (done["state"], done["current_claim"]) == ("SUCCEEDED", None)
    assert done["result"]["output"] == {"pages": 3}
    (attempt,) = done["attempts"]
    assert attempt.keys() == ATTEMPT
    assert attempt["status"] == "SUCCEEDED"
    assert get(f"{path}/attempts", token).json["results"] == [attempt]
    (checkpoint,) = get(f"{path}/checkpoints", token).json["results"]
    assert checkpoint == done["checkpoint"]


def test_place_names_a_worker_or_says_why_not(world: World) -> None:
    token, row = world.token(), world.workload()
    path = f"workloads/{row.workload_id}/place"
    assert_refused(post(path, None, token), "MESH_NO_ELIGIBLE_WORKER")
    sick = world.registered()
    denied = post(path, {"worker_id": sick.worker_id}, token)
    assert_refused(denied, "MESH_PLACEMENT_DENIED")
    assert "HEALTH" in denied.json["reasons"]
    assert_refused(post(path, {"worker_id": "nothing"}, token), "WORKER_NOT_FOUND")
    world.worker()
    assert_refused(post(path, {"lease_ms": 1}, token), "WORKLOAD_INVALID")
    assert post(path, None, token).json["fencing_token"] == 1
    assert_refused(post(path, None, token), "WORKLOAD_NOT_READY")


def test_place_takes_only_what_is_due(world: World) -> None:
    row = world.workload(not_before=world.workload().created_at.replace(microsecond=0))
    later = post(
        "workloads", submit_body(world, not_before="2027-06-01T00:00:00+02:00"), world.token()
    ).json["workload"]
    assert later["not_before"] == "2027-05-31T22:00:00.000Z"
    world.worker()
    path = f"workloads/{later['workload_id']}/place"
    assert_refused(post(path, None, world.token()), "WORKLOAD_NOT_YET_ELIGIBLE")
    assert row.state == State.READY


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.READY, "CANCELLED"),
        (State.CLAIMED, "CANCELLATION_REQUESTED"),
        (State.RUNNING, "CANCELLATION_REQUESTED"),
        (State.CANCELLED, "CANCELLED"),
        (State.DEAD_LETTER, "CANCELLED"),
        (State.SUCCEEDED, None),
    ],
)
def test_cancel_by_state(state: State, expected: str | None, world: World) -> None:
    row = in_state(world, state)
    answer = post(f"workloads/{row.workload_id}/cancel", {"reason": "r"}, world.token())
    if expected is None:
        assert_refused(answer, "WORKLOAD_TRANSITION_DENIED")
    else:
        assert (answer.status, answer.json["state"]) == (200, expected)
        assert answer.json.keys() == MEMBERS


def test_retry_takes_dead_letters_only(world: World) -> None:
    held, token = world.dead_letter(), world.token()
    path = f"workloads/{held.workload.workload_id}/retry"
    for extra in (0, 101):
        assert_refused(post(path, {"extra_attempts": extra}, token), "REQUEST_INVALID")
    assert_refused(post(path, {"dependents": 1}, token), "REQUEST_INVALID")
    answer = post(path, {"extra_attempts": 2}, token)
    assert (answer.json["state"], answer.json["ended_at"]) == ("READY", None)
    assert_refused(post(path, None, token), "WORKLOAD_TRANSITION_DENIED")


def test_dependencies_are_told_wherever_work_is(world: World) -> None:
    token, first = world.token(), world.workload().workload_id
    named = [{"workload_id": first}]
    told = [{"workload_id": first, "required_state": "SUCCEEDED"}]
    body = submit_body(world, dependencies=named)
    made = post("workloads", body, token).json["workload"]
    path = f"workloads/{made['workload_id']}"
    answers = [
        made,
        post("workloads", body, token).json["workload"],
        get(path, token).json,
        get("workloads", token).json["results"][0],
        post(f"{path}/cancel", {}, token).json,
    ]
    assert [each["dependencies"] for each in answers] == [told] * 5
    unknown = submit_body(world, dependencies=[{"workload_id": "workload_0"}])
    assert_refused(post("workloads", unknown, token), "WORKLOAD_DEPENDENCY_INVALID")
    odd = submit_body(world, dependencies=[{"workload_id": first, "required_state": "FAILED"}])
    assert_refused(post("workloads", odd, token), "REQUEST_INVALID")


def test_work_goes_from_claim_to_result(world: World) -> None:
    held = world.claimed()
    started = report(held, "start")
    assert started.json.keys() == ATTEMPT
    assert (started.json["status"], report(held, "start").json) == ("RUNNING", started.json)
    renewed = report(held, "renew", lease_ms=60_000)
    assert renewed.json.keys() == {"state", "expires_at", "cancel_requested", "deadline"}
    assert (renewed.json["state"], renewed.json["cancel_requested"]) == ("RUNNING", False)
    assert report(held, "checkpoint", state=None).json["status"] == "CHECKPOINTED"
    done = report(held, "complete", result_id="r", output=[1], resource_usage=None)
    assert done.json["status"] == "SUCCEEDED"
    assert report(held, "complete", result_id="r", output=[1]).json == done.json
    assert_refused(report(held, "complete", result_id="r", output=[2]), "WORKLOAD_RESULT_DUPLICATE")
    assert_refused(report(held, "start"), "WORKLOAD_CLAIM_INVALID")


def test_work_that_failed_tells_why(world: World) -> None:
    held = world.running(retry_policy={"max_attempts": 1})
    assert_refused(
        report(held, "fail", kind="k", error="-----BEGIN PRIVATE KEY-----"),
        "WORKLOAD_SECRET_REJECTED",
    )
    failed = report(held, "fail", kind="broken", error="It broke.", details={"line": 3})
    assert failed.json["failure"]["kind"] == "broken"
    found = get(f"workloads/{held.workload.workload_id}", world.token()).json
    assert (found["state"], found["last_failure"]) == (
        "DEAD_LETTER",
        {"kind": "broken", "error": "It broke."},
    )


def test_release_and_cancelled_end_an_attempt(world: World) -> None:
    released = world.claimed()
    assert report(released, "release").json["status"] == "RELEASED"
    running = world.running()
    assert_refused(report(running, "release"), "WORKLOAD_TRANSITION_DENIED")
    assert_refused(report(running, "cancelled"), "WORKLOAD_TRANSITION_DENIED")
    cancelling = world.cancelling()
    assert_refused(
        report(cancelling, "complete", result_id="r", output=1), "WORKLOAD_TRANSITION_DENIED"
    )
    assert report(cancelling, "cancelled").json["status"] == "CANCELLED"
    stopped = world.claimed()
    post(f"workloads/{stopped.workload.workload_id}/cancel", None, world.token())
    assert_refused(report(stopped, "start"), "WORKLOAD_CANCELLATION_REQUESTED")


@pytest.mark.parametrize(
    ("action", "members"),
    [
        ("start", {}),
        ("renew", {}),
        ("checkpoint", {"state": 1}),
        ("complete", {"result_id": "r", "output": 1}),
        ("fail", {"kind": "k", "error": "e"}),
        ("cancelled", {}),
        ("release", {}),
    ],
)
def test_the_fence_is_told_by_its_codes(action: str, members: dict[str, Any], world: World) -> None:
    held = world.claimed()
    for token in (0, 2, -1, 2**63 - 1):
        answer = report(held, action, **members, fencing_token=token)
        assert_refused(answer, "WORKLOAD_STALE_FENCE")
    expire(held)
    assert_refused(report(held, action, **members), "WORKLOAD_LEASE_EXPIRED")
