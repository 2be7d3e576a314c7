"""Registration, drain, recovery and removal of workers."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from mesh import liveness, placing, settlement, tenancy, workers
from mesh.models import AttemptStatus, Grant, Role, State, Worker, WorkerEvent
from mesh.registration import Registered
from tests.factories import CAPABILITY, Held, Member, World, name, offline
from tests.mesh.checks import MICRO, NOON, Clock, ms, refused, unchanged, worker_events

TIMEOUT = ms(30_000)


def register(world: World, *, credential: str | None = None, **members: Any) -> Registered:
    said = world.registration(**members)
    return liveness.register(registration=said, credential=credential)


def again(world: World, member: Member, *, own: bool = True, **members: Any) -> Registered:
    """Register the same name again, by default with its own credential."""
    credential = member.credential if own else None
    return register(world, credential=credential, name=member.row.name, **members)


# --- New ------------------------------------------------------------------------------------------


def test_a_new_worker_is_registered_and_unknown(world: World) -> None:
    done = register(world, name="w1", labels={"zone": "a"}, concurrency=7)
    worker = Worker.objects.get(pk=done.worker.pk)
    assert (done.created, done.reconcile_required) == (True, False)
    assert (worker.lifecycle, worker.health, worker.incarnation) == ("REGISTERED", "UNKNOWN", 1)
    assert (worker.labels, worker.concurrency, worker.active) == ({"zone": "a"}, 7, 0)
    assert (worker.registered_at, worker.last_seen_at) == (NOON, NOON)
    assert (worker.last_poll_at, worker.last_progress_at) == (None, None)
    assert worker_events(worker) == ["registered"]


def test_identity_is_a_hash_over_tenant_application_and_name(world: World) -> None:
    done = register(world, name="w1")
    parts = f'["{world.tenant.name}","documents","w1"]'
    assert done.worker.worker_id == "worker_" + sha256(parts.encode()).hexdigest()[:24]


def test_granted_is_declared_and_granted(world: World) -> None:
    _, token = world.grant(
        capabilities=["worker:register", "worker:capability:a", "worker:capability:b"], revision=7
    )
    worker = register(world, grant=token, capabilities=["b", "c"]).worker
    assert (worker.declared_capabilities, worker.granted_capabilities) == (["b", "c"], ["b"])
    assert worker.capability_version == 7


def test_only_the_hash_of_the_credential_is_stored(world: World) -> None:
    done = register(world)
    assert done.worker.credential_hash == sha256(done.credential.encode()).hexdigest()
    assert workers.authenticate(done.credential).worker_pk == done.worker.pk


def test_heartbeat_times_have_defaults(world: World) -> None:
    worker = register(world).worker
    assert (worker.heartbeat_interval_ms, worker.heartbeat_timeout_ms) == (10_000, 30_000)


# --- Checks in their order ------------------------------------------------------------------------


def expired_grant(world: World, **members: Any) -> str:
    grant, token = world.grant(**members)
    Grant.objects.filter(pk=grant.pk).update(expires_at=NOON, not_before=NOON - ms(1))
    return token


def revoked_grant(world: World, **members: Any) -> str:
    grant, token = world.grant(**members)
    Grant.objects.filter(pk=grant.pk).update(status="REVOKED")
    return token


BARE = ("worker:read",)
REGISTER = ("worker:register",)


@pytest.mark.parametrize(
    ("code", "make"),
    [
        ("CONTRACT_VERSION_UNSUPPORTED", lambda w: {"contract_version": 2, "grant": "x"}),
        ("GRANT_INVALID", lambda w: {"grant": expired_grant(w) + "x"}),
        ("GRANT_EXPIRED", lambda w: {"grant": expired_grant(w, capabilities=BARE)}),
        ("GRANT_REVOKED", lambda w: {"grant": revoked_grant(w, capabilities=BARE)}),
        (
            "GRANT_SCOPE_DENIED",
            lambda w: {"grant": w.grant(capabilities=BARE, subject="service:x")[1]},
        ),
        (
            "WORKER_UNAUTHORIZED",
            lambda w: {
                "grant": w.grant(
                    capabilities=REGISTER,
                    subject="service:x",
                    constraints={"worker_names": ["other"]},
                )[1]
            },
        ),
        (
            "GRANT_SCOPE_DENIED",
            lambda w: {
                "grant": w.grant(capabilities=REGISTER, constraints={"worker_names": ["other"]})[1],
                "concurrency": 0,
            },
        ),
    ],
)
def test_register_tells_the_earlier_of_two_faults(world: World, code: str, make: Any) -> None:
    members = make(world)
    said = world.registration(**members)
    with refused(code):
        liveness.register(registration=said, credential=None)


def test_register_judges_the_values_before_a_takeover(world: World) -> None:
    said = world.registration(name=world.worker().row.name, concurrency=0)
    with refused("WORKER_INVALID"):
        liveness.register(registration=said, credential=None)


def test_register_judges_a_takeover_before_live_claims(world: World) -> None:
    held = world.running()
    said = world.registration(name=held.worker.row.name, version="2.0")
    with refused("WORKER_UNAUTHORIZED"):
        liveness.register(registration=said, credential=None)


def test_register_judges_the_revision_before_live_claims(world: World) -> None:
    held = world.running(world.worker(grant=world.grant(revision=5)[1]))
    said = world.registration(
        name=held.worker.row.name, version="2.0", grant=world.grant(revision=4)[1]
    )
    with refused("WORKER_UNAUTHORIZED"):
        liveness.register(registration=said, credential=held.worker.credential)


@pytest.mark.parametrize(
    "members",
    [
        {"registered_by": "service:other"},
        {"tenant": "other"},
        {"application": "other"},
    ],
)
def test_register_wants_what_was_said_to_equal_the_grant(
    world: World, members: dict[str, Any]
) -> None:
    said = replace(world.registration(), **members)
    with refused("WORKER_UNAUTHORIZED"):
        liveness.register(registration=said, credential=None)


@pytest.mark.parametrize(
    ("resources", "is_covered"),
    [
        ([{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/workers"}], True),
        ([{"kind": "APPLICATION", "uri": "flow://documents"}], True),
        ([{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/workloads"}], False),
        ([{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/workers/x"}], False),
    ],
)
def test_register_asks_for_the_scope_of_workers(
    world: World, resources: list[dict[str, str]], is_covered: bool
) -> None:
    said = world.registration(grant=world.grant(resources=resources)[1])
    if is_covered:
        assert liveness.register(registration=said, credential=None).created
        return
    with refused("GRANT_SCOPE_DENIED"):
        liveness.register(registration=said, credential=None)


@pytest.mark.parametrize(
    ("names", "is_named"),
    [(["w-1"], True), (["w-*"], True), (["*"], True), (["w-"], False), (["x", "w-10"], False)],
)
def test_register_keeps_to_the_names_of_the_grant(
    world: World, names: list[str], is_named: bool
) -> None:
    said = world.registration(name="w-1", grant=world.grant(constraints={"worker_names": names})[1])
    if is_named:
        assert liveness.register(registration=said, credential=None).created
        return
    with refused("GRANT_SCOPE_DENIED"):
        liveness.register(registration=said, credential=None)


def labels(number: int, key: int = 3, value: int = 1) -> dict[str, str]:
    return {f"{index:0{key}d}": "v" * value for index in range(number)}


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ({"concurrency": 1}, {"concurrency": 0}),
        ({"concurrency": 1_000}, {"concurrency": 1_001}),
        ({"heartbeat_interval_ms": 1_000}, {"heartbeat_interval_ms": 999}),
        (
            {"heartbeat_interval_ms": 300_000, "heartbeat_timeout_ms": 900_000},
            {"heartbeat_interval_ms": 300_001, "heartbeat_timeout_ms": 900_003},
        ),
        (
            {"heartbeat_interval_ms": 1_000, "heartbeat_timeout_ms": 3_000},
            {"heartbeat_interval_ms": 1_000, "heartbeat_timeout_ms": 2_999},
        ),
        ({"heartbeat_timeout_ms": 900_000}, {"heartbeat_timeout_ms": 900_001}),
        ({"heartbeat_timeout_ms": 30_000}, {"heartbeat_timeout_ms": 29_999}),
        ({"labels": labels(64)}, {"labels": labels(65)}),
        ({"labels": labels(1, key=63)}, {"labels": labels(1, key=64)}),
        ({"labels": labels(1, value=255)}, {"labels": labels(1, value=256)}),
        (
            {"capabilities": [f"c{n}" for n in range(256)]},
            {"capabilities": [f"c{n}" for n in range(257)]},
        ),
        (
            {"workload_kinds": [f"k{n}" for n in range(256)]},
            {"workload_kinds": [f"k{n}" for n in range(257)]},
        ),
        ({"runtime": "edge"}, {"runtime": "EDGE"}),
        ({"resource_profile": {"gpu_count": 0}}, {"resource_profile": {"gpu_count": -1}}),
        ({"resource_profile": {"cpu_millis": 1}}, {"resource_profile": {"cores": 1}}),
        ({"version": "1" * 200}, {"version": " "}),
    ],
)
def test_register_takes_the_bound_and_refuses_one_over(
    world: World, within: dict[str, Any], beyond: dict[str, Any]
) -> None:
    assert register(world, **within).created
    said = world.registration(**beyond)
    with refused("WORKER_INVALID"):
        liveness.register(registration=said, credential=None)


# --- Again ----------------------------------------------------------------------------------------


def test_registering_again_is_the_next_incarnation_with_a_fresh_credential(world: World) -> None:
    worker = world.worker()
    done = again(world, worker, labels={"zone": "b"}, concurrency=9, version="2.0")
    row = worker.refresh()
    assert (done.created, done.reconcile_required, row.incarnation) == (False, False, 2)
    assert (row.labels, row.concurrency, row.version) == ({"zone": "b"}, 9, "2.0")
    assert row.lifecycle == "READY"
    assert workers.authenticate(done.credential).worker_pk == row.pk
    with refused("TOKEN_INVALID"):
        workers.authenticate(worker.credential)


@pytest.mark.parametrize("state", ["claimed", "running"])
def test_registering_again_with_live_claims_asks_for_a_reconcile(world: World, state: str) -> None:
    held: Held = getattr(world, state)()
    assert again(world, held.worker).reconcile_required
    assert held.worker.refresh().is_unreconciled
    for call in (held.worker.beat, held.worker.claim, lambda: held.worker.start(held.claim)):
        with refused("WORKER_RECOVERY_REQUIRED"):
            call()


def test_abandoned_claims_end_as_lost_with_the_register(world: World) -> None:
    worker = world.worker()
    started, unstarted = world.running(worker), world.claimed(worker)
    done = again(world, worker, abandon_claims=True, version="2.0", capabilities=[])
    assert not done.reconcile_required
    assert started.attempt.status == unstarted.attempt.status == AttemptStatus.WORKER_LOST
    assert (started.refresh().state, started.workload.claimable) == (State.READY, False)
    assert (unstarted.refresh().state, unstarted.workload.claimable) == (State.READY, True)
    assert worker.refresh().active == 0
    worker.beat()


@pytest.mark.parametrize("members", [{"version": "2.0"}, {"capabilities": []}])
def test_version_and_capabilities_stay_while_claims_are_live(
    world: World, members: dict[str, Any]
) -> None:
    held = world.running()
    said = world.registration(name=held.worker.row.name, **members)
    with refused("WORKER_BUSY"):
        liveness.register(registration=said, credential=held.worker.credential)


def test_a_capability_may_be_gained_while_claims_are_live(world: World) -> None:
    held = world.running()
    _, token = world.grant(
        capabilities=["worker:register", f"worker:capability:{CAPABILITY}", "worker:capability:x"]
    )
    again(world, held.worker, grant=token, capabilities=[CAPABILITY, "x"])
    assert held.worker.refresh().granted_capabilities == [CAPABILITY, "x"]


def test_a_worker_that_beats_is_not_taken_over(world: World) -> None:
    worker = world.worker()
    said = world.registration(name=worker.row.name)
    for credential in (None, "fpw_wrong", world.worker().credential):
        with refused("WORKER_UNAUTHORIZED"):
            liveness.register(registration=said, credential=credential)


@pytest.mark.parametrize(("pattern", "is_exact"), [("{}", True), ("{}*", False), ("*", False)])
def test_a_grant_for_exactly_its_name_takes_a_worker_over(
    world: World, pattern: str, is_exact: bool
) -> None:
    worker = world.worker()
    names = [pattern.format(worker.row.name)]
    said = world.registration(
        name=worker.row.name, grant=world.grant(constraints={"worker_names": names})[1]
    )
    if is_exact:
        assert not liveness.register(registration=said, credential=None).created
        return
    with refused("WORKER_UNAUTHORIZED"):
        liveness.register(registration=said, credential=None)


def test_a_silent_worker_is_taken_over_from_the_boundary_on(world: World, clock: Clock) -> None:
    worker = world.worker()
    said = world.registration(name=worker.row.name)
    clock.to(NOON + TIMEOUT - MICRO)
    with refused("WORKER_UNAUTHORIZED"):
        liveness.register(registration=said, credential=None)
    clock.to(NOON + TIMEOUT)
    assert liveness.register(registration=said, credential=None).worker.incarnation == 2


def test_an_offline_worker_is_taken_over_and_stays_offline_until_it_reconciles(
    world: World,
) -> None:
    worker = world.worker()
    workers.drain(caller=worker.caller, worker_id=worker.worker_id)
    done = again(world, worker, own=False)
    assert (done.reconcile_required, worker.refresh().lifecycle) == (True, "OFFLINE")


@pytest.mark.parametrize(("revision", "is_taken"), [(4, False), (5, True), (6, True)])
def test_a_revision_never_goes_back(world: World, revision: int, is_taken: bool) -> None:
    worker = world.worker(grant=world.grant(revision=5)[1])
    said = world.registration(name=worker.row.name, grant=world.grant(revision=revision)[1])
    if is_taken:
        liveness.register(registration=said, credential=worker.credential)
        assert worker.refresh().capability_version == revision
        return
    with refused("WORKER_UNAUTHORIZED"):
        liveness.register(registration=said, credential=worker.credential)


@pytest.mark.parametrize(("waited", "is_displaced"), [(10_000, True), (10_001, False)])
def test_displacing_a_worker_that_was_beating_is_recorded(
    world: World, clock: Clock, waited: int, is_displaced: bool
) -> None:
    worker = world.worker()
    _, token = world.grant(constraints={"worker_names": [worker.row.name]})
    clock.pass_(ms(waited))
    said = world.registration(name=worker.row.name, grant=token)
    liveness.register(registration=said, credential=None)
    assert ("displaced" in worker_events(worker.row)) is is_displaced


def test_a_worker_that_registers_again_by_its_own_credential_displaces_nobody(
    world: World,
) -> None:
    worker = world.worker()
    again(world, worker)
    assert "displaced" not in worker_events(worker.row)


def test_a_newer_revision_is_taken_up_without_losing_a_claim(world: World, clock: Clock) -> None:
    """Overlapping renewal: the old grant is in force until its end, the new one from now on."""
    old, token = world.grant(expires_in_ms=25_000)
    worker = world.worker(grant=token)
    held, waiting = world.running(worker), world.claimed(worker)
    assert worker.beat(held.claim.claim_id).grant_ends_at == old.expires_at
    _, newer = world.grant(revision=2, expires_in_ms=600_000)
    clock.pass_(ms(20_000))
    said = world.registration(name=worker.row.name, grant=newer)
    done = liveness.register(registration=said, credential=worker.credential)
    assert (done.reconcile_required, done.worker.capability_version) == (True, 2)
    claims = [held.claim.claim_id, waiting.claim.claim_id]
    agreed = liveness.reconcile(
        caller=worker.caller,
        worker_id=worker.worker_id,
        worker_version="1.0",
        capability_version=2,
        known_claims=claims,
        running_attempts=[],
        completed_attempts=[],
        failed_attempts=[],
        timestamp=clock.at,
    )
    assert agreed.authoritative_claims == sorted(claims)
    clock.to(old.expires_at)
    worker.refresh()
    assert len(worker.beat(*claims).renewed) == 2
    worker.start(waiting.claim)
    worker.complete(held.claim)
    assert (held.attempt.status, waiting.attempt.status) == ("SUCCEEDED", "RUNNING")


def test_registering_is_a_beat_and_resets_the_reported_time(world: World, clock: Clock) -> None:
    worker = world.worker()
    clock.pass_(ms(20_000))
    again(world, worker)
    row = worker.refresh()
    assert (row.last_seen_at, row.reported_at, row.clock_skew_ms) == (clock.at, None, None)
    worker.beat(timestamp=NOON - ms(3_600_000))


def test_a_smaller_capacity_makes_a_worker_busy_and_a_larger_one_ready(world: World) -> None:
    held = world.running(world.worker(concurrency=2))
    done = again(world, held.worker, concurrency=1)
    member = Member(held.worker.row, done.credential)
    assert held.worker.refresh().lifecycle == "BUSY"
    again(world, member, concurrency=2)
    assert held.worker.refresh().lifecycle == "READY"


# --- Removed --------------------------------------------------------------------------------------


def test_a_removed_workers_name_is_new_with_the_same_id_and_the_next_incarnation(
    world: World,
) -> None:
    worker = world.worker(grant=world.grant(revision=9)[1])
    workers.remove(caller=world.operator, worker_id=worker.worker_id, reason="old")
    done = again(world, worker, own=False, grant=world.grant(revision=1)[1])
    row = worker.refresh()
    assert (done.created, done.reconcile_required) == (True, False)
    assert (done.worker.worker_id, row.incarnation) == (worker.worker_id, 2)
    assert (row.lifecycle, row.health, row.removed_at) == ("REGISTERED", "UNKNOWN", None)
    assert worker_events(row)[-3:] == ["offline", "removed", "registered"]


def test_a_removed_worker_is_gone_for_callers_and_kept_for_history(world: World) -> None:
    held = world.succeeded()
    workers.remove(caller=world.operator, worker_id=held.worker.worker_id)
    with refused("TOKEN_INVALID"):
        workers.authenticate(held.worker.credential)
    with refused("WORKER_NOT_FOUND"):
        held.worker.beat()
    with refused("WORKER_NOT_FOUND"):
        workers.remove(caller=world.operator, worker_id=held.worker.worker_id)
    assert held.attempt.worker == held.worker.row


@pytest.mark.parametrize("state", ["claimed", "running", "cancelling"])
def test_a_worker_with_live_claims_is_not_removed(world: World, state: str) -> None:
    held: Held = getattr(world, state)()
    with refused("WORKER_BUSY"):
        workers.remove(caller=world.operator, worker_id=held.worker.worker_id)


def test_a_removed_worker_is_no_candidate(world: World) -> None:
    worker = world.worker()
    workers.remove(caller=world.operator, worker_id=worker.worker_id)
    work = world.workload()
    with refused("MESH_NO_ELIGIBLE_WORKER") as caught:
        placing.place(caller=world.operator, workload_id=work.workload_id)
    assert caught.value.facts["counts"] == {}


# --- Drain ----------------------------------------------------------------------------------------


def drain(world: World, member: Member, *, by_itself: bool = False, **members: Any) -> Worker:
    caller = member.caller if by_itself else world.operator
    return workers.drain(caller=caller, worker_id=member.worker_id, **members)


@pytest.mark.parametrize("makes", ["worker", "registered"])
def test_drain_without_claims_ends_offline_at_once(world: World, makes: str) -> None:
    worker: Member = getattr(world, makes)()
    assert drain(world, worker, reason="upgrade").lifecycle == "OFFLINE"
    assert worker_events(worker.row)[-2:] == ["draining", "offline"]
    assert (worker.refresh().drain_cause, worker.row.drain_reason) == ("operator", "upgrade")


def test_drain_with_claims_ends_offline_with_the_last_of_them(world: World) -> None:
    worker = world.worker()
    first, second = world.running(worker), world.claimed(worker)
    assert drain(world, worker).lifecycle == "DRAINING"
    worker.complete(first.claim)
    assert worker.refresh().lifecycle == "DRAINING"
    settlement.release(**second.presenting)
    assert (worker.refresh().lifecycle, worker.row.active) == ("OFFLINE", 0)


def test_draining_again_changes_nothing(world: World) -> None:
    held = world.running()
    drain(world, held.worker, reason="first", deadline_ms=5_000)
    with unchanged():
        drain(world, held.worker, reason="second", deadline_ms=9_000)
        drain(world, held.worker, by_itself=True)


@pytest.mark.parametrize(("by_itself", "cause"), [(True, "worker"), (False, "operator")])
def test_drain_records_who_asked(world: World, by_itself: bool, cause: str) -> None:
    held = world.running()
    worker = drain(world, held.worker, by_itself=by_itself, deadline_ms=5_000)
    event = WorkerEvent.objects.get(worker=worker, event="worker.draining")
    assert (worker.drain_cause, event.evidence["by"]) == (cause, cause)
    assert worker.drain_requested_at == NOON
    assert worker.drain_deadline_at == NOON + ms(5_000)


@pytest.mark.parametrize("lifecycle", ["OFFLINE", "RECOVERING"])
def test_an_offline_or_recovering_worker_is_not_drained(world: World, lifecycle: str) -> None:
    worker = offline(world)
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle=lifecycle)
    with refused("WORKER_TRANSITION_DENIED"):
        drain(world, worker)


@pytest.mark.parametrize("deadline_ms", [-1, 30 * 86_400_000 + 1])
def test_a_drain_deadline_out_of_bounds_is_refused(world: World, deadline_ms: int) -> None:
    worker = world.worker()
    with refused("WORKER_INVALID"):
        drain(world, worker, deadline_ms=deadline_ms)


@pytest.mark.parametrize(("by_itself", "after"), [(True, "READY"), (False, "DRAINING")])
def test_the_next_register_clears_a_workers_own_drain_and_no_operators(
    world: World, by_itself: bool, after: str
) -> None:
    held = world.running()
    drain(world, held.worker, by_itself=by_itself)
    assert again(world, held.worker).reconcile_required
    row = held.worker.refresh()
    assert (row.lifecycle, bool(row.drain_cause)) == (after, not by_itself)


def test_the_next_register_makes_a_full_worker_busy_again(world: World) -> None:
    held = world.running(world.worker(concurrency=1))
    drain(world, held.worker, by_itself=True)
    again(world, held.worker, concurrency=1)
    assert held.worker.refresh().lifecycle == "BUSY"


# --- Undrain and recover --------------------------------------------------------------------------


@pytest.mark.parametrize(("concurrency", "after"), [(2, "READY"), (1, "BUSY")])
def test_undrain_clears_the_drain(world: World, concurrency: int, after: str) -> None:
    held = world.running(world.worker(concurrency=concurrency))
    drain(world, held.worker, deadline_ms=5_000, reason="x")
    worker = workers.undrain(caller=world.operator, worker_id=held.worker.worker_id)
    assert (worker.lifecycle, worker.drain_cause, worker.drain_reason) == (after, "", "")
    assert (worker.drain_requested_at, worker.drain_deadline_at) == (None, None)


@pytest.mark.parametrize("lifecycle", ["REGISTERED", "READY", "BUSY", "OFFLINE", "RECOVERING"])
def test_only_a_draining_worker_is_undrained(world: World, lifecycle: str) -> None:
    worker = world.worker()
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle=lifecycle)
    with refused("WORKER_TRANSITION_DENIED"):
        workers.undrain(caller=world.operator, worker_id=worker.worker_id)


def test_recover_asks_an_offline_worker_back_and_clears_its_drain(
    world: World, clock: Clock
) -> None:
    worker = offline(world)
    clock.pass_(ms(1_000))
    row = workers.recover(caller=world.operator, worker_id=worker.worker_id, reason="back")
    assert (row.lifecycle, row.drain_cause, row.recovering_since) == ("RECOVERING", "", clock.at)
    assert WorkerEvent.objects.get(worker=row, event="worker.recovering").evidence == {
        "reason": "back"
    }


@pytest.mark.parametrize("lifecycle", ["REGISTERED", "READY", "BUSY", "DRAINING", "RECOVERING"])
def test_only_an_offline_worker_is_recovered(world: World, lifecycle: str) -> None:
    worker = world.worker()
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle=lifecycle)
    with refused("WORKER_TRANSITION_DENIED"):
        workers.recover(caller=world.operator, worker_id=worker.worker_id)


ACTS = [workers.drain, workers.undrain, workers.recover, workers.remove]


@pytest.mark.parametrize("act", ACTS)
def test_acts_on_workers_need_an_operator(world: World, act: Any) -> None:
    worker = world.worker()
    with refused("PERMISSION_DENIED"):
        act(caller=world.caller(Role.VIEWER), worker_id=worker.worker_id)


@pytest.mark.parametrize("act", ACTS)
def test_a_worker_acts_on_no_other_worker(world: World, act: Any) -> None:
    worker, other = world.worker(), world.worker()
    with refused("PERMISSION_DENIED"):
        act(caller=other.caller, worker_id=worker.worker_id)


@pytest.mark.parametrize("act", ACTS)
def test_a_worker_of_another_tenant_is_not_found(world: World, act: Any) -> None:
    worker = world.worker()
    with refused("WORKER_NOT_FOUND"):
        act(caller=World().operator, worker_id=worker.worker_id)


# --- Busy and ready follow from claims ------------------------------------------------------------


def test_busy_and_ready_follow_from_live_claims_against_capacity(world: World) -> None:
    worker = world.worker(concurrency=2)
    first, second = world.running(worker), world.claimed(worker)
    assert (worker.refresh().lifecycle, worker.row.active) == ("BUSY", 2)
    settlement.release(**second.presenting)
    assert (worker.refresh().lifecycle, worker.row.active) == ("READY", 1)
    worker.complete(first.claim)
    assert (worker.refresh().lifecycle, worker.row.active) == ("READY", 0)


def test_the_same_name_in_two_tenants_is_two_workers(world: World) -> None:
    shared = name("worker")
    other = World()
    ids = {register(each, name=shared).worker.worker_id for each in (world, other)}
    assert len(ids) == 2


def test_the_same_name_in_two_applications_is_two_workers(world: World) -> None:
    tenancy.create_tenant(
        name=world.tenant.name, applications=["documents", "mail"], actor="system:test"
    )
    mail = World(world.tenant, "mail")
    ids = {register(each, name="w").worker.worker_id for each in (world, mail)}
    assert len(ids) == 2
