"""Attestations: who stated that the old owner of a run has stopped, and who has yet to confirm."""

from typing import Any

from django.contrib.admin import display as column
from django.db.models import OuterRef, QuerySet, Subquery, Value
from django.http import HttpRequest
from django.utils.html import format_html

from mesh.admin import access, display, filters
from mesh.admin.base import ConsoleAdmin
from mesh.admin.display import ABSENT, age, badge, page_of, two_lines
from mesh.admin.pages import Fact, Facts, Page, Table
from mesh.admin.search import term_of

from ..attestations import max_age
from ..models import Attestation, HandoffMode, Statement
from .filters import Completeness
from .run_acts import CONFIRM


class AttestationAdmin(ConsoleAdmin):
    related = ("tenant", "run")
    deferred = ("run__input", "run__token_hash")
    public_id_field = "attestation_id"
    ordering = ("-id",)
    acts = (CONFIRM,)
    about = "People state that a coordinator has stopped, so that a run of it may be taken over."
    empty_title = "Nobody attested anything"
    empty_text = "A run whose coordinator cannot be seen to have stopped is attested on its page."
    list_display = (
        "show_id",
        "show_state",
        "show_run",
        "show_from",
        "show_to",
        "show_people",
        "show_tenant",
        "show_created",
    )
    list_filter = (
        Completeness,
        filters.window("created_at", "stated"),
        filters.of_row("run", "run", "run"),
    )
    search_fields = ("attestation_id",)
    search_help_text = "Whole attestation id"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        said = Statement.objects.filter(attestation_id=OuterRef("pk")).order_by("id")
        rows = super().get_queryset(request).prefetch_related("statements")
        found: QuerySet[Any] = rows.annotate(
            first=Subquery(said.values("by")[:1]), me=Value(_subject(request))
        )
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Attestation], search_term: str
    ) -> tuple[QuerySet[Attestation], bool]:
        term = term_of(search_term)
        return (queryset.filter(attestation_id=term) if term else queryset), False

    @column(description="Attestation")
    def show_id(self, attestation: Attestation) -> str:
        return display.short(attestation.attestation_id)

    @column(description="State")
    def show_state(self, attestation: Attestation) -> str:
        return badge("COMPLETE" if attestation.completed_at else "INCOMPLETE")

    @column(description="Run")
    def show_run(self, attestation: Attestation) -> str:
        return page_of(attestation.run)

    @column(description="Stopped")
    def show_from(self, attestation: Attestation) -> object:
        return _end(attestation, "expected")

    @column(description="Next owner")
    def show_to(self, attestation: Attestation) -> object:
        return _end(attestation, "replacement")

    @column(description="Stated by")
    def show_people(self, attestation: Attestation) -> str:
        return display.lines(each.by for each in attestation.statements.all())

    @column(description="Tenant")
    def show_tenant(self, attestation: Attestation) -> str:
        return attestation.tenant.name

    @column(description="Stated")
    def show_created(self, attestation: Attestation) -> str:
        return age(attestation.created_at)

    def page(self, request: HttpRequest, row: Attestation) -> Page:
        """One attestation: of what transition, who stated what, and whether it may be used."""
        return Page(
            title="Attested stop",
            public_id=row.attestation_id,
            badges=[self.show_state(row)],
            sentence=_sentence(row),
            main=[_statements(row), display.folded(row.transition, title="Transition")],
            side=[
                Facts(
                    "About",
                    [
                        Fact("Run", page_of(row.run), is_wide=True),
                        Fact("Mode", HandoffMode(row.transition["mode"]).label),
                        Fact("Stopped", _end(row, "expected"), is_wide=True),
                        Fact("Next owner", _end(row, "replacement"), is_wide=True),
                        Fact("People needed", row.required),
                        Fact("Stated", age(row.created_at)),
                        Fact("Complete", age(row.completed_at, absent="not yet")),
                        Fact(
                            "Receipt",
                            display.copyable(row.receipt_id) if row.receipt_id else ABSENT,
                            is_wide=True,
                        ),
                        Fact("Tenant", row.tenant.name),
                    ],
                )
            ],
        )


def _subject(request: HttpRequest) -> str:
    """The person as those are named who stated something."""
    return next((each.subject for each in access.callers(request).values()), "")


def _end(row: Attestation, which: str) -> Any:
    """The old or the next owner."""
    owner = row.transition[which]
    return two_lines(owner["instance_id"], f"generation {owner['generation']}")


def _sentence(row: Attestation) -> object:
    if row.completed_at is None:
        return "Waits for another person, who confirms that the old owner has stopped."
    if display.now() - row.completed_at <= max_age():
        return "Complete: the run may be taken over on it, for a minute after it was completed."
    return format_html(
        "Complete since {}; too old to take a run over on it. What it served for is among the"
        " hand-overs of the run.",
        age(row.completed_at),
    )


def _statements(row: Attestation) -> Table:
    return Table(
        "Statements",
        ["By", "When", "What"],
        [[each.by, age(each.at), display.wrapped(each.statement)] for each in row.statements.all()],
        "",
    )
