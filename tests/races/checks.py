"""What no race may break, whoever won it."""

from __future__ import annotations

from itertools import pairwise

from django.db import connection
from django.db.models import F

from mesh.models import CLAIMED_STATES, Attempt, AttemptStatus, Worker, Workload, WorkloadEvent


def assert_sound() -> None:
    """Rows agree with each other, everywhere in the database."""
    for worker in Worker.objects.all():
        live = Attempt.objects.live().filter(worker=worker).count()
        assert worker.active == live, f"{worker}: active {worker.active}, live {live}"
    for work in Workload.objects.all():
        assert_work_is_sound(work)


def assert_work_is_sound(work: Workload) -> None:
    attempts = list(work.attempts.order_by("number"))
    tokens = [each.fencing_token for each in attempts]
    live = [each for each in attempts if each.is_live]
    succeeded = [each for each in attempts if each.status == AttemptStatus.SUCCEEDED]
    assert tokens == sorted(set(tokens)), f"{work}: tokens {tokens}"
    assert [each.number for each in attempts] == list(range(1, len(attempts) + 1))
    assert work.attempt_count == len(attempts)
    assert len(live) == (1 if work.state in CLAIMED_STATES else 0), f"{work}: {work.state}"
    assert len(succeeded) == (1 if work.state == "SUCCEEDED" else 0)
    events = list(WorkloadEvent.objects.filter(workload=work).order_by("sequence"))
    assert [each.sequence for each in events] == list(range(1, work.event_sequence + 1))
    assert events[0].from_state == "CREATED"
    assert events[-1].to_state == work.state
    for before, after in pairwise(events):
        assert before.to_state == after.from_state, f"{work}: {before} then {after}"


def assert_capacity_was_kept() -> None:
    """No worker ever held more than it may; true only where capacity was never lowered."""
    assert not Worker.objects.filter(active__gt=F("concurrency")).exists()


def events(work: Workload) -> list[str]:
    """The names of what happened to the work, in order, without their common prefix."""
    names = WorkloadEvent.objects.filter(workload=work).order_by("sequence")
    return [name.removeprefix("workload.") for name in names.values_list("event", flat=True)]


def deadlocks() -> int:
    """How many deadlocks the server has broken up in this database so far."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute("select deadlocks from pg_stat_database where datname = current_database()")
        count: int = cursor.fetchone()[0]
    return count
