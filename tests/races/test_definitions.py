"""One version of a definition, one run id, and many who send it at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mesh.models import AuditEntry
from tests.factories import World
from workflows import definitions, runs
from workflows.models import Activation, Definition, Run, RunEvent

from .steering import Actor, Gate, answers, at_once, codes

STEP = {"step": "one", "definition_id": "extract"}


def _store(world: World, *, version: int = 1, **members: Any) -> Callable[[], Any]:
    return partial(
        definitions.store,
        caller=world.operator,
        application=world.application,
        definition_id="flow",
        version=version,
        steps=[{**STEP, **members}],
    )


def _start(world: World, *, input: Any = None) -> Callable[[], Any]:  # noqa: A002
    return partial(
        runs.start,
        caller=world.operator,
        application=world.application,
        run_id="run",
        definition_id="flow",
        version=1,
        input=input,
    )


def test_one_version_stored_many_times_at_once_is_one_row(world: World) -> None:
    stored = answers(at_once(*[_store(world)] * 8))
    assert len(stored) == 8
    assert sum(created for _, created in stored) == 1
    assert {each.pk for each, _ in stored} == {Definition.objects.get().pk}
    assert AuditEntry.objects.filter(action="definition.stored").count() == 1


def test_of_different_steps_for_one_version_at_once_one_is_stored(world: World) -> None:
    ended = at_once(*[_store(world, input=number) for number in range(8)])
    [(kept, created)] = answers(ended)
    assert created
    assert codes(ended) == ["ADMISSION_INVALID"] * 7
    assert Definition.objects.get().steps == kept.steps


def test_one_run_started_many_times_at_once_is_one_run(world: World) -> None:
    _store(world)()
    started = answers(at_once(*[_start(world)] * 8))
    assert len(started) == 8
    assert sum(created for _, created in started) == 1
    assert {each.pk for each, _ in started} == {Run.objects.get().pk}
    for rows in (Activation.objects, RunEvent.objects, AuditEntry.objects.filter(target="run")):
        assert rows.count() == 1


def test_of_different_content_for_one_run_id_at_once_one_begins(world: World) -> None:
    _store(world)()
    ended = at_once(*[_start(world, input=number) for number in range(8)])
    assert len(answers(ended)) == 1
    assert codes(ended) == ["ADMISSION_INVALID"] * 7
    assert Activation.objects.count() == 1


def test_who_stores_what_another_is_storing_waits_and_is_answered_as_a_repeat(
    world: World,
) -> None:
    with Gate(definitions, "_audit") as gate:
        first = Actor(_store(world))
        gate.wait_for_arrival()
        same, other = Actor(_store(world)), Actor(_store(world, input=1))
        same.wait_until_blocked(by=first)
        other.wait_until_blocked(by=first)
        gate.let_through()
        stored, created = first.value()
        assert created
        assert same.value() == (stored, False)
        assert other.code() == "ADMISSION_INVALID"


def test_who_starts_what_another_is_starting_waits_and_is_answered_as_a_repeat(
    world: World,
) -> None:
    _store(world)()
    with Gate(runs, "_begin") as gate:
        first = Actor(_start(world))
        gate.wait_for_arrival()
        same, other = Actor(_start(world)), Actor(_start(world, input=1))
        same.wait_until_blocked(by=first)
        other.wait_until_blocked(by=first)
        gate.let_through()
        run, created = first.value()
        assert created
        assert same.value() == (run, False)
        assert other.code() == "ADMISSION_INVALID"
