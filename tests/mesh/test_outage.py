"""The sweeps were away for an hour: nothing that lives is lost, and what is lost comes back."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from mesh import brake, invariants, leases, recovery
from mesh.models import Incident, SweepRun
from tests.factories import Held, World
from tests.mesh.checks import NOON, Clock, ms

HOUR = timedelta(hours=1)
RECOVER = leases.RECOVER_SWEEP


def sweep_all() -> dict[str, recovery.SweepReport]:
    reports = {name: recovery.run(name) for name in recovery.SWEEPS}
    assert invariants.broken() == {}
    return reports


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mesh.recovery")


@pytest.fixture
def away(world: World, clock: Clock) -> list[Held]:
    """Work of six workers, and sweeps that ran at noon and not for an hour since."""
    sweep_all()
    held = [world.running(retry_policy={"initial_delay_ms": 0}) for _ in range(6)]
    clock.to(NOON + HOUR)
    return held


def test_an_hour_away_moves_every_lease_once_and_recovers_nothing(
    away: list[Held], clock: Clock
) -> None:
    reports = sweep_all()
    moved = {name: each.counts.get("leases_moved", 0) for name, each in reports.items()}
    assert sum(moved.values()) == 6
    assert {each.attempt.expires_at for each in away} == {clock.at + ms(30_000)}
    assert {each.refresh().state for each in away} == {"RUNNING"}
    clock.pass_(ms(29_000))
    sweep_all()
    assert {each.refresh().state for each in away} == {"RUNNING"}


def test_after_an_hour_away_silence_is_not_believed_at_once(away: list[Held], clock: Clock) -> None:
    reports = sweep_all()
    assert reports[brake.SWEEP].counts["braked"] == 6
    incident = Incident.objects.get()
    assert (incident.reason, incident.workers.count()) == ("too_many_silent", 6)
    assert {each.worker.refresh().lifecycle for each in away} == {"READY"}


def test_who_renews_after_an_hour_away_loses_nothing(away: list[Held], clock: Clock) -> None:
    sweep_all()
    alive, gone = away[:3], away[3:]
    for _ in range(4):
        clock.pass_(ms(10_000))
        for each in alive:
            each.worker.beat(each.claim.claim_id)
        sweep_all()
    assert {each.refresh().state for each in alive} == {"RUNNING"}
    assert {each.refresh().state for each in gone} == {"READY"}
    assert {each.attempt.status for each in gone} == {"WORKER_LOST"}
    assert {each.worker.refresh().lifecycle for each in gone} == {"OFFLINE"}
    for each in alive:
        each.worker.complete(each.claim)
    assert invariants.broken() == {}


def test_who_renews_before_the_first_pass_keeps_its_longer_lease(
    away: list[Held], clock: Clock
) -> None:
    leases.renew(**away[0].presenting, lease_ms=600_000)
    sweep_all()
    assert away[0].attempt.expires_at == clock.at + ms(600_000)


def test_a_second_outage_moves_leases_again(away: list[Held], clock: Clock) -> None:
    sweep_all()
    clock.pass_(ms(31_000))
    last = SweepRun.objects.get(name=RECOVER).last_finished_at
    assert last == NOON + HOUR
    assert recovery.run(RECOVER).counts["leases_moved"] == 6


def test_what_a_deadline_ended_meanwhile_is_ended_after_the_outage(
    world: World, clock: Clock
) -> None:
    sweep_all()
    waiting = world.workload(timeouts={"queue_ms": 60_000})
    running = world.running(timeouts={"execution_ms": 60_000})
    clock.to(NOON + HOUR)
    sweep_all()
    waiting.refresh_from_db()
    assert waiting.state == "DEAD_LETTER"
    assert running.attempt.status == "TIMED_OUT"
