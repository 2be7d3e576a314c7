"""What blocks a run."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import clock
from tests.factories import World
from workflows import blocks
from workflows.models import (
    Block,
    CancellationRequest,
    ControlFailure,
    RecoveryBarrier,
    Run,
    UserPause,
)

from . import rows

pytestmark = pytest.mark.django_db
KINDS: dict[str, Any] = {
    "user_paused": UserPause,
    "cancelled": CancellationRequest,
    "control_failure": ControlFailure,
    "recovery": RecoveryBarrier,
}


def _block(run: Run, kind: str, **members: Any) -> Block:
    said: dict[str, Any] = {"run": run, "since": clock.now(), "by": "human:ann", "reason": "so"}
    if kind == "control_failure":
        said["code"] = "input_unresolved"
    row: Block = KINDS[kind].objects.create(**said, **members)
    return row


def _standing(run: Run) -> dict[str, Block]:
    with CaptureQueriesContext(connection) as queries:
        told = blocks.standing(run.pk)
    assert len(queries) == 1, "more than one statement is more than one moment"
    return {kind: row for kind, row in told.rows().items() if row is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_stands_is_told_with_since_by_and_why(kind: str) -> None:
    run = rows.make_run(World())
    assert _standing(run) == {}
    row = _block(run, kind)
    assert _standing(run) == {kind: row}
    told = _standing(run)[kind]
    assert (told.since, told.by, told.reason) == (row.since, "human:ann", "so")


def test_blocks_that_ended_and_those_of_other_runs_do_not_stand() -> None:
    world = World()
    run, other = rows.make_run(world), rows.make_run(world)
    for kind in KINDS:
        _block(other, kind)
        _block(run, kind, ended_at=clock.now())
    assert _standing(run) == {}
    assert not blocks.standing(run.pk).any
    assert set(_standing(other)) == set(KINDS)
