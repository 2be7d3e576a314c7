"""Deadlines: what happens when a time limit of the work passes.

One cause is recorded, tested in the order overall, cancel grace, execution, heartbeat, claim,
queue. Overall counts from creation or the latest operator's retry; execution from start; heartbeat
from the last renewal or checkpoint; claim from the claim while it is not started; queue from READY,
due and not paused. While a cancel is requested only overall and the grace count.

A pause touches no work, so the deadline on a row may come while the work is paused, or too early
after that. It is put off then: by the whole time while the pause stands, for it counts anew from
the pause's end.

Locks: the worker that holds the work, if one does, then the workload.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from . import clock, locking, outcomes, pauses, workers, workloads
from .changes import Changes
from .locking import Held
from .models import ENDED_STATES, Lifecycle, State, Worker, Workload


@dataclass(frozen=True, slots=True)
class Enforced:
    workload_id: str
    cause: str


def enforce(*, workload_pk: int, actor: str) -> Enforced | None:
    """End what is over time for one workload; None if nothing was due any more, so a repeat."""
    with transaction.atomic():
        held = locking.lock_held(workload_pk)
        at = clock.now()
        unpaused_at = _unpaused_at(held.workload, at)
        cause = due(held, at, unpaused_at)
        changes = Changes()
        if cause is None:
            # The deadline that led here was put off meanwhile; leave the present one behind. Work
            # that ended has left it already, and what waits for it is the business of that end.
            if held.workload.state not in ENDED_STATES:
                workloads.set_deadline(held.workload, unpaused_at=unpaused_at)
                changes.add(held.workload, None)
                changes.write()
            return None
        _end(changes, held, cause, actor, at)
        changes.write()
        if held.worker is not None:
            workers.occupy(held.worker, held.worker.active - 1, actor=actor, at=at)
            workers.save(held.worker)
    return Enforced(held.workload.workload_id, cause)


def passed_drains(at: datetime) -> QuerySet[Worker]:
    """Workers whose drain's deadline has passed and was not told yet."""
    return Worker.objects.filter(
        Q(sweep_after__isnull=True) | Q(sweep_after__lte=at),
        lifecycle=Lifecycle.DRAINING,
        drain_deadline_at__lte=at,
        drain_passed_at__isnull=True,
    )


def pass_drain(*, worker_pk: int, actor: str) -> Worker | None:
    """Tell once that a drain's deadline passed with claims still live; None if it did not.

    From the deadline on leases are no longer renewed, whether this was told or not; what the worker
    holds, started or not, runs to the end of its leases.
    """
    with transaction.atomic():
        worker = locking.lock_worker(worker_pk)
        at, deadline = clock.now(), worker.drain_deadline_at
        is_over = deadline is not None and deadline <= at and worker.drain_passed_at is None
        if not is_over or worker.lifecycle != Lifecycle.DRAINING:
            return None
        worker.drain_passed_at = at
        evidence = {"active": worker.active}
        workers.record(worker, "drain_deadline_passed", actor=actor, at=at, evidence=evidence)
        workers.save(worker)
    return worker


def due(held: Held, at: datetime, unpaused_at: datetime | None) -> str | None:
    """The first deadline, in the order of the causes, that has passed at `at`."""
    work, attempt = held.workload, held.attempt
    is_cancelling = work.state == State.CANCELLATION_REQUESTED
    grace = timedelta(milliseconds=work.timeouts["cancel_grace_ms"])
    started = attempt if attempt is not None and work.is_started else None
    limits = {
        "overall": work.overall_deadline_at if workloads.is_under_way(work) else None,
        "cancel_grace": work.cancel_requested_at + grace
        if is_cancelling and work.cancel_requested_at
        else None,
        "execution": started.execution_deadline_at if started else None,
        "heartbeat": started.deadline_at if started else None,
        "claim": attempt.deadline_at if attempt and work.state == State.CLAIMED else None,
        "queue": workloads.queue_deadline_at(work, unpaused_at)
        if work.state == State.READY and workloads.is_free(work)
        else None,
    }
    return next((cause for cause, end in limits.items() if end is not None and end <= at), None)


def _unpaused_at(work: Workload, at: datetime) -> datetime | None:
    """`pauses.last_end`, asked only where waiting in the queue may have taken too long."""
    if work.state != State.READY or work.timeouts["queue_ms"] is None:
        return None
    return pauses.last_end(work.application_id, work.definition_id, at)


def _end(changes: Changes, held: Held, cause: str, actor: str, at: datetime) -> None:
    work, attempt = held.workload, held.attempt
    if attempt is not None and held.worker is not None:
        attempt.worker = held.worker
    outcomes.time_out(changes, work, attempt, cause=cause, actor=actor, at=at)
