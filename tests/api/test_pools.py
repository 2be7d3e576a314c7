"""Pools over HTTP: the exact shape, changes, and the workers in them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.factories import World

from .client import assert_refused, call, get, post
from .routes import pool_body, submit_body


def test_a_pool_is_answered_as_it_was_sent(world: World) -> None:
    body, token = pool_body(world), world.token()
    made = post("pools", body, token)
    assert (made.status, made.json) == (201, body)
    assert get(f"pools/{body['pool_id']}", token).json == body
    assert get("pools", token).json["results"] == [body]
    assert_refused(post("pools", body, token), "WORKER_POOL_EXISTS")


def test_a_pool_without_a_limit_says_null(world: World) -> None:
    body = pool_body(world)
    del body["max_concurrency"]
    assert post("pools", body, world.token()).json == {**body, "max_concurrency": None}


def test_a_change_names_only_what_it_changes(world: World) -> None:
    body, token = pool_body(world), world.token()
    post("pools", body, token)
    path = f"pools/{body['pool_id']}"
    other = world.worker().worker_id
    changes: tuple[dict[str, Any], ...] = (
        {"name": "other"},
        {"worker_ids": [other]},
        {"max_concurrency": None},
        {"capabilities": [], "required_labels": {}},
        {},
    )
    for change in changes:
        body = {**body, **change}
        answer = call("PATCH", path, change, secret=token)
        assert (answer.status, answer.json) == (200, body)
    for member in ("pool_id", "application"):
        answer = call("PATCH", path, {member: body[member]}, secret=token)
        assert_refused(answer, "REQUEST_INVALID")


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"max_concurrency": 0}, "WORKER_INVALID"),
        ({"max_concurrency": 2**31}, "REQUEST_INVALID"),
        ({"max_concurrency": 1.5}, "REQUEST_INVALID"),
        ({"name": ""}, "WORKER_INVALID"),
        ({"required_labels": {"a": "x" * 256}}, "WORKER_INVALID"),
        ({"capabilities": ["c"] * 257}, "WORKER_INVALID"),
        ({"worker_ids": ["worker_x"]}, "WORKER_NOT_FOUND"),
    ],
)
def test_a_value_out_of_its_rule_has_the_rule_s_code(
    world: World, members: dict[str, Any], code: str
) -> None:
    token, body = world.token(), pool_body(world)
    assert_refused(post("pools", {**body, **members}, token), code)
    post("pools", body, token)
    assert_refused(call("PATCH", f"pools/{body['pool_id']}", members, secret=token), code)


def test_members_are_bounded_by_the_body_alone(world: World) -> None:
    ids = [world.worker().worker_id for _ in range(2)] * 200
    answer = post("pools", pool_body(world, worker_ids=ids), world.token())
    assert answer.json["worker_ids"] == sorted(set(ids))


def test_a_pool_that_was_deleted_is_not_found(world: World) -> None:
    token, path = world.token(), f"pools/{world.pool().pool_id}"
    assert call("DELETE", path, secret=token).status == 204
    for method in ("GET", "DELETE"):
        assert_refused(call(method, path, secret=token), "POOL_NOT_FOUND")


def test_lists_of_pools_and_of_workers_are_filtered(world: World) -> None:
    inside, _ = world.worker(), world.worker()
    pool, token = world.pool(inside), world.token()
    for query, number in (("documents", 1), ("mail", 0)):
        found = get(f"pools?application={query}", token).json["results"]
        assert len(found) == number
    (found,) = get(f"workers?pool={pool.pool_id}", token).json["results"]
    assert found["worker_id"] == inside.worker_id
    assert get("workers?pool=other", token).json["results"] == []


def test_a_page_of_pools_ends_early_where_it_would_be_too_heavy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.api.reading._MAX_PAGE_MEMBERS", 2)
    members, token = [world.worker() for _ in range(2)], world.token()
    for _ in range(3):
        world.pool(*members)
    seen, path = [], "pools"
    while path:
        page = get(path, token).json
        seen += [each["pool_id"] for each in page["results"]]
        assert len(page["results"]) == 1
        path = (page["next"] or "").removeprefix("http://testserver/api/v1/")
    assert len(set(seen)) == 3


def test_work_tells_its_pool_and_resources(world: World) -> None:
    token = world.token()
    asked = {"pool_id": "gpu", "resources": {"gpu_count": 1}}
    work = post("workloads", submit_body(world, policy=asked), token).json["workload"]
    pairs: dict[str, Any] = {"required_labels": {}, "affinity": {}, "anti_affinity": {}}
    assert work["policy"] == {**pairs, **asked}
    plain = post("workloads", submit_body(world, policy={"pool_id": None}), token).json
    assert plain["workload"]["policy"] == {**pairs, "pool_id": None, "resources": {}}


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ({"pool_id": ""}, "WORKLOAD_INVALID"),
        ({"pool_id": "p" * 201}, "WORKLOAD_INVALID"),
        ({"pool_id": 1}, "REQUEST_INVALID"),
        ({"resources": {"cpu_millis": -1}}, "WORKLOAD_INVALID"),
        ({"resources": {"cpu_millis": 2**63}}, "REQUEST_INVALID"),
        ({"resources": {"cpus": 1}}, "REQUEST_INVALID"),
        ({"resources": None}, "REQUEST_INVALID"),
    ],
)
def test_a_bad_pool_or_resource_of_work_is_refused(
    world: World, policy: dict[str, Any], code: str
) -> None:
    assert_refused(post("workloads", submit_body(world, policy=policy), world.token()), code)
