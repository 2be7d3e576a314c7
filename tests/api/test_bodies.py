"""Hostile and ill-shaped bodies: each a clear refusal, nothing written, on every POST route."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from mesh.api.parsers import MAX_BODY
from tests.factories import World

from .calls import Call, Route
from .client import Answer, assert_refused, call, post
from .routes import WITH_BODY, register_body, submit_body
from .test_every_route import rows
from .test_parsers import MALFORMED, REFUSED

ALL_OPTIONAL = (
    "/drain",
    "/undrain",
    "/recover",
    "/place",
    "/cancel",
    "/retry",
    "/revoke",
    "/<any:pool_id>",
    "coordinators/<any:instance_id>/heartbeat",
    "/relinquish",
)
WRONG: dict[type, list[Any]] = {
    str: [1, True, None, [], {}, 1.5],
    bool: ["true", 1, 0, None, [], {}],
    int: ["1", True, None, [], {}, 1.5, 1.0, ""],
    list: ["x", 1, True, None, {}, [1], [None], [["x"]]],
    dict: ["x", 1, True, None, [], [{}]],
}


@pytest.fixture
def prepared(world: World, route: Route) -> tuple[Call, str | None, dict[str, int]]:
    made = route.make(world)
    return made, route.secret(world, made), rows()


Prepared = tuple[Call, str | None, dict[str, int]]


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
def test_hostile_bodies_are_refused_and_write_nothing(route: Route, prepared: Prepared) -> None:
    made, secret, before = prepared
    expected = [(raw, "REQUEST_MALFORMED") for raw in MALFORMED]
    expected += [(raw, "REQUEST_INVALID") for raw in [*REFUSED, *NO_OBJECTS]]
    for raw, code in expected:
        if len(raw) <= 60_000 or route.pattern != "workers":
            assert_refused(call(route.method, made.path, raw=raw, secret=secret), code)
    assert rows() == before


NO_OBJECTS = [b"[]", b"null", b"1", b'"x"', b"true", b'[{"a": 1}]', b"1.5"]


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
def test_a_body_that_is_needed_is_asked_for(route: Route, prepared: Prepared) -> None:
    made, secret, before = prepared
    answer = call(route.method, made.path, secret=secret)
    if route.pattern.endswith(ALL_OPTIONAL):
        assert answer.status == 200, answer.text
    else:
        assert_refused(answer, "REQUEST_MALFORMED")
        assert rows() == before


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
def test_only_json_in_utf8_is_taken(route: Route, prepared: Prepared) -> None:
    made, secret, before = prepared
    raw = json.dumps(made.body).encode()
    for content_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "application/json; charset=latin-1",
        "application/jsonp",
        "*/*",
        "",
    ):
        answer = call(route.method, made.path, raw=raw, secret=secret, content_type=content_type)
        assert_refused(answer, "CONTENT_TYPE_UNSUPPORTED")
    assert rows() == before
    good = "Application/JSON; charset=UTF-8"
    assert call(route.method, made.path, raw=raw, secret=secret, content_type=good).status < 300


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
def test_a_body_over_the_limit_is_refused(route: Route, prepared: Prepared) -> None:
    made, secret, before = prepared
    limit = 64 * 1024 if route.pattern == "workers" else MAX_BODY
    send = partial(call, route.method, made.path)
    answer = send(raw=b'{"a": "' + b"x" * (limit - 8) + b'"}', secret=secret)
    assert_refused(answer, "BODY_TOO_LARGE")
    answer = send(raw=b'{"a": "' + b"x" * (limit - 9) + b'"}', secret=secret)
    assert_refused(answer, "REQUEST_INVALID")
    assert rows() == before


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
def test_members_of_a_wrong_type_are_named_and_refused(route: Route, prepared: Prepared) -> None:
    made, secret, before = prepared
    for path, body in wrongly_typed(made.body or {}, route.free):
        if (route.pattern, path) in MAY_BE_NULL and body[path] is None:
            continue
        answer = call(route.method, made.path, body, secret=secret)
        assert_refused(answer, "REQUEST_INVALID")
        fields = [each["field"] for each in answer.json["errors"]]
        assert [f for f in fields if path.startswith(f) or f.startswith(path)], (path, fields)
    assert rows() == before


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
def test_unknown_and_missing_members_are_named_and_refused(
    route: Route, prepared: Prepared
) -> None:
    made, secret, before = prepared
    body = made.body or {}
    for path in ("parent", "wait", "__proto__", "x" * 1000):
        answer = call(route.method, made.path, {**body, path: 1}, secret=secret)
        assert_refused(answer, "REQUEST_INVALID")
        assert answer.json["errors"][0]["field"] == path[:200]
    if route.pattern.endswith(ALL_OPTIONAL):
        return
    answer = call(route.method, made.path, {}, secret=secret)
    assert_refused(answer, "REQUEST_INVALID")
    assert answer.json["errors"]
    assert rows() == before


def wrongly_typed(body: dict[str, Any], free: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The body with each member in turn, nested ones too, replaced by each wrong value."""
    for name, value in body.items():
        if name in free:
            continue
        for wrong in WRONG[type(value)]:
            if not (wrong is None and name in NULLABLE) and not (
                name in FREE_OBJECTS and wrong == [{}] and isinstance(value, list)
            ):
                yield name, {**copy.deepcopy(body), name: wrong}
        if isinstance(value, dict) and name not in FREE_OBJECTS:
            for path, changed in wrongly_typed(value, ()):
                yield f"{name}.{path}", {**copy.deepcopy(body), name: changed}


