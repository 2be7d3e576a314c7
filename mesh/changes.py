"""The one seam for writes: what a transaction changes of workloads and attempts.

Rules change locked rows in memory and gather them here; `write` stores them with their events in
one statement (`changes.sql`), whatever their number. A failure before `write` changes nothing.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson
from django.db import connection
from django.db.models import Model

from .models import Attempt, Workload, WorkloadEvent
from .workloads import MOVING

_SQL: Final = Path(__file__).with_suffix(".sql").read_text()
_ATTEMPT: Final = (
    "status",
    "started_at",
    "ended_at",
    "expires_at",
    "last_progress_at",
    "execution_deadline_at",
    "deadline_at",
    "failure",
    "resource_usage",
    "report_step",
    "report_digest",
)
_EVENT: Final = (
    "workload_id",
    "sequence",
    "event",
    "from_state",
    "to_state",
    "actor",
    "at",
    "evidence",
)


class Changes:
    """Changed rows of one transaction, gathered to be written together."""

    def __init__(self) -> None:
        self.workloads: dict[int, Workload] = {}
        self.attempts: dict[int, Attempt] = {}
        self.events: list[WorkloadEvent] = []

    def add(self, workload: Workload, attempt: Attempt | None, *events: WorkloadEvent) -> None:
        """Note a locked workload, its attempt if that changed too, and what happened."""
        self.workloads[workload.pk] = workload
        if attempt is not None:
            self.attempts[attempt.pk] = attempt
        self.events.extend(events)

    def write(self) -> None:
        """Store everything in one statement; nothing to store, no statement."""
        if not (self.workloads or self.attempts or self.events):
            return
        with connection.cursor() as cursor:
            cursor.execute(
                _SQL,
                {
                    "workloads": _rows(self.workloads.values(), ("id", *MOVING)),
                    "attempts": _rows(self.attempts.values(), ("id", *_ATTEMPT)),
                    "events": _rows(self.events, _EVENT),
                },
            )


def _rows(rows: Iterable[Model], columns: Iterable[str]) -> str:
    named: list[dict[str, Any]] = [{name: getattr(row, name) for name in columns} for row in rows]
    return orjson.dumps(named).decode()
