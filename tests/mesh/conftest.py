"""A world of its own for every rule test, at a time that stands still."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.db import connection

from tests.factories import World
from tests.mesh.checks import Clock


@pytest.fixture
def clock() -> Iterator[Clock]:
    with ExitStack() as stack:
        yield Clock(stack)


@pytest.fixture
def world(db: None, clock: Clock) -> World:
    return World()


@pytest.fixture
def passing_over(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Keeps the connection, whose open transaction is the test's own, and the log quiet."""
    monkeypatch.setattr(connection, "close_if_unusable_or_obsolete", lambda: None)
    caplog.set_level(logging.CRITICAL, "mesh.recovery")
