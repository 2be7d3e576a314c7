"""The one seam for writes: what a transaction changes of workloads, attempts and their worker.

Rules change locked rows in memory and gather them here; `write` stores them with their events in
one statement (`changes.sql`), whatever their number. A failure before `write` changes nothing.

Every ending is written here, so here it is that what waits for it is woken. The same statement
tells which of the ended work is waited for; only where some is, a second one goes on with that.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import orjson
from django.db import transaction
from django.db.models import Model

from . import dependencies, signals, statements
from .models import ENDED_STATES, Attempt, Result, Worker, Workload, WorkloadEvent

# What moves change; the rest of the row is written once.
MOVING: Final = (
    "state",
    "claimable",
    "held",
    "open_dependencies",
    "dependents_pending",
    "available_at",
    "ready_at",
    "fencing_token",
    "attempt_count",
    "started_attempts",
    "extra_attempts",
    "retries",
    "unstarted_losses",
    "event_sequence",
    "checkpoint_bytes",
    "last_failure",
    "cancel_requested_at",
    "overall_from",
    "deadline_at",
    "ended_at",
    "updated_at",
    "sweep_after",
)
_SQL: Final = statements.load("changes")
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
_WORKER: Final = ("id", "lifecycle", "active", "last_progress_at", "event_sequence")
_RESULT: Final = (
    "workload_id",
    "attempt_id",
    "result_id",
    "digest",
    "output",
    "artifacts",
    "logs",
    "resource_usage",
    "author",
    "created_at",
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
        self.workers: dict[int, Worker] = {}
        self.results: list[Result] = []
        self.events: list[WorkloadEvent] = []

    def add(self, workload: Workload, attempt: Attempt | None, *events: WorkloadEvent) -> None:
        """Note a locked workload, its attempt if that changed too, and what happened."""
        self.workloads[workload.pk] = workload
        if attempt is not None:
            self.attempts[attempt.pk] = attempt
        self.events.extend(events)

    def add_worker(self, worker: Worker) -> None:
        """Note a locked worker whose slots, lifecycle or progress changed."""
        self.workers[worker.pk] = worker

    def write(self) -> None:
        """Store everything in one statement; nothing to store, no statement."""
        if not (self.workloads or self.attempts or self.workers):
            return
        ended = {pk: row for pk, row in self.workloads.items() if row.state in ENDED_STATES}
        self._tell_runs(ended.values())
        waited_for = statements.rows(
            _SQL,
            {
                "ended": list(ended),
                "workload_pks": list(self.workloads),
                "attempt_pks": list(self.attempts),
                "workloads": _rows(self.workloads.values(), ("id", *MOVING)),
                "attempts": _rows(self.attempts.values(), ("id", *_ATTEMPT)),
                "workers": _rows(self.workers.values(), _WORKER),
                "results": _rows(self.results, _RESULT),
                "events": _rows(self.events, _EVENT),
            },
        )
        if waited_for:
            pks = [row["id"] for row in waited_for]
            dependencies.wake(pks, max(ended[pk].updated_at for pk in pks))

    @staticmethod
    def _tell_runs(ended: Iterable[Workload]) -> None:
        """Once this is committed, say which work of workflow runs ended: a hint, not the truth."""
        pks = [each.pk for each in ended if each.idempotency_key.startswith(signals.RUN_KEY)]
        if pks:
            transaction.on_commit(partial(signals.run_work_ended.send_robust, Workload, pks=pks))


def _rows(rows: Iterable[Model], columns: Iterable[str]) -> str:
    # What is here was read whole or made whole: all its columns stand in the instance.
    values: list[dict[str, Any]] = [vars(row) for row in rows]
    return orjson.dumps([{name: row[name] for name in columns} for row in values]).decode()
