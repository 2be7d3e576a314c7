"""Adding a dependency while the work that is waited for comes to its end."""

from __future__ import annotations

from functools import partial
from typing import Any

from mesh import arrivals, changes, dependencies, intake, invariants, recovery, workloads
from mesh.models import Workload
from tests.factories import Held, World

from .steering import Actor, Gate, answers, at_once, hold


def _submit(world: World, other: Workload) -> partial[Any]:
    said = world.submission(dependencies=[{"workload_id": other.workload_id}])
    return partial(intake.submit, caller=world.operator, submission=said)


def _complete(held: Held) -> partial[Any]:
    return partial(held.worker.complete, held.claim)


def _is_free(work: Workload) -> bool:
    work.refresh_from_db()
    return work.claimable and work.open_dependencies == 0


def test_a_dependency_added_before_the_end_is_woken_by_it(world: World) -> None:
    held = world.running()
    with Gate(arrivals, "_insert", after=True) as gate:
        submit = Actor(_submit(world, held.workload))
        gate.wait_for_arrival()
        complete = Actor(_complete(held))
        complete.wait_until_blocked(by=submit)
        gate.let_through()
        work = submit.value().workload
        complete.value()
    assert _is_free(work)


def test_a_dependency_added_during_the_end_sees_it(world: World) -> None:
    held = world.running()
    world.workload()
    with Gate(changes, "_rows") as gate:
        complete = Actor(_complete(held))
        gate.wait_for_arrival()
        submit = Actor(_submit(world, held.workload))
        submit.wait_until_blocked(by=complete)
        for _ in range(10):
            gate.let_through()
        complete.value()
        assert _is_free(submit.value().workload)


def test_ends_and_new_dependents_at_once_leave_nobody_waiting(world: World) -> None:
    world.workload()
    for _ in range(5):
        held = world.running()
        ended = at_once(_complete(held), *[_submit(world, held.workload) for _ in range(3)])
        works = [each.workload for each in answers(ended) if hasattr(each, "created")]
        assert len(works) == 3
        assert all(map(_is_free, works))
    assert invariants.broken() == {}


def test_a_dependent_that_others_hold_is_left_to_the_sweep(world: World) -> None:
    held = world.running()
    work = _submit(world, held.workload)().workload
    with hold(work):
        Actor(_complete(held)).value()
    held.workload.refresh_from_db()
    assert held.workload.dependents_pending
    assert not _is_free(work)
    recovery.run("release_dependents")
    assert _is_free(work)


def test_two_ends_of_one_dependent_at_once_both_count(world: World) -> None:
    for _ in range(5):
        first, second = world.running(), world.running()
        waits_for = [{"workload_id": each.workload.workload_id} for each in (first, second)]
        work = world.workload(dependencies=waits_for)
        answers(at_once(_complete(first), _complete(second)))
        recovery.run("release_dependents")
        assert _is_free(work)


def test_a_retry_with_dependents_beside_the_sweep_keeps_both_sound(world: World) -> None:
    held = world.running(retry_policy={"max_attempts": 1})
    work = _submit(world, held.workload)().workload
    held.worker.fail(held.claim)
    retry = partial(
        workloads.retry,
        caller=world.operator,
        workload_id=held.workload.workload_id,
        dependents=True,
    )
    release = partial(dependencies.release, workload_pk=held.workload.pk)
    at_once(retry, release)
    work.refresh_from_db()
    assert (work.state, work.open_dependencies) == ("READY", 1)
    assert invariants.broken() == {}
