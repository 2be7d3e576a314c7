"""The lock order, and what a call answers that cannot have its lock in time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, connection, transaction

from mesh import (
    claims,
    clock,
    deadlines,
    expiry,
    leases,
    locking,
    placing,
    recovery,
    settlement,
    workers,
    workloads,
)
from mesh.errors import DomainError
from mesh.models import State, Worker, Workload
from tests.factories import Held, Member, World

from .checks import assert_sound, deadlocks
from .steering import Actor, Gate, answers, at_once, hold, is_free


def _enforce(held: Held) -> Any:
    return deadlines.enforce(workload_pk=held.workload.pk, actor="system:test")


def _move_to(world: World, held: Held, member: Member) -> Held:
    """Have the work change hands: given back by its worker, placed on another one."""
    settlement.release(**held.presenting)
    given = placing.place(
        caller=world.operator, workload_id=held.workload.workload_id, worker_id=member.worker_id
    )
    return Held(held.workload, member, given)


def test_a_call_from_the_work_follows_it_to_its_new_worker(world: World) -> None:
    held = world.claimed(timeouts={"claim_ms": 1})
    other = world.worker()
    with Gate(locking, "lock_worker") as gate:
        enforcing = Actor(partial(_enforce, held))
        gate.wait_for_arrival()
        moved = _move_to(world, held, other)
        gate.let_through()
        gate.wait_for_arrival()
        # What the try that came too late had locked is free again.
        assert is_free(held.worker.row)
        assert is_free(held.workload)
        gate.let_through()
        assert enforcing.value().cause == "claim"
    assert moved.refresh().state == State.READY
    assert_sound()


def test_work_that_changes_hands_three_times_makes_the_call_give_up(world: World) -> None:
    held = world.claimed(timeouts={"claim_ms": 1}, retry_policy={"initial_delay_ms": 0})
    with Gate(locking, "lock_worker") as gate:
        enforcing = Actor(partial(_enforce, held))
        for _ in range(3):
            gate.wait_for_arrival()
            held = _move_to(world, held, world.worker())
            gate.let_through()
        refused = enforcing.end()
    assert isinstance(refused, DomainError)
    assert refused.code == "STORAGE_BUSY"
    assert refused.facts["retry_after_ms"] > 0
    assert held.refresh().state == State.CLAIMED
    assert_sound()


def test_a_call_from_the_work_that_finds_it_claimed_meanwhile_locks_its_worker(
    world: World,
) -> None:
    work, member = world.workload(timeouts={"claim_ms": 1, "queue_ms": 3_600_000}), world.worker()
    with Gate(locking, "lock_workload") as gate:
        enforcing = Actor(partial(deadlines.enforce, workload_pk=work.pk, actor="system:test"))
        gate.wait_for_arrival()
        placing.place(
            caller=world.operator, workload_id=work.workload_id, worker_id=member.worker_id
        )
        gate.let_through()
        gate.wait_for_arrival()
        assert not is_free(member.row)
        gate.let_through()
        assert enforcing.value() is not None
    assert member.refresh().active == 0
    assert_sound()


def _from_the_worker(held: Held) -> list[Callable[[], Any]]:
    return [
        partial(settlement.release, **held.presenting),
        partial(leases.renew, **held.presenting),
        partial(expiry.end_of, held.worker.row.pk),
        partial(
            claims.claim, caller=held.worker.caller, worker_id=held.worker.worker_id, maximum=5
        ),
    ]


def _from_the_work(world: World, held: Held) -> list[Callable[[], Any]]:
    named: dict[str, Any] = {
        "caller": world.operator,
        "workload_id": held.workload.workload_id,
    }
    return [
        partial(_enforce, held),
        partial(workloads.cancel, **named),
        partial(placing.place, **named),
        partial(placing.place, **named, worker_id=held.worker.worker_id),
        partial(_enforce, held),
    ]


def test_calls_in_opposite_orders_end_without_a_deadlock(world: World) -> None:
    """Whatever order they come in: no call is a deadlock's victim, none waits for ever."""
    dice = random.Random(7)
    members = [world.worker(concurrency=3) for _ in range(3)]
    before = deadlocks()
    for number in range(12):
        work = [
            world.claimed(
                members[n % 3],
                timeouts={"claim_ms": 1},
                retry_policy={"max_unstarted": 1_000, "initial_delay_ms": 0},
            )
            for n in range(4)
        ]
        calls = [
            call
            for held in work
            for call in (*_from_the_worker(held), *_from_the_work(world, held))
        ]
        ended = at_once(*dice.sample(calls, 12))
        busy = [each for each in ended if getattr(each, "code", "") == "STORAGE_BUSY"]
        assert busy == [], f"round {number}"
        for held in work:
            workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
        with clock.set_to(clock.now().replace(year=clock.now().year + 1)):
            recovery.run("enforce_deadlines")
        Worker.objects.update(lifecycle="READY", health="HEALTHY")
        assert_sound()
    assert deadlocks() == before


