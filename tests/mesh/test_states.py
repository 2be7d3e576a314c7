"""The legal moves, written out from the product's tables, and nothing but them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from mesh import workers, workloads
from mesh.models import State, Worker, WorkerEvent, Workload
from mesh.models.enums import Lifecycle
from tests.factories import World, in_state
from tests.mesh.checks import NOON, Clock, events, refused

WORKER: dict[str, str] = {
    "REGISTERED": "READY DRAINING OFFLINE",
    "READY": "BUSY DRAINING OFFLINE",
    "BUSY": "READY DRAINING OFFLINE",
    "DRAINING": "OFFLINE READY BUSY",
    "OFFLINE": "RECOVERING",
    "RECOVERING": "READY OFFLINE",
}
_STARTED = "CHECKPOINTED SUCCEEDED FAILED CANCELLATION_REQUESTED RECOVERING TIMED_OUT HELD"
WORKLOAD: dict[str, str] = {
    "CREATED": "READY CANCELLED",
    "READY": "CLAIMED CANCELLED TIMED_OUT DEAD_LETTER",
    "CLAIMED": "RUNNING READY CANCELLATION_REQUESTED RECOVERING TIMED_OUT",
    "RUNNING": _STARTED,
    "CHECKPOINTED": _STARTED,
    "RECOVERING": "READY DEAD_LETTER",
    "HELD": "SUCCEEDED FAILED CANCELLED READY",
    "CANCELLATION_REQUESTED": "CANCELLED HELD SUCCEEDED FAILED",
    "SUCCEEDED": "",
    "FAILED": "READY DEAD_LETTER CANCELLED",
    "CANCELLED": "",
    "TIMED_OUT": "READY DEAD_LETTER HELD",
    "DEAD_LETTER": "READY CANCELLED",
}
EVENTS: dict[tuple[str, str], str] = {
    ("CLAIMED", "READY"): "released",
    ("DEAD_LETTER", "READY"): "retried",
    ("HELD", "READY"): "resolved",
}
NAMES: dict[str, str] = {
    "RUNNING": "started",
    "RECOVERING": "recovered",
    "SUCCEEDED": "completed",
    "DEAD_LETTER": "dead_lettered",
}


def arrows(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(start, end) for start, ends in table.items() for end in ends.split()]


def absent(table: dict[str, str]) -> list[tuple[str, str]]:
    return [each for each in itertools.product(table, table) if each not in arrows(table)]


@pytest.mark.parametrize(("start", "end"), arrows(WORKER))
def test_worker_moves_along_a_legal_arrow_and_leaves_an_event(
    world: World, start: str, end: str
) -> None:
    worker = world.registered().row
    worker.lifecycle = start
    number = worker.event_sequence
    workers.move(worker, Lifecycle(end), actor="human:ann", at=NOON, evidence={"why": "test"})
    written = WorkerEvent.objects.filter(worker=worker).latest("sequence")
    assert (worker.lifecycle, written.sequence) == (end, number + 1)
    assert (written.from_state, written.to_state, written.actor) == (start, end, "human:ann")
    assert (written.event, written.at) == (f"worker.{end.lower()}", NOON)
    assert written.evidence == {"why": "test"}


@pytest.mark.parametrize(("start", "end"), absent(WORKER))
def test_worker_refuses_a_move_without_an_arrow(world: World, start: str, end: str) -> None:
    worker = world.registered().row
    worker.lifecycle = start
    with refused("WORKER_TRANSITION_DENIED"):
        workers.move(worker, Lifecycle(end), actor="human:ann", at=NOON)
    assert worker.lifecycle == start


@pytest.mark.parametrize(("start", "end"), arrows(WORKLOAD))
def test_workload_moves_along_a_legal_arrow_with_the_next_event(start: str, end: str) -> None:
    work = Workload(pk=1, state=start, event_sequence=7)
    event = workloads.move(work, State(end), actor="human:ann", at=NOON, evidence={"why": "test"})
    name = EVENTS.get((start, end)) or NAMES.get(end) or end.lower()
    assert (work.state, work.event_sequence, work.updated_at) == (end, 8, NOON)
    assert (event.event, event.sequence) == (f"workload.{name}", 8)
    assert (event.from_state, event.to_state, event.actor) == (start, end, "human:ann")
    assert event.evidence == {"why": "test"}


@pytest.mark.parametrize(("start", "end"), absent(WORKLOAD))
def test_workload_refuses_a_move_without_an_arrow(db: None, start: str, end: str) -> None:
    work = Workload(pk=1, state=start, event_sequence=7)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        workloads.move(work, State(end), actor="human:ann", at=NOON)
    assert (work.state, work.event_sequence) == (start, 7)


@pytest.mark.parametrize("end", ["SUCCEEDED", "CANCELLED", "DEAD_LETTER"])
def test_only_an_ended_workload_has_an_end(end: str) -> None:
    start = next(start for start, to in arrows(WORKLOAD) if to == end)
    work = Workload(pk=1, state=start, claimable=True)
    workloads.move(work, State(end), actor="human:ann", at=NOON)
    assert (work.ended_at, work.claimable) == (NOON, False)


@pytest.mark.parametrize(
    ("state", "names"),
    [
        (State.READY, "ready"),
        (State.CLAIMED, "ready claimed"),
        (State.RUNNING, "ready claimed started"),
        (State.CHECKPOINTED, "ready claimed started checkpointed"),
        (State.CANCELLATION_REQUESTED, "ready claimed started cancellation_requested"),
        (State.SUCCEEDED, "ready claimed started completed"),
        (State.DEAD_LETTER, "ready claimed started failed dead_lettered"),
        (State.CANCELLED, "ready cancelled"),
        (State.HELD, "ready claimed started held"),
    ],
)
def test_history_tells_the_way_to_a_state(world: World, state: str, names: str) -> None:
    assert events(in_state(world, state)) == names.split()


@pytest.mark.parametrize(
    ("lifecycle", "makes"),
    [("READY", "worker"), ("REGISTERED", "registered")],
)
def test_worker_never_becomes_what_it_is(world: World, lifecycle: str, makes: str) -> None:
    worker: Worker = getattr(world, makes)().row
    assert worker.lifecycle == lifecycle
    with refused("WORKER_TRANSITION_DENIED"):
        workers.move(worker, Lifecycle(lifecycle), actor="human:ann", at=NOON)


DOCUMENT = Path(__file__).parents[2] / "docs" / "state_machines.md"


@pytest.mark.parametrize(("noun", "table"), [("workload", WORKLOAD), ("worker", WORKER)])
def test_the_document_shows_every_arrow_and_no_other(noun: str, table: dict[str, str]) -> None:
    part = DOCUMENT.read_text().split(f"<!-- begin: {noun} ")[1].split("<!-- end:")[0]
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", part, re.MULTILINE)
    drawn = {(start, end) for start, ends in lines for end in re.findall(r"`(\w+)`", ends)}
    assert drawn == set(arrows(table))


def test_clock_of_the_tests_stands_still(clock: Clock) -> None:
    assert clock.at == clock.at == NOON
