"""A world of its own for a rule test of workflows, at a time that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.factories import World
from tests.mesh.checks import Clock


@pytest.fixture
def clock() -> Iterator[Clock]:
    with ExitStack() as stack:
        yield Clock(stack)


@pytest.fixture
def world(db: None, clock: Clock) -> World:
    return World()
