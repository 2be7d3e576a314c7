"""Revoking grants, at once for claims and renewals, and the drains that follow."""

from __future__ import annotations

import pytest

from mesh import leases, liveness, locking, recovery, revocations, tenancy, workers
from mesh.models import AuditEntry, Grant, GrantStatus, Revocation, RevocationKind, Worker
from tests.factories import REGISTRAR, Member, World, offline
from tests.mesh.checks import NOON, Clock, ms, refused, unchanged


def revoke(world: World, grant: Grant, reason: str = "leaked") -> Grant:
    return revocations.revoke_grant(caller=world.caller(), grant_id=grant.grant_id, reason=reason)


@pytest.fixture
def no_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the server died between the revocation's commit and the first drain."""
    monkeypatch.setattr("mesh.revocations.drain_some", lambda tenant_id: None)


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
        patched.setattr("mesh.revocations.drain_some", lambda tenant_id: None)
        revoke(world, grant)
    monkeypatch.setattr(recovery, "PAGE", 2)
    monkeypatch.setattr(recovery, "MAX_PAGES", 1)
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


def target_of(world: World, kind: str, grant: Grant) -> str:
    return {
        "grant": grant.grant_id,
        "subject": grant.subject,
        "application": world.application,
        "tenant": world.tenant.name,
    }[kind]


def statuses(grants: list[Grant]) -> list[str]:
    found = dict(Grant.objects.values_list("pk", "status"))
    return [found[each.pk] for each in grants]


def reconcile(member: Member) -> liveness.Reconciliation:
    return liveness.reconcile(
        caller=member.caller,
        worker_id=member.worker_id,
        worker_version=member.row.version,
        capability_version=member.row.capability_version,
        known_claims=[],
        running_attempts=[],
        completed_attempts=[],
        failed_attempts=[],
        timestamp=NOON,
    )


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
    answer = reconcile(back)
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
    assert recovery.run("enforce_deadlines").counts == {"busy": 1}
    stuck.clear()
    assert recovery.run("enforce_deadlines").changed == [member.worker_id]


