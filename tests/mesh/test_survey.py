"""Surveys: every worker judged as placement judges it, all counted, few named, the nearest told."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from mesh import candidates, pauses, revocations, survey
from mesh.models import Attempt, Pool, PoolMember, Requirement, Worker, Workload
from mesh.survey import Survey
from tests.factories import CAPABILITY, Member, World, make_tenant
from tests.mesh.checks import MICRO, NOON, Clock, counted

BASE = ["LIFECYCLE", "HEALTH", "CAPACITY", "CAPABILITY", "KIND", "LABEL", "ANTI_AFFINITY", "GRANT"]


def need(world: World, **members: Any) -> Requirement:
    """A requirement, made as the work would have it."""
    application = world.tenant.applications.get(name=world.application)
    said: dict[str, Any] = {"definition_id": "extract", "capabilities": [CAPABILITY], **members}
    digest = str(Requirement.objects.count())
    return Requirement.objects.create(application=application, digest=digest, **said)


def take(requirement: Requirement, *, is_paused: bool = False) -> Survey:
    return survey.take(requirement, NOON, is_paused=is_paused)


def reasons(found: Survey) -> dict[str, list[str]]:
    return {each.worker_id: list(each.reasons) for each in found.candidates}


def change(member: Member, **columns: Any) -> Member:
    Worker.objects.filter(pk=member.row.pk).update(**columns)
    return member


def lacks(found: Survey) -> list[str]:
    assert found.nearest is not None
    return list(found.nearest.lacks)


def pool(world: World, *members: Member, **columns: Any) -> Pool:
    application = world.tenant.applications.get(name=world.application)
    said: dict[str, Any] = {"pool_id": "gpu", "name": "GPUs", "created_by": "service:ops"}
    made: Pool = Pool.objects.create(
        tenant=world.tenant, application=application, **{**said, **columns}
    )
    PoolMember.objects.bulk_create(PoolMember(pool=made, worker=each.row) for each in members)
    return made


# --- The same answers as placement ----------------------------------------------------------------


def test_each_test_counts_the_workers_that_fail_it(world: World) -> None:
    fine = world.worker(labels={"zone": "a"})
    failing: dict[str, dict[str, Any]] = {
        "LIFECYCLE": {"lifecycle": "DRAINING"},
        "HEALTH": {"health": "DEGRADED"},
        "CAPACITY": {"active": 4},
        "CAPABILITY": {"granted_capabilities": ["other"]},
        "KIND": {"workload_kinds": ["other"]},
        "LABEL": {"labels": {"zone": "b"}},
        "ANTI_AFFINITY": {"labels": {"zone": "a", "disk": "slow"}},
    }
    made = {
        reason: change(world.worker(labels={"zone": "a"}), **columns)
        for reason, columns in failing.items()
    }
    found = take(need(world, required_labels={"zone": "a"}, anti_affinity={"disk": "slow"}))
    assert reasons(found) == {
        fine.worker_id: [],
        **{member.worker_id: [reason] for reason, member in made.items()},
    }
    assert found.counts == dict.fromkeys(failing, 1)
    assert (found.considered, found.eligible, found.suited, found.nearest) == (8, 1, 2, None)


CHOICES: list[list[dict[str, Any]]] = [
    [{}, {"lifecycle": "OFFLINE", "health": "UNHEALTHY"}, {"is_unreconciled": True}],
    [{}, {"active": 4}],
    [{}, {"labels": {"zone": "a"}}, {"labels": {"zone": "b", "disk": "slow"}}],
    [{}, {"workload_kinds": ["extract"]}, {"workload_kinds": ["x", "y"]}],
    [{}, {"granted_capabilities": []}],
    [{}, {"resource_profile": {"gpu_count": 1}}, {"resource_profile": {"gpu_count": 3}}],
]


def all_kinds_of_workers(world: World) -> None:
    """A worker for each way to choose from `CHOICES`; some in a pool, some under an ended grant."""
    template = world.worker().row
    ended = world.grant(expires_in_ms=60_000)[0]
    rows = []
    for number, parts in enumerate(itertools.product(*CHOICES)):
        row = Worker.objects.get(pk=template.pk)
        row.pk = row.credential_hash = None
        row.worker_id, row.name = f"worker_{number:03}", f"w-{number}"
        row.grant = ended if number % 7 == 0 else row.grant
        for name, value in (each for part in parts for each in part.items()):
            setattr(row, name, value)
        rows.append(row)
    made = Worker.objects.bulk_create(rows)
    gpu = pool(world, required_labels={"zone": "a"}, max_concurrency=100)
    PoolMember.objects.bulk_create(
        PoolMember(pool=gpu, worker=each) for number, each in enumerate(made) if number % 3
    )


def test_a_survey_judges_every_worker_as_placement_does(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "LISTED", 1_000)
    all_kinds_of_workers(world)
    wanted = need(
        world,
        required_labels={"zone": "a"},
        anti_affinity={"disk": "slow"},
        pool_id="gpu",
        resources={"gpu_count": 2},
    )
    held = world.claimed()
    loaded = Worker.objects.filter(resource_profile={"gpu_count": 3}).latest("pk")
    Attempt.objects.filter(pk=held.attempt.pk).update(worker=loaded, pool_id="gpu")
    Workload.objects.update(requirement=wanted)
    clock.pass_(timedelta(minutes=1))
    for is_paused in (False, True):
        if is_paused:
            pauses.create(caller=world.operator, application=world.application, reason="r")
        for most in (None, 1):
            Pool.objects.update(max_concurrency=most)
            found = reasons(survey.take(wanted, clock.at, is_paused=is_paused))
            rows = list(Worker.objects.select_related("grant"))
            verdicts = candidates.judge(wanted, rows, clock.at)
            assert {each.worker.worker_id: list(each.reasons) for each in verdicts} == found
            assert len(found) > 200


def test_workers_of_others_and_removed_ones_are_not_considered(world: World) -> None:
    tenant = make_tenant(applications=["documents", "mail"])
    World(tenant, "mail").worker()
    World().worker()
    change(world.worker(), removed_at=NOON, credential_hash=None)
    found = take(need(world))
    assert (found.considered, found.candidates, found.nearest) == (0, (), None)


def test_a_revoked_grant_counts_as_no_grant(world: World) -> None:
    member = world.worker()
    revocations.revoke_grant(caller=world.caller(), grant_id=member.row.grant.grant_id)
    found = take(need(world))
    assert found.counts == {"LIFECYCLE": 1, "GRANT": 1}
    assert lacks(found)[-1] == "a grant in force: its own is revoked"


def test_a_pause_is_told_of_every_worker(world: World) -> None:
    fine, full = world.worker(), change(world.worker(), active=4)
    found = take(need(world), is_paused=True)
    assert reasons(found) == {
        fine.worker_id: ["PAUSED"],
        full.worker_id: ["CAPACITY", "PAUSED"],
    }
    assert (dict(found.counts), found.eligible) == ({"CAPACITY": 1, "PAUSED": 2}, 0)
    # Nobody lacks anything that the end of the pause would not give.
    assert (found.suited, found.nearest) == (2, None)


# --- Pools and resources --------------------------------------------------------------------------


def test_only_members_that_pass_the_tests_of_the_pool_count(world: World) -> None:
    inside, unfit, outside = (world.worker(labels={"gpu": each}) for each in ("a", "b", "a"))
    pool(world, inside, unfit, required_labels={"gpu": "a"})
    found = take(need(world, pool_id="gpu"))
    assert reasons(found) == {
        inside.worker_id: [],
        unfit.worker_id: ["POOL"],
        outside.worker_id: ["POOL"],
    }


def test_a_pool_that_does_not_exist_is_nobody(world: World) -> None:
    world.worker()
    pool(world, pool_id="other")
    found = take(need(world, pool_id="gpu"))
    assert found.counts == {"POOL": 1}
    assert lacks(found) == ["pool gpu: there is no such pool"]


def test_a_full_pool_keeps_out_all_its_members_and_nobody_else(world: World) -> None:
    first, second = world.worker(), world.worker()
    pool(world, first, second, max_concurrency=1)
    held = world.claimed(first)
    Attempt.objects.filter(pk=held.attempt.pk).update(pool_id="gpu")
    found = take(need(world, pool_id="gpu"))
    assert (found.counts, found.suited) == ({"POOL_CAPACITY": 2}, 2)
    assert lacks(found) == ["room in pool gpu: its limit of 1 live attempt is reached"]
    assert take(need(world)).eligible == 2
    Pool.objects.update(max_concurrency=2)
    assert take(need(world, pool_id="gpu")).eligible == 2


def test_resources_count_only_where_both_sides_declare_them(world: World) -> None:
    gib = 2**30
    silent = world.worker()
    small = world.worker(resource_profile={"memory_bytes": gib, "cpu_millis": 4_000})
    found = take(need(world, resources={"memory_bytes": 2 * gib, "cpu_millis": 1_000}))
    assert reasons(found) == {silent.worker_id: [], small.worker_id: ["RESOURCES"]}
    # The small one would never do, however little it had to do.
    assert (found.suited, found.fitting) == (1, 1)


def test_what_runs_on_a_worker_leaves_it_less(world: World) -> None:
    gib = 2**30
    member = world.worker(resource_profile={"memory_bytes": 4 * gib})
    wanted = need(world, resources={"memory_bytes": 3 * gib})
    assert take(wanted).eligible == 1
    held = world.claimed(member)
    Workload.objects.filter(pk=held.workload.pk).update(requirement=wanted)
    found = take(wanted)
    assert (found.counts, found.suited) == ({"RESOURCES": 1}, 1)
    assert lacks(found) == [
        "2 GiB of memory: the work needs 3 GiB, 1 GiB of 4 GiB are left",
    ]
    held.worker.start(held.claim)
    held.worker.complete(held.claim)
    assert take(wanted).eligible == 1


# --- The nearest ----------------------------------------------------------------------------------

NEAR: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"lifecycle": "DRAINING"}, {}, "lifecycle READY (it is DRAINING)"),
    (
        {"is_unreconciled": True},
        {},
        "a reconcile: it registered again and has not said what it still runs",
    ),
    ({"health": "DEGRADED"}, {}, "good health (it is DEGRADED)"),
    ({"active": 4}, {}, "a free slot: 4 of 4 are taken"),
    ({}, {"capabilities": ["ocr"]}, "capability ocr"),
    (
        {"declared_capabilities": ["ocr"]},
        {"capabilities": ["ocr"]},
        "capability ocr (it declares it, but its grant does not allow it)",
    ),
    ({"workload_kinds": ["scan"]}, {}, "kind extract: it takes only scan"),
    (
        {"labels": {"zone": "b"}},
        {"required_labels": {"zone": "a"}},
        "label zone = a (it has b)",
    ),
    ({}, {"required_labels": {"zone": "a"}}, "label zone = a (it has none)"),
    (
        {"labels": {"zone": "a"}},
        {"anti_affinity": {"zone": "a"}},
        "a zone other than a, which the work avoids",
    ),
]


@pytest.mark.parametrize(("worker", "work", "told"), NEAR, ids=[each[2] for each in NEAR])
def test_what_the_nearest_lacks_is_told_exactly(
    world: World, worker: dict[str, Any], work: dict[str, Any], told: str
) -> None:
    change(world.worker(), **worker)
    assert lacks(take(need(world, **work))) == [told]


def test_a_grant_that_is_over_is_told_with_its_end(world: World) -> None:
    world.worker(grant=world.grant(expires_in_ms=60_000)[1])
    over = NOON + timedelta(minutes=1)
    told = "a grant in force: its own ended 2030-01-01 12:01:00 UTC"
    assert lacks(survey.take(need(world), over, is_paused=False)) == [told]
    assert survey.take(need(world), over - MICRO, is_paused=False).eligible == 1


def test_what_a_pool_asks_of_its_members_is_told(world: World) -> None:
    member = world.worker(labels={"gpu": "b"})
    pool(world, capabilities=["cuda"], required_labels={"gpu": "a"})
    assert lacks(take(need(world, pool_id="gpu"))) == [
        "membership of pool gpu",
        "capability cuda, which pool gpu asks for",
        "label gpu = a, which pool gpu asks for (it has b)",
    ]
    PoolMember.objects.create(pool=Pool.objects.get(), worker=member.row)
    assert lacks(take(need(world, pool_id="gpu")))[0].startswith("capability cuda")


def test_the_nearest_fails_the_fewest_tests(world: World) -> None:
    change(world.worker(), health="DEGRADED", active=4)
    near = change(world.worker(), workload_kinds=["scan"])
    change(world.worker(), workload_kinds=["scan"], health="DEGRADED")
    found = take(need(world))
    assert found.nearest is not None
    assert (found.nearest.worker_id, found.nearest.name) == (near.worker_id, near.row.name)
    assert found.candidates[0].worker_id == near.worker_id


def test_of_equally_many_the_nearest_fails_what_passes_by_itself(world: World) -> None:
    change(world.worker(), workload_kinds=["scan"])
    near = change(world.worker(), active=4)
    found = take(need(world))
    assert found.nearest is not None
    assert found.nearest.worker_id == near.worker_id


def test_nobody_is_nearest_where_somebody_may_take_it(world: World) -> None:
    world.worker()
    change(world.worker(), active=4)
    assert take(need(world)).nearest is None


# --- Bounds ---------------------------------------------------------------------------------------


def test_at_most_two_hundred_are_named_and_all_are_counted(world: World) -> None:
    template = world.worker().row
    change(Member(template, ""), workload_kinds=["scan"])
    copies = []
    for number in range(250):
        row = Worker.objects.get(pk=template.pk)
        row.pk, row.credential_hash = None, None
        row.worker_id, row.name = f"worker_{number:03}", f"w-{number}"
        copies.append(row)
    Worker.objects.bulk_create(copies)
    with counted() as statements:
        found = take(need(world))
    assert (found.considered, found.counts) == (251, {"KIND": 251})
    assert len(found.candidates) == len(set(reasons(found))) == 200
    # The requirement, the survey, the nearest worker.
    assert len(statements) <= 5


def test_when_one_of_the_eligible_last_asked_is_told(world: World, clock: Clock) -> None:
    world.worker()
    assert take(need(world)).asked_at is None
    world.worker().claim()
    assert take(need(world)).asked_at == NOON
