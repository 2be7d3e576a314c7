"""Which workers may take work: the ranking of many, and that it costs the same for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import candidates, clock, placement
from mesh.models import Requirement, Worker, Workload
from tests.factories import CAPABILITY, World
from tests.mesh.checks import Clock
from tests.mesh.test_choosing import statements


def best(work: Workload, most: int = 5) -> list[str]:
    ids = dict(Worker.objects.values_list("pk", "name"))
    return [ids[pk] for pk in candidates.best(work.requirement, clock.now(), most)]


def many(world: World, number: int, **columns: Any) -> None:
    """Many workers that are alike."""
    row = world.worker().row
    Worker.objects.filter(pk=row.pk).update(**columns)
    row.refresh_from_db()
    Worker.objects.bulk_create(
        Worker(
            **{
                **{each.attname: getattr(row, each.attname) for each in Worker._meta.fields},
                "id": None,
                "worker_id": f"worker_y{place:06}",
                "name": f"copy-{place}",
                "credential_hash": None,
            }
        )
        for place in range(number)
    )


def test_the_store_ranks_as_the_rules_do(world: World) -> None:
    affinity = {"x": "1", "y": "1"}
    work = world.workload(policy={"affinity": affinity})
    for number in range(12):
        labels = {"x": str(number % 2), "y": str(number % 3)}
        member = world.worker(labels=labels, concurrency=2 + number % 4)
        Worker.objects.filter(pk=member.row.pk).update(active=number % 2)
    rows = list(Worker.objects.select_related("grant"))
    verdicts = candidates.judge(work.requirement, rows, clock.now())
    ranked = [each.name for each in placement.rank(work.requirement, verdicts)]
    assert best(work, 100) == ranked
    assert best(work, 3) == ranked[:3]


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ({}, "plain"),
        ({"required_labels": {"zone": "b"}}, "labelled"),
        ({"anti_affinity": {"zone": "a"}}, "labelled"),
        ({"pool_id": "gpu"}, "member"),
        ({"resources": {"memory_bytes": 9}}, "plain"),
        ({"resources": {"gpu_count": 2}}, "gpus"),
    ],
)
def test_what_one_of_many_may_take_finds_it(
    world: World, policy: dict[str, Any], wanted: str
) -> None:
    profile = {"memory_bytes": 8, "gpu_count": 1}
    many(world, 30, labels={"zone": "a"}, resource_profile=profile)
    alike: dict[str, Any] = {"labels": {"zone": "a"}, "resource_profile": profile}
    large = {"memory_bytes": 99, "gpu_count": 1}
    world.worker(**{**alike, "name": "plain", "concurrency": 9, "resource_profile": large})
    world.worker(**{**alike, "name": "labelled", "labels": {"zone": "b"}})
    world.worker(**{**alike, "name": "gpus", "resource_profile": {"gpu_count": 2}})
    world.pool(world.worker(**alike, name="member"), pool_id="gpu")
    assert best(world.workload(policy=policy), 1) == [wanted]


def test_an_affinity_finds_one_worker_far_behind_the_others(world: World) -> None:
    many(world, 600)
    world.worker(name="near", labels={"zone": "b"}, concurrency=1)
    work = world.workload(policy={"affinity": {"zone": "b"}})
    assert best(work, 1) == ["near"]


def test_workers_are_judged_in_as_few_queries_as_one(world: World, clock: Clock) -> None:
    policy = {"pool_id": "gpu", "resources": {"memory_bytes": 1}}
    members = [world.worker() for _ in range(6)]
    world.pool(*members, pool_id="gpu", max_concurrency=3)
    need = Requirement.objects.get(pk=world.workload(policy=policy).requirement_id)
    rows = list(Worker.objects.select_related("grant"))
    one = statements(lambda: candidates.judge(need, rows[:1], clock.at))
    assert statements(lambda: candidates.judge(need, rows, clock.at)) == one == 5


def test_a_worker_without_the_capability_is_not_among_them(world: World) -> None:
    world.worker(name="able")
    world.worker(name="unable", capabilities=[])
    assert best(world.workload(capability_snapshot=[CAPABILITY])) == ["able"]
