"""How work gets to workers: pulled by them, or placed on them."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import claims, giving, locking, placing, settlement, tenancy, workers
from mesh.errors import DomainError
from mesh.models import Attempt, Grant, Role, State, Worker, Workload
from tests.factories import Member, World, in_state, offline
from tests.mesh.checks import AT_REST, MICRO, NOON, Clock, counted, events, ms, refused

MIB = 1024 * 1024


def pull(worker: Member, maximum: int = 1, lease_ms: int | None = None) -> claims.Claims:
    return claims.claim(
        caller=worker.caller, worker_id=worker.worker_id, maximum=maximum, lease_ms=lease_ms
    )


def place(world: World, work: Workload, worker: Member | None = None, **members: Any) -> Any:
    return placing.place(
        caller=world.operator,
        workload_id=work.workload_id,
        worker_id=None if worker is None else worker.worker_id,
        **members,
    )


# --- Pull: the effect -----------------------------------------------------------------------------


def test_a_claim_raises_the_token_and_holds_a_lease(world: World) -> None:
    work, worker = world.workload(), world.worker()
    claim = pull(worker).claims[0]
    attempt = Attempt.objects.get(workload=work)
    work.refresh_from_db()
    assert (work.state, work.claimable, work.attempt_count) == (State.CLAIMED, False, 1)
    assert (claim.fencing_token, work.fencing_token, attempt.fencing_token) == (1, 1, 1)
    assert (attempt.status, attempt.number, attempt.is_placed) == ("CLAIMED", 1, False)
    assert (claim.issued_at, claim.expires_at) == (NOON, NOON + ms(30_000))
    assert worker.refresh().active == 1
    assert events(work) == ["ready", "claimed"]


def test_a_claim_tells_what_the_work_is(world: World) -> None:
    world.workload(
        input={"a": [1, None]}, timeouts={"execution_ms": 5_000}, connection_scopes=["db:read"]
    )
    claim = pull(world.worker()).claims[0]
    assert (claim.definition_id, claim.definition_revision) == ("extract", "1")
    assert (claim.input, claim.environment) == ({"a": [1, None]}, "production")
    assert (claim.capability_snapshot, claim.connection_scopes) == (
        ["documents.extract"],
        ["db:read"],
    )
    assert (claim.attempt_number, claim.checkpoint, claim.lost_policy) == (1, None, "requeue")
    assert claim.lease_id == f"lease_{claim.attempt_id}"
    assert claim.execution_context_id == f"context_{claim.claim_id}"
    assert claim.runtime_policy == {
        "max_duration_ms": 5_000,
        "max_cpu_millis": None,
        "max_memory_bytes": None,
    }


def test_each_claim_of_a_workload_has_a_higher_token_and_number(world: World) -> None:
    work, worker = world.workload(), world.worker()
    seen = []
    for _ in range(2):
        claim = pull(worker).claims[0]
        seen.append((claim.fencing_token, claim.attempt_number))
        settlement.release(**worker.presenting(claim))
    work.refresh_from_db()
    assert (seen, work.attempt_count, work.started_attempts) == ([(1, 1), (2, 2)], 2, 0)


def test_higher_priority_goes_first_then_the_older_then_the_lower_key(
    world: World, clock: Clock
) -> None:
    late, early = world.workload(priority=1), world.workload(priority=1)
    clock.pass_(ms(1))
    last, first = world.workload(), world.workload(priority=5)
    taken = pull(world.worker(), 4).claims
    wanted = [first, late, early, last]
    assert [each.workload_id for each in taken] == [each.workload_id for each in wanted]


def test_urgent_work_behind_much_other_work_goes_first(world: World, clock: Clock) -> None:
    for _ in range(giving.look_for(1)):
        world.workload()
    clock.pass_(ms(1))
    urgent = world.workload(priority=1)
    assert [each.workload_id for each in pull(world.worker()).claims] == [urgent.workload_id]


def test_priority_holds_across_requirements(world: World) -> None:
    plain = world.workload(capability_snapshot=[])
    urgent = world.workload(definition_id="other", priority=3)
    taken = pull(world.worker(), 2).claims
    assert [each.workload_id for each in taken] == [urgent.workload_id, plain.workload_id]


def test_capacity_bounds_what_is_asked_for(world: World) -> None:
    for _ in range(4):
        world.workload()
    worker = world.worker(concurrency=3)
    assert len(pull(worker, 2).claims) == 2
    assert worker.refresh().lifecycle == "READY"
    assert len(pull(worker, 100).claims) == 1
    assert (worker.refresh().lifecycle, worker.row.active) == ("BUSY", 3)
    full = pull(worker, 1)
    assert (full.claims, full.reason) == ([], "CAPACITY")


def test_nothing_to_do_has_no_reason(world: World) -> None:
    answer = pull(world.worker())
    assert (answer.claims, answer.reason) == ([], None)


def test_work_is_claimed_at_the_very_moment_it_is_due(world: World, clock: Clock) -> None:
    worker = world.worker()
    world.workload(not_before=NOON + ms(1_000))
    clock.to(NOON + ms(1_000) - MICRO)
    assert pull(worker).claims == []
    clock.to(NOON + ms(1_000))
    assert len(pull(worker).claims) == 1


def test_placed_unstarted_claims_come_in_the_same_answer(world: World) -> None:
    worker = world.worker()
    placed = place(world, world.workload(), worker)
    fresh = world.workload()
    answer = pull(worker)
    assert [each.workload_id for each in answer.claims] == [placed.workload_id, fresh.workload_id]
    assert answer.claims[0] == placed
    worker.start(placed)
    assert pull(worker).claims == []


def test_placed_claims_are_told_to_a_worker_that_may_take_no_new_ones(world: World) -> None:
    worker = world.worker(concurrency=1)
    placed = place(world, world.workload(), worker)
    answer = pull(worker)
    assert (answer.claims, answer.reason) == ([placed], "CAPACITY")


def test_asking_for_work_is_accepting_and_no_beat(world: World, clock: Clock) -> None:
    worker = world.worker()
    clock.pass_(ms(5_000))
    pull(worker)
    row = worker.refresh()
    assert (row.last_poll_at, row.last_seen_at, row.last_progress_at) == (clock.at, NOON, None)


# --- Pull: refusals and empty answers -------------------------------------------------------------


def test_claim_needs_a_known_worker_that_acts_as_itself(world: World) -> None:
    worker, other = world.worker(), world.worker()
    with refused("PERMISSION_DENIED"):
        claims.claim(caller=world.operator, worker_id=worker.worker_id, maximum=1)
    with refused("PERMISSION_DENIED"):
        claims.claim(caller=worker.caller, worker_id=other.worker_id, maximum=1)
    with refused("WORKER_NOT_FOUND"):
        claims.claim(caller=worker.caller, worker_id="worker_x", maximum=1)


@pytest.mark.parametrize("maximum", [0, -1, 101])
def test_claim_refuses_a_count_out_of_bounds(world: World, maximum: int) -> None:
    worker = world.worker()
    with refused("REQUEST_INVALID"):
        pull(worker, maximum)


@pytest.mark.parametrize(
    "facts",
    [{"lifecycle": "OFFLINE"}, {"lifecycle": "RECOVERING"}, {"is_unreconciled": True}],
)
def test_claim_asks_a_lost_worker_to_reconcile(world: World, facts: dict[str, Any]) -> None:
    worker = world.worker()
    world.workload()
    Worker.objects.filter(pk=worker.row.pk).update(**facts)
    with refused("WORKER_RECOVERY_REQUIRED"):
        pull(worker)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"lifecycle": "REGISTERED"}, "LIFECYCLE"),
        ({"lifecycle": "DRAINING", "active": 1}, "LIFECYCLE"),
        ({"health": "DEGRADED"}, "HEALTH"),
        ({"health": "UNHEALTHY"}, "HEALTH"),
        ({"health": "UNKNOWN"}, "HEALTH"),
        ({"active": 4, "lifecycle": "BUSY"}, "CAPACITY"),
    ],
)
def test_claim_gives_a_worker_that_may_take_no_work_an_empty_answer_and_the_reason(
    world: World, facts: dict[str, Any], reason: str
) -> None:
    worker = world.worker()
    work = world.workload()
    Worker.objects.filter(pk=worker.row.pk).update(**facts)
    answer = pull(worker)
    work.refresh_from_db()
    assert (answer.claims, answer.reason, work.state) == ([], reason, State.READY)


@pytest.mark.parametrize(
    ("status", "reason", "count"),
    [("ACTIVE", None, 1), ("SUPERSEDED", None, 1), ("REVOKED", "GRANT_REVOKED", 0)],
)
def test_claims_follow_the_grant(world: World, status: str, reason: str | None, count: int) -> None:
    worker = world.worker()
    world.workload()
    Grant.objects.filter(pk=worker.row.grant_id).update(status=status)
    answer = pull(worker)
    assert (len(answer.claims), answer.reason) == (count, reason)


def test_claims_end_with_the_grant_to_the_boundary(world: World, clock: Clock) -> None:
    worker = world.worker()
    for _ in range(2):
        world.workload()
    end = worker.row.grant.expires_at
    clock.to(end - MICRO)
    assert len(pull(worker).claims) == 1
    clock.to(end)
    answer = pull(worker)
    assert (answer.claims, answer.reason) == ([], "GRANT")


def test_a_revoked_grant_is_told_before_anything_else(world: World) -> None:
    worker = world.worker()
    Grant.objects.filter(pk=worker.row.grant_id).update(status="REVOKED")
    Worker.objects.filter(pk=worker.row.pk).update(health="UNHEALTHY")
    assert pull(worker).reason == "GRANT_REVOKED"


# --- Who may take what, in every path -------------------------------------------------------------


FITS: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    ({"capabilities": ["documents.extract"]}, {}, None),
    ({"capabilities": []}, {}, "CAPABILITY"),
    ({}, {"capability_snapshot": ["documents.extract", "gpu"]}, "CAPABILITY"),
    # Declared, and not granted.
    ({"capabilities": ["gpu"]}, {"capability_snapshot": ["gpu"]}, "CAPABILITY"),
    ({"workload_kinds": ["extract"]}, {}, None),
    ({"workload_kinds": ["other"]}, {}, "KIND"),
    ({"labels": {"zone": "a"}}, {"policy": {"required_labels": {"zone": "a"}}}, None),
    ({"labels": {"zone": "b"}}, {"policy": {"required_labels": {"zone": "a"}}}, "LABEL"),
    ({}, {"policy": {"required_labels": {"zone": "a"}}}, "LABEL"),
    ({"labels": {"zone": "a"}}, {"policy": {"anti_affinity": {"zone": "a"}}}, "ANTI_AFFINITY"),
    ({"labels": {"zone": "b"}}, {"policy": {"anti_affinity": {"zone": "a"}}}, None),
    # One pair of several is enough to keep the work away.
    (
        {"labels": {"zone": "b", "os": "x"}},
        {"policy": {"anti_affinity": {"zone": "a", "os": "x"}}},
        "ANTI_AFFINITY",
    ),
    ({"labels": {"zone": "b"}}, {"policy": {"affinity": {"zone": "a"}}}, None),
]


@pytest.mark.parametrize(("of_worker", "of_work", "reason"), FITS)
def test_a_pull_takes_only_what_fits(
    world: World, of_worker: dict[str, Any], of_work: dict[str, Any], reason: str | None
) -> None:
    worker = world.worker(**of_worker)
    world.workload(**of_work)
    answer = pull(worker)
    assert (len(answer.claims), answer.reason) == (0 if reason else 1, None)


@pytest.mark.parametrize(("of_worker", "of_work", "reason"), FITS)
def test_a_placement_on_a_named_worker_gives_only_what_fits(
    world: World, of_worker: dict[str, Any], of_work: dict[str, Any], reason: str | None
) -> None:
    worker = world.worker(**of_worker)
    work = world.workload(**of_work)
    if reason is None:
        assert place(world, work, worker).worker_id == worker.worker_id
        return
    with refused("MESH_PLACEMENT_DENIED") as caught:
        place(world, work, worker)
    assert caught.value.facts["reasons"] == [reason]


@pytest.mark.parametrize(
    ("of_worker", "of_work", "reason"), [each for each in FITS if each[2] is not None]
)
def test_a_placement_on_anybody_counts_why_nobody_fits(
    world: World, of_worker: dict[str, Any], of_work: dict[str, Any], reason: str
) -> None:
    world.worker(**of_worker)
    work = world.workload(**of_work)
    with refused("MESH_NO_ELIGIBLE_WORKER") as caught:
        place(world, work)
    assert caught.value.facts["counts"] == {reason: 1}


def test_work_that_appears_after_the_worker_looked_is_found(world: World) -> None:
    worker = world.worker()
    assert pull(worker).claims == []
    world.workload(definition_id="a new kind")
    assert len(pull(worker).claims) == 1


def test_what_a_worker_may_take_follows_its_next_register(world: World) -> None:
    worker = world.worker(labels={"zone": "a"})
    world.workload(policy={"required_labels": {"zone": "b"}})
    assert pull(worker).claims == []
    moved = world.worker(name=worker.row.name, labels={"zone": "b"}, grant=named(world, worker))
    assert len(pull(moved).claims) == 1


def named(world: World, worker: Member) -> str:
    return world.grant(constraints={"worker_names": [worker.row.name]})[1]


# --- Place ----------------------------------------------------------------------------------------


def test_place_tells_the_worker_by_its_next_beat(world: World) -> None:
    worker = world.worker()
    claim = place(world, world.workload(), worker, lease_ms=60_000)
    assert claim.expires_at == NOON + ms(60_000)
    assert worker.beat().assigned_claims == [claim]
    worker.start(claim)
    assert worker.beat(claim.claim_id).assigned_claims == []


@pytest.mark.parametrize(
    "state",
    sorted(set(AT_REST) - {"READY"}),
)
def test_place_refuses_work_that_is_not_ready(world: World, state: str) -> None:
    work = in_state(world, state)
    world.worker()
    with refused("WORKLOAD_NOT_READY"):
        place(world, work)


def test_place_is_exact_about_when_work_is_due(world: World, clock: Clock) -> None:
    worker = world.worker()
    work = world.workload(not_before=NOON + ms(1_000))
    clock.to(NOON + ms(1_000) - MICRO)
    with refused("WORKLOAD_NOT_YET_ELIGIBLE"):
        place(world, work, worker)
    clock.to(NOON + ms(1_000))
    assert place(world, work, worker).workload_id == work.workload_id


def test_place_looks_at_the_work_before_the_worker(world: World) -> None:
    work = world.workload(not_before=NOON + ms(1))
    worker = offline(world)
    with refused("WORKLOAD_NOT_YET_ELIGIBLE"):
        place(world, work, worker)


def test_place_that_waited_behind_another_looks_at_the_work_before_the_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker(concurrency=1)
    asked: dict[str, Any] = {
        "caller": world.operator,
        "workload_id": world.workload().workload_id,
        "worker_id": worker.worker_id,
    }
    lock_worker = locking.lock_worker

    def come_second(pk: int) -> Worker:
        monkeypatch.setattr(locking, "lock_worker", lock_worker)
        placing.place(**asked)
        return lock_worker(pk)

    monkeypatch.setattr(locking, "lock_worker", come_second)
    with pytest.raises(DomainError, match="WORKLOAD_NOT_READY"):
        placing.place(**asked)


def test_place_needs_an_operator_and_work_of_its_tenant(world: World) -> None:
    work = world.workload()
    with refused("PERMISSION_DENIED"):
        placing.place(caller=world.caller(Role.VIEWER), workload_id=work.workload_id)
    with refused("WORKLOAD_NOT_FOUND"):
        placing.place(caller=World().operator, workload_id=work.workload_id)


def test_place_on_a_worker_of_another_tenant_finds_none(world: World) -> None:
    work, stranger = world.workload(), World().worker()
    with refused("WORKER_NOT_FOUND"):
        place(world, work, stranger)


def test_place_on_a_worker_of_another_application_is_denied(world: World) -> None:
    tenancy.create_tenant(
        name=world.tenant.name, applications=["documents", "mail"], actor="system:test"
    )
    mail = World(world.tenant, "mail").worker()
    work = world.workload()
    with refused("MESH_PLACEMENT_DENIED") as caught:
        place(world, work, mail)
    assert caught.value.facts["reasons"] == ["TENANT"]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"lifecycle": "REGISTERED"}, "LIFECYCLE"),
        ({"lifecycle": "DRAINING"}, "LIFECYCLE"),
        ({"lifecycle": "OFFLINE"}, "LIFECYCLE"),
        ({"lifecycle": "RECOVERING"}, "LIFECYCLE"),
        ({"is_unreconciled": True}, "LIFECYCLE"),
        ({"health": "UNKNOWN"}, "HEALTH"),
        ({"active": 4}, "CAPACITY"),
    ],
)
def test_place_denies_a_worker_that_may_take_no_work(
    world: World, facts: dict[str, Any], reason: str
) -> None:
    work, worker = world.workload(), world.worker()
    Worker.objects.filter(pk=worker.row.pk).update(**facts)
    with refused("MESH_PLACEMENT_DENIED") as caught:
        place(world, work, worker)
    assert caught.value.facts["reasons"] == [reason]
    with refused("MESH_NO_ELIGIBLE_WORKER"):
        place(world, work)


@pytest.mark.parametrize("status", ["REVOKED", "expired"])
def test_place_denies_a_worker_without_a_grant_in_force(
    world: World, clock: Clock, status: str
) -> None:
    work, worker = world.workload(), world.worker()
    if status == "REVOKED":
        Grant.objects.filter(pk=worker.row.grant_id).update(status=status)
    else:
        clock.to(worker.row.grant.expires_at)
    with refused("MESH_PLACEMENT_DENIED") as caught:
        place(world, work, worker)
    assert caught.value.facts["reasons"] == ["GRANT"]


def test_place_lists_all_reasons_in_their_order(world: World) -> None:
    worker = world.worker(capabilities=[], workload_kinds=["other"])
    work = world.workload(policy={"required_labels": {"zone": "a"}})
    Worker.objects.filter(pk=worker.row.pk).update(lifecycle="REGISTERED", health="UNKNOWN")
    with refused("MESH_PLACEMENT_DENIED") as caught:
        place(world, work, worker)
    assert caught.value.facts["reasons"] == ["LIFECYCLE", "HEALTH", "CAPABILITY", "KIND", "LABEL"]


def test_place_ranks_by_affinity_then_load_then_size_then_id(world: World) -> None:
    small, large = world.worker(concurrency=2), world.worker(concurrency=9)
    near = world.worker(labels={"zone": "a", "disk": "ssd"}, concurrency=1)
    loaded = world.worker(labels={"zone": "a"}, concurrency=9)
    world.running(loaded, capability_snapshot=[])
    twin = world.worker(concurrency=2)
    policy = {"affinity": {"zone": "a", "disk": "ssd"}}
    chosen = [place(world, world.workload(policy=policy)).worker_id for _ in range(2)]
    assert chosen == [near.worker_id, loaded.worker_id]
    Worker.objects.filter(pk=loaded.row.pk).update(health="UNKNOWN")
    assert place(world, world.workload(policy=policy)).worker_id == large.worker_id
    lowest = min(small.worker_id, twin.worker_id)
    assert place(world, world.workload(policy=policy)).worker_id == lowest


def test_a_pull_does_not_rank(world: World) -> None:
    far = world.worker()
    world.worker(labels={"zone": "a"})
    world.workload(policy={"affinity": {"zone": "a"}})
    assert len(pull(far).claims) == 1


def test_placing_again_is_not_ready(world: World) -> None:
    worker, work = world.worker(), world.workload()
    place(world, work, worker)
    with refused("WORKLOAD_NOT_READY"):
        place(world, work, worker)


def test_place_refuses_a_lease_out_of_bounds_and_claims_nothing(world: World) -> None:
    worker, work = world.worker(), world.workload()
    with refused("WORKLOAD_INVALID"):
        place(world, work, worker, lease_ms=900_001)


# --- Bounds and cost ------------------------------------------------------------------------------


def weigh(world: World, *bytes_: int) -> None:
    """Give the world's workloads these lengths, in the order in which they were made."""
    rows = Workload.objects.filter(tenant=world.tenant).order_by("pk")
    for row, number in zip(rows, bytes_, strict=True):
        Workload.objects.filter(pk=row.pk).update(input_bytes=number)


