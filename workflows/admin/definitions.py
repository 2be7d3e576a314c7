"""Definitions: the versions of workflows, and the steps that each of them has."""

from typing import Any, Final

from django.contrib.admin import display as column
from django.db.models import F, Func, IntegerField, QuerySet
from django.http import HttpRequest

from mesh.admin import display, filters
from mesh.admin.base import ConsoleAdmin
from mesh.admin.display import age, list_of, page_of, two_lines
from mesh.admin.pages import Fact, Facts, Page, Table
from mesh.admin.search import term_of

from ..models import Definition, Effect, Replay, Run
from ..steps import Step, Steps
from .badges import run_badge

_MAX_STEPS: Final = 200
_VERSIONS: Final = 20
_RUNS: Final = 10


class DefinitionAdmin(ConsoleAdmin):
    related = ("tenant", "application")
    deferred = ("steps",)
    ordering = ("-id",)
    about = "Workflows by version, newest first. A stored version never changes."
    empty_title = "No definition here"
    empty_text = "Store one through the API: POST /api/v1/definitions."
    list_display = (
        "show_id",
        "show_version",
        "show_steps",
        "show_application",
        "show_tenant",
        "show_created",
        "show_by",
    )
    list_filter = (filters.application(), filters.window("created_at", "stored"))
    search_fields = ("definition_id",)
    search_help_text = "Definition id, from its beginning"

    def get_list_queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        length = Func(F("steps"), function="json_array_length", output_field=IntegerField())
        found: QuerySet[Any] = rows.annotate(length=length)
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Definition], search_term: str
    ) -> tuple[QuerySet[Definition], bool]:
        term = term_of(search_term)
        return (queryset.filter(definition_id__startswith=term) if term else queryset), False

    @column(description="Definition")
    def show_id(self, definition: Definition) -> str:
        return definition.definition_id

    @column(description="Version")
    def show_version(self, definition: Definition) -> str:
        return str(definition.version)

    @column(description="Steps")
    def show_steps(self, definition: Any) -> str:
        return str(definition.length)

    @column(description="Application")
    def show_application(self, definition: Definition) -> str:
        return definition.application.name

    @column(description="Tenant")
    def show_tenant(self, definition: Definition) -> str:
        return definition.tenant.name

    @column(description="Stored")
    def show_created(self, definition: Definition) -> str:
        return age(definition.created_at)

    @column(description="By")
    def show_by(self, definition: Definition) -> str:
        return definition.created_by

    def page(self, request: HttpRequest, row: Definition) -> Page:
        """One version: its steps, the other versions, its latest runs."""
        steps = Steps.of(row)
        return Page(
            title=str(row),
            public_id=row.definition_id,
            sentence=_sentence(row, steps),
            main=[
                _steps(steps),
                _runs(row),
                _versions(row),
                display.folded(row.steps, title="Steps as JSON"),
            ],
            side=[
                Facts(
                    "About",
                    [
                        Fact("Tenant", row.tenant.name),
                        Fact("Application", row.application.name),
                        Fact("Version", row.version),
                        Fact("Stored", age(row.created_at)),
                        Fact("By", row.created_by),
                        Fact("Checksum", display.copyable(row.checksum), is_wide=True),
                        Fact("Runs", list_of(Run, "Show runs", definition=row.pk)),
                    ],
                )
            ],
        )


def _sentence(row: Definition, steps: Steps) -> str:
    held = sum(each.is_held_when_lost for each in steps.values())
    number = f"{len(steps)} {'step' if len(steps) == 1 else 'steps'}"
    if not held:
        return f"{number}, all of which may be repeated when a worker is lost."
    return f"{number}; {held} of them {'waits' if held == 1 else 'wait'} for a person when lost."


def _steps(steps: Steps) -> Table:
    shown = list(steps.values())[:_MAX_STEPS]
    return Table(
        "Steps",
        ["Step", "Needs", "Effect, when lost", "Reserves", "Attempts"],
        [
            [
                two_lines(each.step, each.definition_id),
                display.wrapped(", ".join(each.needs) or "nothing"),
                two_lines(Effect(each.effect).label, _when_lost(each)),
                display.wrapped(", ".join(_resources(each)) or "nothing"),
                two_lines(f"up to {each.max_attempts}", _when_it_fails(each)),
            ]
            for each in shown
        ],
        "It has none.",
        note=f"The first {_MAX_STEPS} of {len(steps)}." if len(steps) > _MAX_STEPS else "",
    )


def _when_lost(step: Step) -> str:
    if step.is_held_when_lost:
        return "waits for a person"
    return "is done again" if step.replay == Replay.NONE else "is done again (idempotent)"


def _when_it_fails(step: Step) -> str:
    return "then fails the run" if step.fails_the_run else "then the run goes on"


def _resources(step: Step) -> list[str]:
    told = [f"{each.access} {each.resource} ({each.scope})" for each in step.resources[:5]]
    more = len(step.resources) - len(told)
    return [*told, f"{more} more"] if more else told


def _runs(row: Definition) -> Table:
    found = Run.objects.filter(definition=row).order_by("-id").defer("input")[:_RUNS]
    return Table(
        "Latest runs",
        ["Run", "Status", "Started", "Ended"],
        [
            [
                page_of(each),
                run_badge(each),
                age(each.created_at),
                age(each.ended_at, absent="open"),
            ]
            for each in found
        ],
        "Nobody started one.",
    )


def _versions(row: Definition) -> Table:
    others = Definition.objects.filter(tenant_id=row.tenant_id, definition_id=row.definition_id)
    found = list(others.defer("steps").order_by("-version")[: _VERSIONS + 1])
    return Table(
        "Versions",
        ["Version", "Stored", "By"],
        [
            [
                f"{each.version}, this one"
                if each.pk == row.pk
                else page_of(each, f"version {each.version}"),
                age(each.created_at),
                each.created_by,
            ]
            for each in found[:_VERSIONS]
        ],
        "",
        note=f"The newest {_VERSIONS} of more." if len(found) > _VERSIONS else "",
    )
