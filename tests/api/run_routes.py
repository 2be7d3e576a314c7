"""The routes of workflow runs, each with a call that is accepted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from mesh import clock, tenancy
from mesh.api.renderers import at
from mesh.models import Role
from tests.factories import CAPABILITY, World, name
from tests.workflows import rows
from workflows import attestations, cancellation, coordinators, steering
from workflows.authority import Authority
from workflows.models import HandoffMode, Run
from workflows.transitions import Transition

from .calls import Call, Route

_RUN: Final = "runs/<any:run_id>"


def sent(authority: Authority) -> dict[str, Any]:
    """An authority as its owner sends it."""
    return {**authority.public(), "fencing_token": authority.fencing_token}


def definition_body(world: World, **members: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "application": world.application,
        "definition_id": name("flow"),
        "version": 1,
        "steps": [
            {
                "step": "one",
                "definition_id": "extract",
                "needs": [],
                "capabilities": [CAPABILITY],
                "resources": [{"resource": "shelf", "access": "write", "scope": "run"}],
                "effect": "read_only",
                "replay": "none",
                "retry": {"max_attempts": 2},
                "delivery": {"max_attempts": 3},
                "on_failure": "fail",
                "timeouts": {"execution_ms": 60_000},
                "policy": {"required_labels": {}},
                "input": {"$from": "run", "pointer": "/file"},
            }
        ],
    }
    return {**said, **members}


def run_body(world: World, **members: Any) -> dict[str, Any]:
    definition = rows.make_definition(world)
    said: dict[str, Any] = {
        "application": world.application,
        "run_id": name("run"),
        "definition_id": definition.definition_id,
        "version": definition.version,
        "input": {"file": "a.pdf"},
        "limits": {
            "concurrency": 2,
            "step_executions": 10,
            "deadline": at(clock.now() + timedelta(hours=1)),
        },
        "coordinator": "external",
        "authority": sent(rows.authority()),
        "environment": "production",
    }
    return {**said, **members}


def _owned(world: World, *steps: dict[str, Any]) -> tuple[Run, Authority]:
    owner = rows.authority()
    return rows.make_run(world, steps or None, owner=owner), owner


def _read(part: str = "", query: str = "") -> Route:
    def make(world: World) -> Call:
        run, _ = _owned(world)
        return Call(f"runs/{run.run_id}{part}{query}")

    return Route("GET", f"{_RUN}{part}", "viewer", make, "RUN")


def _steered(part: str, *, before: Any = None, **members: Any) -> Route:
    """A call that may come with an authority, and does."""

    def make(world: World) -> Call:
        run, owner = _owned(world)
        if before is not None:
            before(world, run)
        return Call(f"runs/{run.run_id}/{part}", {"authority": sent(owner), **members})

    return Route("POST", f"{_RUN}/{part}", "operator", make, "RUN")


def _claim(world: World) -> Call:
    run = rows.make_run(world)
    return Call(f"runs/{run.run_id}/authority", {"authority": sent(rows.authority())})


def _adopt(world: World) -> Call:
    return Call(f"runs/{rows.make_run(world).run_id}/adopt", {"reason": "nobody drives it"})


def _admit(world: World) -> Call:
    shelf = {"resource": "shelf", "access": "write", "scope": "run"}
    run, owner = _owned(world, rows.step("one", resources=[shelf]))
    body = {"authority": sent(owner), "step": "one", "attempt": 1, "resources": [shelf]}
    return Call(f"runs/{run.run_id}/attempts", body)


def _settle(world: World) -> Call:
    run, owner = _owned(world)
    attempt = rows.make_attempt(world, run)
    body = {"authority": sent(owner), "outcome": {"kind": "not_started"}}
    return Call(f"runs/{run.run_id}/attempts/{attempt.dispatch_identity}/settle", body)


def _cancelled(world: World, run: Run) -> None:
    cancellation.request(caller=world.operator, run_id=run.run_id)


def _failed(world: World, run: Run) -> None:
    steering.set_failure(
        run, code="broken", message="It broke.", step="", by="service:ops", at=clock.now()
    )


def _transition(world: World) -> tuple[Run, Authority, Authority]:
    """An owned run whose owner relinquished, and a coordinator that may have it next."""
    run, owner = _owned(world)
    rows.make_coordinator(world, owner.instance_id, relinquished_at=run.created_at)
    after = rows.authority(generation=2)
    rows.make_coordinator(world, after.instance_id)
    return run, owner, after


def _hand_over(world: World) -> Call:
    run, owner, after = _transition(world)
    body = {"mode": "normal", "expected": sent(owner), "replacement": sent(after)}
    return Call(f"runs/{run.run_id}/handoffs", body)


def _attest(world: World) -> Call:
    run, owner, after = _transition(world)
    shown = {"mode": "normal", "expected": owner.public(), "replacement": after.public()}
    body = {"transition": shown, "statement": "I saw it stop."}
    return Call(f"runs/{run.run_id}/attestations", body)


def _confirm(world: World) -> Call:
    world.tenant.attestations = 2
    world.tenant.save()
    run, owner, after = _transition(world)
    first = attestations.attest(
        caller=world.caller(Role.ADMIN, "human:ann"),
        run_id=run.run_id,
        transition=Transition(HandoffMode.NORMAL, owner, after),
        statement="I saw it stop.",
    )
    return Call(f"attestations/{first.attestation_id}/confirm", {"statement": "So did I."})


def coordinator_body(**members: Any) -> dict[str, Any]:
    said = {"instance_id": name("instance"), "artifact": "coordinator:1.0", "lease_ms": 30_000}
    return {**said, **members}


def _on_coordinator(action: str, **body: Any) -> Route:
    def make(world: World) -> Call:
        secret = world.token(Role.OPERATOR)
        row, _ = coordinators.register(caller=tenancy.authenticate(secret), **coordinator_body())
        return Call(f"coordinators/{row.instance_id}/{action}", body, secret=secret)

    pattern = f"coordinators/<any:instance_id>/{action}"
    return Route("POST", pattern, "operator", make, "COORDINATOR")


ROUTES: Final = (
    Route("GET", "definitions", "viewer", lambda world: Call("definitions")),
    Route(
        "POST",
        "definitions",
        "operator",
        lambda world: Call("definitions", definition_body(world)),
        free=("input",),
    ),
    Route(
        "GET",
        "definitions/<any:definition_id>/<any:version>",
        "viewer",
        lambda world: Call(f"definitions/{rows.make_definition(world).definition_id}/1"),
        "DEFINITION",
    ),
    Route("GET", "runs", "viewer", lambda world: Call("runs")),
    Route("POST", "runs", "operator", lambda world: Call("runs", run_body(world)), free=("input",)),
    _read(),
    _read("/history"),
    _read("/admission"),
    _read("/resources"),
    _read("/resource-conflict", "?resource=shelf&access=read"),
    _read("/handoffs"),
    Route("POST", f"{_RUN}/authority", "operator", _claim, "RUN"),
    Route("POST", f"{_RUN}/adopt", "operator", _adopt, "RUN"),
    _steered("pause", reason="look first"),
    _steered("resume", reason="looked"),
    _steered("cancel", reason="wrong document"),
    _steered("control-failure", code="full", message="No room.", step="one"),
    _steered("control-failure/clear", before=_failed, reason="there is room"),
    _steered("recovery/finish"),
    _steered("terminalize", before=_cancelled),
    Route("POST", f"{_RUN}/attempts", "operator", _admit, "RUN"),
    Route("POST", f"{_RUN}/attempts/<any:dispatch_identity>/settle", "operator", _settle, "RUN"),
    Route("POST", f"{_RUN}/handoffs", "operator", _hand_over, "RUN"),
    Route("POST", f"{_RUN}/attestations", "admin", _attest, "RUN"),
    Route("POST", "attestations/<any:attestation_id>/confirm", "admin", _confirm, "ATTESTATION"),
    Route(
        "POST", "coordinators", "operator", lambda world: Call("coordinators", coordinator_body())
    ),
    _on_coordinator("heartbeat", lease_ms=20_000),
    _on_coordinator("relinquish"),
)
