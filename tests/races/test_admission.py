"""Admissions at once: to one resource, to one run, and against what stops or moves the run."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import combinations
from typing import Any

from mesh import clock, statements
from mesh.canonical import secret_hash
from mesh.errors import DomainError
from mesh.models import Workload
from tests.factories import World
from tests.workflows.admitting import (
    Driven,
    driven,
    driven_steps,
    read,
    settle,
    step_with,
    write,
)
from workflows import admission, blocks, cancellation, retention
from workflows.admission import Admitted
from workflows.models import (
    OutcomeKind,
    RefusedWriter,
    ResourceKey,
    ResourceLease,
    Run,
    RunAttempt,
)
from workflows.steps import Resource

from .checks import deadlocks
from .steering import Actor, Gate, answers, at_once, codes, eventually, hold


def _admit(one: Driven, **members: Any) -> Callable[[], Admitted]:
    return partial(admission.admit, **one.asking(**members))


def _cancel(one: Driven) -> Callable[[], Run]:
    return partial(
        cancellation.request, caller=one.world.operator, run_id=one.run.run_id, reason="enough"
    )


def assert_nothing_conflicts() -> None:
    """No two leases of which one is a write, in reach of each other; and all is counted."""
    for one, two in combinations(ResourceLease.objects.all(), 2):
        is_near = one.run_id == two.run_id or {one.scope, two.scope} == {"application"}
        is_same = one.resource == two.resource and one.application_id == two.application_id
        is_write = "write" in (one.access, two.access)
        assert not (is_near and is_same and is_write and one.attempt_id != two.attempt_id)
    for run in Run.objects.all():
        assert run.active_attempts == run.attempts.unsettled().count()
    assert Workload.objects.count() == RunAttempt.objects.count()


def test_twenty_at_once_on_overlapping_resources_are_never_granted_what_conflicts(
    world: World,
) -> None:
    """Half of the resources are new each time, and so is the kind of work; no deadlock, all end."""
    dice, before = random.Random(11), deadlocks()
    for turn in range(3):
        names = [f"r{4 * turn + n}" for n in range(8)]
        admits = [
            _admit(_reserving(world, dice, dice.sample(names, 3), f"kind-{turn}-{n % 3}"))
            for n in range(20)
        ]
        ended = at_once(*admits)
        assert len(answers(ended)) >= 1
        assert set(codes(ended)) <= {"RESOURCE_BUSY"}
        assert_nothing_conflicts()
        for each in answers(ended):
            settle(each.attempt)
        RefusedWriter.objects.all().delete()
    assert deadlocks() == before


def _reserving(world: World, dice: random.Random, names: list[str], kind: str) -> Driven:
    """A run whose step reserves these, in the application and in itself."""
    wanted = [
        Resource(each, dice.choice(["read", "write"]), scope)
        for each in names
        for scope in ("application", "run")
    ]
    return driven_steps(world, [step_with("one", *wanted, definition_id=kind)])


def test_of_two_writers_at_once_one_is_admitted_and_the_other_told_who_has_it(
    world: World,
) -> None:
    for turn in range(4):
        both = [driven(world, write(f"ledger.{turn}")) for _ in range(2)]
        ended = at_once(*[_admit(each) for each in both])
        (winner,) = answers(ended)
        (refusal,) = [each for each in ended if isinstance(each, DomainError)]
        assert refusal.code == "RESOURCE_BUSY"
        assert refusal.facts["resource"] == f"ledger.{turn}"
        holder = refusal.facts["holder"]
        assert holder["dispatch_identity"] == winner.attempt.dispatch_identity
    assert_nothing_conflicts()


def test_one_admission_sent_many_times_at_once_is_one_attempt(world: World) -> None:
    one = driven(world, write("r"), read("s", "run"))
    ended = answers(at_once(*[_admit(one)] * 8))
    assert len(ended) == 8
    assert sum(each.created for each in ended) == 1
    assert len({each.attempt.pk for each in ended}) == 1
    assert_nothing_conflicts()


def test_steps_of_one_run_at_once_keep_to_its_concurrency(world: World) -> None:
    steps = [step_with(f"s{n}", read("r")) for n in range(8)]
    one = driven_steps(world, steps, max_concurrency=3)
    ended = at_once(*[_admit(one, step=f"s{n}") for n in range(8)])
    assert len(answers(ended)) == 3
    assert codes(ended) == ["CONCURRENCY_FULL"] * 5
    assert_nothing_conflicts()


def test_an_authority_that_moves_while_an_admission_waits_makes_it_stale(world: World) -> None:
    one = driven(world)
    with hold(one.run):
        late = Actor(_admit(one))
        late.wait_until_blocked()
        Run.objects.filter(pk=one.run.pk).update(generation=2, token_hash=secret_hash("next"))
    assert late.code() == "AUTHORITY_STALE"
    assert not RunAttempt.objects.exists()


def test_a_deadline_that_passes_while_an_admission_waits_for_its_run_is_kept(world: World) -> None:
    one = driven(world)
    with hold(one.run):
        late = Actor(_admit(one))
        late.wait_until_blocked()
        Run.objects.filter(pk=one.run.pk).update(deadline=clock.now())
    assert late.code() == "LIMIT_REACHED"


def test_a_deadline_that_passes_while_an_admission_waits_for_a_resource_is_kept(
    world: World,
) -> None:
    one, end = driven(world, write("r")), clock.now()
    Run.objects.filter(pk=one.run.pk).update(deadline=end)
    with (
        clock.set_to(end - timedelta(milliseconds=1)),
        Gate(admission, "lock_resources", after=True) as gate,
    ):
        late = Actor(_admit(one))
        gate.wait_for_arrival()
        with clock.set_to(end):
            gate.let_through()
            assert late.code() == "LIMIT_REACHED"
    assert not RunAttempt.objects.exists()


def test_a_resource_that_stays_locked_is_a_busy_store_and_leaves_nothing(world: World) -> None:
    one = driven(world, write("r"))
    key = ResourceKey.objects.create(application=one.run.application, resource="r")
    with hold(key):
        late = Actor(_admit(one), lock_timeout_ms=100)
        assert late.code() == "STORAGE_BUSY"
    assert not RunAttempt.objects.exists()
    assert one.admit().created


def test_a_lock_row_that_retention_removes_under_an_admission_is_made_anew(world: World) -> None:
    """Two who would lock one resource always meet, on the old row or on the new one."""
    both = [driven(world, write("r")) for _ in range(2)]
    ResourceKey.objects.create(application=both[0].run.application, resource="r")
    with Gate(statements, "change", after=True) as gate:
        pruning = Actor(partial(retention.prune_keys, clock.now()))
        gate.wait_for_arrival()
        # It is removed, and that is not committed.
        actors = [Actor(_admit(each)) for each in both]
        for each in actors:
            each.wait_until_blocked(by=pruning)
        gate.let_through()
        assert pruning.value() == 1
        ended = [each.end() for each in actors]
    assert len(answers(ended)) == 1
    assert codes(ended) == ["RESOURCE_BUSY"]
    assert ResourceKey.objects.count() == 1
    assert retention.prune_keys(clock.now()) == 0
    settle(answers(ended)[0].attempt)
    assert retention.prune_keys(clock.now()) == 1


def test_a_writer_comes_in_among_a_stream_of_readers(world: World) -> None:
    """There is a reader at every moment, but for the ones that wait behind the writer."""
    writer, is_in = driven(world, write("r")), threading.Event()
    readers = [driven(world, read("r"), max_executions=10**6) for _ in range(4)]
    actors = [Actor(partial(_read_on, each, is_in)) for each in readers]
    eventually(lambda: ResourceLease.objects.count() > 1, "readers hold it")
    eventually(lambda: _try(writer) is not None, "the writer is admitted")
    is_in.set()
    for each in actors:
        each.value()
    assert not RefusedWriter.objects.exists()
    assert_nothing_conflicts()


def _read_on(one: Driven, is_over: threading.Event) -> None:
    """Read again and again, each time until another reader is there too, or none may come."""
    others, number = ResourceLease.objects.exclude(run=one.run), 1
    while not is_over.is_set():
        done = _try(one, number)
        if done is not None:
            eventually(
                lambda: others.exists() or RefusedWriter.objects.exists(), "another, or the writer"
            )
            settle(done.attempt, OutcomeKind.NOT_STARTED)
            one.run.activations.update(tries=0)
            number += 1


def _try(one: Driven, number: int = 1) -> Admitted | None:
    """None where the resource is busy."""
    try:
        return one.admit(attempt=number)
    except DomainError as refused:
        if refused.code != "RESOURCE_BUSY":
            raise
        return None


def test_a_cancellation_after_an_admission_under_way_holds_its_work(world: World) -> None:
    one = driven(world)
    with Gate(admission, "_reserve", after=True) as gate:
        admitting = Actor(_admit(one))
        gate.wait_for_arrival()
        cancelling = Actor(_cancel(one))
        cancelling.wait_until_blocked(by=admitting)
        gate.let_through()
        work = admitting.value().attempt.workload
        cancelling.value()
    work.refresh_from_db()
    assert work.held
    assert_nothing_conflicts()


def test_an_admission_after_a_cancellation_under_way_is_refused(world: World) -> None:
    one = driven(world)
    with Gate(blocks, "obey", after=True) as gate:
        cancelling = Actor(_cancel(one))
        gate.wait_for_arrival()
        admitting = Actor(_admit(one))
        admitting.wait_until_blocked(by=cancelling)
        gate.let_through()
        assert admitting.code() == "RUN_CANCELLING"
    assert not Workload.objects.exists()