def test_a_claims_answer_stops_at_8_mib(world: World) -> None:
    for _ in range(30):
        world.workload()
    weigh(world, *[3 * MIB] * 30)
    # Two fit; a third would not, however many more candidates there are.
    assert len(pull(world.worker(), 3).claims) == 2


def test_a_claims_answer_counts_what_was_placed(world: World) -> None:
    worker = world.worker()
    place(world, world.workload(), worker)
    for _ in range(2):
        world.workload()
    weigh(world, *[3 * MIB] * 3)
    assert len(pull(worker, 3).claims) == 2


def test_one_claim_is_given_however_large_it_is(world: World) -> None:
    for _ in range(2):
        world.workload()
    weigh(world, 9 * MIB, 1)
    assert len(pull(world.worker(), 2).claims) == 1


def test_checkpoints_count_in_a_claims_answer(world: World) -> None:
    for _ in range(3):
        world.workload()
    Workload.objects.filter(tenant=world.tenant).update(checkpoint_bytes=3 * MIB)
    assert len(pull(world.worker(), 3).claims) == 2


def test_a_beats_answer_stops_at_8_mib(world: World) -> None:
    worker = world.worker()
    for _ in range(3):
        place(world, world.workload(), worker)
    weigh(world, *[3 * MIB] * 3)
    assert len(worker.beat().assigned_claims) == 2


def test_claiming_twenty_costs_as_many_statements_as_one(world: World) -> None:
    counts = []
    for number in (1, 20):
        worker = world.worker(concurrency=40)
        for _ in range(number):
            world.workload()
        pull(worker, 1)
        world.workload()
        with counted() as queries:
            assert len(pull(worker, number).claims) == number
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_claimed_work_is_not_given_again(world: World) -> None:
    held = world.claimed()
    other = world.worker()
    assert pull(other).claims == []
    assert held.refresh().fencing_token == 1


def test_a_drained_worker_gets_nothing_and_ends_offline(world: World) -> None:
    worker = world.worker()
    claim = place(world, world.workload(), worker)
    world.workload()
    workers.drain(caller=world.operator, worker_id=worker.worker_id)
    answer = pull(worker)
    assert (answer.claims, answer.reason) == ([claim], "LIFECYCLE")
