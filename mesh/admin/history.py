"""The records: what happened to work and workers, and the audit of acts on rights."""

from typing import Any, Final

from django.contrib.admin import display as column
from django.db.models import QuerySet
from django.http import HttpRequest

from ..models import AuditEntry, WorkloadEvent
from ..words import moment
from . import display, filters
from .base import ConsoleAdmin
from .display import age, badge, page_of, state_badge
from .pages import Fact, Facts, Page, Table

_WORKLOAD_EVENTS: Final = [
    "ready",
    "claimed",
    "started",
    "checkpointed",
    "recovered",
    "cancellation_requested",
    "completed",
    "failed",
    "cancelled",
    "timed_out",
    "released",
    "retried",
    "dead_lettered",
]


def event_rows(events: QuerySet[Any], *, limit: int) -> Table:
    """The newest events of one row, as a table of its page."""
    found = list(events.order_by("-sequence")[: limit + 1])
    return Table(
        "History",
        ["No.", "When", "Event", "Became", "By", "Evidence"],
        [
            [
                each.sequence,
                age(each.at),
                each.event.partition(".")[2].replace("_", " "),
                _became(each),
                display.short(each.actor, 20),
                display.compact(each.evidence),
            ]
            for each in found[:limit]
        ],
        "Nothing is recorded yet.",
        note=f"The newest {limit} of more." if len(found) > limit else "",
        anchor="history",
    )


def _became(event: Any) -> str:
    look = state_badge if isinstance(event, WorkloadEvent) else badge
    return look(event.to_state)


class EventAdmin(ConsoleAdmin):
    """What both kinds of events have in common."""

    ordering = ("-pk",)
    empty_title = "Nothing happened in this window"
    empty_text = "Choose a wider window, or open a row: its page shows its whole history."
    list_display = (
        "show_when",
        "show_event",
        "show_subject",
        "show_move",
        "show_actor",
        "show_tenant",
        "show_evidence",
    )
    subject: str

    @column(description="When")
    def show_when(self, event: Any) -> str:
        return age(event.at)

    @column(description="Event")
    def show_event(self, event: Any) -> str:
        return str(event.event).partition(".")[2].replace("_", " ")

    @column(description="Row")
    def show_subject(self, event: Any) -> str:
        return page_of(getattr(event, self.subject))

    @column(description="Became")
    def show_move(self, event: Any) -> str:
        return _became(event)

    @column(description="By")
    def show_actor(self, event: Any) -> str:
        return display.short(event.actor, 24)

    @column(description="Tenant")
    def show_tenant(self, event: Any) -> str:
        return str(getattr(event, self.subject).tenant.name)

    @column(description="Evidence")
    def show_evidence(self, event: Any) -> str:
        return display.compact(event.evidence)

    def page(self, request: HttpRequest, row: Any) -> Page:
        """One event with all its evidence."""
        of = getattr(row, self.subject)
        return Page(
            title=row.event,
            badges=[_became(row)],
            sentence=f"{row.from_state or 'new'} → {row.to_state}, by {row.actor}.",
            main=[display.folded(row.evidence, title="Evidence", is_open=True)],
            side=[
                Facts(
                    "About",
                    [
                        Fact("Row", page_of(of)),
                        Fact("Sequence", row.sequence),
                        Fact("By", row.actor),
                        Fact("When", moment(row.at)),
                        Fact("Tenant", of.tenant.name),
                    ],
                )
            ],
        )


class WorkloadEventAdmin(EventAdmin):
    called = "Work history"
    tenant_path = "workload__tenant"
    subject = "workload"
    about = "Every accepted change of a workload, newest first."
    list_filter = (
        filters.choice(
            "event",
            "event",
            [(f"workload.{each}", each.replace("_", " ")) for each in _WORKLOAD_EVENTS],
        ),
        filters.window("at", "happened", default="24h"),
        filters.of_row("workload", "workload", "workload"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkloadEvent]:
        slim = [each.attname for each in WorkloadEvent._meta.concrete_fields]
        return (
            super()
            .get_queryset(request)
            .select_related("workload__tenant")
            .only(*slim, "workload__workload_id", "workload__tenant__name")
        )

    def get_list_queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return filters.newest(rows, bool(request.GET.get("workload")))


class WorkerEventAdmin(EventAdmin):
    called = "Worker history"
    tenant_path = "worker__tenant"
    subject = "worker"
    related = ("worker__tenant",)
    about = "Every accepted change of a worker other than a heartbeat, newest first."
    list_filter = (
        filters.window("at", "happened", default="24h"),
        filters.of_row("worker", "worker", "worker"),
    )

    def get_list_queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return filters.newest(rows, bool(request.GET.get("worker")))


class AuditAdmin(ConsoleAdmin):
    called = "Audit"
    related = ("tenant",)
    about = "What people and services did to work, workers and rights, and what they were refused."
    empty_title = "Nobody acted in this window"
    empty_text = "Draining a worker or issuing a grant leaves a line here."
    list_display = (
        "show_when",
        "show_action",
        "show_target",
        "show_actor",
        "show_tenant",
        "show_reason",
        "show_code",
    )
    list_filter = (filters.window("at", "happened", default="7d"),)
    search_fields = ("target",)
    search_help_text = "Target, exactly"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEntry], search_term: str
    ) -> tuple[QuerySet[AuditEntry], bool]:
        term = search_term.replace("\0", "").strip()
        return (queryset.filter(target=term) if term else queryset), False

    @column(description="When")
    def show_when(self, entry: AuditEntry) -> str:
        return age(entry.at)

    @column(description="Act")
    def show_action(self, entry: AuditEntry) -> str:
        return entry.action

    @column(description="Target")
    def show_target(self, entry: AuditEntry) -> str:
        return entry.target

    @column(description="By")
    def show_actor(self, entry: AuditEntry) -> str:
        return entry.actor

    @column(description="Tenant")
    def show_tenant(self, entry: AuditEntry) -> str:
        return entry.tenant.name if entry.tenant else ""

    @column(description="Reason")
    def show_reason(self, entry: AuditEntry) -> str:
        return display.clipped(entry.reason)

    @column(description="Refused")
    def show_code(self, entry: AuditEntry) -> str:
        return entry.code or display.ABSENT

    def page(self, request: HttpRequest, row: AuditEntry) -> Page:
        """One act with all its evidence."""
        return Page(
            title=row.action,
            sentence=f"{row.actor} on {row.target}" + (f": {row.reason}" if row.reason else ""),
            notices=[("warn", f"Refused: {row.code}")] if row.code else [],
            main=[display.folded(row.evidence, title="Evidence", is_open=True)],
            side=[
                Facts(
                    "About",
                    [
                        Fact("By", row.actor),
                        Fact("Target", row.target),
                        Fact("Tenant", row.tenant.name if row.tenant else "–"),
                        Fact("When", moment(row.at)),
                        Fact("Reason", row.reason or display.ABSENT),
                    ],
                )
            ],
        )
