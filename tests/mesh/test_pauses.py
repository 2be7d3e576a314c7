"""Pauses: who may make and lift them, which work they hold back, and until when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mesh import clock as mesh_clock
from mesh import pauses
from mesh.models import AuditEntry, Pause, Role, Tenant
from tests.factories import World, make_tenant
from tests.mesh.checks import MICRO, NOON, Clock, ms, refused


def held_back(world: World, definition_id: str = "extract") -> list[Pause]:
    """The pauses that hold back work of that definition now."""
    application = world.tenant.applications.get(name=world.application)
    found = pauses.standing(application.pk, mesh_clock.now())
    return pauses.matches(found, definition_id)


def test_a_pause_of_an_application_holds_back_all_its_work(world: World) -> None:
    made = world.pause()
    assert held_back(world, "extract") == held_back(world, "other") == [made]
    assert (made.created_by, made.created_at, made.reason) == ("service:ops", NOON, "bad release")


def test_a_pause_of_one_definition_holds_back_only_that(world: World) -> None:
    made = world.pause(definition_id="extract")
    assert held_back(world, "extract") == [made]
    assert held_back(world, "other") == []


def test_a_pause_holds_back_no_other_application(world: World) -> None:
    tenant: Tenant = make_tenant(applications=["documents", "mail"])
    World(tenant, "mail").pause()
    assert held_back(World(tenant, "documents")) == []


def test_matching_looks_at_a_requirement(world: World) -> None:
    work = world.workload()
    made = world.pause(definition_id="extract")
    assert pauses.matching(work.requirement, NOON) == [made]


def test_a_pause_is_over_at_its_until(world: World, clock: Clock) -> None:
    made = world.pause(until=NOON + ms(5_000))
    clock.to(NOON + ms(5_000) - MICRO)
    assert held_back(world) == [made]
    clock.to(NOON + ms(5_000))
    assert held_back(world) == []


def test_lifting_ends_it_at_once_and_says_who(world: World, clock: Clock) -> None:
    made = world.pause()
    clock.pass_(ms(1_000))
    lifted = pauses.lift(caller=world.operator, pause_id=made.pause_id, reason="fixed")
    assert (lifted.lifted_at, lifted.lifted_by) == (clock.at, "service:ops")
    assert held_back(world) == []


def test_a_pause_that_is_over_cannot_be_lifted(world: World, clock: Clock) -> None:
    lifted, ended = world.pause(), world.pause(until=NOON + ms(1_000))
    pauses.lift(caller=world.operator, pause_id=lifted.pause_id)
    clock.pass_(ms(1_000))
    for each in (lifted, ended):
        with refused("PAUSE_NOT_FOUND"):
            pauses.lift(caller=world.operator, pause_id=each.pause_id)


@pytest.mark.parametrize(
    "pause_id", ["", "pause_", "pause_0", "pause_-1", "pause_٣", f"pause_{2**70}", "7"]
)
def test_an_id_that_names_no_pause_is_not_found(world: World, pause_id: str) -> None:
    world.pause()
    with refused("PAUSE_NOT_FOUND"):
        pauses.lift(caller=world.operator, pause_id=pause_id)


def test_a_pause_of_another_tenant_does_not_exist(world: World) -> None:
    made = world.pause()
    with refused("PAUSE_NOT_FOUND"):
        pauses.lift(caller=World().operator, pause_id=made.pause_id)
    with refused("APPLICATION_NOT_FOUND"):
        world.pause(application="nothing")


def test_a_pause_needs_an_operator(world: World) -> None:
    made = world.pause()
    viewer = world.caller(Role.VIEWER)
    with refused("PERMISSION_DENIED"):
        pauses.create(caller=viewer, application=world.application, reason="r")
    with refused("PERMISSION_DENIED"):
        pauses.lift(caller=viewer, pause_id=made.pause_id)


@pytest.mark.parametrize(
    ("members", "fields"),
    [
        ({"reason": " "}, ["reason"]),
        ({"reason": "r" * 4_001}, ["reason"]),
        ({"definition_id": ""}, ["definition_id"]),
        ({"definition_id": "d" * 201}, ["definition_id"]),
        ({"until": NOON}, ["until"]),
        ({"until": NOON + timedelta(days=3_650) + MICRO}, ["until"]),
    ],
)
def test_values_out_of_bounds_are_refused(
    world: World, members: dict[str, Any], fields: list[str]
) -> None:
    with refused("REQUEST_INVALID") as refusal:
        world.pause(**members)
    assert refusal.value.facts["fields"] == fields


def test_values_on_their_bounds_are_taken(world: World) -> None:
    longest = {"reason": "r" * 4_000, "definition_id": "d" * 200}
    world.pause(until=NOON + timedelta(days=3_650), **longest)
    world.pause(until=NOON + MICRO)
    assert Pause.objects.count() == 2


def test_the_pauses_that_stand_in_an_application_are_bounded(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "MAX_STANDING", 2)
    world.pause(until=NOON + ms(1_000))
    world.pause()
    with refused("LIMIT_EXCEEDED") as refusal:
        world.pause()
    assert refusal.value.facts["retry_after_ms"] == 60_000
    clock.pass_(ms(1_000))
    assert world.pause()


def test_making_and_lifting_are_audited(world: World) -> None:
    made = world.pause(definition_id="extract", until=NOON + ms(5_000))
    pauses.lift(caller=world.operator, pause_id=made.pause_id, reason="fixed")
    told = AuditEntry.objects.filter(target=made.pause_id).order_by("pk")
    assert [(each.action, each.actor, each.reason) for each in told] == [
        ("pause.created", "service:ops", "bad release"),
        ("pause.lifted", "service:ops", "fixed"),
    ]
    assert told[0].evidence == {
        "application": "documents",
        "definition_id": "extract",
        "until": "2030-01-01T12:00:05+00:00",
    }


# --- What it does to claims -----------------------------------------------------------------------


@pytest.mark.parametrize("by_itself", [True, False])
def test_paused_work_is_not_claimed_and_at_once_when_the_pause_is_over(
    world: World, clock: Clock, by_itself: bool
) -> None:
    worker, paused = world.worker(), world.workload()
    other = world.workload(definition_id="other")
    made = world.pause(definition_id="extract", until=NOON + ms(5_000) if by_itself else None)
    assert [each.workload_id for each in worker.claim(5)] == [other.workload_id]
    clock.to(NOON + ms(5_000) - MICRO)
    assert worker.claim(5) == []
    clock.to(NOON + ms(5_000))
    if not by_itself:
        pauses.lift(caller=world.operator, pause_id=made.pause_id)
    assert [each.workload_id for each in worker.claim(5)] == [paused.workload_id]


def test_a_pause_leaves_what_a_worker_holds_alone(world: World) -> None:
    held = world.claimed()
    world.pause()
    held.worker.start(held.claim)
    held.worker.complete(held.claim)
    assert held.refresh().state == "SUCCEEDED"


# --- From where waiting counts --------------------------------------------------------------------


def test_waiting_counts_from_the_end_of_the_last_matching_pause(world: World, clock: Clock) -> None:
    application = world.tenant.applications.get(name=world.application)

    def last_end(definition_id: str = "extract") -> Any:
        return pauses.last_end(application.pk, definition_id, clock.at)

    assert last_end() is None
    short = world.pause(definition_id="extract", until=NOON + ms(2_000))
    assert (last_end(), last_end("other")) == (NOON, None)
    clock.to(NOON + ms(3_000))
    assert last_end() == short.until
    long = world.pause()
    clock.to(NOON + ms(4_000))
    assert last_end() == last_end("other") == clock.at
    pauses.lift(caller=world.operator, pause_id=long.pause_id)
    clock.to(NOON + ms(9_000))
    assert last_end() == last_end("other") == NOON + ms(4_000)


def test_a_pause_that_was_lifted_early_ended_then(world: World, clock: Clock) -> None:
    made = world.pause(until=NOON + ms(60_000))
    pauses.lift(caller=world.operator, pause_id=made.pause_id)
    clock.to(NOON + ms(90_000))
    assert pauses.last_end(made.application_id, "extract", clock.at) == NOON
