"""Attempts: who tries what, who holds a lease, who makes no progress."""

from typing import Any, Final

from django.contrib.admin import display as column
from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest

from ..models import LIVE_ATTEMPT, Attempt, AttemptStatus, LateReport
from . import display, filters
from .base import ConsoleAdmin
from .display import ABSENT, age, badge, now, page_of, two_lines
from .pages import Fact, Facts, Page, Table
from .search import term_of, uid_range
from .sentences import STUCK_AFTER

_LATE: Final = 10
_SHOWN: Final = [each.attname for each in Attempt._meta.concrete_fields]


def stuck(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    """Live attempts that made no progress for ten minutes."""
    progress = Coalesce("last_progress_at", "started_at", "claimed_at")
    live = attempts.filter(status__in=LIVE_ATTEMPT).annotate(progress=progress)
    return live.filter(progress__lte=now() - STUCK_AFTER).order_by("progress")


def overdue(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    """Live attempts whose lease is over and which no sweep has ended yet."""
    return attempts.filter(status__in=LIVE_ATTEMPT, expires_at__lte=now())


def late_reports(reports: QuerySet[LateReport]) -> list[Table]:
    """What came too late and was kept, as a table; none where nothing did."""
    found = list(reports.select_related("attempt__worker").order_by("-id")[: _LATE + 1])
    if not found:
        return []
    table = Table(
        "Reports that came too late",
        ["Attempt", "Worker", "Said", "Came", "Refused with", "What it said"],
        [
            [
                page_of(each.attempt, each.attempt.number),
                page_of(each.attempt.worker, each.attempt.worker.name),
                each.step,
                age(each.reported_at),
                each.code,
                display.folded(each.body, title="Report", empty="not kept"),
            ]
            for each in found[:_LATE]
        ],
        "",
        note=f"The newest {_LATE} of more."
        if len(found) > _LATE
        else "They changed nothing. One with a secret is not kept.",
    )
    return [table]


def _narrow(rows: QuerySet[Any], value: str) -> QuerySet[Any]:
    by = {"stuck": stuck, "overdue": overdue}
    return by[value](rows) if value in by else rows.filter(status__in=LIVE_ATTEMPT)


class AttemptAdmin(ConsoleAdmin):
    tenant_path = "worker__tenant"
    ordering = ("-id",)
    about = "One try at a workload by one worker; while it is live it holds the lease."
    empty_title = "No attempt here"
    empty_text = "An attempt begins when a worker claims work."
    list_display = (
        "show_workload",
        "show_status",
        "show_worker",
        "show_tenant",
        "show_claimed",
        "show_progress",
        "show_lease",
        "show_failure",
    )
    list_filter = (
        filters.choice(
            "focus",
            "focus",
            [("live", "live"), ("stuck", "no progress for 10 min"), ("overdue", "lease over")],
            _narrow,
            all_text="all",
        ),
        filters.choice("status", "status", AttemptStatus.choices),
        filters.window("claimed_at", "claimed"),
        filters.of_row("worker", "worker", "worker"),
    )
    search_fields = ("uid",)
    search_help_text = "Attempt or claim id, from its beginning"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return (
            super()
            .get_queryset(request)
            .select_related("workload", "worker__tenant")
            .only(
                *_SHOWN,
                "workload__workload_id",
                "workload__definition_id",
                "worker__name",
                "worker__tenant__name",
            )
        )

    def get_list_queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        # Live attempts and those of one worker have indexes of their own.
        given = request.GET
        return filters.newest(rows, *(bool(given.get(each)) for each in ("worker", "focus", "q")))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Attempt], search_term: str
    ) -> tuple[QuerySet[Attempt], bool]:
        term = term_of(search_term)
        if not term:
            return queryset, False
        span = uid_range(term)
        return (queryset.filter(uid__range=span) if span else queryset.none()), False

    @column(description="Workload")
    def show_workload(self, attempt: Attempt) -> str:
        title = f"{attempt.workload.definition_id}, attempt {attempt.number}"
        return display.named(title, attempt.workload.workload_id)

    @column(description="Status")
    def show_status(self, attempt: Attempt) -> str:
        return badge(attempt.status)

    @column(description="Worker")
    def show_worker(self, attempt: Attempt) -> str:
        return page_of(attempt.worker, attempt.worker.name)

    @column(description="Tenant")
    def show_tenant(self, attempt: Attempt) -> str:
        return attempt.worker.tenant.name

    @column(description="Claimed")
    def show_claimed(self, attempt: Attempt) -> str:
        return age(attempt.claimed_at)

    @column(description="Last progress")
    def show_progress(self, attempt: Attempt) -> str:
        return age(attempt.last_progress_at, absent="none yet")

    @column(description="Lease")
    def show_lease(self, attempt: Attempt) -> str:
        if attempt.is_live:
            return display.countdown(attempt.expires_at)
        return two_lines("ended", age(attempt.ended_at))

    @column(description="Failure")
    def show_failure(self, attempt: Attempt) -> str:
        return (attempt.failure or {}).get("kind") or ABSENT

    def page(self, request: HttpRequest, row: Attempt) -> Page:
        """One attempt: its lease, its times, how it ended."""
        return Page(
            title=f"Attempt {row.number} of {row.workload.definition_id}",
            public_id=row.attempt_id,
            badges=[badge(row.status)],
            sentence=_sentence(row),
            main=[
                Facts(
                    "Times",
                    [
                        Fact("Claimed", age(row.claimed_at)),
                        Fact("Started", age(row.started_at, absent="not started")),
                        Fact("Last progress", age(row.last_progress_at)),
                        Fact("Ended", age(row.ended_at, absent="still live")),
                        Fact("Lease ends", age(row.expires_at if row.is_live else None)),
                        Fact("Lease length", display.milliseconds(row.lease_ms)),
                        Fact("Deadline", age(row.deadline_at)),
                    ],
                ),
                *late_reports(LateReport.objects.filter(attempt=row)),
                display.folded(row.failure, title="Failure", is_open=True),
                display.folded(row.resource_usage, title="Resource usage"),
            ],
            side=[
                Facts(
                    "About",
                    [
                        Fact("Workload", page_of(row.workload), is_wide=True),
                        Fact("Worker", page_of(row.worker, row.worker.name)),
                        Fact("Incarnation", row.incarnation),
                        Fact("Claim", display.copyable(row.claim_id), is_wide=True),
                        Fact("Fencing token", row.fencing_token),
                    ],
                )
            ],
        )


def _sentence(row: Attempt) -> str:
    if not row.is_live:
        kind = (row.failure or {}).get("kind")
        return f"Ended as {row.status.replace('_', ' ')}" + (f": {kind}." if kind else ".")
    if row.is_lease_over(now()):
        return "Its lease is over; the next sweep ends it as lost."
    return "Live: this worker holds the work."
