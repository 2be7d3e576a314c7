"""The usual beat: one statement, which does and answers what the long way does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from mesh import beats, workers, workloads
from mesh.api import answers
from mesh.models import Attempt, Grant, Health, Worker
from tests.factories import Member, World
from tests.mesh.checks import NOON, Clock, counted, ms, refused

UNKNOWN = "claim_" + "0" * 32


def said(member: Member, *running: str, **members: Any) -> beats.Said:
    row = member.row
    usual = beats.Said(row.version, row.capability_version, Health.DEGRADED, NOON, running, None)
    return replace(usual, **members)


def is_usual(member: Member, *running: str, **members: Any) -> bool:
    return beats.hear(member.caller, said(member, *running, **members)) is not None


def at_work(world: World, number: int, **members: Any) -> tuple[Member, list[str]]:
    """A worker with half of its claims started, and their ids."""
    worker = world.worker(**members)
    for _ in range(number):
        world.workload(timeouts={"heartbeat_ms": 5_000, "execution_ms": 60_000})
    taken = worker.claim(number, lease_ms=40_000) if number else []
    for each in taken[::2]:
        worker.start(each)
    return worker, [each.claim_id for each in taken]


@pytest.mark.parametrize("number", [0, 1, 20])
def test_a_usual_beat_is_one_statement_whatever_it_lists(world: World, number: int) -> None:
    worker, running = at_work(world, number, concurrency=20)
    with counted() as queries:
        answer = worker.beat(*running)
    assert (len(queries), [each.claim_id for each in answer.renewed]) == (1, running)


def rows_and_answer(member: Member, *running: str) -> tuple[Any, ...]:
    """What a beat leaves in the rows and what it says; all of it is taken back."""
    with transaction.atomic():
        answer = member.beat(*running, health="DEGRADED", timestamp=NOON + ms(1_500))
        worker = Worker.objects.filter(pk=member.row.pk).values().get()
        attempts = list(Attempt.objects.filter(worker=member.row).order_by("pk").values())
        transaction.set_rollback(True)
    renewed = sorted((each.claim_id, each.expires_at) for each in answer.renewed)
    return worker, attempts, answers.worker(answer.worker), renewed, answer.grant_ends_at


@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_usual_beat_does_and_tells_what_the_long_way_does(
    world: World, clock: Clock, number: int
) -> None:
    # With three it is full, which changes more.
    worker, running = at_work(world, number, concurrency=3)
    clock.pass_(ms(2_000))
    assert is_usual(worker, *running)
    # A claim that nobody has makes the difference.
    long_way = rows_and_answer(worker, *running, UNKNOWN)
    assert rows_and_answer(worker, *running) == long_way


@pytest.mark.parametrize(
    "changes",
    [
        {"lifecycle": "DRAINING"},
        {"lifecycle": "REGISTERED"},
        {"lifecycle": "BUSY"},
        {"lifecycle": "OFFLINE"},
        {"is_unreconciled": True},
        {"active": 2},
        {"drain_deadline_at": NOON},
        {"removed_at": NOON},
        {"reported_at": NOON + ms(5_001)},
        {"version": "other"},
        {"capability_version": 99},
        {"concurrency": 1},
    ],
)
def test_a_worker_in_another_condition_goes_the_long_way(
    world: World, changes: dict[str, Any]
) -> None:
    worker, running = at_work(world, 1, concurrency=4)
    assert is_usual(worker, *running)
    as_it_was = said(worker, *running)
    Worker.objects.filter(pk=worker.row.pk).update(**changes)
    before = Worker.objects.filter(pk=worker.row.pk).values().get()
    assert beats.hear(worker.caller, as_it_was) is None
    assert Worker.objects.filter(pk=worker.row.pk).values().get() == before


def test_a_beat_that_says_something_new_goes_the_long_way(world: World) -> None:
    worker, running = at_work(world, 2, concurrency=4)
    assert is_usual(worker, *running, concurrency=4)
    assert not is_usual(worker, *running, concurrency=5)
    assert not is_usual(worker, *running, version="other")
    assert not is_usual(worker, *running, capability_version=99)
    assert not is_usual(worker, *running, timestamp=NOON - ms(5_001))


def test_a_beat_that_lists_too_much_too_little_or_twice_goes_the_long_way(world: World) -> None:
    worker, running = at_work(world, 2, concurrency=4)
    foreign = world.running().claim.claim_id
    assert is_usual(worker, *running)
    for listed in (
        running[:1],
        [*running, UNKNOWN],
        [running[0], foreign],
        [running[0], running[0]],
        [*running, running[0]],
        [running[0], "claim_x"],
    ):
        assert not is_usual(worker, *listed)


def test_a_lease_that_is_over_a_cancel_and_a_revoked_grant_go_the_long_way(
    world: World, clock: Clock
) -> None:
    held, late = world.running(), world.running()
    running = held.claim.claim_id
    assert is_usual(held.worker, running)
    with transaction.atomic():
        Grant.objects.filter(pk=held.worker.row.grant_id).update(status="REVOKED")
        assert not is_usual(held.worker, running)
        transaction.set_rollback(True)
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    assert not is_usual(held.worker, running)
    clock.to(NOON + ms(30_000))
    assert not is_usual(late.worker, late.claim.claim_id)


def test_the_credential_that_was_replaced_is_not_heard(world: World) -> None:
    worker, running = at_work(world, 1)
    caller = replace(worker.caller, incarnation=worker.row.incarnation)
    assert beats.hear(caller, said(worker, *running)) is not None
    Worker.objects.filter(pk=worker.row.pk).update(incarnation=worker.row.incarnation + 1)
    assert beats.hear(caller, said(worker, *running)) is None
    with refused("TOKEN_INVALID"):
        workers.lock_self(caller)