NULLABLE = {"worker_id", "resource_usage", "details", "execution_ms", "deadline"}
# Null is as good as left out there, and there alone.
MAY_BE_NULL = {("pauses", "definition_id"), ("pauses", "until")}
FREE_OBJECTS = {"resource_usage", "details"}


def submitted(world: World, **members: Any) -> Answer:
    return post("workloads", submit_body(world, **members), world.token())


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"capacity": {"concurrency": 0}}, "WORKER_INVALID"),
        ({"capacity": {"concurrency": 1001}}, "WORKER_INVALID"),
        ({"capacity": {"concurrency": 2**31}}, "REQUEST_INVALID"),
        ({"capacity": {}}, "REQUEST_INVALID"),
        ({"capacity": {"concurrency": 1, "active": 0}}, "REQUEST_INVALID"),
        ({"contract_version": 2}, "CONTRACT_VERSION_UNSUPPORTED"),
        ({"runtime": "teapot"}, "REQUEST_INVALID"),
        ({"runtime": ""}, "REQUEST_INVALID"),
        ({"name": ""}, "WORKER_INVALID"),
        ({"version": " "}, "WORKER_INVALID"),
        ({"capabilities": ["c"] * 257}, "WORKER_INVALID"),
        ({"capabilities": ["c" * 256]}, "WORKER_INVALID"),
        ({"labels": {str(n): "" for n in range(65)}}, "WORKER_INVALID"),
        ({"labels": {"k" * 64: ""}}, "WORKER_INVALID"),
        ({"labels": {"k": "v" * 256}}, "WORKER_INVALID"),
        ({"resource_profile": {"cpu_millis": -1}}, "WORKER_INVALID"),
        ({"heartbeat_interval_ms": 999}, "WORKER_INVALID"),
        ({"heartbeat_interval_ms": 300_001, "heartbeat_timeout_ms": 900_000}, "WORKER_INVALID"),
        ({"heartbeat_timeout_ms": 900_001}, "WORKER_INVALID"),
        ({"grant": "x.y.z"}, "GRANT_INVALID"),
    ],
)
def test_register_refuses_each_bound_one_over(
    members: dict[str, Any], code: str, world: World
) -> None:
    body = {**register_body(world), **members}
    before = rows()
    assert_refused(post("workers", body), code)
    assert rows() == before


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"idempotency_key": " "}, "WORKLOAD_INVALID"),
        ({"idempotency_key": "k" * 256}, "WORKLOAD_INVALID"),
        ({"idempotency_key": "run:1"}, "WORKLOAD_INVALID"),
        ({"definition_id": "d" * 201}, "WORKLOAD_INVALID"),
        ({"capability_snapshot": ["c"] * 257}, "WORKLOAD_INVALID"),
        ({"input": "x" * (1024 * 1024)}, "WORKLOAD_INVALID"),
        ({"input": {"Password": "x"}}, "WORKLOAD_SECRET_REJECTED"),
        ({"priority": 2**31}, "REQUEST_INVALID"),
        ({"priority": -(2**31) - 1}, "REQUEST_INVALID"),
        ({"lost_policy": "drop"}, "REQUEST_INVALID"),
        ({"policy": {"pool_id": " "}}, "WORKLOAD_INVALID"),
        ({"policy": {"pool_id": "p" * 201}}, "WORKLOAD_INVALID"),
        ({"policy": {"resources": {"cpu_millis": -1}}}, "WORKLOAD_INVALID"),
        ({"policy": {"resources": {"threads": 1}}}, "REQUEST_INVALID"),
        ({"dependencies": [{"workload_id": "w"}] * 257}, "WORKLOAD_INVALID"),
        ({"dependencies": [{"workload_id": "w"}]}, "WORKLOAD_DEPENDENCY_INVALID"),
        ({"retry_policy": {"backoff": "random"}}, "REQUEST_INVALID"),
        ({"retry_policy": {"max_attempts": 0}}, "WORKLOAD_INVALID"),
        ({"retry_policy": {"jitter": 1.5}}, "WORKLOAD_INVALID"),
        ({"timeouts": {"execution_ms": 0}}, "WORKLOAD_INVALID"),
        ({"timeouts": {"execution_ms": 2**62}}, "WORKLOAD_INVALID"),
        ({"not_before": "2030-01-01T00:00:00"}, "REQUEST_INVALID"),
        ({"not_before": "2030-01-01"}, "REQUEST_INVALID"),
        ({"not_before": "2030-02-30T00:00:00Z"}, "REQUEST_INVALID"),
        ({"not_before": "0001-01-01T00:00:00Z"}, "REQUEST_INVALID"),
        ({"not_before": "9999-12-31T23:59:59-23:59"}, "REQUEST_INVALID"),
        ({"not_before": "2999-01-01T00:00:00Z"}, "WORKLOAD_INVALID"),
        ({"application": "nothing"}, "APPLICATION_NOT_FOUND"),
    ],
)
def test_submit_refuses_each_bound_one_over(
    members: dict[str, Any], code: str, world: World
) -> None:
    answer = submitted(world, **members)
    assert_refused(answer, code)
    assert rows()["Workload"] == 0


