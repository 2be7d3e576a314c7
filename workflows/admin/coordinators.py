"""Coordinators: processes that drive runs, whether they are alive, and what they have."""

from typing import Any, Final

from django.contrib.admin import display as column
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from mesh.admin import display
from mesh.admin.base import ConsoleAdmin
from mesh.admin.display import age, badge, list_of, page_of, two_lines
from mesh.admin.pages import Fact, Facts, Page, Table
from mesh.admin.paging import capped_text
from mesh.admin.search import term_of

from ..models import Coordinator, CoordinatorKind, Run
from . import reading
from .filters import BuiltIn, Liveness

# An owner need not be said to have more than so many.
_MANY: Final = 100
_RUNS: Final = 20


class CoordinatorAdmin(ConsoleAdmin):
    related = ("tenant", "token")
    deferred = ("token__token_hash",)
    ordering = ("-id",)
    about = "Processes that drive runs. One whose lease ended never comes back under its id."
    empty_title = "No coordinator has registered"
    empty_text = "Without one runs stand still: start a Celery worker of the queue runs."
    list_display = (
        "show_id",
        "show_alive",
        "show_kind",
        "show_runs",
        "show_beat",
        "show_lease",
        "show_registered",
        "show_tenant",
    )
    list_filter = (Liveness, BuiltIn)
    search_fields = ("instance_id",)
    search_help_text = "Instance id, from its beginning"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Coordinator]:
        return reading.with_liveness(super().get_queryset(request))

    def get_list_queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        owned = reading.of_owner(
            Run.objects.filter(tenant_id=OuterRef("tenant_id"), instance_id=OuterRef("instance_id"))
        )
        first = owned.order_by().values("pk")[: _MANY + 1]
        found: QuerySet[Any] = rows.annotate(owned=ArraySubquery(first))
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Coordinator], search_term: str
    ) -> tuple[QuerySet[Coordinator], bool]:
        term = term_of(search_term)
        return (queryset.filter(instance_id__startswith=term) if term else queryset), False

    @column(description="Instance")
    def show_id(self, coordinator: Coordinator) -> str:
        return display.named(coordinator.artifact, coordinator.instance_id)

    @column(description="It is")
    def show_alive(self, coordinator: Any) -> str:
        return badge(coordinator.liveness)

    @column(description="Kind")
    def show_kind(self, coordinator: Coordinator) -> str:
        return _kind(coordinator).label

    @column(description="Open runs")
    def show_runs(self, coordinator: Any) -> str:
        number = capped_text(len(coordinator.owned), _MANY)
        return list_of(Run, number, owner=coordinator.pk, status="OPEN") if number != "0" else "0"

    @column(description="Last beat")
    def show_beat(self, coordinator: Coordinator) -> str:
        return age(coordinator.heartbeat_at)

    @column(description="Lease")
    def show_lease(self, coordinator: Coordinator) -> str:
        if coordinator.relinquished_at is not None:
            return two_lines("relinquished", age(coordinator.relinquished_at))
        return display.countdown(coordinator.lease_ends_at)

    @column(description="Registered")
    def show_registered(self, coordinator: Coordinator) -> str:
        return two_lines(age(coordinator.registered_at), coordinator.registered_by)

    @column(description="Tenant")
    def show_tenant(self, coordinator: Coordinator) -> str:
        return coordinator.tenant.name

    def page(self, request: HttpRequest, row: Coordinator) -> Page:
        """One coordinator: whether it is alive, and the open runs that it has."""
        found = reading.of_owner(
            Run.objects.filter(tenant_id=row.tenant_id, instance_id=row.instance_id)
        )
        owned = list(
            found.select_related("definition")
            .defer("input", "definition__steps")
            .order_by("-id")[: _RUNS + 1]
        )
        return Page(
            title=row.artifact,
            public_id=row.instance_id,
            badges=[self.show_alive(row)],
            sentence=_sentence(row, len(owned)),
            main=[_runs(owned)],
            side=[_about(row), _lease(row)],
        )


def _kind(row: Coordinator) -> CoordinatorKind:
    return CoordinatorKind.BUILTIN if row.is_builtin else CoordinatorKind.EXTERNAL


def _sentence(row: Any, owned: int) -> object:
    has = "has no open run" if not owned else f"has {capped_text(owned, _RUNS)} open runs"
    has = has.replace("1 open runs", "1 open run") if owned == 1 else has
    if row.liveness == reading.ALIVE:
        return f"Alive; it {has}."
    if row.liveness == reading.LATE:
        return f"Late: its lease is over, and it counts as gone within seconds. It {has}."
    how = "It relinquished" if row.relinquished_at else "Its lease ended"
    at = row.relinquished_at or row.lease_ends_at
    then = "" if not owned else _then(row)
    return format_html("{} {} and it never comes back. It {}{}.", how, age(at), has, then)


def _then(row: Coordinator) -> str:
    if row.is_builtin:
        return "; another built-in coordinator takes them over by itself"
    return "; its service hands them over to a new instance, or you adopt them"


def _runs(owned: list[Run]) -> Table:
    return Table(
        "Open runs that it has",
        ["Run", "Definition", "Generation", "Under way", "Started"],
        [
            [
                page_of(each),
                str(each.definition),
                each.generation,
                each.active_attempts,
                age(each.created_at),
            ]
            for each in owned[:_RUNS]
        ],
        "It has none.",
        note=f"The newest {_RUNS} of more." if len(owned) > _RUNS else "",
    )


def _about(row: Coordinator) -> Facts:
    return Facts(
        "About",
        [
            Fact("Tenant", row.tenant.name),
            Fact("Kind", _kind(row).label),
            Fact("Registered", age(row.registered_at)),
            Fact("By", row.registered_by),
            Fact("API token", page_of(row.token) if row.token else "none", is_wide=True),
            Fact("Runs", list_of(Run, "Show runs", owner=row.pk)),
        ],
    )


def _lease(row: Coordinator) -> Facts:
    return Facts(
        "Lease",
        [
            Fact("Length", display.milliseconds(row.lease_ms)),
            Fact("Last beat", age(row.heartbeat_at)),
            Fact("Ends" if row.relinquished_at is None else "Would end", age(row.lease_ends_at)),
            Fact("Relinquished", age(row.relinquished_at, absent="no")),
        ],
    )
