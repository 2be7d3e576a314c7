"""The careful pull: what is chosen where more than slots must be counted, and at what cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import giving, pauses, placing
from mesh.models import Attempt, Worker, Workload
from tests.factories import Member, World
from tests.mesh.checks import NOON, Clock, ms, refused

GIB = 1024**3


def needing(world: World, memory: int, **members: Any) -> str:
    """Work that needs so much memory; its id."""
    policy = {"resources": {"memory_bytes": memory}}
    return world.workload(policy=policy, **members).workload_id


def taken(worker: Member, maximum: int = 100) -> list[str]:
    return [each.workload_id for each in worker.claim(maximum)]


def sized(world: World, memory: int, **members: Any) -> Member:
    profile = {"memory_bytes": memory}
    return world.worker(concurrency=100, resource_profile=profile, **members)


def statements(act: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as captured:
        act()
    return len([each for each in captured if "SAVEPOINT" not in str(each["sql"])])


# --- Resources ------------------------------------------------------------------------------------


def test_only_what_fits_into_what_is_left_is_taken(world: World) -> None:
    worker = sized(world, 100)
    works = [needing(world, 30) for _ in range(5)]
    assert taken(worker) == works[:3]
    assert taken(worker) == []


def test_what_live_claims_have_is_not_left_over(world: World) -> None:
    worker = sized(world, 100)
    works = [needing(world, 60), needing(world, 60)]
    (first,) = worker.claim(10)
    assert taken(worker) == []
    worker.start(first)
    worker.complete(first)
    assert taken(worker) == works[1:]


def test_what_does_not_fit_hides_nothing_behind_it(world: World, clock: Clock) -> None:
    worker = sized(world, 100)
    for _ in range(3 * giving.look_for(4)):
        needing(world, 101, priority=9)
    for _ in range(3):
        needing(world, 90, priority=8)
    clock.pass_(ms(1))
    small, plain = needing(world, 10), world.workload().workload_id
    assert taken(worker, 4)[1:] == [small, plain]


def test_work_is_taken_in_order_as_far_as_it_fits(world: World) -> None:
    worker = sized(world, 100)
    wanted = [needing(world, 50, priority=5), needing(world, 20, priority=3)]
    needing(world, 40, priority=2)
    last = needing(world, 30, priority=1)
    needing(world, 1)
    assert taken(worker) == [*wanted, last]


def test_many_sizes_fill_the_worker(world: World) -> None:
    worker = sized(world, 400)
    for number in range(40):
        needing(world, 10 + number % 20)
    taken(worker)
    used = sum(
        each.workload.requirement.resources["memory_bytes"]
        for each in Attempt.objects.select_related("workload__requirement")
    )
    assert 390 < used <= 400


@pytest.mark.parametrize(
    ("profile", "resources"),
    [({}, {"memory_bytes": 10}), ({"memory_bytes": 1}, {"gpu_count": 1}), ({"gpu_count": 0}, {})],
)
def test_what_one_side_does_not_declare_is_not_counted(
    world: World, profile: dict[str, int], resources: dict[str, int]
) -> None:
    worker = world.worker(resource_profile=profile)
    for _ in range(2):
        world.workload(policy={"resources": resources})
    assert len(taken(worker)) == 2


def test_each_kind_of_resource_binds(world: World) -> None:
    for name in ("cpu_millis", "memory_bytes", "disk_bytes", "gpu_count"):
        one = World()
        worker = one.worker(resource_profile={name: 2**62})
        for _ in range(4):
            one.workload(policy={"resources": {name: 2**61}})
        assert len(taken(worker)) == 2


def test_a_need_of_nothing_is_no_need(world: World) -> None:
    work = world.workload(policy={"resources": {"gpu_count": 0}})
    assert work.requirement_id == world.workload().requirement_id
    assert len(taken(world.worker(resource_profile={"gpu_count": 0}))) == 2


def test_a_profile_lowered_below_what_is_used_takes_nothing_more(world: World) -> None:
    worker = sized(world, 100)
    needing(world, 80)
    needing(world, 10)
    worker.claim(1)
    Worker.objects.update(resource_profile={"memory_bytes": 50})
    assert taken(worker) == []


def test_push_counts_resources_too(world: World) -> None:
    small, big = sized(world, 50), sized(world, 100)
    first = needing(world, 60)
    place: dict[str, Any] = {"caller": world.operator, "workload_id": first}
    with refused("MESH_PLACEMENT_DENIED") as caught:
        placing.place(**place, worker_id=small.worker_id)
    assert caught.value.facts["reasons"] == ["RESOURCES"]
    assert placing.place(**place).worker_id == big.worker_id
    place["workload_id"] = needing(world, 60)
    with refused("MESH_NO_ELIGIBLE_WORKER") as caught:
        placing.place(**place)
    assert caught.value.facts["counts"] == {"RESOURCES": 2}


# --- Pauses ---------------------------------------------------------------------------------------


def test_paused_work_is_not_taken_and_hides_no_other(world: World, clock: Clock) -> None:
    worker = world.worker(concurrency=100)
    paused = [world.workload(priority=9).workload_id for _ in range(60)]
    other = world.workload(definition_id="other").workload_id
    pauses.create(
        caller=world.operator,
        application=world.application,
        definition_id="extract",
        reason="bad deploy",
        until=NOON + ms(1_000),
    )
    assert taken(worker) == [other]
    clock.to(NOON + ms(1_000))
    assert taken(worker) == paused


def test_a_pause_of_the_application_holds_all_its_work(world: World) -> None:
    worker = world.worker()
    world.workload()
    pause = pauses.create(caller=world.operator, application=world.application, reason="stop")
    assert taken(worker) == []
    pauses.lift(caller=world.operator, pause_id=pause.pause_id)
    assert len(taken(worker)) == 1


# --- What it costs --------------------------------------------------------------------------------


def test_what_must_not_be_counted_keeps_the_one_statement(world: World) -> None:
    worker = world.worker(concurrency=100)
    world.pool(world.worker(), pool_id="gpu", max_concurrency=1)
    for _ in range(52):
        world.workload()
    world.workload(policy={"pool_id": "gpu"})
    taken(worker, 1)
    # Lock the worker, read what it must know, claim, write the worker.
    assert statements(lambda: taken(worker, 1)) == statements(lambda: taken(worker, 50)) == 4


def test_a_careful_claim_takes_as_many_statements_for_fifty_as_for_one(world: World) -> None:
    worker = sized(world, 1_000)
    world.pool(worker, pool_id="gpu", max_concurrency=90)
    for number in range(100):
        policy = {"resources": {"memory_bytes": 1}}
        world.workload(policy={**policy, "pool_id": "gpu"} if number % 2 else policy)
    taken(worker, 1)
    assert statements(lambda: taken(worker, 1)) == statements(lambda: taken(worker, 50)) == 12


def test_however_much_does_not_fit_a_claim_has_a_bound_of_statements(world: World) -> None:
    worker = sized(world, 60)
    for number in range(60):
        for _ in range(2):
            needing(world, 31 + number, priority=number)
    taken(worker, 1)
    assert statements(lambda: taken(worker, 50)) <= 10 + 2 * 5
    assert Workload.objects.filter(state="CLAIMED").count() == 1
