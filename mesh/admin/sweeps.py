"""The sweeps' last runs, and the incidents of the brake."""

from datetime import timedelta
from typing import Final

from django.contrib.admin import display as column
from django.http import HttpRequest

from ..models import Incident, SweepRun
from . import display, filters
from .base import ConsoleAdmin
from .display import age, badge, now, page_of, span
from .pages import Fact, Facts, Page, Table

# A sweep that runs every second or every few seconds is late after this; pruning after three hours.
_LATE: Final = timedelta(seconds=30)
_LATE_HOURLY: Final = timedelta(hours=3)
_DOES: Final = {
    "promote_due": "makes due work claimable",
    "recover_expired_leases": "ends attempts whose lease is over",
    "enforce_deadlines": "timeouts, cancel grace, drain deadlines, drains of revoked grants",
    "detect_silent_workers": "takes silent workers offline",
    "prune_history": "removes what is older than its retention",
}
_MAX_WORKERS: Final = 200


def lag(run: SweepRun) -> timedelta | None:
    """Since when the sweep has not finished; None when it never has."""
    return now() - run.last_finished_at if run.last_finished_at else None


def status(run: SweepRun) -> str:
    since = lag(run)
    if since is None:
        return "NEVER RAN"
    limit = _LATE_HOURLY if run.name == "prune_history" else _LATE
    return "LATE" if since > limit else "ON TIME"


def does(name: str) -> str:
    return _DOES.get(name, "")


class SweepAdmin(ConsoleAdmin):
    called = "Sweeps"
    tenant_path = ""
    about = (
        "They keep the promises of time: leases, deadlines, silence. One that stopped is an alarm."
    )
    empty_title = "No sweep has ever run"
    empty_text = "Start the scheduler and its worker, or run: python manage.py sweep all"
    list_display = ("show_name", "show_status", "show_finished", "show_duration", "show_counts")

    @column(description="Sweep")
    def show_name(self, run: SweepRun) -> str:
        return display.two_lines(run.name, does(run.name))

    @column(description="Status")
    def show_status(self, run: SweepRun) -> str:
        return badge(status(run))

    @column(description="Last finished")
    def show_finished(self, run: SweepRun) -> str:
        return age(run.last_finished_at, absent="never")

    @column(description="Took")
    def show_duration(self, run: SweepRun) -> str:
        return display.milliseconds(run.duration_ms)

    @column(description="Counts")
    def show_counts(self, run: SweepRun) -> str:
        return display.pairs(run.counts, empty="nothing to do")

    def page(self, request: HttpRequest, row: SweepRun) -> Page:
        """The last run of one sweep."""
        return Page(
            title=row.name,
            badges=[badge(status(row))],
            sentence=does(row.name).capitalize(),
            main=[
                Facts(
                    "Last run",
                    [
                        Fact("Started", age(row.last_started_at, absent="never")),
                        Fact("Finished", age(row.last_finished_at, absent="never")),
                        Fact("Took", display.milliseconds(row.duration_ms)),
                        Fact("Counts", display.pairs(row.counts, empty="nothing to do")),
                    ],
                )
            ],
        )


class IncidentAdmin(ConsoleAdmin):
    related = ("tenant", "application")
    about = "Times when the brake held: too many workers of one application fell silent at once."
    empty_title = "The brake never had to hold"
    empty_text = "An incident opens when more than half of an application's workers fall silent."
    list_display = (
        "show_name",
        "show_status",
        "show_application",
        "show_tenant",
        "show_reason",
        "show_opened",
    )
    list_filter = (
        filters.choice(
            "open",
            "status",
            [("open", "open"), ("closed", "closed")],
            lambda rows, value: rows.filter(closed_at__isnull=value == "open"),
        ),
        filters.application(),
    )

    @column(description="Incident")
    def show_name(self, incident: Incident) -> str:
        return f"Incident {incident.pk}"

    @column(description="Status")
    def show_status(self, incident: Incident) -> str:
        return badge("CLOSED" if incident.closed_at else "OPEN")

    @column(description="Application")
    def show_application(self, incident: Incident) -> str:
        return incident.application.name

    @column(description="Tenant")
    def show_tenant(self, incident: Incident) -> str:
        return incident.tenant.name

    @column(description="Reason")
    def show_reason(self, incident: Incident) -> str:
        return incident.reason.replace("_", " ")

    @column(description="Opened")
    def show_opened(self, incident: Incident) -> str:
        return age(incident.opened_at)

    def page(self, request: HttpRequest, row: Incident) -> Page:
        """One incident and the workers on its list."""
        listed = list(row.workers.order_by("name")[: _MAX_WORKERS + 1])
        length = f" It lasted {span(row.closed_at - row.opened_at)}." if row.closed_at else ""
        return Page(
            title=f"Incident {row.pk}",
            badges=[badge("CLOSED" if row.closed_at else "OPEN")],
            sentence=f"The brake held {row.sweep} in {row.application.name}.{length}",
            notices=[]
            if row.closed_at
            else [("bad", "Look at the network and the hosts before the hold is over.")],
            main=[
                Table(
                    "Workers on the list",
                    ["Worker", "Lifecycle", "Health", "Last heard"],
                    [
                        [
                            page_of(each, each.name),
                            badge(each.lifecycle),
                            badge(each.health),
                            age(each.last_seen_at),
                        ]
                        for each in listed[:_MAX_WORKERS]
                    ],
                    "No worker is on its list.",
                    note="There are more." if len(listed) > _MAX_WORKERS else "",
                )
            ],
            side=[
                Facts(
                    "About",
                    [
                        Fact("Tenant", row.tenant.name),
                        Fact("Application", row.application.name),
                        Fact("Reason", row.reason.replace("_", " ")),
                        Fact("Opened", age(row.opened_at)),
                        Fact("Closed", age(row.closed_at, absent="still open")),
                    ],
                )
            ],
        )
