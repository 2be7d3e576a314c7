"""Many ask for work of one pool at once, or while the pool changes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from mesh import choosing, claims, clock, giving, locking, placing, pools, workers
from mesh.claims import Claims
from mesh.giving import Claim
from mesh.models import Attempt, EligibleSet, Pool, PoolMember, Workload
from mesh.pools import Change
from tests.factories import Member, World

from .checks import assert_capacity_was_kept, assert_sound
from .steering import Actor, Gate, answers, at_once, codes, hold, is_free

POOL: dict[str, Any] = {"policy": {"pool_id": "gpu"}}


def _ask(member: Member, maximum: int = 1) -> Claims:
    return claims.claim(caller=member.caller, worker_id=member.worker_id, maximum=maximum)


def _change(world: World, change: Change) -> partial[Pool]:
    return partial(pools.change, caller=world.operator, pool_id="gpu", change=change)


def _place(world: World, **members: Any) -> partial[Claim]:
    work = world.workload(**POOL)
    return partial(placing.place, caller=world.operator, workload_id=work.workload_id, **members)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_limit_of_five_is_reached_and_never_exceeded_by_twenty_who_ask(
    world: World, batch: int
) -> None:
    members = [world.worker(concurrency=4) for _ in range(20)]
    world.pool(*members, pool_id="gpu", max_concurrency=5)
    for _ in range(30):
        world.workload(**POOL)
    ended = answers(at_once(*[partial(_ask, each, batch) for each in members]))
    assert len(ended) == 20
    assert sum(len(each.claims) for each in ended) == 5
    assert Attempt.objects.live().filter(pool_id="gpu").count() == 5
    assert_capacity_was_kept()
    assert_sound()


def test_pull_and_push_share_the_limit(world: World) -> None:
    members = [world.worker(concurrency=4) for _ in range(6)]
    world.pool(*members, pool_id="gpu", max_concurrency=3)
    for _ in range(6):
        world.workload(priority=1, **POOL)
    pushes = [_place(world, worker_id=each.worker_id) for each in members]
    pulls = [partial(_ask, each, 2) for each in members]
    ended: list[Any] = at_once(*pushes, *pulls)
    assert set(codes(ended)) <= {"MESH_PLACEMENT_DENIED"}
    assert Attempt.objects.live().filter(pool_id="gpu").count() == 3
    assert_sound()


def test_workers_without_a_common_limit_do_not_wait_for_each_other(world: World) -> None:
    one, two = world.worker(), world.worker()
    world.pool(one, two, pool_id="gpu")
    works = [world.workload(**POOL).workload_id for _ in range(2)]
    with Gate(giving, "_run", after=True) as gate:
        first = Actor(partial(_ask, one))
        gate.wait_for_arrival()
        second = Actor(partial(_ask, two))
        gate.wait_for_arrival()
        gate.let_through()
        gate.let_through()
        # The second saw the same work first, found it locked and took what came next.
        given = [each.value().claims[0].workload_id for each in (first, second)]
    assert sorted(given) == sorted(works)


def test_a_claim_waits_for_one_of_the_same_limited_pool(world: World) -> None:
    one, two = world.worker(), world.worker()
    world.pool(one, two, pool_id="gpu", max_concurrency=1)
    for _ in range(2):
        world.workload(**POOL)
    with Gate(giving, "_run", after=True) as gate:
        first = Actor(partial(_ask, one))
        gate.wait_for_arrival()
        second = Actor(partial(_ask, two))
        second.wait_until_blocked(by=first)
        gate.let_through()
        assert len(first.value().claims) == 1
        assert second.value().claims == []
    assert_sound()


def test_a_change_of_a_pool_waits_for_a_claim_of_its_member(world: World) -> None:
    member, other = world.worker(), world.worker()
    world.pool(member, pool_id="gpu")
    for _ in range(2):
        world.workload(**POOL)
    with Gate(choosing, "_look") as gate:
        asking = Actor(partial(_ask, member))
        gate.wait_for_arrival()
        change = Actor(_change(world, {"worker_ids": [other.worker_id]}))
        change.wait_until_blocked(by=asking)
        gate.let_through()
        assert len(asking.value().claims) == 1
        change.value()
    assert _ask(member).claims == []
    assert len(_ask(other).claims) == 1


def test_a_change_of_a_pool_waits_for_a_push_to_its_member(world: World) -> None:
    member = world.worker()
    world.pool(member, pool_id="gpu")
    with Gate(giving, "_run") as gate:
        push = Actor(_place(world, worker_id=member.worker_id))
        gate.wait_for_arrival()
        change = Actor(_change(world, {"worker_ids": []}))
        change.wait_until_blocked(by=push)
        gate.let_through()
        push.value()
        change.value()
    assert_sound()


def test_a_claim_that_waited_for_a_change_goes_by_it(world: World) -> None:
    member = world.worker()
    world.pool(member, pool_id="gpu")
    world.workload(**POOL)
    assert EligibleSet.objects.filter(worker=member.row).update(epoch=-1)
    with Gate(pools, "_locked") as gate:
        change = Actor(_change(world, {"worker_ids": []}))
        gate.wait_for_arrival()
        asking = Actor(partial(_ask, member))
        asking.wait_until_blocked(by=change)
        gate.let_through()
        change.value()
        assert asking.value().claims == []
    assert_sound()


def test_a_claim_that_a_change_overtook_gives_nothing_of_the_pool(world: World) -> None:
    member = world.worker()
    world.pool(member, pool_id="gpu")
    for _ in range(2):
        world.workload(**POOL)
    assert len(_ask(member).claims) == 1  # what it may take is worked out
    with Gate(choosing, "take") as gate:
        asking = Actor(partial(_ask, member))
        gate.wait_for_arrival()
        _change(world, {"worker_ids": []})()
        gate.let_through()
        assert asking.value().claims == []


def test_two_changes_of_one_pool_follow_each_other(world: World) -> None:
    members = [world.worker() for _ in range(4)]
    world.pool(pool_id="gpu")
    changes = [_change(world, {"worker_ids": [each.worker_id]}) for each in members]
    assert codes(at_once(*changes)) == []
    assert PoolMember.objects.count() == 1


def test_one_of_two_makers_of_a_pool_is_told_that_it_exists(world: World) -> None:
    make = partial(world.pool, pool_id="gpu")
    assert codes(at_once(make, make, make)) == ["WORKER_POOL_EXISTS"] * 2


def test_a_worker_is_not_put_into_a_pool_while_it_is_removed(world: World) -> None:
    for _ in range(5):
        member, pool = world.worker(), world.pool()
        join = partial(
            pools.change,
            caller=world.operator,
            pool_id=pool.pool_id,
            change=Change(worker_ids=[member.worker_id]),
        )
        leave = partial(workers.remove, caller=world.operator, worker_id=member.worker_id)
        ended: list[Any] = at_once(join, leave)
        assert codes(ended) in ([], ["WORKER_NOT_FOUND"])
        assert not PoolMember.objects.filter(pool=pool).exists()


def test_push_gives_back_the_lock_of_a_worker_whose_pool_is_full(world: World) -> None:
    member = world.worker()
    pool = world.pool(member, pool_id="gpu", max_concurrency=1)
    world.workload(priority=1, **POOL)
    place = _place(world)
    with Gate(placing, "_try") as gate:
        push = Actor(place)
        gate.wait_for_arrival()
        _ask(member)
        gate.let_through()
        assert push.code() == "MESH_NO_ELIGIBLE_WORKER"
    assert is_free(member.row)
    assert is_free(pool)


def test_neighbours_without_a_common_limit_share_the_same_queue(world: World) -> None:
    members = [world.worker(concurrency=4) for _ in range(8)]
    for _ in range(32):
        world.workload(policy={"resources": {"memory_bytes": 1}})
    ended = answers(at_once(*[partial(_ask, each, 4) for each in members]))
    assert sum(len(each.claims) for each in ended) == 32
    assert_sound()


def test_work_that_a_neighbour_looks_at_is_stood_in_for_within_the_same_bounds(
    world: World,
) -> None:
    needs: dict[str, Any] = {"policy": {"resources": {"memory_bytes": 60}}}
    first, second = world.workload(priority=9, **needs), world.workload(**needs)
    member = world.worker(resource_profile={"memory_bytes": 100})
    with hold(first):
        taken = Actor(partial(_ask, member, 4)).value()
    assert [each.workload_id for each in taken.claims] == [second.workload_id]


def test_however_much_of_a_kind_neighbours_have_what_is_behind_it_is_found(world: World) -> None:
    needs: dict[str, Any] = {"policy": {"resources": {"memory_bytes": 60}}}
    had = [world.workload(priority=9, **needs) for _ in range(20)]
    free = world.workload(**needs)
    member = world.worker(resource_profile={"memory_bytes": 100})
    with hold(*had):
        taken = Actor(partial(_ask, member, 4)).value()
    assert [each.workload_id for each in taken.claims] == [free.workload_id]


def test_push_of_work_that_a_pull_makes_claimable_ends_without_a_deadlock(world: World) -> None:
    puller, other = world.worker(), world.worker()
    world.pool(puller, other, pool_id="gpu", max_concurrency=5)
    place = _place(world, worker_id=other.worker_id)
    # Due, and the sweep has not come by yet.
    Workload.objects.update(claimable=False)
    with Gate(locking, "lock_workload") as gate:
        push = Actor(place)
        gate.wait_for_arrival()
        pull = Actor(partial(_ask, puller))
        pull.wait_until_blocked(by=push)
        gate.let_through()
        # Neither was the victim of a deadlock: the pull goes through.
        assert len(pull.value().claims) == 1
        assert push.code() == "STORAGE_BUSY"
    assert_sound()


def test_a_lease_counts_from_the_moment_at_which_the_pool_was_had(world: World) -> None:
    member = world.worker()
    pool = world.pool(member, pool_id="gpu", max_concurrency=1)
    world.workload(**POOL)
    with hold(pool):
        asking = Actor(partial(_ask, member))
        asking.wait_until_blocked()
        freed_at = clock.now()
    (claim,) = asking.value().claims
    assert claim.issued_at >= freed_at
    assert Attempt.objects.get().claimed_at >= freed_at
