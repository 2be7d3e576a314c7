"""Run attempts: each try at a step, its work, and what it came to."""

from typing import Any

from django.contrib.admin import display as column
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from mesh.admin import display, filters
from mesh.admin.base import ConsoleAdmin
from mesh.admin.display import ABSENT, age, page_of, state_badge
from mesh.admin.pages import Fact, Facts, Page, Table
from mesh.admin.search import term_of
from mesh.models import State

from ..models import ResourceLease, RunAttempt
from .badges import is_ambiguous, outcome_badge
from .filters import Outcome


class RunAttemptAdmin(ConsoleAdmin):
    ordering = ("-id",)
    related = ("tenant", "run", "activation", "workload")
    deferred = ("output", "run__input", "activation__output", "workload__input", "workload__policy")
    about = "One try at a step of a run, with its one workload and at most one outcome."
    empty_title = "No run attempt here"
    empty_text = "An attempt begins when the coordinator of a run admits a step."
    list_display = (
        "show_run",
        "show_step",
        "show_outcome",
        "show_work",
        "show_admitted",
        "show_settled",
        "show_tenant",
        "show_said",
    )
    list_filter = (
        Outcome,
        filters.window("admitted_at", "admitted"),
        filters.of_row("run", "run", "run"),
    )
    search_fields = ("dispatch_identity",)
    search_help_text = "Whole dispatch identity"

    def get_list_queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        given = request.GET
        is_open = given.get("outcome") in {"ambiguous", "unsettled"}
        return filters.newest(rows, is_open, bool(given.get("run")), bool(given.get("q")))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[RunAttempt], search_term: str
    ) -> tuple[QuerySet[RunAttempt], bool]:
        term = term_of(search_term)
        return (queryset.filter(dispatch_identity=term) if term else queryset), False

    @column(description="Attempt")
    def show_run(self, attempt: RunAttempt) -> str:
        return display.named(f"{attempt.activation.step} no. {attempt.number}", attempt.run.run_id)

    @column(description="Effect")
    def show_step(self, attempt: RunAttempt) -> str:
        return attempt.get_effect_display()

    @column(description="Outcome")
    def show_outcome(self, attempt: RunAttempt) -> str:
        return outcome_badge(attempt)

    @column(description="Workload")
    def show_work(self, attempt: RunAttempt) -> str:
        return state_badge(attempt.workload.state)

    @column(description="Admitted")
    def show_admitted(self, attempt: RunAttempt) -> str:
        return age(attempt.admitted_at)

    @column(description="Settled")
    def show_settled(self, attempt: RunAttempt) -> str:
        return age(attempt.settled_at, absent="not yet")

    @column(description="Tenant")
    def show_tenant(self, attempt: RunAttempt) -> str:
        return attempt.tenant.name

    @column(description="Said")
    def show_said(self, attempt: RunAttempt) -> str:
        return display.clipped(attempt.message)

    def page(self, request: HttpRequest, row: RunAttempt) -> Page:
        """One attempt: its work, its outcome and what it reserves."""
        return Page(
            title=f"{row.activation.step} no. {row.number}",
            public_id=row.dispatch_identity,
            badges=[outcome_badge(row)],
            sentence=_sentence(row),
            main=[
                Facts(
                    "Outcome",
                    [
                        Fact("Settled", age(row.settled_at, absent="not yet")),
                        Fact("By", row.settled_by or ABSENT),
                        Fact("Rests on", row.get_source_display() or ABSENT),
                        Fact("Retryable", "yes" if row.retryable else "no"),
                        Fact("Said", row.message or ABSENT, is_wide=True),
                    ],
                ),
                display.folded(row.output, title="Output"),
                _leases(row),
            ],
            side=[
                Facts(
                    "About",
                    [
                        Fact("Run", page_of(row.run), is_wide=True),
                        Fact("Workload", page_of(row.workload), is_wide=True),
                        Fact("Its state", state_badge(row.workload.state)),
                        Fact("Step", row.activation.step),
                        Fact("Effect", row.get_effect_display()),
                        Fact("Generation", row.generation),
                        Fact("Admitted", age(row.admitted_at)),
                        Fact("Tenant", row.tenant.name),
                    ],
                )
            ],
        )


def _sentence(row: RunAttempt) -> object:
    if is_ambiguous(row):
        return format_html(
            "Ambiguous: it had begun when its worker was lost, and nobody knows what it did. It"
            " keeps what it reserves until its worker reports late or somebody resolves {}.",
            page_of(row.workload, "its workload"),
        )
    if row.outcome is not None:
        return f"{row.get_outcome_display()}; this stays so for ever."
    if row.workload.state == State.READY:
        return "Its work waits for a worker; the page of the workload says why."
    if row.workload.ended_at is not None:
        return "Its work has ended; the coordinator of the run has yet to settle it."
    return "Its work is with a worker."


def _leases(row: RunAttempt) -> Table:
    found = ResourceLease.objects.filter(attempt=row).order_by("resource", "id")[:100]
    return Table(
        "Resource leases",
        ["Resource", "Access", "Within", "Since"],
        [
            [
                display.mono(each.resource),
                each.get_access_display(),
                f"the {each.scope}",
                age(each.acquired_at),
            ]
            for each in found
        ],
        "It reserves nothing.",
    )
