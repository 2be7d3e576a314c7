"""Every route of the API with a call that it accepts.

Tests that hold for all routes are generated from this; a route of the URL conf that is missing
here fails `test_every_route_has_a_case`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

from django.urls import URLPattern, URLResolver, get_resolver

from mesh import clock, workloads
from mesh.api.renderers import at
from tests.factories import CAPABILITY, REGISTRAR, Held, Member, World, incident, name, offline

from . import run_routes
from .calls import OPEN, WORKER, Call, Route

_V1: Final = "api/v1/"


def register_body(world: World, **members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "contract_version": 1,
        "tenant": world.tenant.name,
        "application": world.application,
        "name": name("worker"),
        "runtime": "container",
        "version": "1.0",
        "capabilities": [CAPABILITY],
        "workload_kinds": [],
        "resource_profile": {"cpu_millis": 1000},
        "labels": {"zone": "a"},
        "capacity": {"concurrency": 2},
        "registered_by": REGISTRAR,
    }
    return {**said, "grant": members.pop("grant", None) or world.grant()[1], **members}


def submit_body(world: World, **members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "application": world.application,
        "environment": "production",
        "definition_id": "extract",
        "definition_revision": "1",
        "trigger": "manual",
        "input": {"document": "a.pdf"},
        "idempotency_key": name("key"),
        "capability_snapshot": [CAPABILITY],
        "priority": 1,
        "retry_policy": {"max_attempts": 2, "backoff": "fixed", "retry_on": ["timeout"]},
        "timeouts": {"execution_ms": 60_000},
        "policy": {"required_labels": {}},
        "session_id": "s",
    }
    return {**said, **members}


def pause_body(world: World, **members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "application": world.application,
        "definition_id": "extract",
        "reason": "bad release",
        "until": at(clock.now() + timedelta(hours=1)),
    }
    return {**said, **members}


def beat_body(member: Member, **members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "version": member.row.version,
        "capability_version": member.row.capability_version,
        "health": "HEALTHY",
        "timestamp": at(clock.now()),
        "running_claims": [],
        "capacity": {"concurrency": 4},
    }
    return {**said, **members}


def reconcile_body(member: Member, **members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "worker_version": member.row.version,
        "capability_version": member.row.capability_version,
        "known_claims": [],
        "running_attempts": [],
        "completed_attempts": [],
        "failed_attempts": [],
        "timestamp": at(clock.now()),
    }
    return {**said, **members}


def issue_body(world: World, **members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "application": world.application,
        "subject": REGISTRAR,
        "capabilities": ["worker:register"],
        "resources": [{"kind": "APPLICATION", "uri": f"flow://{world.application}"}],
        "constraints": {"worker_names": ["edge-*"]},
        "expires_in_ms": 60_000,
    }
    return {**said, **members}


def delegate_body(**members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "subject": "service:edge",
        "capabilities": ["worker:register"],
        "resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/workers"}],
        "constraints": {"worker_names": ["edge-*"], "labels": {"zone": "a"}},
        "expires_in_ms": 30_000,
    }
    return {**said, **members}


def _on_worker(action: str, body: Callable[[Member], Any], **options: Any) -> Route:
    def make(world: World) -> Call:
        member = world.worker()
        return Call(f"workers/{member.worker_id}/{action}", body(member), member)

    pattern = f"workers/<any:worker_id>/{action}"
    return Route("POST", pattern, options.pop("needs", WORKER), make, "WORKER", **options)


def _draining(world: World) -> Call:
    from mesh import workers

    held = world.claimed()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id)
    return Call(f"workers/{held.worker.worker_id}/undrain", {"reason": "again"}, held.worker)


def _offline(world: World) -> Call:
    return Call(f"workers/{offline(world).worker_id}/recover", {"reason": "again"})


def _on_workload(action: str, maker: str = "workload", body: Any = None) -> Callable[..., Call]:
    def make(world: World) -> Call:
        made = getattr(world, maker)()
        row = made.workload if isinstance(made, Held) else made
        holder = made.worker if isinstance(made, Held) else None
        return Call(f"workloads/{row.workload_id}{action}", body, holder)

    return make


def _placeable(world: World) -> Call:
    member = world.worker()
    path = f"workloads/{world.workload().workload_id}/place"
    return Call(path, {"worker_id": member.worker_id, "lease_ms": 30_000})


def _starts(world: World) -> Call:
    held = world.claimed(world.worker(concurrency=8))
    items = [
        {"claim_id": each.claim.claim_id, "fencing_token": each.claim.fencing_token}
        for each in (held, world.claimed(held.worker))
    ]
    return Call(f"workers/{held.worker.worker_id}/starts", {"starts": items}, held.worker)


def _results(world: World) -> Call:
    held = world.running(world.worker(concurrency=8))
    one, two, three, four = held, *(world.running(held.worker) for _ in range(3))
    workloads.cancel(caller=world.operator, workload_id=three.workload.workload_id)
    workloads.cancel(caller=world.operator, workload_id=four.workload.workload_id)
    complete = {"result_id": "r-1", "output": {"pages": 3}, "artifacts": [], "logs": "done"}
    fail = {"kind": "broken", "error": "It broke.", "details": {"page": 1}, "no_effect": True}
    items = [
        _item(one, "complete", **complete, resource_usage={"cpu_ms": 5}),
        _item(two, "fail", **fail),
        _item(three, "cancelled"),
        _item(four, "release"),
    ]
    return Call(f"workers/{held.worker.worker_id}/results", {"results": items}, held.worker)


def _item(held: Held, outcome: str, **members: Any) -> dict[str, Any]:
    claim = held.claim
    said = {"claim_id": claim.claim_id, "fencing_token": claim.fencing_token, "outcome": outcome}
    return {**said, **members}


def _validate(world: World) -> Call:
    held = world.running()
    body = {
        "fencing_token": held.claim.fencing_token,
        "worker_id": held.worker.worker_id,
        "workload_id": held.workload.workload_id,
        "capabilities": [CAPABILITY],
    }
    return Call(f"claims/{held.claim.claim_id}/validate", body, held.worker)


def _on_claim(action: str, maker: str, /, **members: Any) -> Route:
    def make(world: World) -> Call:
        held: Held = getattr(world, maker)()
        body = {"fencing_token": held.claim.fencing_token, **members}
        return Call(f"claims/{held.claim.claim_id}/{action}", body, held.worker)

    free = tuple({"state", "output"} & members.keys())
    return Route("POST", f"claims/<any:claim_id>/{action}", WORKER, make, "CLAIM", free)


def pool_body(world: World, **members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "pool_id": name("pool"),
        "application": world.application,
        "name": "Machines with a GPU",
        "capabilities": [CAPABILITY],
        "required_labels": {"zone": "a"},
        "worker_ids": [world.worker().worker_id],
        "max_concurrency": 3,
    }
    return {**said, **members}


def _on_pool(world: World) -> Call:
    return Call(f"pools/{world.pool(world.worker()).pool_id}")


def _changed_pool(world: World) -> Call:
    said = pool_body(world)
    body = {name: said[name] for name in said.keys() - {"pool_id", "application"}}
    return Call(_on_pool(world).path, body)


def _on_grant(world: World, action: str = "", body: Any = None) -> Call:
    return Call(f"grants/{world.grant()[0].grant_id}{action}", body)


ROUTES: Final = (
    Route("GET", "workers", "viewer", lambda world: Call("workers")),
    Route("POST", "workers", OPEN, lambda world: Call("workers", register_body(world))),
    Route(
        "GET",
        "workers/<any:worker_id>",
        "viewer",
        lambda world: Call(f"workers/{world.worker().worker_id}"),
        "WORKER",
    ),
    Route(
        "DELETE",
        "workers/<any:worker_id>",
        "operator",
        lambda world: Call(f"workers/{world.worker().worker_id}"),
        "WORKER",
    ),
    _on_worker("heartbeat", beat_body),
    _on_worker("claims", lambda member: {"max": 1, "lease_ms": 30_000}),
    Route("POST", "workers/<any:worker_id>/starts", WORKER, _starts, "WORKER"),
    Route("POST", "workers/<any:worker_id>/results", WORKER, _results, "WORKER", ("output",)),
    _on_worker("reconcile", reconcile_body),
    _on_worker("drain", lambda member: {"reason": "r", "deadline_ms": 1000}, needs="operator"),
    Route("POST", "workers/<any:worker_id>/undrain", "operator", _draining, "WORKER"),
    Route("POST", "workers/<any:worker_id>/recover", "operator", _offline, "WORKER"),
    Route("GET", "workloads", "viewer", lambda world: Call("workloads")),
    Route(
        "POST",
        "workloads",
        "operator",
        lambda world: Call("workloads", submit_body(world)),
        free=("input",),
    ),
    Route(
        "POST",
        "workloads/batch",
        "operator",
        lambda world: Call("workloads/batch", {"workloads": [submit_body(world)]}),
    ),
    Route("GET", "workloads/<any:workload_id>", "viewer", _on_workload(""), "WORKLOAD"),
    *(
        Route(
            "GET",
            f"workloads/<any:workload_id>/{part}",
            "viewer",
            _on_workload(f"/{part}", "checkpointed"),
            "WORKLOAD",
        )
        for part in ("history", "attempts", "checkpoints", "placement", "decisions")
    ),
    Route("GET", "pauses", "viewer", lambda world: Call("pauses")),
    Route("POST", "pauses", "operator", lambda world: Call("pauses", pause_body(world))),
    Route(
        "DELETE",
        "pauses/<any:pause_id>",
        "operator",
        lambda world: Call(f"pauses/{world.pause().pause_id}"),
        "PAUSE",
    ),
    Route("POST", "workloads/<any:workload_id>/place", "operator", _placeable, "WORKLOAD"),
    Route(
        "POST",
        "workloads/<any:workload_id>/cancel",
        "operator",
        _on_workload("/cancel", body={"reason": "r"}),
        "WORKLOAD",
    ),
    Route(
        "POST",
        "workloads/<any:workload_id>/retry",
        "operator",
        _on_workload("/retry", "dead_letter", {"extra_attempts": 2, "reason": "r"}),
        "WORKLOAD",
    ),
    Route(
        "POST",
        "workloads/<any:workload_id>/resolve",
        "operator",
        _on_workload(
            "/resolve", "held", {"resolution": "succeeded", "output": {"pages": 3}, "reason": "r"}
        ),
        "WORKLOAD",
        ("output",),
    ),
    Route(
        "POST",
        "workloads/<any:workload_id>/reclaim",
        "operator",
        _on_workload("/reclaim", "running", {"reason": "r"}),
        "WORKLOAD",
    ),
    _on_claim("start", "claimed"),
    _on_claim("renew", "claimed", lease_ms=30_000),
    _on_claim("checkpoint", "running", state={"page": 1}),
    _on_claim(
        "complete",
        "running",
        result_id="r-1",
        output={"pages": 3},
        artifacts=["s3://bucket/a"],
        logs="done",
        resource_usage={"cpu_ms": 5},
    ),
    _on_claim(
        "fail", "running", kind="broken", error="It broke.", details={"page": 1}, no_effect=True
    ),
    _on_claim("cancelled", "cancelling"),
    _on_claim("release", "claimed"),
    Route("POST", "claims/<any:claim_id>/validate", "viewer", _validate, "CLAIM"),
    Route("GET", "pools", "viewer", lambda world: Call("pools")),
    Route(
        "POST",
        "pools",
        "operator",
        lambda world: Call("pools", pool_body(world)),
        free=("max_concurrency",),
    ),
    Route("GET", "pools/<any:pool_id>", "viewer", _on_pool, "POOL"),
    Route("PATCH", "pools/<any:pool_id>", "operator", _changed_pool, "POOL", ("max_concurrency",)),
    Route("DELETE", "pools/<any:pool_id>", "operator", _on_pool, "POOL"),
    Route("GET", "grants", "admin", lambda world: Call("grants")),
    Route("POST", "grants", "admin", lambda world: Call("grants", issue_body(world))),
    Route("GET", "grants/<any:grant_id>", "admin", _on_grant, "GRANT"),
    Route(
        "POST",
        "grants/<any:grant_id>/delegate",
        "admin",
        lambda world: _on_grant(world, "/delegate", delegate_body()),
        "GRANT",
    ),
    Route(
        "POST",
        "grants/<any:grant_id>/revoke",
        "admin",
        lambda world: _on_grant(world, "/revoke", {"reason": "r"}),
        "GRANT",
    ),
    Route("GET", "sweeps", "viewer", lambda world: Call("sweeps")),
    Route("GET", "incidents", "viewer", lambda world: Call("incidents")),
    Route(
        "POST",
        "incidents/<any:incident_id>/resume",
        "operator",
        lambda world: Call(f"incidents/{incident(world).incident_id}/resume", {"reason": "r"}),
        "INCIDENT",
    ),
    Route(
        "POST",
        "revocations",
        "admin",
        lambda world: Call("revocations", {"kind": "subject", "id": REGISTRAR, "reason": "r"}),
    ),
    Route("GET", "schema", OPEN, lambda world: Call("schema")),
    Route("GET", "docs", OPEN, lambda world: Call("docs")),
    *run_routes.ROUTES,
)
WITH_BODY: Final = tuple(each for each in ROUTES if each.method in {"POST", "PATCH"})


def served() -> set[tuple[str, str]]:
    """Every method and pattern under /api/v1/ that the URL conf really serves."""
    return {
        (method, pattern.removeprefix(_V1))
        for pattern, view in _leaves(get_resolver().url_patterns, "")
        if pattern.startswith(_V1)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if hasattr(view, method.lower())
    }


def _leaves(patterns: list[Any], before: str) -> Iterator[tuple[str, Any]]:
    for each in patterns:
        path = before + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from _leaves(each.url_patterns, path)
        elif isinstance(each, URLPattern):
            view = getattr(each.callback, "cls", None) or getattr(each.callback, "view_class", None)
            yield path, view
