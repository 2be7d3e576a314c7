"""Requirements in use, at rest, and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import workloads
from mesh.models import Application, EligibleSet, Requirement, Workload
from tests.factories import World
from tests.mesh.checks import refused


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("mesh.requirements.MAX_IN_USE", 3)
    return 3


def kind(world: World, number: int, **members: Any) -> Workload:
    return world.workload(definition_id=f"kind-{number}", **members)


def in_use(world: World) -> set[str]:
    rows = Requirement.objects.filter(application__tenant=world.tenant, number__isnull=False)
    return {each.definition_id for each in rows}


def cancel(world: World, work: Workload) -> None:
    workloads.cancel(caller=world.operator, workload_id=work.workload_id)


def test_work_that_is_alike_shares_a_requirement(world: World) -> None:
    first = world.workload(capability_snapshot=["a", "b"], priority=1)
    second = world.workload(capability_snapshot=["b", "a", "a"], input="other")
    assert first.requirement_id == second.requirement_id


@pytest.mark.parametrize(
    "members",
    [
        {"definition_id": "other"},
        {"capability_snapshot": []},
        {"policy": {"required_labels": {"a": "b"}}},
        {"policy": {"affinity": {"a": "b"}}},
        {"policy": {"anti_affinity": {"a": "b"}}},
    ],
)
def test_work_that_differs_in_placement_has_its_own(world: World, members: dict[str, Any]) -> None:
    assert world.workload().requirement_id != world.workload(**members).requirement_id


def test_one_requirement_over_the_limit_is_refused(world: World, limit: int) -> None:
    for number in range(limit):
        kind(world, number)
    with refused("LIMIT_EXCEEDED") as caught:
        kind(world, limit)
    assert caught.value.facts["retry_after_ms"] > 0
    assert kind(world, 0).state == "READY"


@pytest.mark.usefixtures("limit")
def test_the_limit_counts_each_application_for_itself(world: World) -> None:
    other = World()
    for number in range(3):
        kind(other, number)
    assert kind(world, 3).state == "READY"


@pytest.mark.usefixtures("limit")
def test_requirements_without_open_work_are_put_to_rest(world: World) -> None:
    work = [kind(world, number) for number in range(3)]
    cancel(world, work[0])
    kind(world, 3)
    assert in_use(world) == {"kind-1", "kind-2", "kind-3"}


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("make", ["claimed", "running", "cancelling"])
def test_a_requirement_with_open_work_stays_in_use(world: World, make: str) -> None:
    getattr(world, make)(definition_id="kind-0")
    kind(world, 1, not_before=None)
    kind(world, 2)
    with refused("LIMIT_EXCEEDED"):
        kind(world, 3)


@pytest.mark.usefixtures("limit")
def test_a_requirement_at_rest_is_taken_back_into_use_and_found_by_workers(world: World) -> None:
    worker = world.worker()
    for number in range(3):
        cancel(world, kind(world, number))
    kind(world, 3)
    assert in_use(world) == {"kind-3"}
    assert len(worker.claim()) == 1
    again = kind(world, 0)
    assert in_use(world) == {"kind-0", "kind-3"}
    assert [each.workload_id for each in worker.claim()] == [again.workload_id]


@pytest.mark.usefixtures("limit")
def test_a_dead_letter_at_rest_that_is_retried_is_found_by_workers(world: World) -> None:
    held = world.dead_letter(definition_id="kind-0")
    for number in (1, 2, 3):
        kind(world, number)
    assert in_use(world) == {"kind-1", "kind-2", "kind-3"}
    workloads.retry(caller=world.operator, workload_id=held.workload.workload_id)
    taken = held.worker.claim(4)
    assert held.workload.workload_id in [each.workload_id for each in taken]


@pytest.mark.usefixtures("limit")
def test_a_worker_forgets_what_was_put_to_rest(world: World) -> None:
    worker = world.worker()
    for number in range(3):
        cancel(world, kind(world, number))
    worker.claim()
    assert len(EligibleSet.objects.get(worker=worker.row).requirement_ids) == 3
    kind(world, 3)
    worker.claim()
    assert len(EligibleSet.objects.get(worker=worker.row).requirement_ids) == 1


def test_numbers_rise_and_are_never_given_twice(world: World, limit: int) -> None:
    for number in range(limit):
        cancel(world, kind(world, number))
    kind(world, 3)
    kind(world, 0)
    numbers = Requirement.objects.filter(application__tenant=world.tenant, number__isnull=False)
    assert sorted(each.number or 0 for each in numbers) == [4, 5]
    assert Application.objects.get(tenant=world.tenant).requirement_number == 5
