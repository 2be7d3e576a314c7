"""What people and services do is audited, and so is what they were not allowed to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache

from mesh import (
    brake,
    grants,
    liveness,
    pauses,
    placing,
    pools,
    recovery,
    resolutions,
    revocations,
    tenancy,
    workers,
    workloads,
)
from mesh.models import AuditEntry, Grant, Role
from tests.factories import REGISTRAR, World, offline
from tests.mesh.checks import NOON, Clock, ms, refused


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    cache.clear()


def entries(world: World) -> list[tuple[str, str, str, str, str]]:
    """The audit of a world without the rights it was set up with."""
    found = AuditEntry.objects.filter(tenant=world.tenant).order_by("pk")
    return [
        (each.action, each.actor, each.target, each.reason, each.code)
        for each in found
        if each.action not in {"tenant.created", "grant.issued"} or each.code
    ]


def _draining(world: World) -> str:
    held = world.claimed()
    workers.drain(caller=held.worker.caller, worker_id=held.worker.worker_id)
    return held.worker.worker_id


def _unfinished(world: World) -> str:
    return world.workload().workload_id


ACTS: dict[str, tuple[Callable[..., Any], str, Callable[[World], str]]] = {
    "worker.drained": (workers.drain, "worker_id", lambda w: w.worker().worker_id),
    "worker.undrained": (workers.undrain, "worker_id", _draining),
    "worker.removed": (workers.remove, "worker_id", lambda w: w.worker().worker_id),
    "workload.cancelled": (workloads.cancel, "workload_id", _unfinished),
    "workload.retried": (
        workloads.retry,
        "workload_id",
        lambda w: w.dead_letter().workload.workload_id,
    ),
    "workload.reclaimed": (
        resolutions.reclaim,
        "workload_id",
        lambda w: w.claimed().workload.workload_id,
    ),
}


@pytest.mark.parametrize("action", ACTS)
def test_an_operators_act_is_audited_with_its_reason(world: World, action: str) -> None:
    operation, noun, make = ACTS[action]
    target = make(world)
    before = len(entries(world))
    operation(caller=world.operator, **{noun: target}, reason="because")
    assert entries(world)[before:] == [(action, "service:ops", target, "because", "")]
    assert AuditEntry.objects.latest("pk").at == NOON


@pytest.mark.parametrize("action", ACTS)
def test_an_act_that_the_role_does_not_allow_is_audited_with_its_code(
    world: World, action: str
) -> None:
    operation, noun, make = ACTS[action]
    target = make(world)
    before = len(entries(world))
    with refused("PERMISSION_DENIED"):
        operation(caller=world.caller(Role.VIEWER), **{noun: target}, reason="because")
    assert entries(world)[before:] == [
        (action, "service:ops", target, "because", "PERMISSION_DENIED")
    ]


def test_an_act_that_the_state_of_things_does_not_allow_leaves_no_row(world: World) -> None:
    worker = world.worker()
    with refused("WORKER_TRANSITION_DENIED"):
        workers.recover(caller=world.operator, worker_id=worker.worker_id)
    assert entries(world) == []


def test_recover_and_place_are_audited_with_what_they_were_given(world: World) -> None:
    gone, worker, work = offline(world), world.worker(), world.workload()
    before = len(entries(world))
    workers.recover(caller=world.operator, worker_id=gone.worker_id)
    placing.place(caller=world.operator, workload_id=work.workload_id, worker_id=worker.worker_id)
    told = [(each[0], each[2]) for each in entries(world)[before:]]
    assert told == [("worker.recovered", gone.worker_id), ("workload.placed", work.workload_id)]
    latest = AuditEntry.objects.order_by("-pk")[:2]
    assert [each.evidence for each in latest] == [
        {"worker_id": worker.worker_id},
        {"became": "RECOVERING"},
    ]


def test_what_a_worker_does_itself_and_what_sweeps_do_is_not_audited(
    world: World, clock: Clock
) -> None:
    held = world.worker()
    workers.drain(caller=held.caller, worker_id=held.worker_id)
    world.running()
    before = entries(world)
    clock.pass_(ms(100_000))
    for name in recovery.SWEEPS:
        recovery.run(name)
    assert entries(world) == before


def test_a_refusal_that_is_repeated_leaves_one_row(world: World) -> None:
    target = _unfinished(world)
    for _ in range(3):
        with refused("PERMISSION_DENIED"):
            workloads.cancel(caller=world.caller(Role.VIEWER), workload_id=target)
    assert len(entries(world)) == 1


def test_a_worker_that_acts_as_an_operator_is_audited(world: World) -> None:
    one, other = world.worker(), world.worker()
    with refused("PERMISSION_DENIED"):
        workers.drain(caller=one.caller, worker_id=other.worker_id)
    (entry,) = entries(world)
    assert entry == (
        "worker.drained",
        one.caller.subject,
        other.worker_id,
        "",
        "PERMISSION_DENIED",
    )


DENIED: dict[str, Callable[[Any], Any]] = {
    "pool.created": lambda c: pools.create(caller=c, application="a", pool_id="p", content={}),
    "pool.changed": lambda c: pools.change(caller=c, pool_id="p", change={}),
    "pool.deleted": lambda c: pools.delete(caller=c, pool_id="p"),
    "pause.created": lambda c: pauses.create(caller=c, application="p", reason=""),
    "pause.lifted": lambda c: pauses.lift(caller=c, pause_id="p"),
    "incident.resumed": lambda c: brake.resume(caller=c, incident_id="p", reason=""),
    "grant.issued": lambda c: grants.issue(caller=c, application="a", subject="p", capabilities=[]),
    "grant.delegated": lambda c: grants.delegate(
        caller=c, grant_id="p", subject="", capabilities=[]
    ),
    "grant.revoked": lambda c: revocations.revoke_grant(caller=c, grant_id="p"),
    "rights.revoked": lambda c: revocations.revoke(caller=c, kind="grant", target="p"),
    "member.created": lambda c: tenancy.add_member(
        caller=c, name="p", role=Role.VIEWER, password="x"
    ),
    "token.created": lambda c: tenancy.create_token(caller=c, name="p", role=Role.VIEWER),
    "token.revoked": lambda c: tenancy.revoke_token(caller=c, name="p"),
    "workload.resolved": lambda c: resolutions.resolve(
        caller=c, workload_id="p", resolution="failed", reason=""
    ),
    "workload.placed": lambda c: placing.place(caller=c, workload_id="p"),
    "worker.recovered": lambda c: workers.recover(caller=c, worker_id="p"),
}


@pytest.mark.parametrize("action", DENIED)
def test_whoever_may_not_act_on_steering_or_rights_is_audited(world: World, action: str) -> None:
    with refused("PERMISSION_DENIED"):
        DENIED[action](world.caller(Role.VIEWER))
    (entry,) = entries(world)
    assert (entry[0], entry[2] in {"p", "a"}, entry[4]) == (action, True, "PERMISSION_DENIED")


# --- Registering ----------------------------------------------------------------------------------


def register(world: World, token: str, **members: Any) -> None:
    said = world.registration(grant=token, **members)
    liveness.register(registration=said, credential=None)


@pytest.mark.parametrize(
    ("changed", "members", "code"),
    [
        ({"status": "REVOKED"}, {}, "GRANT_REVOKED"),
        ({"capabilities": ["worker:read"]}, {}, "GRANT_SCOPE_DENIED"),
        ({"constraints": {"worker_names": ["x"]}}, {}, "GRANT_SCOPE_DENIED"),
        ({"expires_at": NOON + ms(1), "not_before": NOON - ms(1)}, {}, "GRANT_EXPIRED"),
        ({}, {"registered_by": "service:other"}, "WORKER_UNAUTHORIZED"),
    ],
)
def test_a_genuine_grant_that_does_not_let_a_worker_in_is_audited(
    world: World, clock: Clock, changed: dict[str, Any], members: dict[str, Any], code: str
) -> None:
    grant, token = world.grant()
    if changed:
        Grant.objects.filter(pk=grant.pk).update(**changed)
    clock.pass_(ms(1))
    with refused(code):
        register(world, token, name="w", **members)
    why = f"under {grant.grant_id}"
    assert entries(world) == [("worker.registered", REGISTRAR, "w", why, code)]


def test_an_attempt_to_take_over_a_live_worker_is_audited(world: World) -> None:
    member, (_, token) = world.worker(), world.grant()
    with refused("WORKER_UNAUTHORIZED"):
        register(world, token, name=member.row.name)
    (entry,) = entries(world)
    assert (entry[0], entry[2], entry[4]) == (
        "worker.registered",
        member.row.name,
        "WORKER_UNAUTHORIZED",
    )


def test_a_forged_grant_and_a_mistake_leave_no_row(world: World) -> None:
    _, token = world.grant()
    before = AuditEntry.objects.count()
    with refused("GRANT_INVALID"):
        register(world, f"{token}x")
    with refused("WORKER_INVALID"):
        register(world, token, concurrency=0)
    assert AuditEntry.objects.count() == before