def test_sweeps_of_many_workers_and_cancels_of_their_work_do_not_deadlock(world: World) -> None:
    members = [world.worker(concurrency=10) for _ in range(3)]
    held = [world.claimed(members[n % 3]) for n in range(24)]
    order = [each.workload.workload_id for each in held]
    barrier_calls: list[Callable[[], Any]] = []
    with clock.set_to(clock.now().replace(year=clock.now().year + 1)):
        for member in members:
            barrier_calls.append(partial(expiry.end_of, member.row.pk))
            barrier_calls.append(
                partial(leases.move_ends, [each.row.pk for each in reversed(members)])
            )
        for ids in (order[::2], order[1::2][::-1]):
            barrier_calls.append(partial(_cancel_all, world, ids))
        ended = at_once(*barrier_calls)
    assert len(answers(ended)) == len(barrier_calls)
    assert_sound()


def _cancel_all(world: World, workload_ids: list[str]) -> int:
    """In one transaction, as a composed call would."""
    for workload_id in workload_ids:
        workloads.cancel(caller=world.operator, workload_id=workload_id)
    return len(workload_ids)


@pytest.mark.parametrize("call", ["claim", "renew", "complete", "cancel", "place", "drain"])
def test_a_row_that_stays_locked_answers_that_the_store_is_busy(world: World, call: str) -> None:
    held = world.running()
    spare = world.workload()
    calls: dict[str, Callable[[], Any]] = {
        "claim": partial(
            claims.claim, caller=held.worker.caller, worker_id=held.worker.worker_id, maximum=1
        ),
        "renew": partial(leases.renew, **held.presenting),
        "complete": partial(settlement.complete, **held.presenting, result_id="r", output=1),
        "cancel": partial(
            workloads.cancel, caller=world.operator, workload_id=held.workload.workload_id
        ),
        "place": partial(
            placing.place,
            caller=world.operator,
            workload_id=spare.workload_id,
            worker_id=held.worker.worker_id,
        ),
        "drain": partial(workers.drain, caller=world.operator, worker_id=held.worker.worker_id),
    }
    with hold(held.worker.row, held.workload):
        refused = Actor(calls[call], lock_timeout_ms=200).end()
    assert isinstance(refused, DomainError)
    assert refused.code == "STORAGE_BUSY"
    assert refused.facts["retry_after_ms"] > 0
    assert held.refresh().state == State.RUNNING
    assert held.worker.refresh().lifecycle == "READY"
    assert_sound()


def test_the_victim_of_a_deadlock_answers_that_the_store_is_busy(world: World) -> None:
    one, two = world.workload(), world.workload()
    barrier = threading.Barrier(2)

    def both(first: Workload, second: Workload) -> int:
        with transaction.atomic():
            locking.lock_workload(first.pk)
            barrier.wait(20)
            locking.lock_workload(second.pk)
        return 1

    ended = at_once(partial(both, one, two), partial(both, two, one))
    assert sorted(str(getattr(each, "code", "done")) for each in ended) == ["STORAGE_BUSY", "done"]


def test_a_cancelled_statement_answers_that_the_store_is_busy(world: World) -> None:
    with pytest.raises(DatabaseError) as caught, connection.cursor() as cursor:
        cursor.execute("set statement_timeout = 20; select pg_sleep(10)")
    with connection.cursor() as cursor:
        cursor.execute("reset statement_timeout")
    assert _is_busy(caught.value)


def test_a_server_without_a_free_connection_answers_that_the_store_is_busy(
    world: World,
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select current_database()")
        quoted = connection.ops.quote_name(cursor.fetchone()[0])
        cursor.execute(f"alter database {quoted} connection limit 0")
        try:
            # A superuser is let in all the same; so ask as one who is not.
            cursor.execute("drop role if exists fencepost_plain")
            cursor.execute("create role fencepost_plain login password 'plain'")
            refused = Actor(_connect_as_plain).end()
        finally:
            cursor.execute(f"alter database {quoted} connection limit -1")
            cursor.execute("drop role fencepost_plain")
    assert isinstance(refused, DomainError)
    assert refused.code == "STORAGE_BUSY"


def _connect_as_plain() -> None:
    connection.close()
    settings = connection.settings_dict
    connection.settings_dict = {**settings, "USER": "fencepost_plain", "PASSWORD": "plain"}
    with connection.cursor() as cursor:
        cursor.execute("select 1")


def test_a_session_that_was_ended_answers_that_the_store_is_busy(world: World) -> None:
    held = world.running()
    with hold(held.worker.row):
        waiting = Actor(partial(leases.renew, **held.presenting))
        waiting.wait_until_blocked()
        with connection.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(%s)", [waiting.pid])
        assert waiting.code() == "STORAGE_BUSY"


def test_what_is_broken_is_not_called_busy() -> None:
    assert locking.busy_error(ValueError("x")) is None
    assert locking.busy_error(InterfaceError("connection already closed")) is not None


def _is_busy(error: BaseException) -> bool:
    told = locking.busy_error(error)
    return told is not None and told.code == "STORAGE_BUSY" and told.facts["retry_after_ms"] > 0
