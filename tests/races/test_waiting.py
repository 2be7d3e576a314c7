"""Workers that wait for work while it comes, goes, or is lost on its way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import psycopg
import pytest
from django.db import connection

from mesh import clock, lobby, revocations, settlement, waiting, workers
from mesh.claims import Claims
from mesh.lobby import Lobby
from mesh.models import Worker, Workload
from mesh.waiting import Line
from tests.factories import Member, World

from .checks import assert_sound
from .steering import Actor, eventually, hold

PATIENT_MS = 20_000


@pytest.fixture
def by_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself within the time of a test: only notifications wake."""
    monkeypatch.setattr(lobby, "_LOOK_S", (60.0, 60.0))


def ask(member: Member, maximum: int = 1, wait_ms: int = PATIENT_MS, **more: Any) -> Claims:
    return waiting.claim(
        caller=workers.authenticate(member.credential),
        worker_id=member.worker_id,
        maximum=maximum,
        wait_ms=wait_ms,
        **more,
    )


def parked(*members: Member, **more: Any) -> list[Actor[Claims]]:
    """Calls that wait, one after the other."""
    actors = []
    for number, member in enumerate(members, start=1):
        actors.append(Actor(partial(ask, member, **more)))
        eventually(lambda: _settled() == number, "it waits")  # noqa: B023 - used at once
    return actors


def _settled() -> int:
    """How many wait with nothing to ask for, while the one thread listens."""
    there = list(lobby.present()._waiters)
    return sum(not each.bell.is_set() and each.requirement_ids is not None for each in there) * (
        lobby.present().is_watched
    )


def taken(actors: list[Actor[Claims]]) -> list[str]:
    return [claim.workload_id for each in actors for claim in each.value().claims]


@pytest.mark.usefixtures("by_notice")
def test_a_waiting_worker_is_told_of_new_work(world: World) -> None:
    member = world.worker()
    world.claimed()
    (waiter,) = parked(member)
    work = world.workload()
    assert taken([waiter]) == [work.workload_id]
    assert_sound()


@pytest.mark.usefixtures("by_notice")
def test_a_waiting_worker_is_told_of_a_kind_of_work_that_is_new(world: World) -> None:
    (waiter,) = parked(world.worker())
    work = world.workload(definition_id="never.seen")
    assert taken([waiter]) == [work.workload_id]


@pytest.mark.usefixtures("by_notice")
def test_a_waiting_worker_is_told_of_work_that_is_given_back(world: World) -> None:
    held = world.claimed()
    (waiter,) = parked(world.worker())
    settlement.release(**held.presenting)
    assert taken([waiter]) == [held.workload.workload_id]


@pytest.mark.usefixtures("by_notice")
def test_many_waiting_workers_take_each_new_work_once(world: World) -> None:
    members = [world.worker() for _ in range(6)]
    world.claimed()
    waiters = parked(*members)
    works = [world.workload() for _ in range(6)]
    assert sorted(taken(waiters)) == sorted(each.workload_id for each in works)
    assert_sound()


@pytest.mark.usefixtures("by_notice")
def test_who_was_woken_and_got_all_it_asked_for_wakes_the_next(world: World) -> None:
    members = [world.worker() for _ in range(3)]
    tomorrow = clock.now() + timedelta(days=1)
    works = [world.workload(not_before=tomorrow) for _ in range(3)]
    waiters = parked(*members)
    # Three rows of one statement tell the same, which is sent once.
    Workload.objects.filter(claimable=False).update(claimable=True)
    assert sorted(taken(waiters)) == sorted(each.workload_id for each in works)


@pytest.mark.usefixtures("by_notice")
def test_what_a_gone_caller_was_woken_for_goes_to_the_next(world: World) -> None:
    class Gone(Line):
        def is_gone(self) -> bool:
            return True

    first, second = world.worker(), world.worker()
    world.claimed()
    (gone,) = parked(first, line=Gone())
    waiter = Actor(partial(ask, second))
    eventually(lambda: _settled() == 2, "both wait")
    work = world.workload()
    assert gone.value().claims == []
    assert taken([waiter]) == [work.workload_id]


