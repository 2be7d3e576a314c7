"""The pure choice: every failed test has its own reason; the eligible are ranked."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import placement
from mesh.models import Grant, Requirement, Worker
from tests.mesh.checks import MICRO, NOON, ms

TENANT, OTHER = 1, 2


def worker(**members: Any) -> Worker:
    said: dict[str, Any] = {
        "application_id": TENANT,
        "lifecycle": "READY",
        "health": "HEALTHY",
        "concurrency": 2,
        "granted_capabilities": ["a"],
        "worker_id": "worker_a",
    }
    return Worker(**{**said, **members})


def need(**members: Any) -> Requirement:
    said: dict[str, Any] = {"application_id": TENANT, "definition_id": "d", "capabilities": ["a"]}
    return Requirement(**{**said, **members})


ACTIVE = Grant(status="ACTIVE", expires_at=NOON + ms(1))


@pytest.mark.parametrize(
    ("candidate", "asked", "grant", "reasons"),
    [
        (worker(), need(), ACTIVE, ()),
        (worker(application_id=OTHER), need(), ACTIVE, ("TENANT",)),
        (worker(lifecycle="BUSY"), need(), ACTIVE, ()),
        (worker(lifecycle="REGISTERED"), need(), ACTIVE, ("LIFECYCLE",)),
        (worker(lifecycle="DRAINING"), need(), ACTIVE, ("LIFECYCLE",)),
        (worker(lifecycle="OFFLINE"), need(), ACTIVE, ("LIFECYCLE",)),
        (worker(lifecycle="RECOVERING"), need(), ACTIVE, ("LIFECYCLE",)),
        (worker(is_unreconciled=True), need(), ACTIVE, ("LIFECYCLE",)),
        (worker(removed_at=NOON), need(), ACTIVE, ("LIFECYCLE",)),
        (worker(health="DEGRADED"), need(), ACTIVE, ("HEALTH",)),
        (worker(active=1), need(), ACTIVE, ()),
        (worker(active=2), need(), ACTIVE, ("CAPACITY",)),
        (worker(active=3), need(), ACTIVE, ("CAPACITY",)),
        (worker(), need(capabilities=["a", "b"]), ACTIVE, ("CAPABILITY",)),
        (worker(), need(capabilities=[]), ACTIVE, ()),
        (worker(workload_kinds=["d", "e"]), need(), ACTIVE, ()),
        (worker(workload_kinds=["e"]), need(), ACTIVE, ("KIND",)),
        (worker(labels={"x": "1", "y": "2"}), need(required_labels={"x": "1"}), ACTIVE, ()),
        (worker(labels={"x": "2"}), need(required_labels={"x": "1"}), ACTIVE, ("LABEL",)),
        (worker(labels={"x": "1"}), need(anti_affinity={"x": "1"}), ACTIVE, ("ANTI_AFFINITY",)),
        (worker(labels={"x": "1"}), need(anti_affinity={"x": "2"}), ACTIVE, ()),
        (worker(labels={"x": "1"}), need(affinity={"x": "2"}), ACTIVE, ()),
        (worker(), need(), Grant(status="REVOKED", expires_at=NOON + ms(1)), ("GRANT",)),
        (worker(), need(), Grant(status="SUPERSEDED", expires_at=NOON + ms(1)), ()),
        (worker(), need(), Grant(status="ACTIVE", expires_at=NOON), ("GRANT",)),
        (worker(), need(), Grant(status="ACTIVE", expires_at=NOON + MICRO), ()),
        (
            worker(application_id=OTHER, active=2, health="UNKNOWN", granted_capabilities=[]),
            need(),
            Grant(status="REVOKED", expires_at=NOON),
            ("TENANT", "HEALTH", "CAPACITY", "CAPABILITY", "GRANT"),
        ),
    ],
)
def test_a_candidate_is_judged_with_every_reason(
    candidate: Worker, asked: Requirement, grant: Grant, reasons: tuple[str, ...]
) -> None:
    assert placement.judge(asked, candidate, grant, NOON).reasons == reasons


def rank(*candidates: Worker, affinity: dict[str, str] | None = None) -> list[str]:
    asked = need(affinity=affinity or {})
    verdicts = [placement.judge(asked, each, ACTIVE, NOON) for each in candidates]
    return [each.worker_id for each in placement.rank(asked, verdicts)]


def test_ranking_is_by_affinity_then_load_then_size_then_id() -> None:
    low = {"affinity": {"x": "1", "y": "1"}}
    best = worker(worker_id="5", labels={"x": "1", "y": "1"}, active=1, concurrency=2)
    half = worker(worker_id="4", labels={"x": "1", "y": "2"})
    idle = worker(worker_id="3", concurrency=9)
    twin = worker(worker_id="2", concurrency=9)
    loaded = worker(worker_id="1", active=1, concurrency=50)
    assert rank(loaded, idle, half, twin, best, **low) == ["5", "4", "2", "3", "1"]


def test_only_the_eligible_are_ranked() -> None:
    assert rank(worker(worker_id="1", health="UNKNOWN"), worker(worker_id="2")) == ["2"]


def pool(*members: int, **members_of: Any) -> placement.PoolRules:
    said: dict[str, Any] = {"capabilities": frozenset(), "required_labels": {}, **members_of}
    return placement.PoolRules(members=set(members), **said)


def around(**members: Any) -> placement.Around:
    return placement.Around(**members)


IN_POOL = need(pool_id="p")
SIZED = {"cpu_millis": 100, "memory_bytes": 50}


@pytest.mark.parametrize(
    ("candidate", "asked", "facts", "reasons"),
    [
        (worker(id=1), need(), around(), ()),
        (worker(id=1), IN_POOL, around(), ("POOL",)),
        (worker(id=1), IN_POOL, around(pool=pool(2)), ("POOL",)),
        (worker(id=1), IN_POOL, around(pool=pool(1)), ()),
        (worker(id=1), IN_POOL, around(pool=pool(1, capabilities=frozenset("a"))), ()),
        (worker(id=1), IN_POOL, around(pool=pool(1, capabilities=frozenset("b"))), ("POOL",)),
        (worker(id=1), IN_POOL, around(pool=pool(1, required_labels={"x": "1"})), ("POOL",)),
        (worker(id=1), IN_POOL, around(pool=pool(1), pool_room=1), ()),
        (worker(id=1), IN_POOL, around(pool=pool(1), pool_room=0), ("POOL_CAPACITY",)),
        (worker(id=1), IN_POOL, around(pool=pool(2), pool_room=0), ("POOL", "POOL_CAPACITY")),
        (worker(resource_profile=SIZED), need(resources={"cpu_millis": 100}), around(), ()),
        (
            worker(resource_profile=SIZED),
            need(resources={"cpu_millis": 101}),
            around(),
            ("RESOURCES",),
        ),
        (worker(resource_profile=SIZED), need(resources={"gpu_count": 1}), around(), ()),
        (worker(), need(resources={"cpu_millis": 101}), around(), ()),
        (
            worker(id=1, resource_profile=SIZED),
            need(resources={"cpu_millis": 41}),
            around(used={1: {"cpu_millis": 60}}),
            ("RESOURCES",),
        ),
        (
            worker(id=1, resource_profile=SIZED),
            need(resources={"cpu_millis": 40}),
            around(used={1: {"cpu_millis": 60}, 2: {"cpu_millis": 60}}),
            (),
        ),
        (worker(), need(), around(is_paused=True), ("PAUSED",)),
    ],
)
def test_a_candidate_is_judged_by_what_is_around_it(
    candidate: Worker,
    asked: Requirement,
    facts: placement.Around,
    reasons: tuple[str, ...],
) -> None:
    assert placement.judge(asked, candidate, ACTIVE, NOON, facts).reasons == reasons


def test_reasons_stand_in_the_order_of_the_tests() -> None:
    candidate = worker(
        application_id=OTHER,
        lifecycle="OFFLINE",
        health="UNKNOWN",
        active=2,
        granted_capabilities=[],
        workload_kinds=["e"],
        labels={"x": "1"},
        resource_profile={"cpu_millis": 1},
    )
    asked = need(
        required_labels={"y": "1"},
        anti_affinity={"x": "1"},
        pool_id="p",
        resources={"cpu_millis": 2},
    )
    grant = Grant(status="REVOKED", expires_at=NOON)
    facts = around(pool_room=0, is_paused=True)
    assert placement.judge(asked, candidate, grant, NOON, facts).reasons == placement.REASONS


def test_nothing_needed_is_there_even_where_less_than_nothing_is_left() -> None:
    assert placement.is_within(
        {"cpu_millis": 0}, placement.left({"cpu_millis": 1}, {"cpu_millis": 2})
    )
