"""Incidents of the brake: what closes them, and how an operator ends the hold."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import brake, liveness, locking, recovery
from mesh.models import AuditEntry, Incident, Role, SweepRun, Worker
from tests.factories import Member, World
from tests.mesh.checks import NOON, Clock, ms, refused, unchanged, worker_events

SILENT = brake.SWEEP


@pytest.fixture
def fallen(world: World, clock: Clock) -> list[Member]:
    """Six silent workers of six, held by an incident that was opened at noon and half a minute."""
    members = [world.worker() for _ in range(6)]
    clock.to(NOON + ms(29_000))
    SweepRun.objects.create(name=SILENT, last_finished_at=clock.at)
    clock.to(NOON + ms(30_000))
    assert recovery.run(SILENT).changed == []
    return members


def resume(world: World, **members: Any) -> Incident:
    said = {"caller": world.operator, "reason": "the rack burnt", **members}
    said.setdefault("incident_id", Incident.objects.latest("pk").incident_id)
    return brake.resume(**said)


def ids(members: list[Member]) -> list[str]:
    return [each.worker_id for each in members]


def lifecycles(members: list[Member]) -> list[str]:
    return [each.refresh().lifecycle for each in members]


def test_a_resume_takes_the_silent_at_once(
    world: World, clock: Clock, fallen: list[Member]
) -> None:
    clock.pass_(ms(5_000))
    done = resume(world)
    assert lifecycles(fallen) == ["OFFLINE"] * 6
    assert (done.resumed_at, done.closed_at) == (clock.at, clock.at)
    assert (done.resumed_by, done.resume_reason) == ("service:ops", "the rack burnt")
    assert worker_events(fallen[0].row)[-1] == "offline"
    entry = AuditEntry.objects.get(action="incident.resumed")
    assert (entry.actor, entry.target, entry.reason) == (
        "service:ops",
        done.incident_id,
        "the rack burnt",
    )


def test_a_resume_spares_who_was_heard_again(
    world: World, clock: Clock, fallen: list[Member]
) -> None:
    fallen[2].beat()
    resume(world)
    assert lifecycles(fallen) == ["OFFLINE", "OFFLINE", "READY", "OFFLINE", "OFFLINE", "OFFLINE"]


def test_a_repeated_resume_changes_nothing(
    world: World, clock: Clock, fallen: list[Member]
) -> None:
    first = resume(world)
    clock.pass_(ms(1_000))
    with unchanged():
        again = resume(world, caller=world.caller(Role.ADMIN, "human:eve"), reason="other")
    assert (again.resumed_by, again.resume_reason) == (first.resumed_by, first.resume_reason)
    assert AuditEntry.objects.filter(action="incident.resumed").count() == 1


def test_a_resume_of_a_closed_incident_changes_nothing(
    world: World, clock: Clock, fallen: list[Member]
) -> None:
    clock.to(NOON + ms(60_000))
    recovery.run(SILENT)
    with unchanged():
        assert resume(world).resumed_at is None


def test_a_resume_needs_an_operator(world: World, fallen: list[Member]) -> None:
    with refused("PERMISSION_DENIED"):
        resume(world, caller=world.caller(Role.VIEWER))
    with refused("PERMISSION_DENIED"):
        resume(world, caller=fallen[0].caller)


@pytest.mark.parametrize("reason", ["", "  ", "x" * 4_001])
def test_a_resume_needs_a_reason(world: World, fallen: list[Member], reason: str) -> None:
    with refused("REQUEST_INVALID"):
        resume(world, reason=reason)


@pytest.mark.parametrize(
    "incident_id", ["incident_0", "incident_x", "1", "", "incident_" + "9" * 30]
)
def test_a_resume_refuses_an_unknown_incident(
    world: World, fallen: list[Member], incident_id: str
) -> None:
    with refused("INCIDENT_NOT_FOUND"):
        resume(world, incident_id=incident_id)


def test_a_resume_refuses_another_tenants_incident(world: World, fallen: list[Member]) -> None:
    with refused("INCIDENT_NOT_FOUND"):
        resume(World(), incident_id=Incident.objects.get().incident_id)


def test_a_resume_leaves_to_the_next_pass_what_it_does_not_reach(
    world: World, clock: Clock, fallen: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.brake._AT_ONCE", 2)
    assert resume(world).closed_at is None
    assert lifecycles(fallen) == ["OFFLINE"] * 2 + ["READY"] * 4
    # Long before the hold would have been over by itself.
    clock.pass_(ms(1_000))
    assert recovery.run(SILENT).changed == ids(fallen[2:])
    assert Incident.objects.get().closed_at == clock.at


def _busy_for(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    silence = liveness.silence

    def refuse_one(*, worker_pk: int, actor: str) -> Worker | None:
        if worker_pk == member.row.pk:
            raise locking.busy()
        return silence(worker_pk=worker_pk, actor=actor)

    monkeypatch.setattr("mesh.liveness.silence", refuse_one)


@pytest.mark.usefixtures("passing_over")
@pytest.mark.parametrize("how", ["hold is over", "resumed"])
def test_an_incident_stays_open_until_a_busy_worker_was_judged(
    world: World,
    clock: Clock,
    fallen: list[Member],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    with monkeypatch.context() as patched:
        _busy_for(fallen[3], patched)
        if how == "resumed":
            resume(world)
        clock.to(NOON + ms(60_000))
        recovery.run(SILENT)
    assert lifecycles(fallen) == ["OFFLINE"] * 3 + ["READY"] + ["OFFLINE"] * 2
    assert Incident.objects.get().closed_at is None
    clock.pass_(ms(5_000))
    assert recovery.run(SILENT).changed == [fallen[3].worker_id]
    assert Incident.objects.get().closed_at == clock.at


@pytest.mark.usefixtures("passing_over")
def test_a_worker_that_raises_keeps_its_incident_open_and_is_pushed_back(
    world: World, clock: Clock, fallen: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.to(NOON + ms(60_000))
    with monkeypatch.context() as patched:
        patched.setattr("mesh.liveness.silence", lambda **_: exec("raise KeyError"))
        assert recovery.run(SILENT).counts["failed"] == 6
    clock.pass_(ms(29_000))
    assert recovery.run(SILENT).changed == []
    assert Incident.objects.get().closed_at is None
    clock.pass_(ms(1_000))
    assert recovery.run(SILENT).changed == ids(fallen)
    assert Incident.objects.get().closed_at == clock.at
