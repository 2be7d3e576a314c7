"""Runs: where each stands, what it waits for, and all that a person may do about it."""

from typing import Any

from django.contrib.admin import display as column
from django.db.models import QuerySet
from django.http import HttpRequest

from mesh.admin import display, filters
from mesh.admin.base import ConsoleAdmin
from mesh.admin.display import age, badge, two_lines
from mesh.admin.pages import Page
from mesh.admin.search import term_of

from .. import blocks
from ..models import Run, RunEvent, RunStatus
from ..steps import Steps
from . import reading, run_parts
from .badges import run_badge
from .filters import Focus, Kind, OfDefinition, OfOwner
from .run_acts import ACTS
from .sentences import Scene, about_run, concern_of_run

# Blocks as a list names them.
_FLAGS = {
    "user_paused": "PAUSED",
    "cancelled": "CANCELLING",
    "control_failure": "CANNOT GO ON",
    "recovery": "BARRED",
}


class RunAdmin(ConsoleAdmin):
    related = ("tenant", "application", "definition")
    deferred = ("input", "token_hash", "definition__steps")
    public_id_field = "run_id"
    acts = ACTS
    ordering = ("-created_at", "-id")
    about = "Executions of workflow definitions, newest first."
    empty_title = "No run here"
    empty_text = "Store a definition and start a run through the API: POST /api/v1/runs."
    list_display = (
        "show_id",
        "show_status",
        "show_steps",
        "show_owner",
        "show_created",
        "show_application",
        "show_tenant",
        "show_concern",
    )
    list_filter = (
        filters.choice("status", "status", RunStatus.choices),
        Focus,
        filters.application(),
        OfDefinition,
        Kind,
        OfOwner,
        filters.window("created_at", "started"),
    )
    search_fields = ("run_id",)
    search_help_text = "Run id, from its beginning"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return reading.with_standing(super().get_queryset(request))

    def get_list_queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return reading.with_progress(rows)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        term = term_of(search_term)
        return (queryset.filter(run_id__startswith=term) if term else queryset), False

    @column(description="Run")
    def show_id(self, run: Run) -> str:
        named = f"{run.definition.definition_id} v{run.definition.version}"
        return display.named(named, run.run_id)

    @column(description="Status")
    def show_status(self, run: Any) -> str:
        flags = [badge("AMBIGUOUS")] if run.ambiguous else _flags(run)
        return display.lines([run_badge(run), *flags])

    @column(description="Steps")
    def show_steps(self, run: Any) -> str:
        done = f"{run.steps_ended or 0} of {run.steps_total or 0}"
        active = run.active_attempts
        return two_lines(done, f"{active} under way") if active else done

    @column(description="Authority")
    def show_owner(self, run: Any) -> str:
        kind = run.get_coordinator_display()
        if not run.has_authority:
            return two_lines(kind, "nobody has it")
        if not run.is_open:
            return two_lines(kind, f"generation {run.generation}")
        return two_lines(kind, f"generation {run.generation}, {reading.owner_of(run).lower()}")

    @column(description="Started")
    def show_created(self, run: Run) -> str:
        return age(run.created_at)

    @column(description="Application")
    def show_application(self, run: Run) -> str:
        return two_lines(run.application.name, run.environment)

    @column(description="Tenant")
    def show_tenant(self, run: Run) -> str:
        return run.tenant.name

    @column(description="What is off")
    def show_concern(self, run: Any) -> str:
        return display.clipped(concern_of_run(run))

    def page(self, request: HttpRequest, row: Run) -> Page:
        """One run: how it stands, its steps and attempts, and who may move it."""
        scene = Scene(
            row,
            run_parts.steps_of(row),
            run_parts.unsettled_of(row) if row.is_open else [],
            run_parts.waiting_of(row) if row.is_open else [],
        )
        return Page(
            title=str(row.definition),
            public_id=row.run_id,
            badges=[run_badge(row), *_flags(row)],
            sentence=about_run(scene),
            notices=_notices(scene),
            main=[
                run_parts.steps(scene.steps, Steps.of(row.definition)),
                run_parts.standing(row),
                run_parts.attempts(row),
                *run_parts.waits(scene.waiting),
                run_parts.leases(row),
                run_parts.handoffs(row),
                *run_parts.attested(row),
                display.folded(row.input, title="Input"),
                run_parts.history(RunEvent.objects.filter(run=row)),
            ],
            side=[
                run_parts.authority(row),
                run_parts.about(row),
                run_parts.limits(row),
                run_parts.times(row),
            ],
        )


def _flags(run: Any) -> list[Any]:
    """What keeps an open run from going on, as badges: its service left, or a block stands."""
    if not run.is_open:
        return []
    left = [badge("GONE", "LEFT")] if reading.is_left(run) else []
    return left + [
        badge(_FLAGS[kind]) for kind, row in blocks.of(run).rows().items() if row is not None
    ]


def _notices(scene: Scene) -> list[tuple[str, object]]:
    """What a person should not overlook."""
    told: list[tuple[str, object]] = []
    if scene.ambiguous and blocks.of(scene.run).control_failure is not None:
        told.append(("warn", "It cannot go on either: see the control failure below."))
    if scene.run.is_open and scene.run.is_attested and not reading.is_driven_here(scene.run):
        told.append(("warn", "Its owner was attested to have stopped: adopt it within a minute."))
    return told
