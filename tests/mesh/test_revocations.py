"""Revoking grants, at once for claims and renewals, and the drains that follow."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import leases, liveness, locking, recovery, revocations, workers
from mesh.models import AuditEntry, Grant, GrantStatus, Worker
from tests.factories import Member, World
from tests.mesh.checks import NOON, Clock, ms, refused, unchanged


def revoke(world: World, grant: Grant, reason: str = "leaked") -> Grant:
    return revocations.revoke_grant(caller=world.caller(), grant_id=grant.grant_id, reason=reason)


@pytest.fixture
def no_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the server died between the revocation's commit and the first drain."""
    monkeypatch.setattr("mesh.revocations.drain_workers_of", lambda grant: [])


@pytest.mark.usefixtures("no_drains")
def test_claims_and_renewals_end_at_once_with_no_drain_done_yet(world: World) -> None:
    held = world.running()
    world.workload()
    revoke(world, held.worker.row.grant)
    assert held.worker.refresh().lifecycle == "READY"
    with refused("GRANT_REVOKED"):
        leases.renew(**held.presenting)
    assert held.worker.claim() == []
    assert held.worker.beat(held.claim.claim_id).renewed == []


def test_revoking_drains_the_workers_of_that_grant_alone(world: World) -> None:
    grant, token = world.grant()
    idle, busy = world.worker(grant=token), world.running(world.worker(grant=token))
    other = world.worker()
    revoke(world, grant)
    assert (idle.refresh().lifecycle, busy.worker.refresh().lifecycle) == ("OFFLINE", "DRAINING")
    assert busy.worker.row.drain_cause == "revocation"
    assert other.refresh().lifecycle == "READY"


def test_a_draining_worker_of_a_revoked_grant_learns_it_by_its_beat(world: World) -> None:
    held = world.running()
    revoke(world, held.worker.row.grant)
    assert held.worker.beat(held.claim.claim_id).worker.lifecycle == "DRAINING"


def test_work_under_way_may_still_finish_within_its_lease(world: World) -> None:
    held = world.running()
    revoke(world, held.worker.row.grant)
    held.worker.complete(held.claim)
    assert held.worker.refresh().lifecycle == "OFFLINE"


def test_revoking_again_changes_nothing(world: World, clock: Clock) -> None:
    grant, _ = world.grant()
    revoke(world, grant, "first")
    clock.pass_(ms(1_000))
    with unchanged():
        again = revoke(world, grant, "second")
    assert (again.revoke_reason, again.revoked_at) == ("first", NOON)


def test_revoking_is_recorded(world: World) -> None:
    grant, _ = world.grant()
    revoke(world, grant)
    grant.refresh_from_db()
    assert (grant.status, grant.revoked_by, grant.revoke_reason) == (
        GrantStatus.REVOKED,
        "service:ops",
        "leaked",
    )
    entry = AuditEntry.objects.get(target=grant.grant_id, action="grant.revoked")
    assert (entry.actor, entry.reason, entry.at) == ("service:ops", "leaked", NOON)


def test_revoking_needs_an_admin_and_a_grant_of_the_tenant(world: World) -> None:
    grant, _ = world.grant()
    with refused("PERMISSION_DENIED"):
        revocations.revoke_grant(caller=world.operator, grant_id=grant.grant_id)
    with refused("GRANT_NOT_FOUND"):
        revocations.revoke_grant(caller=World().caller(), grant_id=grant.grant_id)


@pytest.mark.usefixtures("no_drains")
def test_a_superseded_grant_may_be_revoked_too(world: World) -> None:
    old, token = world.grant()
    worker = world.worker(grant=token)
    world.grant(supersedes=old.grant_id)
    world.workload()
    assert len(worker.claim()) == 1
    revoke(world, old)
    world.workload()
    assert worker.claim() == []


