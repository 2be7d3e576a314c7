"""What the rule tests share: a clock that stands still, and refusals that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import clock
from mesh.errors import DomainError
from mesh.models import (
    Attempt,
    Checkpoint,
    EligibleSet,
    Grant,
    Incident,
    LateReport,
    Requirement,
    Result,
    Worker,
    WorkerEvent,
    Workload,
    WorkloadEvent,
)

NOON: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
# The states that work rests in.
AT_REST: Final = (
    "READY",
    "CLAIMED",
    "RUNNING",
    "CHECKPOINTED",
    "HELD",
    "CANCELLATION_REQUESTED",
    "SUCCEEDED",
    "CANCELLED",
    "DEAD_LETTER",
)
# The smallest step of the database's clock: a boundary is tested on it and this much before.
MICRO: Final = timedelta(microseconds=1)
_TABLES: Final[tuple[Any, ...]] = (
    Workload,
    Attempt,
    Worker,
    WorkloadEvent,
    WorkerEvent,
    Result,
    Checkpoint,
    Grant,
    Requirement,
    Incident,
    EligibleSet,
    LateReport,
)
_EVERY_ROW: Final = " union all ".join(
    f"select '{model.__name__}', to_jsonb(t)::text from {model._meta.db_table} t"
    for model in _TABLES
)


def ms(number: float) -> timedelta:
    return timedelta(milliseconds=number)


class Clock:
    """The mesh's clock, stopped; it goes where a test sends it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.to(NOON)

    @property
    def at(self) -> datetime:
        return clock.now()

    def to(self, at: datetime) -> datetime:
        self._stack.close()
        self._stack.enter_context(clock.set_to(at))
        return at

    def pass_(self, span: timedelta) -> datetime:
        return self.to(self.at + span)


def rows() -> list[tuple[str, str]]:
    """Everything that the rules write, to be compared before and after.

    As the database spells it, in one statement: hundreds of tests ask twice.
    """
    with connection.cursor() as cursor:
        cursor.execute(_EVERY_ROW)
        return sorted(cursor.fetchall())


@contextmanager
def unchanged() -> Iterator[None]:
    """Nothing is written inside, not even a version of the same."""
    before = rows()
    yield
    assert rows() == before


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[DomainError]]:
    """What is inside is refused with this very code, and changes nothing."""
    before = rows()
    with pytest.raises(DomainError) as caught:
        yield caught
    assert caught.value.code == code
    assert rows() == before


@contextmanager
def raises(code: str) -> Iterator[pytest.ExceptionInfo[DomainError]]:
    """A refusal by a function that touches no rows."""
    with pytest.raises(DomainError) as caught:
        yield caught
    assert caught.value.code == code


@contextmanager
def counted() -> Iterator[CaptureQueriesContext]:
    """Counts the statements that are sent to the database; `len()` of it afterwards."""
    with CaptureQueriesContext(connection) as queries:
        yield queries


def events(workload: Workload) -> list[str]:
    """The names of a workload's events without their prefix, checked to be numbered 1, 2, 3 …"""
    found = list(WorkloadEvent.objects.filter(workload=workload).order_by("sequence"))
    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    return [each.event.removeprefix("workload.") for each in found]


def worker_events(worker: Worker) -> list[str]:
    found = list(WorkerEvent.objects.filter(worker=worker).order_by("sequence"))
    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    return [each.event.removeprefix("worker.") for each in found]
