"""Pools: who may change them, what they are made of, and whose work their members take."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import claims, placing, pools, workers
from mesh.models import Attempt, AuditEntry, EligibleSet, Pool, PoolMember, Role
from tests.factories import CAPABILITY, Member, World, make_tenant
from tests.mesh.checks import refused


def make(world: World, *members: Member, pool_id: str = "gpu", **content: Any) -> Pool:
    worker_ids = [each.worker_id for each in members]
    return pools.create(
        caller=world.operator,
        application=world.application,
        pool_id=pool_id,
        content={"name": "GPU", "worker_ids": worker_ids, **content},  # type: ignore[typeddict-item]
    )


def change(world: World, pool_id: str = "gpu", **content: Any) -> Pool:
    return pools.change(caller=world.operator, pool_id=pool_id, change=content)  # type: ignore[arg-type]


def taken(worker: Member, maximum: int = 100) -> list[str]:
    """The ids of the work that a worker gets when it asks."""
    return [each.workload_id for each in worker.claim(maximum)]


def names_pool(pool_id: str = "gpu", **policy: Any) -> dict[str, Any]:
    return {"policy": {"pool_id": pool_id, **policy}}


# --- Making, changing, taking away ----------------------------------------------------------------


def test_a_pool_is_made_of_workers_of_its_application(world: World) -> None:
    worker = world.worker()
    made = make(world, worker, capabilities=["b", "a", "b"], required_labels={"zone": "a"})
    pool = Pool.objects.get(pk=made.pk)
    assert (pool.pool_id, pool.name, pool.application.name) == ("gpu", "GPU", "documents")
    assert (pool.capabilities, pool.required_labels, pool.max_concurrency) == (
        ["a", "b"],
        {"zone": "a"},
        None,
    )
    assert list(pool.workers.all()) == [worker.row]
    (entry,) = AuditEntry.objects.filter(action="pool.created")
    assert (entry.actor, entry.target) == ("service:ops", "gpu")
    assert (entry.evidence["joined"], entry.evidence["joined_count"]) == ([worker.worker_id], 1)


def test_a_pool_s_id_is_unique_in_the_tenant_alone(world: World) -> None:
    make(world)
    with refused("WORKER_POOL_EXISTS"):
        make(world)
    two = World(tenant=make_tenant(applications=["documents", "mail"]))
    make(two)
    two.application = "mail"
    with refused("WORKER_POOL_EXISTS"):
        make(two)


def test_members_must_be_there_and_share_the_application(world: World) -> None:
    mine, removed = world.worker(), world.worker()
    workers.remove(caller=world.operator, worker_id=removed.worker_id)
    other = World(tenant=make_tenant(applications=["documents", "mail"]))
    sibling = World(tenant=other.tenant, application="mail").worker()
    for stranger in (removed.worker_id, other.worker().worker_id, "worker_x"):
        with refused("WORKER_NOT_FOUND") as caught:
            make(world, mine, worker_ids=[mine.worker_id, stranger])
        assert caught.value.facts["worker_ids"] == [stranger]
    with refused("WORKER_NOT_FOUND"):
        make(other, sibling)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"pool_id": "a/b"}, "pool_id"),
        ({"pool_id": ""}, "pool_id"),
        ({"name": " "}, "name"),
        ({"name": "n" * 201}, "name"),
        ({"capabilities": [""]}, "capabilities"),
        ({"capabilities": ["c"] * 257}, "capabilities"),
        ({"required_labels": {"": "a"}}, "required_labels"),
        ({"required_labels": {str(each): "" for each in range(65)}}, "required_labels"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": 2**31}, "max_concurrency"),
    ],
)
def test_a_value_out_of_bounds_is_refused(
    world: World, content: dict[str, Any], field: str
) -> None:
    with refused("WORKER_INVALID") as caught:
        make(world, **content)
    assert caught.value.facts["fields"] == [field]
    make(world, max_concurrency=2**31 - 1)
    if field != "pool_id":
        with refused("WORKER_INVALID"):
            change(world, **content)


def test_pools_are_changed_by_operators_of_their_tenant(world: World) -> None:
    make(world)
    viewer, stranger = world.caller(Role.VIEWER), World().operator
    for caller, code in ((viewer, "PERMISSION_DENIED"), (stranger, "POOL_NOT_FOUND")):
        with refused(code):
            pools.change(caller=caller, pool_id="gpu", change={"name": "x"})
        with refused(code):
            pools.delete(caller=caller, pool_id="gpu")
    with refused("PERMISSION_DENIED"):
        pools.create(caller=viewer, application="documents", pool_id="p", content={"name": "p"})
    with refused("APPLICATION_NOT_FOUND"):
        pools.create(caller=world.operator, application="other", pool_id="p", content={"name": "p"})


def test_a_change_changes_what_it_names_alone(world: World) -> None:
    stays, goes, comes = world.worker(), world.worker(), world.worker()
    make(world, stays, goes, max_concurrency=3, capabilities=["a"])
    change(world, worker_ids=[stays.worker_id, comes.worker_id, comes.worker_id])
    pool = change(world, max_concurrency=None)
    pool.refresh_from_db()
    assert (pool.name, pool.capabilities, pool.max_concurrency) == ("GPU", ["a"], None)
    assert set(pool.workers.all()) == {stays.row, comes.row}
    entry = AuditEntry.objects.filter(action="pool.changed").earliest("pk")
    assert (entry.evidence["joined"], entry.evidence["left"]) == (
        [comes.worker_id],
        [goes.worker_id],
    )


def test_a_change_that_changes_nothing_leaves_no_trace(world: World) -> None:
    worker = world.worker()
    make(world, worker, max_concurrency=3)
    change(world, max_concurrency=3, worker_ids=[worker.worker_id], name="GPU")
    assert not AuditEntry.objects.filter(action="pool.changed").exists()


def test_a_pool_that_was_taken_away_is_gone(world: World) -> None:
    make(world, world.worker())
    pools.delete(caller=world.operator, pool_id="gpu", reason="spare")
    assert not PoolMember.objects.exists()
    assert AuditEntry.objects.get(action="pool.deleted").reason == "spare"
    with refused("POOL_NOT_FOUND"):
        pools.delete(caller=world.operator, pool_id="gpu")


def test_a_removed_worker_loses_its_places(world: World) -> None:
    stays, goes = world.worker(name="a"), world.worker(name="b")
    make(world, stays, goes)
    workers.remove(caller=world.operator, worker_id=goes.worker_id)
    assert list(Pool.objects.get().workers.all()) == [stays.row]
    world.worker(name="b")
    assert list(Pool.objects.get().workers.all()) == [stays.row]


# --- Whose work members take ----------------------------------------------------------------------


def test_work_that_names_a_pool_goes_to_its_members_alone(world: World) -> None:
    member, outside = world.worker(), world.worker()
    make(world, member)
    work = world.workload(**names_pool())
    assert taken(outside) == []
    assert taken(member) == [work.workload_id]
    assert Attempt.objects.get().pool_id == "gpu"


def test_a_member_takes_other_work_too(world: World) -> None:
    member = world.worker()
    make(world, member)
    work = world.workload()
    assert taken(member) == [work.workload_id]
    assert Attempt.objects.get().pool_id == ""


def test_nobody_takes_work_that_names_an_unknown_pool_until_it_is_made(world: World) -> None:
    worker = world.worker()
    work = world.workload(**names_pool())
    assert taken(worker) == []
    make(world, worker)
    assert taken(worker) == [work.workload_id]


def test_a_pool_of_another_application_is_nobody_s(world: World) -> None:
    two = World(tenant=make_tenant(applications=["documents", "mail"]))
    other = World(tenant=two.tenant, application="mail")
    make(other, other.worker())
    worker = two.worker()
    work = two.workload(**names_pool())
    assert taken(worker) == []
    with refused("MESH_PLACEMENT_DENIED") as caught:
        placing.place(caller=two.operator, workload_id=work.workload_id, worker_id=worker.worker_id)
    assert caught.value.facts["reasons"] == ["POOL"]


@pytest.mark.parametrize(
    "content",
    [
        {"capabilities": ["other"]},
        {"required_labels": {"zone": "b"}},
        {"required_labels": {"zone": "a", "rack": "1"}},
    ],
)
def test_a_member_counts_only_if_it_passes_the_pool_s_tests(
    world: World, content: dict[str, Any]
) -> None:
    worker = world.worker(labels={"zone": "a"})
    make(world, worker, **content)
    work = world.workload(**names_pool())
    assert taken(worker) == []
    change(world, capabilities=[CAPABILITY], required_labels={"zone": "a"})
    assert taken(worker) == [work.workload_id]


def test_who_is_in_or_out_counts_from_the_next_claim(world: World) -> None:
    one, two = world.worker(), world.worker()
    make(world, one)
    works = [world.workload(**names_pool()).workload_id for _ in range(3)]
    assert taken(one, 1) == works[:1]
    assert taken(two, 1) == []
    change(world, worker_ids=[two.worker_id])
    assert (taken(one, 1), taken(two, 1)) == ([], works[1:2])
    pools.delete(caller=world.operator, pool_id="gpu")
    assert taken(two, 1) == []
    make(world, one)
    assert taken(one, 1) == works[2:]


def test_a_change_has_only_its_members_sets_worked_out_anew(world: World) -> None:
    one, two, outside = world.worker(), world.worker(), world.worker()
    world.workload()
    for each in (one, two, outside):
        each.claim()
    make(world, one)
    change(world, worker_ids=[two.worker_id])
    unknown = EligibleSet.objects.filter(epoch=-1).values_list("worker_id", flat=True)
    assert set(unknown) == {one.row.pk, two.row.pk}


# --- Its limit ------------------------------------------------------------------------------------


def test_a_pool_s_limit_bounds_what_its_members_hold_together(world: World) -> None:
    one, two = world.worker(concurrency=10), world.worker(concurrency=10)
    make(world, one, two, max_concurrency=3)
    works = [world.workload(**names_pool()).workload_id for _ in range(5)]
    assert taken(one, 2) == works[:2]
    assert taken(two) == works[2:3]
    assert (taken(one), taken(two)) == ([], [])


def test_an_ended_attempt_makes_room(world: World) -> None:
    worker = world.worker(concurrency=10)
    make(world, worker, max_concurrency=1)
    works = [world.workload(**names_pool()).workload_id for _ in range(2)]
    (claim,) = worker.claim(5)
    worker.start(claim)
    worker.complete(claim)
    assert taken(worker) == works[1:]


def test_an_attempt_counts_against_the_pool_its_work_names_and_no_other(world: World) -> None:
    worker = world.worker(concurrency=10)
    make(world, worker, pool_id="one", max_concurrency=1)
    make(world, worker, pool_id="two", max_concurrency=1)
    world.workload()
    world.workload(**names_pool("one"))
    assert len(taken(worker)) == 2
    work = world.workload(**names_pool("two"))
    world.workload(**names_pool("one"))
    assert taken(worker) == [work.workload_id]


def test_pools_of_the_same_id_in_two_tenants_are_counted_apart(world: World) -> None:
    for each in (world, World()):
        worker = each.worker(concurrency=10)
        make(each, worker, max_concurrency=1)
        each.workload(**names_pool())
        each.workload(**names_pool())
        assert len(taken(worker)) == 1


def test_a_full_pool_hides_no_other_work(world: World) -> None:
    worker = world.worker(concurrency=100)
    make(world, worker, max_concurrency=1)
    for _ in range(70):
        world.workload(priority=9, **names_pool())
    low = [world.workload().workload_id for _ in range(3)]
    assert set(taken(worker, 4)[1:]) == set(low)
    world.workload(priority=-1)
    assert len(taken(worker, 4)) == 1


def test_many_pools_that_are_nearly_full_do_not_keep_a_worker_idle(world: World) -> None:
    worker = world.worker(concurrency=100)
    for number in range(8):
        make(world, worker, pool_id=f"p{number}", max_concurrency=1)
        for _ in range(20):
            world.workload(priority=9, **names_pool(f"p{number}"))
    for _ in range(12):
        world.workload()
    assert len(taken(worker, 20)) == 20


def test_a_limit_lowered_below_what_is_live_ends_nothing_and_gives_nothing(world: World) -> None:
    worker = world.worker(concurrency=10)
    make(world, worker, max_concurrency=3)
    for _ in range(5):
        world.workload(**names_pool())
    assert len(taken(worker)) == 3
    change(world, max_concurrency=1)
    assert (taken(worker), Attempt.objects.live().count()) == ([], 3)
    change(world, max_concurrency=4)
    assert len(taken(worker)) == 1


def test_a_pool_made_anew_counts_what_is_live_since_before(world: World) -> None:
    worker = world.worker(concurrency=10)
    make(world, worker)
    for _ in range(4):
        world.workload(**names_pool())
    assert len(taken(worker, 2)) == 2
    pools.delete(caller=world.operator, pool_id="gpu")
    make(world, worker, max_concurrency=3)
    assert len(taken(worker)) == 1


def test_push_respects_the_pool_and_its_limit(world: World) -> None:
    member, outside = world.worker(concurrency=10), world.worker(concurrency=10)
    make(world, member, max_concurrency=1)
    first, second = world.workload(**names_pool()), world.workload(**names_pool())
    place: dict[str, Any] = {"caller": world.operator, "workload_id": first.workload_id}
    with refused("MESH_PLACEMENT_DENIED") as caught:
        placing.place(**place, worker_id=outside.worker_id)
    assert caught.value.facts["reasons"] == ["POOL"]
    assert placing.place(**place).worker_id == member.worker_id
    assert Attempt.objects.get().pool_id == "gpu"
    place["workload_id"] = second.workload_id
    with refused("MESH_NO_ELIGIBLE_WORKER") as caught:
        placing.place(**place)
    assert caught.value.facts["counts"] == {"POOL_CAPACITY": 2, "POOL": 1}
    with refused("MESH_PLACEMENT_DENIED") as caught:
        placing.place(**place, worker_id=member.worker_id)
    assert caught.value.facts["reasons"] == ["POOL_CAPACITY"]


def test_a_claim_with_nothing_that_fits_has_no_reason(world: World) -> None:
    worker = world.worker(concurrency=10)
    make(world, worker, max_concurrency=1)
    for _ in range(2):
        world.workload(**names_pool())
    taken(worker)
    answer = claims.claim(caller=worker.caller, worker_id=worker.worker_id, maximum=1)
    assert (answer.claims, answer.reason) == ([], None)
