"""Workloads: the work as a list, and one workload with all that happened to it."""

from typing import Any, Final

from django.contrib.admin import display as column
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from ..models import (
    CLAIMED_STATES,
    Application,
    Attempt,
    Checkpoint,
    LateReport,
    Result,
    State,
    Workload,
    WorkloadEvent,
)
from . import access, display, filters, waiting
from .asks import asks
from .attempts import late_reports
from .base import ConsoleAdmin
from .dependencies import ties
from .display import ABSENT, age, badge, now, page_of, state_badge, two_lines
from .history import event_rows
from .pages import Fact, Facts, Page, Table
from .search import term_of
from .sentences import about_workload, concern_of_workload
from .workload_acts import ACTS

_ATTEMPTS: Final = 30
_EVENTS: Final = 50
_AT_REST: Final = [
    State.READY,
    State.CLAIMED,
    State.RUNNING,
    State.CHECKPOINTED,
    State.CANCELLATION_REQUESTED,
    State.HELD,
    State.SUCCEEDED,
    State.CANCELLED,
    State.DEAD_LETTER,
]


class WorkloadAdmin(ConsoleAdmin):
    related = ("tenant", "application")
    deferred = ("input", "policy", "timeouts", "capability_snapshot", "connection_scopes")
    public_id_field = "workload_id"
    acts = ACTS
    ordering = ("-created_at", "-id")
    about = "Durable pieces of work, newest first."
    empty_title = "No work here"
    empty_text = "Work is submitted through the API: POST /api/v1/workloads."
    list_display = (
        "show_id",
        "show_state",
        "show_attempts",
        "show_priority",
        "show_created",
        "show_application",
        "show_tenant",
        "show_concern",
    )
    list_filter = (
        filters.choice("state", "state", [(each.value, each.label) for each in _AT_REST]),
        filters.application(),
        filters.window("created_at", "created"),
    )
    search_fields = ("workload_id", "idempotency_key")
    search_help_text = "Id from its beginning, or the whole key"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Workload], search_term: str
    ) -> tuple[QuerySet[Workload], bool]:
        term = term_of(search_term)
        if not term:
            return queryset, False
        # Each side of the OR has an index of its own.
        mine = Application.objects.filter(tenant_id__in=access.tenant_ids(request))
        by_key = Q(application__in=list(mine.values_list("pk", flat=True)), idempotency_key=term)
        return queryset.filter(Q(workload_id__startswith=term) | by_key), False

    @column(description="Workload")
    def show_id(self, workload: Workload) -> str:
        return display.named(workload.definition_id, workload.workload_id)

    @column(description="State")
    def show_state(self, workload: Workload) -> str:
        return state_badge(workload.state)

    @column(description="Attempts")
    def show_attempts(self, workload: Workload) -> str:
        return f"{workload.started_attempts} of {_budget(workload)}"

    @column(description="Priority")
    def show_priority(self, workload: Workload) -> str:
        return str(workload.priority)

    @column(description="Created")
    def show_created(self, workload: Workload) -> str:
        return age(workload.created_at)

    @column(description="Application")
    def show_application(self, workload: Workload) -> str:
        return two_lines(workload.application.name, workload.environment)

    @column(description="Tenant")
    def show_tenant(self, workload: Workload) -> str:
        return workload.tenant.name

    @column(description="What is off")
    def show_concern(self, workload: Workload) -> str:
        return display.clipped(concern_of_workload(workload))

    def page(self, request: HttpRequest, row: Workload) -> Page:
        """One workload: what is going on, its attempts, what went in and what came out."""
        attempts = list(
            Attempt.objects.filter(workload=row)
            .select_related("worker")
            .order_by("-number")[: _ATTEMPTS + 1]
        )
        live = next((each for each in attempts if each.is_live), None)
        result = Result.objects.filter(workload=row).first()
        return Page(
            title=row.definition_id,
            public_id=row.workload_id,
            badges=[state_badge(row.state)],
            sentence=about_workload(row, live),
            main=[
                *waiting.panel(row),
                *ties(row),
                _timeline(attempts),
                *late_reports(LateReport.objects.filter(attempt__workload=row)),
                *waiting.decisions(row),
                *_results(result),
                display.stack(
                    display.folded(row.input, title="Input"),
                    *(_outputs(result) if result else ()),
                ),
                _checkpoints(row),
                event_rows(WorkloadEvent.objects.filter(workload=row), limit=_EVENTS),
            ],
            side=[_identity(row), _budget_facts(row), _times(row)],
        )


