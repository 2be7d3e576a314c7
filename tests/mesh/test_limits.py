"""A tenant's limit of live claims, asked for by pull and by push."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import placing, tenancy
from mesh.models import Attempt, AuditEntry, Tenant
from tests.factories import World, name
from tests.mesh.checks import Clock, ms, refused
from tests.mesh.test_choosing import statements


def limit(world: World, number: int | None) -> None:
    tenancy.create_tenant(
        name=world.tenant.name,
        applications=[],
        actor="system:test",
        limits={"max_live_claims": number},
    )


def test_a_pull_takes_up_to_the_limit_and_is_refused_at_it(world: World) -> None:
    one, two = world.worker(), world.worker()
    for _ in range(6):
        world.workload()
    limit(world, 3)
    assert len(one.claim(2)) == 2
    (last,) = two.claim(2)
    for worker in (one, two):
        with refused("LIMIT_EXCEEDED") as caught:
            worker.claim(1)
        assert caught.value.facts["retry_after_ms"] > 0
    two.start(last)
    two.complete(last)
    assert len(one.claim(5)) == 1
    limit(world, None)
    assert len(two.claim(5)) == 2


def test_a_push_at_the_limit_is_refused(world: World) -> None:
    works = [world.workload().workload_id for _ in range(2)]
    world.worker(concurrency=9)
    limit(world, 1)
    placing.place(caller=world.operator, workload_id=works[0])
    with refused("LIMIT_EXCEEDED"):
        placing.place(caller=world.operator, workload_id=works[1])


def test_what_was_placed_is_told_at_the_limit_too(world: World) -> None:
    worker, work = world.worker(concurrency=9), world.workload()
    world.workload()
    placing.place(caller=world.operator, workload_id=work.workload_id, worker_id=worker.worker_id)
    limit(world, 1)
    (told,) = worker.claim(5)
    assert told.workload_id == work.workload_id
    assert Attempt.objects.count() == 1


def test_a_limit_is_of_one_tenant_alone(world: World) -> None:
    other = World()
    limit(other, 1)
    other.claimed()
    world.workload()
    assert len(world.worker().claim()) == 1


def test_without_a_limit_it_costs_no_statement(world: World) -> None:
    worker = world.worker(concurrency=9)
    for _ in range(9):
        world.workload()
    worker.claim()
    assert statements(lambda: worker.claim(2)) == 4
    limit(world, 9)
    assert statements(lambda: worker.claim(2)) == 5


def test_a_limit_is_set_alone_and_recorded(world: World) -> None:
    tenant = name("acme")
    for limits in ({"max_live_claims": 5}, {"max_submissions_per_minute": 7}, {}):
        tenancy.create_tenant(name=tenant, applications=[], actor="system:test", limits=limits)
    row = Tenant.objects.get(name=tenant)
    assert (row.max_live_claims, row.max_submissions_per_minute) == (5, 7)
    assert AuditEntry.objects.filter(target=tenant).count() == 2


def test_each_change_of_a_limit_leaves_an_audit_row_with_both_values(world: World) -> None:
    for number in (5, 5, 3, None):
        limit(world, number)
    rows = AuditEntry.objects.filter(target=world.tenant.name, action="tenant.limited")
    assert [each.evidence["limits"] for each in rows.order_by("pk")] == [
        {"max_live_claims": [None, 5]},
        {"max_live_claims": [5, 3]},
        {"max_live_claims": [3, None]},
    ]
    assert {each.actor for each in rows} == {"system:test"}


@pytest.mark.parametrize("bad", [0, -1, 2**31])
def test_a_bad_limit_is_refused(world: World, bad: int) -> None:
    with refused("REQUEST_INVALID"):
        limit(world, bad)


def test_a_limit_of_submissions_reads_no_more_than_came_in_its_minute(
    world: World, clock: Clock
) -> None:
    for _ in range(30):
        world.workload()
    clock.pass_(ms(60_000))
    Tenant.objects.filter(pk=world.tenant.pk).update(max_submissions_per_minute=20)
    with CaptureQueriesContext(connection) as captured:
        world.workload()
    (asked,) = [each["sql"] for each in captured if "OFFSET 19" in str(each["sql"])]
    with connection.cursor() as cursor:
        cursor.execute(f"explain (analyze, timing off) {asked}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert max(map(int, re.findall(r"actual rows=(\d+)", plan))) <= 1
