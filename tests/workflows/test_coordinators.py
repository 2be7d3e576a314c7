"""Coordinators: whose they are, how long they live, and that what ended never revives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mesh import clock as database_clock
from mesh import tenancy
from mesh.models import AuditEntry, Role
from mesh.tenancy import Caller
from tests.factories import World, name
from tests.mesh.checks import MICRO, Clock, ms
from workflows import coordinators
from workflows.models import Coordinator

from .checks import refused

LEASE = 10_000


@pytest.fixture
def service(world: World) -> Caller:
    return tenancy.authenticate(world.token())


def register(caller: Caller, instance: str = "", **said: Any) -> Coordinator:
    asked = {"artifact": "coordinator:1.0", "lease_ms": LEASE, **said}
    return coordinators.register(caller=caller, instance_id=instance or name("i"), **asked)[0]


def heartbeat(caller: Caller, instance: str) -> Coordinator:
    return coordinators.heartbeat(caller=caller, instance_id=instance)


def relinquish(caller: Caller, instance: str) -> Coordinator:
    return coordinators.relinquish(caller=caller, instance_id=instance)


OWN: list[Callable[[Caller, str], Coordinator]] = [heartbeat, relinquish]
ACTS = [register, *OWN]


def test_a_coordinator_lives_until_its_lease_ends(service: Caller, clock: Clock) -> None:
    row = register(service)
    assert row.registered_by == service.subject
    assert row.is_alive(clock.at + ms(LEASE) - MICRO)
    assert not row.is_alive(clock.at + ms(LEASE))


def test_a_heartbeat_lets_it_live_on_from_now(service: Caller, clock: Clock) -> None:
    row = register(service)
    at = clock.pass_(ms(LEASE) - MICRO)
    assert heartbeat(service, row.instance_id).lease_ends_at == at + ms(LEASE)
    longer = coordinators.heartbeat(caller=service, instance_id=row.instance_id, lease_ms=2 * LEASE)
    assert longer.lease_ends_at == at + ms(2 * LEASE)
    assert heartbeat(service, row.instance_id).lease_ends_at == at + ms(2 * LEASE)


@pytest.mark.parametrize("act", ACTS)
def test_an_ended_lease_never_revives(
    act: Callable[[Caller, str], Coordinator], service: Caller, clock: Clock
) -> None:
    row = register(service)
    clock.pass_(ms(LEASE))
    with refused("COORDINATOR_ENDED"):
        act(service, row.instance_id)


@pytest.mark.parametrize("act", [register, heartbeat])
def test_what_relinquished_never_revives(
    act: Callable[[Caller, str], Coordinator], service: Caller
) -> None:
    row = register(service)
    relinquish(service, row.instance_id)
    with refused("COORDINATOR_ENDED"):
        act(service, row.instance_id)


def test_relinquishing_twice_is_fine_while_the_lease_lasts(service: Caller, clock: Clock) -> None:
    row = register(service)
    first = relinquish(service, row.instance_id).relinquished_at
    clock.pass_(ms(LEASE) - MICRO)
    assert relinquish(service, row.instance_id).relinquished_at == first
    clock.pass_(MICRO)
    with refused("COORDINATOR_ENDED"):
        relinquish(service, row.instance_id)
    assert AuditEntry.objects.filter(action="coordinator.relinquished").count() == 1


def test_a_repeat_by_the_same_token_gets_the_same_row(service: Caller, clock: Clock) -> None:
    first = register(service, "one")
    clock.pass_(ms(1))
    again, is_new = coordinators.register(
        caller=service, instance_id="one", artifact="other:2", lease_ms=2 * LEASE
    )
    assert not is_new
    assert (again.pk, again.artifact, again.lease_ends_at) == (
        first.pk,
        first.artifact,
        first.lease_ends_at,
    )
    assert AuditEntry.objects.filter(action="coordinator.registered").count() == 1


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("is_over", [False, True])
def test_another_token_is_refused_and_noted(
    act: Callable[[Caller, str], Coordinator],
    is_over: bool,
    world: World,
    service: Caller,
    clock: Clock,
) -> None:
    row = register(service)
    other = tenancy.authenticate(world.token(Role.ADMIN))
    if is_over:
        clock.pass_(ms(LEASE))
    with refused("PERMISSION_DENIED"):
        act(other, row.instance_id)
    noted = AuditEntry.objects.get(actor=other.subject, code="PERMISSION_DENIED")
    assert noted.target == row.instance_id


def test_a_later_token_of_the_same_name_is_another_one(world: World) -> None:
    callers = []
    for _ in range(2):
        _, secret = tenancy.create_token(caller=world.caller(), name="svc", role=Role.OPERATOR)
        callers.append(tenancy.authenticate(secret))
        tenancy.revoke_token(caller=world.caller(), name="svc")
    row = register(callers[0])
    with refused("PERMISSION_DENIED"):
        heartbeat(callers[1], row.instance_id)


@pytest.mark.parametrize("act", ACTS)
def test_only_api_tokens_of_operators_have_coordinators(
    act: Callable[[Caller, str], Coordinator], world: World, service: Caller
) -> None:
    row = register(service)
    for caller in (replace(service, token_pk=None), replace(service, role=Role.VIEWER)):
        with refused("PERMISSION_DENIED"):
            act(caller, row.instance_id)


@pytest.mark.parametrize("act", OWN)
def test_a_coordinator_of_another_tenant_is_not_there(
    act: Callable[[Caller, str], Coordinator], service: Caller
) -> None:
    stranger = tenancy.authenticate(World().token())
    row = register(service)
    with refused("COORDINATOR_NOT_FOUND"):
        act(stranger, row.instance_id)
    assert register(stranger, row.instance_id).pk != row.pk


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"lease_ms": 999}, "REQUEST_INVALID"),
        ({"lease_ms": 600_001}, "REQUEST_INVALID"),
        ({"instance": "a b", "lease_ms": 0}, "ADMISSION_INVALID"),
        ({"artifact": " ", "lease_ms": 0}, "ADMISSION_INVALID"),
    ],
)
def test_values_out_of_bounds_are_refused(said: dict[str, Any], code: str, service: Caller) -> None:
    with refused(code):
        register(service, **said)


def test_lease_bounds_themselves_are_fine(service: Caller) -> None:
    row = register(service, lease_ms=1_000)
    for most in (1_000, 600_000):
        coordinators.heartbeat(caller=service, instance_id=row.instance_id, lease_ms=most)
    for bad in (999, 600_001):
        with refused("REQUEST_INVALID"):
            coordinators.heartbeat(caller=service, instance_id=row.instance_id, lease_ms=bad)


def builtin(world: World, instance: str = "builtin-1") -> Coordinator:
    return coordinators.register_builtin(
        tenant=world.tenant, instance_id=instance, artifact="fencepost:1", lease_ms=LEASE
    )


def test_the_built_in_one_beats_in_all_its_tenants_at_once(world: World, clock: Clock) -> None:
    made = [builtin(world), builtin(World()), builtin(World(), "builtin-2")]
    assert builtin(world).pk == made[0].pk
    at = clock.pass_(ms(1))
    assert coordinators.beat_builtin(instance_id="builtin-1") == 2
    ends = [each.lease_ends_at for each in Coordinator.objects.order_by("pk")]
    assert ends == [at + ms(LEASE), at + ms(LEASE), at + ms(LEASE) - ms(1)]
    assert coordinators.relinquish_builtin(instance_id="builtin-1") == 2
    assert coordinators.beat_builtin(instance_id="builtin-1") == 0
    with refused("COORDINATOR_ENDED"):
        builtin(world)


def test_a_built_in_one_does_not_revive_either(world: World, clock: Clock) -> None:
    builtin(world)
    clock.pass_(ms(LEASE))
    assert coordinators.beat_builtin(instance_id="builtin-1") == 0
    assert coordinators.relinquish_builtin(instance_id="builtin-1") == 0
    with refused("COORDINATOR_ENDED"):
        builtin(world)


def test_built_in_ones_and_those_of_tokens_stay_apart(world: World, service: Caller) -> None:
    builtin(world)
    for act in ACTS:
        with refused("PERMISSION_DENIED"):
            act(service, "builtin-1")
    row = register(service, "mine")
    with refused("PERMISSION_DENIED"):
        builtin(world, "mine")
    assert coordinators.beat_builtin(instance_id="mine") == 0
    row.refresh_from_db()
    assert row.is_alive(database_clock.now())