def test_the_sweep_goes_on_with_the_drains(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant, token = world.grant()
    idle = [world.worker(grant=token) for _ in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr("mesh.revocations.drain_workers_of", lambda grant: [])
        revoke(world, grant)
    monkeypatch.setattr("mesh.revocations._AT_ONCE", 2)
    changed = [recovery.run("enforce_deadlines").changed for _ in range(3)]
    assert [len(each) for each in changed] == [2, 1, 0]
    assert {each for page in changed for each in page} == {each.worker_id for each in idle}


def test_drains_are_pending_until_no_register_can_be_under_way(world: World, clock: Clock) -> None:
    grant, token = world.grant()
    said = world.registration(grant=token)
    revoke(world, grant)
    recovery.run("enforce_deadlines")
    Grant.objects.filter(pk=grant.pk).update(status="ACTIVE")
    late = liveness.register(registration=said, credential=None).worker
    Grant.objects.filter(pk=grant.pk).update(status="REVOKED")
    assert recovery.run("enforce_deadlines").changed == [late.worker_id]
    clock.pass_(ms(31_000))
    recovery.run("enforce_deadlines")
    grant.refresh_from_db()
    assert not grant.drains_pending


def registered_again(world: World, member: Member) -> Member:
    said = world.registration(name=member.row.name)
    done = liveness.register(registration=said, credential=member.credential)
    return Member(Worker.objects.select_related("tenant").get(pk=done.worker.pk), done.credential)


def test_registering_under_a_good_grant_clears_the_drain(world: World) -> None:
    held = world.running()
    revoke(world, held.worker.row.grant)
    back = registered_again(world, held.worker)
    assert (back.row.lifecycle, back.row.drain_cause) == ("READY", "")


def test_registering_under_a_good_grant_brings_an_offline_worker_back(world: World) -> None:
    worker = world.worker()
    revoke(world, worker.row.grant)
    back = registered_again(world, worker)
    assert (back.row.lifecycle, back.row.is_unreconciled) == ("OFFLINE", True)
    said: dict[str, Any] = {
        name: [] for name in ("known_claims", "running_attempts", "completed_attempts")
    }
    answer = liveness.reconcile(
        caller=back.caller,
        worker_id=back.worker_id,
        worker_version="1.0",
        capability_version=1,
        failed_attempts=[],
        timestamp=NOON,
        **said,
    )
    assert answer.worker.lifecycle == "READY"


def test_registering_under_a_good_grant_leaves_an_operators_drain(world: World) -> None:
    held = world.running()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id)
    revoke(world, held.worker.row.grant)
    back = registered_again(world, held.worker)
    assert (back.row.lifecycle, back.row.drain_cause) == ("DRAINING", "operator")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Keys of workers whose row another call holds for too long."""
    held: set[int] = set()
    lock_worker = locking.lock_worker

    def lock_unless_held(pk: int) -> Worker:
        if pk in held:
            raise locking.busy()
        return lock_worker(pk)

    monkeypatch.setattr(locking, "lock_worker", lock_unless_held)
    return held


def test_a_worker_that_is_held_neither_stops_a_revocation_nor_the_other_drains(
    world: World, stuck: set[int]
) -> None:
    grant, token = world.grant()
    first, second = (world.worker(grant=token) for _ in range(2))
    stuck.add(first.row.pk)
    assert revoke(world, grant).status == "REVOKED"
    assert [each.refresh().lifecycle for each in (first, second)] == ["READY", "OFFLINE"]


@pytest.mark.usefixtures("passing_over")
def test_a_worker_that_is_held_is_drained_by_a_later_pass(world: World, stuck: set[int]) -> None:
    grant, token = world.grant()
    member = world.worker(grant=token)
    stuck.add(member.row.pk)
    revoke(world, grant)
    assert recovery.run("enforce_deadlines").counts == {"busy": 1, "drained": 0}
    stuck.clear()
    assert recovery.run("enforce_deadlines").changed == [member.worker_id]


@pytest.mark.usefixtures("passing_over")
def test_a_drain_that_raises_is_pushed_back_and_stays_pending(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant, token = world.grant()
    member = world.worker(grant=token)
    with monkeypatch.context() as patched:
        patched.setattr("mesh.revocations.drain_workers_of", lambda grant: [])
        revoke(world, grant)
    with monkeypatch.context() as patched:
        patched.setattr("mesh.revocations._drain", lambda pk, grant: 1 / 0)
        assert recovery.run("enforce_deadlines").counts == {"failed": 1, "drained": 0}
    clock.pass_(ms(29_999))
    assert recovery.run("enforce_deadlines").changed == []
    clock.pass_(ms(1))
    assert recovery.run("enforce_deadlines").changed == [member.worker_id]
