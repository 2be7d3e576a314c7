"""The sweeps: what brings lost, late and silent things back. Safe to run twice, anywhere, and late.

Each sweep picks ids in bounded pages by key and lets each row go through the function that an
operator's call would use, in its own transaction; so two sweepers never do a thing twice, and a
report names only what this very pass changed. A row that raises is logged, counted, pushed back
and passed over. One pass of a sweep runs at a time (an advisory lock that is only tried).

After an outage of the sweeps nothing is recovered before the live leases were moved: workers that
could not have been swept must not lose their work all at once. The brake that protects an
application from taking most of its workers offline in one pass stands in `mesh.brake`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import pglock
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models import Exists, Model, OuterRef, Q, QuerySet

from . import (
    brake,
    clock,
    deadlines,
    dependencies,
    expiry,
    leases,
    liveness,
    locking,
    retention,
    revocations,
    statements,
)
from .models import (
    STARTED_STATES,
    Application,
    Attempt,
    State,
    SweepRun,
    Worker,
    Workload,
    not_pushed_back,
)

logger = logging.getLogger(__name__)

PAGE: Final = 200
# A pass ends after so many pages; the next one goes on.
MAX_PAGES: Final = 100
PROMOTE_PAGE: Final = 1_000
# How far one pass goes down in work that waits for work that waits.
MAX_LEVELS: Final = 100
_PROMOTE: Final = statements.load("promote")
PUSHED_BACK: Final = timedelta(seconds=30)


@dataclass(slots=True)
class SweepReport:
    """What one pass of one sweep changed; `skipped` where another pass was under way."""

    name: str
    changed: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    duration_ms: int = 0
    skipped: bool = False

    def count(self, outcome: str, number: int = 1) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + number


def run(name: str) -> SweepReport:
    """Run one pass of the sweep of that name; KeyError if there is none."""
    sweep = SWEEPS[name]
    report = SweepReport(name)
    began = time.monotonic()
    with pglock.advisory(_lock_name(name), timeout=0) as is_mine:
        if not is_mine:
            report.skipped = True
            return report
        started_at = clock.now()
        last = SweepRun.objects.filter(name=name).values_list("last_finished_at", flat=True).first()
        # Those that never ran have a row too, so that they are seen to be missing.
        SweepRun.objects.bulk_create(
            [SweepRun(name=each) for each in SWEEPS], ignore_conflicts=True
        )
        SweepRun.objects.filter(name=name).update(last_started_at=started_at)
        if _end_outage(report):
            sweep(report, last)
            report.duration_ms = round((time.monotonic() - began) * 1_000)
            SweepRun.objects.filter(name=name).update(
                last_finished_at=clock.now(),
                duration_ms=report.duration_ms,
                counts=report.counts,
            )
    return report


def promote_due(report: SweepReport, last: datetime | None) -> None:
    """Make work that is due claimable."""
    waiting = Workload.objects.filter(
        application_id=OuterRef("pk"),
        state=State.READY,
        claimable=False,
        held=False,
        open_dependencies=0,
        available_at__lte=clock.now(),
    )
    due = Application.objects.filter(Exists(waiting)).order_by("pk")
    for application_pk in due.values_list("pk", flat=True):
        with passing_over(report, Application, application_pk):
            for _ in range(MAX_PAGES):
                changed = _promote(application_pk)
                report.changed += changed
                report.count("promoted", len(changed))
                if len(changed) < PROMOTE_PAGE:
                    break


def recover_expired_leases(report: SweepReport, last: datetime | None) -> None:
    """End claims whose lease is over as lost work and free their slots; judges no worker."""
    at = clock.now()
    expired = Attempt.objects.expired(at).filter(not_pushed_back(at, "worker__"))
    for pks in _each_page(report, expired, by="expires_at", of="worker_id"):
        for group in expiry.small_groups(pks):
            done = expiry.end_of_free(group)
            _count_recovered(report, done.lost)
            for pk in done.left:
                with passing_over(report, Worker, pk):
                    _count_recovered(report, expiry.end_of(pk))


def enforce_deadlines(report: SweepReport, last: datetime | None) -> None:
    """End what is over time, after cancel grace too; drain deadlines; drains of revoked grants."""
    at = clock.now()
    late = Workload.objects.filter(not_pushed_back(at), deadline_at__lte=at)
    slow = (
        Attempt.objects.live()
        .filter(deadline_at__lte=at, workload__state__in=[State.CLAIMED, *STARTED_STATES])
        .filter(not_pushed_back(at, "workload__"))
    )
    over = chain(
        pages(report, late, by="deadline_at"),
        pages(report, slow, by="deadline_at", of="workload_id"),
    )
    for pk in over:
        with passing_over(report, Workload, pk):
            ended = deadlines.enforce(workload_pk=pk, actor="system:enforce_deadlines")
            if ended is not None:
                report.changed.append(ended.workload_id)
                report.count(ended.cause)
    for pk in pages(report, deadlines.passed_drains(at), by="drain_deadline_at"):
        with passing_over(report, Worker, pk):
            told = deadlines.pass_drain(worker_pk=pk, actor="system:enforce_deadlines")
            if told is not None:
                report.changed.append(told.worker_id)
                report.count("drain_deadline")
    for pk in pages(report, revocations.pending_drains(at)):
        with passing_over(report, Worker, pk):
            if worker_id := revocations.drain(pk):
                report.changed.append(worker_id)
                report.count("drained")
    revocations.settle(at)


def detect_silent_workers(report: SweepReport, last: datetime | None) -> None:
    """Take silent workers offline, unless the brake holds them."""
    at = clock.now()
    is_late = last is not None and at - last > timedelta(milliseconds=settings.SWEEP_OUTAGE_MS)
    for incident in brake.due(at):
        taken = brake.let_go(incident, partial(passing_over, report, Worker))
        report.changed += taken.worker_ids
        report.count("offline", len(taken.worker_ids))
        report.count("heard_again", taken.heard_again)
    for application_pk, silent in brake.silent_by_application(at).items():
        free: list[int] = []
        with passing_over(report, Application, application_pk):
            free, braked = brake.admit(application_pk, silent, at, sweep_is_late=is_late)
            report.count("braked", braked)
        for pk in free:
            with passing_over(report, Worker, pk):
                _take_offline(report, pk)


def prune_history(report: SweepReport, last: datetime | None) -> None:
    """Remove what is older than its retention. Names no rows, for they are gone."""
    at = clock.now()
    for pks in retention.ended_work(at):
        _prune_work(report, pks, at)
    for outcome, prune in {**_PRUNE, **retention.others()}.items():
        with passing_over(report):
            report.count(outcome, prune(at))


_PRUNE: Final[dict[str, Callable[[datetime], int]]] = {
    "work_history": retention.prune_work_history,
    "worker_history": retention.prune_worker_history,
    "retired_workers": retention.prune_retired_workers,
    "decisions": retention.prune_decisions,
    "audit": retention.prune_audit,
}


def release_dependents(report: SweepReport, last: datetime | None) -> None:
    """Go on with what waits for ended work: where its end left some, or was missed.

    What is buried has dependents of its own: a pass goes down level by level, each in transactions
    of its own. What is deeper than `MAX_LEVELS` is left for the next pass.
    """
    for _ in range(MAX_LEVELS):
        known = len(report.changed)
        flagged = Workload.objects.filter(not_pushed_back(clock.now()), dependents_pending=True)
        for pk in pages(report, flagged):
            with passing_over(report, Workload, pk):
                _release_dependents(report, pk)
        if len(report.changed) == known:
            break
    for pk in dependencies.missed():
        with passing_over(report, Workload, pk):
            _release_dependents(report, pk)


SWEEPS: Final[dict[str, Callable[[SweepReport, datetime | None], None]]] = {
    "promote_due": promote_due,
    "recover_expired_leases": recover_expired_leases,
    "enforce_deadlines": enforce_deadlines,
    "detect_silent_workers": detect_silent_workers,
    "prune_history": prune_history,
    "release_dependents": release_dependents,
}


# Whose passes do not wait for each other's, where a sweep is not one for all.
_LANES: Final[dict[str, Callable[[], str]]] = {}


def register(
    sweeps: Mapping[str, Callable[[SweepReport, datetime | None], None]],
    *,
    lane: Callable[[], str],
) -> None:
    """Add sweeps of what stands above the mesh.

    Passes of one sweep run at the same time where their `lane` differs.
    """
    SWEEPS.update(sweeps)
    _LANES.update(dict.fromkeys(sweeps, lane))


def _lock_name(name: str) -> str:
    lane = _LANES[name]() if name in _LANES else ""
    return f"fencepost.sweep.{name}{lane and f'.{lane}'}"


def _promote(application_pk: int) -> list[str]:
    values = {"application": application_pk, "fixed": clock.fixed(), "page": PROMOTE_PAGE}
    return [row["workload_id"] for row in statements.rows(_PROMOTE, values)]


def _count_recovered(report: SweepReport, lost: list[Workload]) -> None:
    report.changed += [each.workload_id for each in lost]
    report.count("recovered", len(lost))


def _release_dependents(report: SweepReport, pk: int) -> None:
    """Page by page, each a transaction of its own; what others hold is left for the next pass."""
    for _ in range(MAX_PAGES):
        woken = dependencies.release(workload_pk=pk)
        report.changed += woken.changed
        report.count("unblocked", woken.unblocked)
        report.count("buried", woken.buried)
        if not (woken.touched and woken.is_left):
            break


def _take_offline(report: SweepReport, pk: int) -> None:
    silenced = liveness.silence(worker_pk=pk, actor="system:detect_silent_workers")
    if silenced is None:
        report.count("heard_again")
        return
    report.changed.append(silenced.worker_id)
    report.count("offline")


def _prune_work(report: SweepReport, pks: list[int], at: datetime) -> None:
    """One page at once; row by row where one of them raises, so that it alone stays."""
    try:
        report.count("work", retention.delete_work(pks, at))
    except DatabaseError:
        for pk in pks:
            with passing_over(report, Workload, pk):
                report.count("work", retention.delete_work([pk], at))


def _end_outage(report: SweepReport) -> bool:
    """Move live leases after an outage of the sweeps; False where another pass is at it."""
    if leases.sweeps_out_since(clock.now()) is None:
        return True
    with pglock.advisory("fencepost.outage", timeout=0) as is_mine:
        if not is_mine:
            return False
        outage = leases.sweeps_out_since(clock.now())
        if outage is None:
            return True
        holders = Worker.objects.filter(pk__in=Attempt.objects.live().values("worker_id"))
        moved = sum(leases.move_ends(pks, outage=outage) for pks in _batches(holders))
        logger.warning("Sweeps were out since %s: moved %d leases", outage, moved)
        report.count("leases_moved", moved)
        SweepRun.objects.filter(name=leases.RECOVER_SWEEP).update(last_finished_at=clock.now())
    return True


@contextmanager
def passing_over(
    report: SweepReport, model: type[Model] = SweepRun, pk: int | str = ""
) -> Iterator[None]:
    """Let a row that raises not stop the others; it is pushed back, unless it was only busy.

    An application is not pushed back: its other rows must not wait for the one that raises. Nor is
    a part of a sweep that is about no row.
    """
    try:
        yield
    except Exception as error:
        connection.close_if_unusable_or_obsolete()
        if locking.is_busy(error):
            report.count("busy")
            return
        logger.exception("Sweep %s passes over %s %s", report.name, model.__name__, pk)
        report.count("failed")
        if model not in {Application, SweepRun}:
            model._default_manager.filter(pk=pk).update(sweep_after=clock.now() + PUSHED_BACK)


def _batches(queryset: QuerySet[Any], *, by: str = "pk", of: str = "pk") -> Iterator[list[int]]:
    """What `of` names, of a page of rows at a time in the order of `by`.

    Each page begins behind the last one, so that a row that stays is not met twice; where an index
    is in that order, a page reads its own rows and no others.
    """
    page = queryset.order_by(by, "pk")
    while rows := list(page.values_list(by, "pk", of)[:PAGE]):
        yield [row[2] for row in rows]
        if len(rows) < PAGE:
            return
        value, pk, _ = rows[-1]
        beyond = Q(**{f"{by}__gt": value}) | Q(**{by: value}, pk__gt=pk)
        page = queryset.filter(beyond, **{f"{by}__gte": value}).order_by(by, "pk")


def pages(
    report: SweepReport, queryset: QuerySet[Any], *, by: str = "pk", of: str = "pk"
) -> Iterator[int]:
    """Each key that `of` names once, of as many pages as one pass may take."""
    return chain.from_iterable(_each_page(report, queryset, by=by, of=of))


def _each_page(
    report: SweepReport, queryset: QuerySet[Any], *, by: str = "pk", of: str = "pk"
) -> Iterator[list[int]]:
    """The same, page by page.

    Each full page counts as a finished pass: a long pass, as after the loss of many workers, must
    not be taken for an outage, in which the leases that it is to end would be moved again.
    """
    seen: set[int] = set()
    for pks in islice(_batches(queryset, by=by, of=of), MAX_PAGES):
        if fresh := [pk for pk in dict.fromkeys(pks) if pk not in seen]:
            yield fresh
        seen.update(pks)
        if len(pks) == PAGE:
            SweepRun.objects.filter(name=report.name).update(last_finished_at=clock.now())