@pytest.mark.usefixtures("passing_over")
def test_a_drain_that_raises_is_pushed_back_and_stays_pending(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant, token = world.grant()
    member = world.worker(grant=token)
    with monkeypatch.context() as patched:
        patched.setattr("mesh.revocations.drain_some", lambda tenant_id: None)
        revoke(world, grant)
    with monkeypatch.context() as patched:
        patched.setattr("mesh.revocations.drain", lambda pk: 1 / 0)
        assert recovery.run("enforce_deadlines").counts == {"failed": 1}
    clock.pass_(ms(29_999))
    assert recovery.run("enforce_deadlines").changed == []
    clock.pass_(ms(1))
    assert recovery.run("enforce_deadlines").changed == [member.worker_id]


# --- No way back under a revoked grant ------------------------------------------------------------


def test_an_operator_cannot_bring_a_worker_back_under_a_revoked_grant(world: World) -> None:
    idle, busy = world.worker(), world.running().worker
    for each in (idle, busy):
        revoke(world, each.row.grant)
    with refused("GRANT_REVOKED"):
        workers.recover(caller=world.operator, worker_id=idle.worker_id)
    with refused("GRANT_REVOKED"):
        workers.undrain(caller=world.operator, worker_id=busy.worker_id)


@pytest.mark.parametrize("status", ["ACTIVE", "SUPERSEDED"])
def test_an_operator_brings_a_worker_back_under_any_other_grant(world: World, status: str) -> None:
    worker = offline(world)
    Grant.objects.filter(pk=worker.row.grant_id).update(status=status)
    back = workers.recover(caller=world.operator, worker_id=worker.worker_id)
    assert back.lifecycle == "RECOVERING"


def test_a_recovering_worker_whose_grant_is_revoked_does_not_come_back(world: World) -> None:
    worker = offline(world)
    workers.recover(caller=world.operator, worker_id=worker.worker_id)
    revoke(world, worker.row.grant)
    with refused("WORKER_DRAINED"):
        reconcile(worker)


# --- Subjects, applications, tenants, and what was derived ----------------------------------------


def test_what_was_derived_from_a_revoked_grant_is_revoked_with_it(world: World) -> None:
    root, _ = world.grant()
    child, _ = world.delegated(root)
    leaf, token = world.delegated(child)
    sibling, _ = world.delegated(root)
    held = world.running(world.worker(grant=token))
    world.workload()
    revoke(world, child)
    status = dict(Grant.objects.values_list("pk", "status"))
    assert [status[each.pk] for each in (root, child, leaf, sibling)] == [
        "ACTIVE",
        "REVOKED",
        "REVOKED",
        "ACTIVE",
    ]
    assert held.worker.claim() == []
    with refused("GRANT_REVOKED"):
        leases.renew(**held.presenting)
    assert held.worker.refresh().lifecycle == "DRAINING"


@pytest.mark.parametrize("kind", list(RevocationKind))
def test_a_revocation_ends_claims_renewals_and_registering_of_all_it_concerns(
    world: World, kind: str
) -> None:
    grant, token = world.grant()
    held = world.running(world.worker(grant=token))
    world.workload()
    said = world.registration(grant=token)
    target = target_of(world, kind, grant)
    done = revocations.revoke(caller=world.caller(), kind=kind, target=target, reason="leaked")
    assert (done.revocation.target, done.revocation.reason) == (target, "leaked")
    assert done.grants == 1
    assert held.worker.refresh().lifecycle == "DRAINING"
    assert held.worker.claim() == []
    assert held.worker.beat(held.claim.claim_id).renewed == []
    with refused("GRANT_REVOKED"):
        leases.renew(**held.presenting)
    with refused("GRANT_REVOKED"):
        liveness.register(registration=said, credential=None)
    entry = AuditEntry.objects.get(action=f"{kind}.revoked")
    assert (entry.target, entry.actor, entry.reason) == (target, "service:ops", "leaked")


@pytest.mark.parametrize("kind", ["subject", "application", "tenant"])
def test_grants_that_are_issued_after_a_revocation_are_good(world: World, kind: str) -> None:
    held = world.running()
    grant = held.worker.row.grant
    revocations.revoke(caller=world.caller(), kind=kind, target=target_of(world, kind, grant))
    back = registered_again(world, held.worker)
    assert back.row.lifecycle == "READY"
    reconcile(back)
    world.workload()
    back.beat()
    assert len(back.claim()) == 1


def test_a_revocation_concerns_no_other_subject_application_or_tenant(world: World) -> None:
    tenancy.create_tenant(name=world.tenant.name, applications=["other"], actor="system:test")
    kept = [
        world.grant(subject="service:other")[0],
        World(world.tenant, "other").grant(subject="service:other")[0],
        World().grant()[0],
    ]
    world.grant()
    wanted = [
        ("subject", REGISTRAR, ["ACTIVE", "ACTIVE", "ACTIVE"]),
        ("application", "documents", ["REVOKED", "ACTIVE", "ACTIVE"]),
        ("tenant", world.tenant.name, ["REVOKED", "REVOKED", "ACTIVE"]),
    ]
    for kind, target, after in wanted:
        done = revocations.revoke(caller=world.caller(), kind=kind, target=target)
        assert done.grants == 1
        assert statuses(kept) == after


def test_what_was_derived_for_others_from_a_subjects_grant_goes_with_it(world: World) -> None:
    root, _ = world.grant()
    child, _ = world.delegated(root, subject="service:edge")
    assert revocations.revoke(caller=world.caller(), kind="subject", target=REGISTRAR).grants == 2
    assert statuses([root, child]) == ["REVOKED", "REVOKED"]


def test_grants_that_were_revoked_before_keep_who_did_it_and_why(world: World) -> None:
    grant, _ = world.grant()
    revoke(world, grant, "first")
    for _ in range(2):
        done = revocations.revoke(
            caller=world.caller(), kind="tenant", target=world.tenant.name, reason="second"
        )
        assert done.grants == 0
    grant.refresh_from_db()
    assert grant.revoke_reason == "first"
    assert Revocation.objects.filter(tenant=world.tenant).count() == 3


@pytest.mark.parametrize(
    ("kind", "target", "code"),
    [
        ("grant", "grant_0", "GRANT_NOT_FOUND"),
        ("application", "nowhere", "APPLICATION_NOT_FOUND"),
        ("subject", "nobody", "REQUEST_INVALID"),
        ("tenant", "elsewhere", "REQUEST_INVALID"),
        ("planet", "earth", "REQUEST_INVALID"),
    ],
)
def test_a_revocation_of_what_is_not_there_is_refused(
    world: World, kind: str, target: str, code: str
) -> None:
    with refused(code):
        revocations.revoke(caller=world.caller(), kind=kind, target=target)


def test_nobody_revokes_what_another_tenant_owns(world: World) -> None:
    other = World()
    grant, _ = other.grant()
    with refused("GRANT_NOT_FOUND"):
        revocations.revoke(caller=world.caller(), kind="grant", target=grant.grant_id)
    with refused("REQUEST_INVALID"):
        revocations.revoke(caller=world.caller(), kind="tenant", target=other.tenant.name)
    with refused("PERMISSION_DENIED"):
        revocations.revoke(caller=world.operator, kind="subject", target=REGISTRAR)


def test_many_grants_are_drained_however_many_wait_to_be_settled(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grant without workers stays pending for a while; it must not keep others waiting."""
    monkeypatch.setattr(recovery, "PAGE", 2)
    monkeypatch.setattr(revocations, "_AT_ONCE", 0)
    for _ in range(5):
        world.grant()
    worker = world.worker()
    revocations.revoke(caller=world.caller(), kind="tenant", target=world.tenant.name)
    assert recovery.run("enforce_deadlines").changed == [worker.worker_id]
    clock.pass_(ms(30_001))
    recovery.run("enforce_deadlines")
    assert not Grant.objects.filter(drains_pending=True).exists()
