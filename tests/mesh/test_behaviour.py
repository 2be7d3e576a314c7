"""The fifteen behaviours that the product promises, each told from end to end."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db.models import Model

from mesh import claims, grants, leases, liveness, placing, recovery, settlement, workers, workloads
from mesh.models import AttemptStatus, Grant, State, Worker, Workload, WorkloadEvent
from mesh.models.enums import Lifecycle
from tests.factories import CAPABILITY, Held, World
from tests.mesh.checks import MICRO, NOON, Clock, events, ms, refused

RECOVER = "recover_expired_leases"


def successor(world: World, clock: Clock, held: Held) -> Held:
    """The lease ends unseen by its worker; the work is recovered and another one holds it."""
    clock.to(held.attempt.expires_at)
    recovery.run(RECOVER)
    clock.pass_(ms(2_000))
    other = world.worker()
    recovery.run("promote_due")
    return Held(held.workload, other, other.claim()[0])


def test_01_granted_is_declared_and_granted_and_registered_never_jumps_to_busy(
    world: World,
) -> None:
    worker = world.registered(capabilities=[CAPABILITY, "gpu"]).row
    assert worker.declared_capabilities == [CAPABILITY, "gpu"]
    assert worker.granted_capabilities == [CAPABILITY]
    with refused("WORKER_TRANSITION_DENIED"):
        workers.move(worker, Lifecycle.BUSY, actor="system:test", at=NOON)


def test_02_of_two_claims_one_ended_twice_frees_one_slot_once(world: World) -> None:
    worker = world.worker(concurrency=2)
    first, _ = world.running(worker), world.running(worker)
    worker.complete(first.claim, result_id="r")
    worker.complete(first.claim, result_id="r")
    assert (worker.refresh().active, worker.row.lifecycle) == (1, "READY")
    assert Worker.objects.get(pk=worker.row.pk).attempts.live().count() == 1


def test_03_two_sweepers_leave_one_recovering_event_and_one_report(
    world: World, clock: Clock
) -> None:
    held = world.running()
    clock.to(NOON + ms(30_000))
    reports = [recovery.run(RECOVER), recovery.run(RECOVER)]
    assert [each.changed for each in reports] == [[held.workload.workload_id], []]
    assert WorkloadEvent.objects.filter(event="workload.recovered").count() == 1
    assert held.worker.refresh().active == 0


def test_04_a_lease_that_ends_on_a_healthy_worker_leaves_it_ready_with_its_slot(
    world: World, clock: Clock
) -> None:
    held = world.claimed(world.worker(concurrency=1))
    clock.to(NOON + ms(29_000))
    held.worker.beat()
    clock.to(NOON + ms(30_000))
    recovery.run(RECOVER)
    recovery.run("detect_silent_workers")
    assert (held.refresh().state, held.worker.refresh().lifecycle) == ("READY", "READY")
    assert len(held.worker.claim()) == 1
    clock.to(NOON + ms(59_000))
    recovery.run("detect_silent_workers")
    assert held.worker.refresh().lifecycle == "OFFLINE"


def test_05_after_detection_a_copied_old_claim_is_stale(world: World, clock: Clock) -> None:
    held = world.running()
    successor(world, clock, held)
    for call in (leases.start, leases.renew, settlement.release):
        with refused("WORKLOAD_STALE_FENCE"):
            call(**held.presenting)


def test_06_the_same_key_twice_is_the_same_work_and_other_content_is_refused(
    world: World,
) -> None:
    first = world.workload(idempotency_key="k")
    assert world.workload(idempotency_key="k").pk == first.pk
    with refused("WORKLOAD_IDEMPOTENCY_MISMATCH"):
        world.workload(idempotency_key="k", input="other")


def test_07_each_workload_goes_to_one_claimant_within_capacity_and_tokens_rise(
    world: World,
) -> None:
    work = [world.workload() for _ in range(7)]
    members = [world.worker(concurrency=2) for _ in range(3)]
    given = [claim for each in members for claim in each.claim(100)]
    assert len({claim.workload_id for claim in given}) == len(given) == 6
    assert [each.refresh().active for each in members] == [2, 2, 2]
    for each in members:
        for claim in [c for c in given if c.worker_id == each.worker_id]:
            settlement.release(**each.presenting(claim))
    again = members[0].claim(2)
    assert {claim.fencing_token for claim in again} <= {1, 2}
    rows = Workload.objects.filter(pk__in=[each.pk for each in work])
    assert all(each.fencing_token == each.attempt_count for each in rows)


def test_08_not_before_is_exact_to_the_boundary(world: World, clock: Clock) -> None:
    worker = world.worker()
    work = world.workload(not_before=NOON + ms(500))
    clock.to(NOON + ms(500) - MICRO)
    assert worker.claim() == []
    with refused("WORKLOAD_NOT_YET_ELIGIBLE"):
        placing.place(caller=world.operator, workload_id=work.workload_id)
    clock.to(NOON + ms(500))
    assert [each.workload_id for each in worker.claim()] == [work.workload_id]


def test_09_a_second_claimant_is_told_not_ready_and_no_time_code(
    world: World, clock: Clock
) -> None:
    world.worker()
    work = world.workload(not_before=NOON + ms(500))
    clock.to(NOON + ms(500))
    placing.place(caller=world.operator, workload_id=work.workload_id)
    clock.to(NOON)
    with refused("WORKLOAD_NOT_READY"):
        placing.place(caller=world.operator, workload_id=work.workload_id)


def test_10_an_old_workers_completion_is_stale_then_invalid_and_one_attempt_succeeds(
    world: World, clock: Clock
) -> None:
    old = world.running()
    heir = successor(world, clock, old)
    with refused("WORKLOAD_STALE_FENCE"):
        old.worker.complete(old.claim)
    heir.worker.start(heir.claim)
    heir.worker.complete(heir.claim)
    with refused("WORKLOAD_CLAIM_INVALID"):
        old.worker.complete(old.claim)
    done = heir.refresh().attempts.filter(status=AttemptStatus.SUCCEEDED)
    assert [each.number for each in done] == [2]


def test_11_a_budget_of_one_and_a_failure_is_a_dead_letter(world: World) -> None:
    held = world.running(retry_policy={"max_attempts": 1, "retry_on": ["broken"]})
    held.worker.fail(held.claim)
    assert held.refresh().state == State.DEAD_LETTER


def test_12_complete_after_a_cancel_is_refused_and_a_confirmation_cancels(world: World) -> None:
    held = world.running()
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        held.worker.complete(held.claim)
    settlement.cancelled(**held.presenting)
    assert held.refresh().state == State.CANCELLED


def test_13_a_clean_run_is_told_in_four_events(world: World) -> None:
    held = world.succeeded()
    assert events(held.workload) == ["ready", "claimed", "started", "completed"]
    told = WorkloadEvent.objects.filter(workload=held.workload)
    states = [(each.from_state, each.to_state) for each in told]
    assert states == [
        ("CREATED", "READY"),
        ("READY", "CLAIMED"),
        ("CLAIMED", "RUNNING"),
        ("RUNNING", "SUCCEEDED"),
    ]


# --- 14 Nothing ever crosses tenants --------------------------------------------------------------


def test_14_no_operation_reaches_another_tenant(world: World) -> None:
    mine, held = world.worker(), world.running()
    stranger = World()
    spy = stranger.worker()
    work = world.workload()
    attempts: list[tuple[str, Any, dict[str, Any]]] = [
        ("WORKLOAD_NOT_FOUND", workloads.cancel, {"workload_id": work.workload_id}),
        ("WORKLOAD_NOT_FOUND", workloads.retry, {"workload_id": work.workload_id}),
        ("WORKLOAD_NOT_FOUND", placing.place, {"workload_id": work.workload_id}),
        ("WORKER_NOT_FOUND", workers.drain, {"worker_id": mine.worker_id}),
        ("WORKER_NOT_FOUND", workers.remove, {"worker_id": mine.worker_id}),
    ]
    for code, act, members in attempts:
        with refused(code):
            act(caller=stranger.operator, **members)
    for call in (leases.start, leases.renew, settlement.cancelled, settlement.release):
        with refused("CLAIM_NOT_FOUND"):
            call(**{**held.presenting, "caller": spy.caller})
    with refused("WORKER_NOT_FOUND"):
        claims.claim(caller=spy.caller, worker_id=mine.worker_id, maximum=1)


def test_14_a_worker_is_given_no_work_of_another_tenant_or_application(world: World) -> None:
    other = World()
    other.workload()
    assert world.worker().claim(10) == []


def test_14_a_grant_of_another_tenant_registers_nobody(world: World) -> None:
    other = World()
    said = world.registration(grant=other.grant()[1])
    with refused("WORKER_UNAUTHORIZED"):
        liveness.register(registration=said, credential=None)


def tenant_models() -> list[type[Model]]:
    return [
        each
        for each in apps.get_app_config("mesh").get_models()
        if hasattr(each._default_manager.all(), "visible_to")
    ]


@pytest.mark.parametrize("model", tenant_models())
def test_14_rows_of_another_tenant_do_not_exist_for_a_caller(
    world: World, model: type[Model]
) -> None:
    """Of every kind of row that callers read, made in one tenant and read from another."""
    stranger = World()
    world.token()
    held = world.succeeded()
    everything: Any = model._default_manager.all()
    for caller in (stranger.caller(), stranger.worker().caller):
        seen = everything.visible_to(caller).values_list("tenant_id", flat=True)
        assert set(seen) <= {stranger.tenant.pk}
    own = everything.visible_to(held.worker.caller)
    if model in {Worker, Workload}:
        assert own.count() == 1
    else:
        assert not own.exists()


# --- 15 Grants that are refused, each with its code -----------------------------------------------


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("tampered", "GRANT_INVALID"),
        ("algorithm", "GRANT_INVALID"),
        ("subject", "WORKLOAD_UNAUTHORIZED"),
        ("tenant", "WORKLOAD_UNAUTHORIZED"),
        ("early", "GRANT_EXPIRED"),
        ("expired", "GRANT_EXPIRED"),
        ("revoked", "GRANT_REVOKED"),
        ("superseded", "GRANT_REVOKED"),
        ("right", "WORKLOAD_UNAUTHORIZED"),
        ("scope", "GRANT_SCOPE_DENIED"),
        ("constraint", "GRANT_SCOPE_DENIED"),
    ],
)
def test_15_a_bad_grant_is_refused_with_its_own_code(
    world: World, clock: Clock, fault: str, code: str
) -> None:
    said: dict[str, Any] = {"subject": "service:ops", "capabilities": ["workload:create"]}
    changed: dict[str, dict[str, Any]] = {
        "subject": {"subject": "service:other"},
        "early": {"not_before": NOON + ms(1)},
        "right": {"capabilities": ["workload:read"]},
        "scope": {"resources": [{"kind": "APPLICATION", "uri": "flow://documents/other"}]},
        "constraint": {"constraints": {"worker_names": ["*"]}},
    }
    where = World() if fault == "tenant" else world
    grant, token = where.grant(**{**said, **changed.get(fault, {})})
    if fault == "tampered":
        token = token[:-8] + token[-8:][::-1]
    if fault == "algorithm":
        token = "eyJhbGciOiJub25lIn0." + token.split(".", 1)[1]
    if fault == "expired":
        clock.to(grant.expires_at)
    if fault in {"revoked", "superseded"}:
        Grant.objects.filter(pk=grant.pk).update(status=fault.upper())
    with refused(code):
        grants.verify_for_submit(token, world.operator, world.application, clock.at)