def test_work_is_found_though_its_notification_was_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lobby, "_heed", lambda self, payload: True)
    (waiter,) = parked(world.worker())
    work = world.workload()
    assert taken([waiter]) == [work.workload_id]


def test_work_is_found_while_nobody_can_look_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> NoReturn:
        raise psycopg.OperationalError("no connections left")

    monkeypatch.setattr(lobby, "open_session", refuse)
    waiter = Actor(partial(ask, world.worker()))
    eventually(lambda: len(lobby.present()) == 1, "it waits")
    work = world.workload()
    assert taken([waiter]) == [work.workload_id]


def test_the_connection_that_looks_out_may_be_lost(world: World) -> None:
    (waiter,) = parked(world.worker())
    with connection.cursor() as cursor:
        cursor.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and query ilike '%%waiting%%' and pid <> %s",
            [_own_pid()],
        )
    work = world.workload()
    assert taken([waiter]) == [work.workload_id]


def test_who_waits_holds_no_connection(world: World) -> None:
    (waiter,) = parked(world.worker())
    assert waiter.pid not in _sessions()
    world.workload()
    waiter.value()


def test_a_worker_has_polled_when_it_begins_to_wait(world: World) -> None:
    member = world.worker()
    before = clock.now()
    parked(member)
    asked_at = member.refresh().last_poll_at
    assert asked_at is not None
    assert before <= asked_at <= clock.now()


def test_a_full_worker_waits_for_a_slot(world: World) -> None:
    held = world.running(world.worker(concurrency=1))
    work = world.workload()
    waiter = Actor(partial(ask, held.worker))
    eventually(lambda: len(lobby.present()) == 1, "it waits")
    held.worker.complete(held.claim)
    assert taken([waiter]) == [work.workload_id]


def test_a_worker_that_is_to_take_no_work_is_answered_at_once(world: World) -> None:
    member = world.running().worker
    revocations.revoke_grant(caller=world.caller(), grant_id=member.row.grant.grant_id)
    assert ask(member).reason == "GRANT_REVOKED"
    new = world.registered()
    assert ask(new).reason == "LIFECYCLE"
    assert len(lobby.present()) == 0


def test_a_worker_that_drains_meanwhile_is_answered(world: World) -> None:
    member = world.worker()
    world.running(member)
    (waiter,) = parked(member)
    workers.drain(caller=world.operator, worker_id=member.worker_id)
    assert waiter.value() == Claims([], "LIFECYCLE")


def test_a_worker_that_is_displaced_meanwhile_is_told_so(world: World) -> None:
    member = world.worker()
    (waiter,) = parked(member)
    Worker.objects.filter(pk=member.row.pk).update(incarnation=2)
    assert waiter.code() == "TOKEN_INVALID"


def test_a_busy_store_is_no_answer_while_it_waits(world: World) -> None:
    member = world.worker()
    (waiter,) = parked(member)
    with hold(member.row):
        work = Actor(world.workload).value()
        eventually(_somebody_is_locked_out, "it asks")
    assert taken([waiter]) == [work.workload_id]


def test_the_end_of_the_process_answers_all_who_wait(world: World) -> None:
    waiters = parked(world.worker(), world.worker())
    lobby.present().stop()
    assert taken(waiters) == []
    assert ask(world.worker()) == Claims([], None)


def _somebody_is_locked_out() -> bool:
    # Not from pg_stat_activity, which stands still within a transaction.
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_locks where not granted")
        return bool(cursor.fetchone()[0])


def _own_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _sessions() -> Iterator[int]:
    with connection.cursor() as cursor:
        cursor.execute("select pid from pg_stat_activity where datname = current_database()")
        return iter([pid for (pid,) in cursor.fetchall()])
