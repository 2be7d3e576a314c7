"""The sweeps of runs: what brings every run on, whatever message was lost and whoever died.

Each picks runs of the built-in coordinator in bounded pages by key and lets the coordinator drive
them (`workflows.coordinator.drive`); one that raises is logged, pushed back and passed over. They
differ in what they look for, so that each part goes on where another is slow. Every instance of
the coordinator has passes of its own: it cares for its own runs, and for those that nobody has any
more.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from mesh import clock, recovery
from mesh.models import not_pushed_back
from mesh.recovery import SweepReport

from . import coordinator, instances, steering
from .locking import lock_runs
from .models import (
    LEFT_STEPS,
    Activation,
    CancellationRequest,
    ControlFailure,
    Coordinator,
    RecoveryBarrier,
    Run,
    RunAttempt,
    StepState,
    UserPause,
)

_ACTOR: Final = "system:advance_runs"


def settle_finished_attempts(report: SweepReport, last: datetime | None) -> None:
    """Settle attempts whose workload ended, where the wake-up was missed."""
    ended = RunAttempt.objects.unsettled().filter(
        run_id=OuterRef("pk"), workload__ended_at__isnull=False
    )
    _drive(report, _mine().filter(Exists(ended), active_attempts__gt=0))


def advance_runs(report: SweepReport, last: datetime | None) -> None:
    """Admit what is due, end what is done; every run past its deadline gets a control failure.

    Passed over are runs in which nothing can be done before a person acts, however many wait so.
    """
    _enforce_deadlines(report)
    steps = Activation.objects.filter(run_id=OuterRef("pk"))
    due = steps.filter(state=StepState.READY)
    left = steps.filter(state__in=LEFT_STEPS)
    paused = UserPause.objects.filter(run_id=OuterRef("pk"), ended_at__isnull=True)
    failed = ControlFailure.objects.filter(run_id=OuterRef("pk"), ended_at__isnull=True)
    barred = RecoveryBarrier.objects.filter(run_id=OuterRef("pk"), ended_at__isnull=True)
    # Asked one by one: PostgreSQL joins these, and would go through whole tables for an `or`.
    for reasons in (
        (Q(instance_id__isnull=True),),
        (Exists(barred),),
        (Q(active_attempts=0), ~Exists(left)),
        (
            Q(active_attempts__lt=F("max_concurrency")),
            Exists(due),
            ~Exists(paused),
            ~Exists(failed),
        ),
    ):
        _drive(report, _mine().filter(*reasons))


def take_over_dead_coordinators(report: SweepReport, last: datetime | None) -> None:
    """Take over the runs of instances that relinquished or fell silent."""
    gone = Coordinator.objects.filter(
        Q(relinquished_at__isnull=False) | Q(lease_ends_at__lte=clock.now() - coordinator.grace()),
        tenant_id=OuterRef("tenant_id"),
        instance_id=OuterRef("instance_id"),
    )
    owned = Run.objects.open().builtin().filter(not_pushed_back(clock.now()))
    _drive(report, owned.filter(Exists(gone)))


def finish_cancellations(report: SweepReport, last: datetime | None) -> None:
    """Bring runs to their end that are being cancelled or cannot go on."""
    cancelled = CancellationRequest.objects.filter(run_id=OuterRef("pk"))
    failed = ControlFailure.objects.filter(run_id=OuterRef("pk"), ended_at__isnull=True)
    for reasons in (
        (Exists(cancelled),),
        (Exists(failed.exclude(code__in=coordinator.WAITS_FOR_A_PERSON)),),
        (Q(active_attempts__gt=0), Exists(failed)),
    ):
        _drive(report, _mine().filter(*reasons))


def _mine() -> QuerySet[Run]:
    """Open runs that nobody has, and those of this instance; a process that is none looks at all.

    Which of them it may drive is for the coordinator to say.
    """
    rows = Run.objects.open().builtin().filter(not_pushed_back(clock.now()))
    own = instances.own_instance()
    if own is None:
        return rows
    return rows.filter(Q(instance_id__isnull=True) | Q(instance_id=own.instance_id))


def _drive(report: SweepReport, found: QuerySet[Run]) -> None:
    for pk in recovery.pages(report, found):
        if coordinator.is_under_way(pk):
            # Somebody is at it, and may be for long; the others are not to wait for that.
            continue
        with recovery.passing_over(report, Run, pk):
            driven = coordinator.drive(pk)
            if driven.done:
                report.changed.append(driven.run_id)
            for what, number in driven.done.items():
                report.count(what, number)


def _enforce_deadlines(report: SweepReport) -> None:
    failed = ControlFailure.objects.filter(run_id=OuterRef("pk"), ended_at__isnull=True)
    at = clock.now()
    late = Run.objects.open().filter(not_pushed_back(at), ~Exists(failed), deadline__lte=at)
    for pk in recovery.pages(report, late, by="deadline"):
        with recovery.passing_over(report, Run, pk):
            _elapse(report, pk)


def _elapse(report: SweepReport, pk: int) -> None:
    with transaction.atomic():
        run = lock_runs([pk]).get(pk)
        at = clock.now()
        if run is None or not run.is_open or run.deadline is None or at < run.deadline:
            return
        message = f"The deadline of the run, {run.deadline.isoformat()}, has passed."
        steering.set_failure(
            run, code=steering.DEADLINE_ELAPSED, message=message, step="", by=_ACTOR, at=at
        )
    report.changed.append(run.run_id)
    report.count(steering.DEADLINE_ELAPSED)


SWEEPS: Final[dict[str, Callable[[SweepReport, datetime | None], None]]] = {
    "take_over_dead_coordinators": take_over_dead_coordinators,
    "settle_finished_attempts": settle_finished_attempts,
    "finish_cancellations": finish_cancellations,
    "advance_runs": advance_runs,
}
