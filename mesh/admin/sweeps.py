"""The sweeps' last runs, and the incidents of the brake."""

from datetime import timedelta
from typing import Any, Final

from django.contrib.admin import display as column
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest

from .. import brake, recovery
from ..models import Incident, SweepRun
from ..tenancy import Caller
from ..words import span
from . import access, display, filters
from .acts import Act
from .base import ConsoleAdmin
from .display import age, badge, now, page_of
from .pages import Fact, Facts, Page, Table

# A sweep that runs every second or every few seconds is late after this; pruning after three hours.
_LATE: Final = timedelta(seconds=30)
_LATE_HOURLY: Final = timedelta(hours=3)
_DOES: Final = {
    "promote_due": "makes due work claimable",
    "recover_expired_leases": "ends attempts whose lease is over",
    "enforce_deadlines": "timeouts, cancel grace, drain deadlines, drains of revoked grants",
    "release_dependents": "goes on with work that waited for ended work",
    "detect_silent_workers": "takes silent workers offline",
    "prune_history": "removes what is older than its retention",
}
_MAX_WORKERS: Final = 200


def _resume(caller: Caller, incident: Incident, data: dict[str, Any]) -> object:
    return brake.resume(caller=caller, incident_id=incident.incident_id, reason=data["reason"])


def _why_not_resume(incident: Incident) -> str:
    if incident.closed_at is not None:
        return "It is closed: the hold is over."
    return "It was resumed already." if incident.resumed_at is not None else ""


RESUME: Final = Act(
    "resume",
    "Resume",
    "play_arrow",
    "The brake lets go now: workers of the list that are still silent go offline, and their "
    "unstarted claims go back.",
    _resume,
    _why_not_resume,
    is_dangerous=True,
)


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


def _incident_of(run: SweepRun) -> str:
    if not run.is_held:  # type: ignore[attr-defined]  # annotated with the row
        return "none"
    return display.list_of(Incident, "The brake holds", open="open")


class SweepAdmin(ConsoleAdmin):
    called = "Sweeps"
    tenant_path = ""
    about = (
        "They keep the promises of time: leases, deadlines, silence. One that stopped is an alarm."
    )
    empty_title = "No sweep has ever run"
    empty_text = "Start the scheduler and its worker, or run: python manage.py sweep all"
    list_display = (
        "show_name",
        "show_status",
        "show_finished",
        "show_duration",
        "show_counts",
        "show_incident",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[SweepRun]:
        """Sweeps there are, each with whether an incident of the person's tenants holds it."""
        holding = Incident.objects.filter(
            sweep=OuterRef("name"), closed_at=None, tenant_id__in=access.tenant_ids(request)
        )
        rows = super().get_queryset(request).filter(name__in=recovery.SWEEPS)
        held: QuerySet[SweepRun] = rows.annotate(is_held=Exists(holding))
        return held

    @column(description="Sweep")
    def show_name(self, run: SweepRun) -> str:
        return display.two_lines(run.name, display.wrapped(does(run.name)))

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

    @column(description="Incident")
    def show_incident(self, run: SweepRun) -> str:
        return _incident_of(run)

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
                        Fact("Incident", _incident_of(row)),
                    ],
                )
            ],
        )


class IncidentAdmin(ConsoleAdmin):
    related = ("tenant", "application")
    acts = (RESUME,)
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
            notices=_notices(row),
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
                        Fact("Resumed", age(row.resumed_at, absent="by nobody")),
                        *([Fact("Resumed by", row.resumed_by)] if row.resumed_by else []),
                        *([Fact("Why", row.resume_reason)] if row.resume_reason else []),
                        Fact("Closed", age(row.closed_at, absent="still open")),
                    ],
                )
            ],
        )


def _notices(incident: Incident) -> list[tuple[str, object]]:
    if incident.closed_at is not None:
        return []
    if incident.resumed_at is not None:
        return [("warn", "It was resumed; workers that other calls hold are taken next.")]
    hint = "Look at the network and the hosts; if the workers are really gone, resume."
    return [("bad", hint)]
