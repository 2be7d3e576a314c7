"""The sweeps, their outage, and the brake."""

from __future__ import annotations

import logging
from datetime import timedelta

import pglock
import pytest
from django.db import connection

from mesh import expiry, leases, locking, recovery, tenancy, workers
from mesh.models import Incident, SweepRun, Worker, Workload, WorkloadEvent
from tests.factories import Held, Member, World
from tests.mesh.checks import (
    MICRO,
    NOON,
    Clock,
    counted,
    events,
    ms,
    refused,
    unchanged,
    worker_events,
)

LEASE = ms(30_000)
RECOVER, SILENT = "recover_expired_leases", "detect_silent_workers"
STATEMENTS_OF_A_PAGE = 17


def changes_nothing(name: str) -> None:
    """A pass reports nothing and writes nothing but its own run."""
    with unchanged():
        report = recovery.run(name)
    assert (report.changed, report.skipped) == ([], False)


# --- One pass -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(recovery.SWEEPS))
def test_a_pass_with_nothing_to_do_changes_nothing_and_is_recorded(
    world: World, clock: Clock, name: str
) -> None:
    world.running()
    world.workload(not_before=NOON + ms(60_000))
    clock.pass_(ms(1_000))
    changes_nothing(name)
    run = SweepRun.objects.get(name=name)
    assert (run.last_started_at, run.last_finished_at) == (clock.at, clock.at)
    assert run.duration_ms is not None


@pytest.mark.parametrize("name", sorted(recovery.SWEEPS))
def test_a_second_pass_at_the_same_time_does_nothing(world: World, name: str) -> None:
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            key = pglock.advisory(f"fencepost.sweep.{name}").int_lock_id
            cursor.execute("select pg_advisory_lock(%s)", [key])
            with unchanged():
                assert recovery.run(name).skipped
            # Closing would free it too, but a moment later.
            cursor.execute("select pg_advisory_unlock(%s)", [key])
    finally:
        other.close()
    assert not recovery.run(name).skipped


def test_an_unknown_sweep_is_an_error(world: World) -> None:
    with pytest.raises(KeyError):
        recovery.run("nothing")


def test_due_work_becomes_claimable_at_the_boundary(world: World, clock: Clock) -> None:
    work = world.workload(not_before=NOON + ms(1_000))
    clock.to(NOON + ms(1_000) - MICRO)
    changes_nothing("promote_due")
    clock.to(NOON + ms(1_000))
    assert recovery.run("promote_due").changed == [work.workload_id]
    work.refresh_from_db()
    assert (work.claimable, events(work)) == (True, ["ready"])
    changes_nothing("promote_due")


def test_a_lease_is_recovered_at_its_very_end_and_once(world: World, clock: Clock) -> None:
    held = world.running()
    clock.to(NOON + LEASE - MICRO)
    changes_nothing(RECOVER)
    clock.to(NOON + LEASE)
    report = recovery.run(RECOVER)
    assert (report.changed, report.counts["recovered"]) == ([held.workload.workload_id], 1)
    assert held.worker.refresh().active == 0
    changes_nothing(RECOVER)
    told = WorkloadEvent.objects.filter(workload=held.workload, event="workload.recovered")
    assert told.get().actor == "system:recover_expired_leases"


def test_all_expired_claims_of_a_worker_are_recovered_and_live_ones_stay(
    world: World, clock: Clock
) -> None:
    worker = world.worker()
    first, second, live = (world.running(worker) for _ in range(3))
    leases.renew(**live.presenting, lease_ms=90_000)
    clock.to(NOON + LEASE)
    ids = [first.workload.workload_id, second.workload.workload_id]
    assert recovery.run(RECOVER).changed == ids
    assert (worker.refresh().active, live.attempt.status) == (1, "RUNNING")


@pytest.mark.usefixtures("passing_over")
def test_a_row_that_raises_is_pushed_back_and_the_others_go_on(world: World, clock: Clock) -> None:
    broken, sound = world.running(), world.running()
    Workload.objects.filter(pk=broken.workload.pk).update(retry_policy={})
    clock.to(NOON + LEASE)
    report = recovery.run(RECOVER)
    assert (report.changed, report.counts["failed"]) == ([sound.workload.workload_id], 1)
    assert broken.worker.refresh().sweep_after == clock.at + ms(30_000)
    assert (broken.attempt.status, broken.refresh().state) == ("RUNNING", "RUNNING")
    clock.pass_(ms(30_000) - MICRO)
    changes_nothing(RECOVER)
    Workload.objects.filter(pk=broken.workload.pk).update(retry_policy=sound.workload.retry_policy)
    clock.pass_(MICRO)
    assert recovery.run(RECOVER).changed == [broken.workload.workload_id]


