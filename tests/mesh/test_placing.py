"""Placements: in which order they are refused, and the decision that each of them leaves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mesh import decisions, placing, survey
from mesh.errors import DomainError
from mesh.models import Decision, Role, Tenant, Worker, Workload
from tests.factories import Member, World, make_tenant
from tests.mesh.checks import NOON, Clock, ms, refused


def place(world: World, work: Workload, worker: Member | None = None, **said: Any) -> Any:
    return placing.place(
        caller=world.operator,
        workload_id=work.workload_id,
        worker_id=worker.worker_id if worker else None,
        **said,
    )


def only() -> Decision:
    return Decision.objects.get()


def listed(decision: Decision) -> dict[str, list[str]]:
    assert all(each["eligible"] == (not each["reasons"]) for each in decision.candidates)
    return {each["worker_id"]: each["reasons"] for each in decision.candidates}


# --- The order of the checks ----------------------------------------------------------------------

# What may be wrong with work, in the order in which it is told.
ORDER: list[tuple[str, dict[str, Any]]] = [
    ("WORKLOAD_TRANSITION_DENIED", {"sealed": True}),
    ("WORKLOAD_NOT_READY", {"state": "DEAD_LETTER", "ended_at": NOON}),
    ("MESH_RUN_BLOCKED", {"held": True}),
    ("WORKLOAD_NOT_YET_ELIGIBLE", {"available_at": NOON + timedelta(hours=1)}),
    ("WORKLOAD_DEPENDENCY_OPEN", {"open_dependencies": 1}),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
@pytest.mark.parametrize("is_named", [True, False])
def test_what_is_wrong_with_the_work_is_told_in_order(
    world: World, first: int, is_named: bool
) -> None:
    work, worker = world.workload(), world.worker()
    world.pause()
    wrong = {name: value for _, part in ORDER[first:] for name, value in part.items()}
    Workload.objects.filter(pk=work.pk).update(claimable=False, **wrong)
    with refused(ORDER[first][0]):
        place(world, work, worker if is_named else None)
    assert (only().code, only().considered, only().candidates) == (ORDER[first][0], 0, [])


@pytest.mark.parametrize("is_named", [True, False])
def test_paused_work_is_denied_before_anybody_is_looked_for(world: World, is_named: bool) -> None:
    work, worker = world.workload(), world.worker()
    made = world.pause(definition_id="extract", until=NOON + ms(1_000))
    with refused("MESH_PLACEMENT_DENIED") as refusal:
        place(world, work, worker if is_named else None)
    assert refusal.value.facts["reasons"] == ["PAUSED"]
    assert listed(only()) == {worker.worker_id: ["PAUSED"]}
    assert made.is_standing(NOON)


def test_paused_work_is_placed_when_the_pause_is_over(world: World, clock: Clock) -> None:
    work, worker = world.workload(), world.worker()
    world.pause(until=NOON + ms(1_000))
    clock.to(NOON + ms(1_000))
    assert place(world, work, worker).worker_id == worker.worker_id


def test_a_named_worker_is_denied_with_all_that_it_fails(world: World) -> None:
    work = world.workload(policy={"required_labels": {"zone": "a"}})
    worker = world.worker(labels={"zone": "b"})
    world.pause()
    Worker.objects.update(health="DEGRADED")
    with refused("MESH_PLACEMENT_DENIED") as refusal:
        place(world, work, worker)
    assert refusal.value.facts["reasons"] == ["HEALTH", "LABEL", "PAUSED"]
    assert only().nearest == {
        "worker_id": worker.worker_id,
        "lacks": ["good health (it is DEGRADED)", "label zone = a (it has b)"],
    }


def test_a_worker_of_another_application_is_denied_and_of_another_tenant_unknown(
    world: World,
) -> None:
    both = World(make_tenant(applications=["documents", "mail"]))
    work, mail, stranger = both.workload(), World(both.tenant, "mail").worker(), world.worker()
    with refused("MESH_PLACEMENT_DENIED") as refusal:
        place(both, work, mail)
    assert refusal.value.facts["reasons"] == ["TENANT"]
    with refused("WORKER_NOT_FOUND"):
        place(both, work, stranger)


def test_nobody_is_told_with_counts_and_the_nearest(world: World) -> None:
    work = world.workload(policy={"required_labels": {"zone": "a"}})
    worker, full = world.worker(), world.worker(labels={"zone": "b"}, concurrency=1)
    world.claimed(full)
    Decision.objects.all().delete()
    with refused("MESH_NO_ELIGIBLE_WORKER") as refusal:
        place(world, work)
    facts = refusal.value.facts
    nearest = {"worker_id": worker.worker_id, "lacks": ["label zone = a (it has none)"]}
    assert (facts["counts"], facts["busy"]) == ({"CAPACITY": 1, "LABEL": 2}, 0)
    assert (facts["reasons"], facts["nearest"]) == (["CAPACITY", "LABEL"], nearest)
    assert (only().code, only().counts, only().nearest) == (
        "MESH_NO_ELIGIBLE_WORKER",
        facts["counts"],
        nearest,
    )


# --- Decisions ------------------------------------------------------------------------------------


def test_an_accepted_placement_leaves_all_candidates_and_the_chosen_one(
    world: World, clock: Clock
) -> None:
    work = world.workload(policy={"affinity": {"zone": "a"}})
    other, best = world.worker(), world.worker(labels={"zone": "a"})
    unfit = world.worker(workload_kinds=["scan"])
    clock.pass_(ms(1_000))
    place(world, work)
    decision = only()
    assert (decision.chosen, decision.code, decision.actor) == (best.row, "", "service:ops")
    assert (decision.workload, decision.at, decision.considered) == (work, clock.at, 3)
    assert listed(decision) == {
        other.worker_id: [],
        best.worker_id: [],
        unfit.worker_id: ["KIND"],
    }
    assert (decision.counts, decision.nearest) == ({"KIND": 1}, None)


def test_a_placement_on_a_named_worker_considers_only_that_one(world: World) -> None:
    work, worker = world.workload(), world.worker()
    world.worker()
    place(world, work, worker)
    assert (only().chosen, only().considered) == (worker.row, 1)
    assert listed(only()) == {worker.worker_id: []}


def test_a_pull_leaves_no_decision(world: World) -> None:
    worker = world.worker()
    world.workload()
    assert len(worker.claim(5)) == 1
    assert worker.claim(5) == []
    assert not Decision.objects.exists()


def test_each_placement_that_is_asked_for_leaves_its_own(world: World) -> None:
    work, worker = world.workload(), world.worker()
    place(world, work, worker)
    for _ in range(2):
        with refused("WORKLOAD_NOT_READY"):
            place(world, work, worker)
    found = list(Decision.objects.filter(workload=work))
    assert [each.code for each in found] == ["WORKLOAD_NOT_READY", "WORKLOAD_NOT_READY", ""]


def lease(world: World, work: Workload, worker: Member) -> None:
    place(world, work, worker, lease_ms=900_001)


def limit(world: World, work: Workload, worker: Member) -> None:
    world.claimed(worker)
    Decision.objects.all().delete()
    Tenant.objects.update(max_live_claims=1)
    place(world, work, worker)


def stranger(world: World, work: Workload, worker: Member) -> None:
    place(world, work, World().worker())


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lease, "WORKLOAD_INVALID"),
        (limit, "LIMIT_EXCEEDED"),
        (stranger, "WORKER_NOT_FOUND"),
    ],
)
def test_whatever_the_refusal_it_is_remembered(
    world: World, ask: Callable[..., None], code: str
) -> None:
    work, worker = world.workload(), world.worker()
    with pytest.raises(DomainError) as refusal:
        ask(world, work, worker)
    assert (refusal.value.code, only().code, only().chosen) == (code, code, None)
    work.refresh_from_db()
    assert work.state == "READY"


def test_a_placement_that_nobody_was_allowed_to_ask_for_leaves_none(world: World) -> None:
    work = world.workload()
    with refused("PERMISSION_DENIED"):
        placing.place(caller=world.caller(Role.VIEWER), workload_id=work.workload_id)
    with refused("WORKLOAD_NOT_FOUND"):
        placing.place(caller=World().operator, workload_id=work.workload_id)
    assert not Decision.objects.exists()


def test_the_chosen_one_is_named_however_many_might_have_been(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (survey, decisions):
        monkeypatch.setattr(module, "LISTED", 2)
    for _ in range(4):
        world.worker()
    chosen = world.worker(concurrency=9)
    place(world, world.workload())
    assert (len(only().candidates), only().considered) == (2, 5)
    assert chosen.worker_id in listed(only())