@pytest.mark.parametrize(
    "value",
    [
        1e300,
        -0.0,
        5e-324,
        2**63 - 1,
        -(2**63),
        None,
        "",
        [],
        {},
        {"a": [1e300, {"b": "😀"}]},
        "\x7f",
    ],
)
def test_input_comes_back_as_it_was_sent(value: Any, world: World) -> None:
    token = world.token()
    sent = post("workloads", submit_body(world, input=value), token)
    assert sent.status == 201
    path = f"workloads/{sent.json['workload']['workload_id']}"
    found = call("GET", path, secret=token).json["input"]
    assert repr(found) == repr(value)


def test_numbers_that_the_database_spells_out_come_back_as_numbers(world: World) -> None:
    held = world.running()
    body = {
        "fencing_token": held.claim.fencing_token,
        "kind": "broken",
        "error": "It broke.",
        "details": {"size": 1e300, "many": [1e200]},
    }
    secret = held.worker.credential
    answer = post(f"claims/{held.claim.claim_id}/fail", body, secret)
    assert answer.json["failure"]["details"] == body["details"]
    path = f"workloads/{held.workload.workload_id}/attempts"
    found = call("GET", path, secret=world.token()).json["results"][0]
    assert found["failure"]["details"] == {"size": 1e300, "many": [1e200]}