@pytest.mark.usefixtures("passing_over")
def test_a_deadline_that_raises_is_pushed_back_too(world: World, clock: Clock) -> None:
    broken, sound = (world.running(timeouts={"execution_ms": 5_000}) for _ in range(2))
    Workload.objects.filter(pk=broken.workload.pk).update(retry_policy={})
    clock.to(NOON + ms(5_000))
    report = recovery.run("enforce_deadlines")
    assert report.changed == [sound.workload.workload_id]
    assert broken.refresh().sweep_after == clock.at + ms(30_000)


def test_a_pass_goes_on_page_by_page(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.recovery.PAGE", 2)
    held = [world.running() for _ in range(5)]
    clock.to(NOON + LEASE)
    assert recovery.run(RECOVER).changed == [each.workload.workload_id for each in held]


def test_a_long_pass_is_no_outage(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another sweep would move the leases that this pass is about to end."""
    recovery.run(RECOVER)
    monkeypatch.setattr("mesh.recovery.PAGE", 2)
    for _ in range(6):
        world.running()
    clock.to(NOON + LEASE)
    recover, were_out = expiry.end_of_free, []

    def slow(pks: list[int]) -> expiry.Ended:
        clock.pass_(ms(20_000))
        were_out.append(leases.are_sweeps_out(clock.at))
        return recover(pks)

    monkeypatch.setattr("mesh.expiry.end_of_free", slow)
    # The first page counts from noon, half a minute ago.
    assert len(recovery.run(RECOVER).changed) == 6
    assert were_out == [True, False, False]


@pytest.mark.parametrize("number", [2, 8])
def test_leases_of_many_workers_end_in_as_few_statements_as_those_of_two(
    world: World, clock: Clock, number: int
) -> None:
    for _ in range(number):
        world.running(world.worker(concurrency=2))
    clock.to(NOON + LEASE)
    with counted() as queries:
        assert len(recovery.run(RECOVER).changed) == number
    assert len(queries) == STATEMENTS_OF_A_PAGE


def test_no_more_claims_than_are_allowed_end_in_one_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.expiry.AT_ONCE", 5)
    pks = [world.worker().row.pk for _ in range(6)]
    for pk, active in zip(pks, (2, 3, 1, 9, 5, 0), strict=True):
        Worker.objects.filter(pk=pk).update(active=active)
    groups = [[pks.index(pk) for pk in group] for group in expiry.small_groups(pks)]
    assert groups == [[0, 1], [2], [3], [4, 5]]


def test_recovering_work_does_not_read_its_input(world: World, clock: Clock) -> None:
    """A worker's thousand claims may have inputs of a gigabyte together."""
    world.running()
    clock.to(NOON + LEASE)
    with counted() as queries:
        assert recovery.run(RECOVER).changed
    assert [each["sql"] for each in queries if '"input"' in (each["sql"] or "")] == []


@pytest.mark.usefixtures("passing_over")
def test_an_application_that_raises_does_not_stop_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    other = World()
    late = [each.workload(not_before=NOON + ms(1)) for each in (world, other)]
    clock.pass_(ms(1))
    promote = recovery._promote

    def fail_for_the_first(application_pk: int) -> list[str]:
        if application_pk == late[0].application_id:
            raise locking.busy()
        return promote(application_pk)

    monkeypatch.setattr("mesh.recovery._promote", fail_for_the_first)
    report = recovery.run("promote_due")
    assert (report.changed, report.counts["busy"]) == ([late[1].workload_id], 1)


# --- Outage ---------------------------------------------------------------------------------------


@pytest.fixture
def out(world: World, clock: Clock) -> Held:
    """Running work, and sweeps that ran at noon and then no more."""
    recovery.run(RECOVER)
    return world.running()


def test_half_a_minute_without_a_pass_is_no_outage_yet(out: Held, clock: Clock) -> None:
    clock.to(NOON + LEASE)
    assert recovery.run(RECOVER).changed == [out.workload.workload_id]


@pytest.mark.parametrize("name", sorted(recovery.SWEEPS))
def test_the_first_pass_of_any_sweep_after_an_outage_moves_leases_and_recovers_nothing(
    out: Held, clock: Clock, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock.to(NOON + ms(31_000))
    out.worker.beat()
    clock.to(NOON + ms(62_000))
    with caplog.at_level(logging.CRITICAL, "mesh.recovery"):
        report = recovery.run(name)
    assert report.counts["leases_moved"] == 1
    assert out.workload.workload_id not in report.changed
    assert out.attempt.expires_at == clock.at + ms(30_000)
    assert out.refresh().state == "RUNNING"
    clock.to(clock.at + ms(30_000))
    assert recovery.run(RECOVER).changed == [out.workload.workload_id]


def test_a_lease_is_moved_once_per_outage(out: Held, clock: Clock) -> None:
    clock.to(NOON + ms(31_000))
    outage = SweepRun.objects.get(name=RECOVER).last_finished_at
    assert leases.move_ends([out.worker.row.pk], outage=outage) == 1
    clock.pass_(ms(20_000))
    assert leases.move_ends([out.worker.row.pk], outage=outage) == 0
    assert out.attempt.expires_at == NOON + ms(61_000)


def test_moving_never_makes_a_lease_shorter(out: Held, clock: Clock) -> None:
    leases.renew(**out.presenting, lease_ms=900_000)
    clock.to(NOON + ms(31_000))
    recovery.run(RECOVER)
    assert out.attempt.expires_at == NOON + ms(900_000)


def test_a_worker_may_renew_and_go_on_while_the_sweeps_are_out(out: Held, clock: Clock) -> None:
    clock.to(NOON + ms(31_000))
    assert out.worker.beat(out.claim.claim_id).renewed[0].expires_at == clock.at + LEASE
    recovery.run(RECOVER)
    assert out.worker.complete(out.claim).status == "SUCCEEDED"


def test_no_pass_ever_is_no_outage(world: World, clock: Clock) -> None:
    held = world.running()
    clock.to(NOON + timedelta(hours=1))
    assert recovery.run(RECOVER).changed == [held.workload.workload_id]


# --- Silent workers -------------------------------------------------------------------------------


@pytest.mark.parametrize("lifecycle", ["REGISTERED", "READY", "BUSY", "DRAINING", "RECOVERING"])
def test_a_silent_worker_goes_offline_from_every_lifecycle(
    world: World, clock: Clock, lifecycle: str
) -> None:
    worker = world.registered()
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle=lifecycle)
    clock.to(NOON + ms(30_000) - MICRO)
    changes_nothing(SILENT)
    clock.to(NOON + ms(30_000))
    assert recovery.run(SILENT).changed == [worker.worker_id]
    assert (worker.refresh().lifecycle, worker.row.health) == ("OFFLINE", "UNHEALTHY")
    assert worker_events(worker.row)[-1] == "offline"
    changes_nothing(SILENT)


def test_a_recovering_worker_is_given_its_timeout_from_recover_on(
    world: World, clock: Clock
) -> None:
    worker = world.worker()
    clock.to(NOON + ms(30_000))
    recovery.run(SILENT)
    clock.to(NOON + ms(40_000))
    workers.recover(caller=world.operator, worker_id=worker.worker_id)
    clock.to(NOON + ms(70_000) - MICRO)
    Worker.objects.filter(pk=worker.row.pk).update(sweep_after=None)
    SweepRun.objects.update(last_finished_at=clock.at)
    changes_nothing(SILENT)
    clock.to(NOON + ms(70_000))
    assert recovery.run(SILENT).changed == [worker.worker_id]


def test_a_removed_worker_is_never_silent(world: World, clock: Clock) -> None:
    worker = world.worker()
    workers.remove(caller=world.operator, worker_id=worker.worker_id)
    clock.to(NOON + timedelta(hours=1))
    changes_nothing(SILENT)


# --- The brake ------------------------------------------------------------------------------------


def fleet(world: World, clock: Clock, silent: int, beating: int) -> list[Member]:
    """Workers of which some fall silent now; a sweep has just run."""
    fallen = [world.worker() for _ in range(silent)]
    heard = [world.worker() for _ in range(beating)]
    clock.to(NOON + ms(29_000))
    SweepRun.objects.update_or_create(name=SILENT, defaults={"last_finished_at": clock.at})
    for each in heard:
        each.beat()
    clock.to(NOON + ms(30_000))
    return fallen


def ids(members: list[Member]) -> list[str]:
    return [each.worker_id for each in members]


@pytest.mark.parametrize(
    ("silent", "beating", "is_braked"),
    [(3, 2, True), (3, 3, False), (4, 2, True), (5, 0, True), (4, 0, False), (2, 3, False)],
)
def test_the_brake_holds_more_than_half_of_five_or_more(
    world: World, clock: Clock, silent: int, beating: int, is_braked: bool
) -> None:
    fallen = fleet(world, clock, silent, beating)
    report = recovery.run(SILENT)
    assert report.changed == ([] if is_braked else ids(fallen))
    assert Incident.objects.count() == int(is_braked)
    if is_braked:
        incident = Incident.objects.get()
        assert (incident.tenant, incident.application.name) == (world.tenant, "documents")
        assert (incident.sweep, incident.opened_at) == (SILENT, clock.at)
        assert set(incident.workers.all()) == {each.row for each in fallen}


def test_the_brake_counts_each_application_for_itself(world: World, clock: Clock) -> None:
    other = World()
    fallen = fleet(world, clock, 5, 0)
    alone = Worker.objects.filter(pk=fallen[0].row.pk)
    alone.update(application=tenancy.get_application(other.operator, "documents"))
    assert recovery.run(SILENT).changed == ids(fallen)


def test_a_sweep_that_was_away_takes_nobody(world: World, clock: Clock) -> None:
    worker = world.worker()
    recovery.run(SILENT)
    clock.to(NOON + ms(30_001))
    assert recovery.run(SILENT).changed == []
    assert Incident.objects.get().workers.get() == worker.row


def test_the_brake_moves_leases_that_are_not_over_and_once(world: World, clock: Clock) -> None:
    members = [world.worker() for _ in range(5)]
    world.workload()
    claim = members[0].claim(lease_ms=31_000)[0]
    members[0].start(claim)
    world.workload()
    over = members[1].claim(lease_ms=20_000)[0]
    members[1].start(over)
    clock.to(NOON + ms(30_000))
    recovery.run(SILENT)
    ends = [each.row.attempts.get().expires_at for each in members[:2]]
    assert ends == [NOON + ms(60_000), NOON + ms(20_000)]
    clock.pass_(ms(5_000))
    recovery.run(SILENT)
    assert members[0].row.attempts.get().expires_at == NOON + ms(60_000)


@pytest.mark.usefixtures("passing_over")
def test_a_brake_that_cannot_move_leases_opens_no_incident_and_stops_nobody_else(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = World().worker()
    fleet(world, clock, 5, 0)
    with monkeypatch.context() as patched:
        patched.setattr("mesh.leases.move_ends", lambda pks: exec("raise KeyError"))
        report = recovery.run(SILENT)
    assert (report.changed, report.counts) == (
        [alone.worker_id],
        {"failed": 1, "offline": 1, "braked": 0},
    )
    assert not Incident.objects.exists()
    recovery.run(SILENT)
    assert Incident.objects.get().workers.count() == 5


def test_the_brake_lets_go_half_a_minute_after_the_incident(world: World, clock: Clock) -> None:
    fallen = fleet(world, clock, 6, 0)
    recovery.run(SILENT)
    clock.to(NOON + ms(60_000) - MICRO)
    changes_nothing(SILENT)
    clock.to(NOON + ms(60_000))
    assert recovery.run(SILENT).changed == ids(fallen)
    assert {each.refresh().lifecycle for each in fallen} == {"OFFLINE"}
    assert Incident.objects.get().closed_at == clock.at


def test_who_is_heard_again_while_the_brake_holds_is_spared(world: World, clock: Clock) -> None:
    fallen = fleet(world, clock, 5, 0)
    recovery.run(SILENT)
    clock.to(NOON + ms(45_000))
    fallen[0].beat()
    recovery.run(SILENT)
    clock.to(NOON + ms(60_000))
    assert recovery.run(SILENT).changed == ids(fallen[1:])
    assert fallen[0].refresh().lifecycle == "READY"


def test_workers_that_drain_themselves_are_never_counted_and_never_held(
    world: World, clock: Clock
) -> None:
    fallen = fleet(world, clock, 5, 0)
    leaving = fallen[:3]
    Worker.objects.filter(pk__in=[each.row.pk for each in leaving]).update(
        lifecycle="DRAINING", drain_cause="worker"
    )
    assert recovery.run(SILENT).changed == ids(fallen)
    assert not Incident.objects.exists()


def test_those_that_drain_themselves_go_while_the_brake_holds_the_others(
    world: World, clock: Clock
) -> None:
    fallen = fleet(world, clock, 6, 0)
    Worker.objects.filter(pk=fallen[0].row.pk).update(lifecycle="DRAINING", drain_cause="worker")
    assert recovery.run(SILENT).changed == ids(fallen[:1])
    assert Incident.objects.get().workers.count() == 5


def test_a_worker_drained_by_an_operator_counts(world: World, clock: Clock) -> None:
    fallen = fleet(world, clock, 5, 0)
    Worker.objects.filter(pk__in=[each.row.pk for each in fallen]).update(
        lifecycle="DRAINING", drain_cause="operator"
    )
    assert recovery.run(SILENT).changed == []
    with refused("WORKER_NOT_FOUND"):
        workers.undrain(caller=World().operator, worker_id=fallen[0].worker_id)


def test_an_incident_of_another_tenant_is_invisible(world: World, clock: Clock) -> None:
    fleet(world, clock, 5, 0)
    recovery.run(SILENT)
    assert Incident.objects.visible_to(world.operator).count() == 1
    assert not Incident.objects.visible_to(World().operator).exists()