def _budget(workload: Workload) -> int:
    budget: int = workload.retry_policy.get("max_attempts", 0) + workload.extra_attempts
    return budget


def _timeline(attempts: list[Attempt]) -> Table:
    return Table(
        "Attempts",
        ["No.", "Worker", "Status", "Token", "Claimed", "Ended", "Took", "Failure"],
        [
            [
                page_of(each, each.number),
                page_of(each.worker, each.worker.name),
                badge(each.status),
                each.fencing_token,
                age(each.claimed_at),
                age(each.ended_at)
                if each.ended_at
                else format_html("lease: {}", display.countdown(each.expires_at)),
                display.took(each.claimed_at, each.ended_at or now()),
                display.clipped(_failure(each)),
            ]
            for each in attempts[:_ATTEMPTS]
        ],
        "No worker has claimed it yet.",
        note=f"The newest {_ATTEMPTS} of more." if len(attempts) > _ATTEMPTS else "",
    )


def _failure(attempt: Attempt) -> str:
    failure = attempt.failure or {}
    return ": ".join(str(failure[key]) for key in ("kind", "error") if failure.get(key))


def _results(result: Result | None) -> list[Any]:
    if result is None:
        return []
    facts = Facts(
        "Result",
        [
            Fact("Result id", display.copyable(result.result_id), is_wide=True),
            Fact("Recorded", age(result.created_at)),
            Fact("Said by", result.author or "its worker"),
            Fact(
                "Artifacts",
                display.lines(map(display.external, result.artifacts)),
                is_wide=True,
            ),
        ],
    )
    return [facts]


def _outputs(result: Result) -> tuple[object, object]:
    return (
        display.folded(result.output, title="Output"),
        display.folded_text(result.logs, title="Logs"),
    )


def _checkpoints(row: Workload) -> Table:
    kept = Checkpoint.objects.filter(workload=row).select_related("attempt").order_by("-sequence")
    return Table(
        "Checkpoints",
        ["No.", "Attempt", "Written", "State"],
        [
            [
                each.sequence,
                each.attempt.number,
                age(each.created_at),
                display.folded(each.state, title="State"),
            ]
            for each in kept[:10]
        ],
        "None was written.",
    )


def _identity(row: Workload) -> Facts:
    return Facts(
        "About",
        [
            Fact("Tenant", row.tenant.name),
            Fact("Application", row.application.name),
            Fact("Environment", row.environment),
            Fact("Revision", row.definition_revision),
            Fact("Trigger", row.trigger),
            Fact("Requested by", row.requested_by),
            Fact("Key", display.copyable(row.idempotency_key), is_wide=True),
            Fact(
                "Grant",
                page_of(row.grant, display.short(row.grant.grant_id)) if row.grant else ABSENT,
            ),
            Fact("Session", row.session_id or ABSENT),
            Fact("Needs", display.chips(row.capability_snapshot, empty="nothing"), is_wide=True),
            Fact("Asks for", asks(row.policy), is_wide=True),
            Fact("Requirement", page_of(row.requirement, f"no. {row.requirement_id}")),
        ],
    )


def _budget_facts(row: Workload) -> Facts:
    policy = row.retry_policy
    timeouts = {
        key.removesuffix("_ms"): display.milliseconds(value)
        for key, value in row.timeouts.items()
        if value is not None
    }
    return Facts(
        "Budget",
        [
            Fact("Started attempts", f"{row.started_attempts} of {_budget(row)}"),
            Fact("Claims so far", row.attempt_count),
            Fact("Losses before start", f"{row.unstarted_losses} in a row"),
            Fact("Priority", row.priority),
            Fact("Backoff", policy.get("backoff", ABSENT)),
            Fact("Retried on", display.chips(policy.get("retry_on", [])), is_wide=True),
            Fact("Timeouts", display.pairs(timeouts), is_wide=True),
            Fact("Fencing token", row.fencing_token),
        ],
    )


def _times(row: Workload) -> Facts:
    facts = [
        Fact("Created", age(row.created_at)),
        Fact("Not before", age(row.not_before)),
        Fact("Changed", age(row.updated_at)),
        Fact("Deadline", age(row.deadline_at)),
        Fact("Cancel asked", age(row.cancel_requested_at)),
        Fact("Ended", age(row.ended_at)),
    ]
    if row.state not in CLAIMED_STATES:
        facts.insert(1, Fact("Available", age(row.available_at)))
    return Facts("Times", facts)
