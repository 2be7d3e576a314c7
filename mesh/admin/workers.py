"""Workers: the fleet as a list, and one worker with all that concerns it."""

from typing import Any, Final

from django.contrib.admin import display as column
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from .. import workers
from ..models import (
    LIVE_ATTEMPT,
    WORKER_MOVES,
    Attempt,
    GrantStatus,
    Health,
    Lifecycle,
    Runtime,
    Worker,
    WorkerEvent,
    Workload,
)
from ..tenancy import Caller
from . import display, filters
from .acts import Act, DrainForm
from .asks import resources
from .base import ConsoleAdmin
from .display import age, badge, list_of, page_of, two_lines
from .history import event_rows
from .pages import Fact, Facts, Page, Table
from .pools import places_of
from .search import term_of
from .sentences import about_worker, concern_of_worker, is_deaf, is_silent

_ATTEMPTS: Final = 20
_CLAIMS: Final = 50
_EVENTS: Final = 30


def _why_not_drain(worker: Worker) -> str:
    if worker.is_removed:
        return "It was removed."
    if worker.lifecycle == Lifecycle.DRAINING:
        return "It is draining already."
    if Lifecycle.DRAINING not in WORKER_MOVES[worker.lifecycle]:
        return f"A worker that is {worker.lifecycle} takes no work anyway."
    return ""


def _why_not_undrain(worker: Worker) -> str:
    if worker.lifecycle != Lifecycle.DRAINING or worker.is_removed:
        return "Only a draining worker can be undrained."
    return _why_not_back(worker)


def _why_not_back(worker: Worker) -> str:
    is_revoked = worker.grant.status == GrantStatus.REVOKED
    return "Its grant is revoked: it must register under another one." if is_revoked else ""


def _why_not_recover(worker: Worker) -> str:
    if Lifecycle.RECOVERING not in WORKER_MOVES[worker.lifecycle] or worker.is_removed:
        return "Only an offline worker can be recovered."
    return _why_not_back(worker)


def _why_not_remove(worker: Worker) -> str:
    if worker.is_removed:
        return "It was removed already."
    return f"It still holds {worker.active} live claims: drain it first." if worker.active else ""


def _drain(caller: Caller, worker: Worker, data: dict[str, Any]) -> object:
    minutes = data["deadline_minutes"]
    return workers.drain(
        caller=caller,
        worker_id=worker.worker_id,
        reason=data["reason"],
        deadline_ms=minutes * 60_000 if minutes else None,
    )


def _undrain(caller: Caller, worker: Worker, data: dict[str, Any]) -> object:
    return workers.undrain(caller=caller, worker_id=worker.worker_id, reason=data["reason"])


def _recover(caller: Caller, worker: Worker, data: dict[str, Any]) -> object:
    return workers.recover(caller=caller, worker_id=worker.worker_id, reason=data["reason"])


def _remove(caller: Caller, worker: Worker, data: dict[str, Any]) -> None:
    workers.remove(caller=caller, worker_id=worker.worker_id, reason=data["reason"])


ACTS: Final = (
    Act(
        "drain",
        "Drain",
        "hourglass_bottom",
        "A draining worker gets no new work. What it holds may end; then it goes offline.",
        _drain,
        _why_not_drain,
        form=DrainForm,
    ),
    Act(
        "undrain",
        "Undrain",
        "undo",
        "The worker takes new work again.",
        _undrain,
        _why_not_undrain,
    ),
    Act(
        "recover",
        "Recover",
        "healing",
        "The worker may come back: once it has reconciled it takes work again.",
        _recover,
        _why_not_recover,
    ),
    Act(
        "remove",
        "Remove",
        "archive",
        "The worker's credential stops working and its name is free again. Its history is kept.",
        _remove,
        _why_not_remove,
        is_dangerous=True,
    ),
)


class WorkerAdmin(ConsoleAdmin):
    related = ("tenant", "application", "grant")
    deferred = (
        *("declared_capabilities", "granted_capabilities", "workload_kinds"),
        *("grant__capabilities", "grant__resources", "grant__constraints"),
    )
    public_id_field = "worker_id"
    acts = ACTS
    about = "Registered executors: who may take work, who is full, who went silent."
    empty_title = "No worker has registered yet"
    empty_text = (
        "Issue a grant that allows “worker:register”, then start an agent with it. "
        "The agent appears here with its first call."
    )
    list_display = (
        "show_name",
        "show_lifecycle",
        "show_health",
        "show_capacity",
        "show_seen",
        "show_where",
        "show_tenant",
        "show_concern",
    )
    list_filter = (
        filters.choice("lifecycle", "lifecycle", Lifecycle.choices),
        filters.choice("health", "health", Health.choices),
        filters.choice("runtime", "runtime", Runtime.choices),
        filters.application(),
        filters.of_row("pool", "pool", "memberships__pool"),
        filters.choice(
            "removed",
            "removed",
            [("only", "removed only"), ("all", "with removed")],
            lambda rows, value: rows.filter(removed_at__isnull=False) if value == "only" else rows,
            default=lambda rows: rows.filter(removed_at__isnull=True),
            all_text="without removed",
        ),
    )
    search_fields = ("worker_id", "name")
    search_help_text = "Name or id, from its beginning"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Worker], search_term: str
    ) -> tuple[QuerySet[Worker], bool]:
        term = term_of(search_term)
        if not term:
            return queryset, False
        return queryset.filter(Q(worker_id__startswith=term) | Q(name__istartswith=term)), False

    @column(description="Worker")
    def show_name(self, worker: Worker) -> str:
        return display.named(worker.name, worker.worker_id)

    @column(description="Lifecycle")
    def show_lifecycle(self, worker: Worker) -> str:
        return badge("REMOVED") if worker.is_removed else badge(worker.lifecycle)

    @column(description="Health")
    def show_health(self, worker: Worker) -> str:
        return display.ABSENT if worker.is_removed else badge(worker.health)

    @column(description="Capacity")
    def show_capacity(self, worker: Worker) -> str:
        return display.bar(worker.active, worker.concurrency)

    @column(description="Last heard")
    def show_seen(self, worker: Worker) -> str:
        return age(worker.last_seen_at)

    @column(description="Application")
    def show_where(self, worker: Worker) -> str:
        return two_lines(worker.application.name, f"{worker.runtime} {worker.version}")

    @column(description="Tenant")
    def show_tenant(self, worker: Worker) -> str:
        return worker.tenant.name

    @column(description="What is off")
    def show_concern(self, worker: Worker) -> str:
        return display.clipped(concern_of_worker(worker))

    def page(self, request: HttpRequest, row: Worker) -> Page:
        """One worker: its three facts of liveness, its claims, what it may do, its history."""
        badges: list[object] = [badge(row.lifecycle)]
        if row.is_removed:
            badges = [badge("REMOVED")]
        else:
            badges.append(badge(row.health))
            badges += [badge("SILENT")] if is_silent(row) else []
            badges += [badge("DEAF")] if is_deaf(row) else []
        return Page(
            title=row.name,
            public_id=row.worker_id,
            badges=badges,
            sentence=about_worker(row),
            notices=_notices(row),
            main=[
                _liveness(row),
                _live_claims(row),
                _recent_attempts(row),
                event_rows(WorkerEvent.objects.filter(worker=row), limit=_EVENTS),
            ],
            side=[_identity(row), _capabilities(row), _labels(row), places_of(row)],
        )


def _notices(row: Worker) -> list[tuple[str, object]]:
    notices: list[tuple[str, object]] = []
    if row.clock_skew_ms is not None and abs(row.clock_skew_ms) > 5_000:
        skew = display.milliseconds(abs(row.clock_skew_ms))
        notices.append(("warn", f"Its clock is {skew} away from the server's."))
    return notices


def _liveness(row: Worker) -> Facts:
    return Facts(
        "Liveness",
        [
            Fact("Beating", age(row.last_seen_at), "heartbeat or other sign of life"),
            Fact(
                "Accepting",
                age(row.last_poll_at, absent="never asked"),
                "asked for work, or full",
            ),
            Fact(
                "Progressing",
                age(row.last_progress_at, absent="nothing yet"),
                "start, checkpoint or result",
            ),
            Fact("Capacity", display.bar(row.active, row.concurrency), "live claims of slots"),
        ],
    )


def _live_claims(row: Worker) -> Table:
    live_ones = _attempts(row).filter(status__in=LIVE_ATTEMPT).order_by("expires_at")
    live = list(live_ones[: _CLAIMS + 1])
    return Table(
        "Live claims",
        ["Workload", "Status", "Token", "Claimed", "Last progress", "Lease"],
        [
            [
                page_of(
                    each.workload,
                    display.named(each.workload.definition_id, each.workload.workload_id),
                ),
                badge(each.status),
                each.fencing_token,
                age(each.claimed_at),
                age(each.last_progress_at),
                display.countdown(each.expires_at),
            ]
            for each in live[:_CLAIMS]
        ],
        "It holds no work at the moment.",
        note=f"The {_CLAIMS} whose lease ends first." if len(live) > _CLAIMS else "",
    )


def _recent_attempts(row: Worker) -> Table:
    recent = _attempts(row).exclude(status__in=LIVE_ATTEMPT).order_by("-id")[:_ATTEMPTS]
    return Table(
        "Recent attempts",
        ["Workload", "Attempt", "Outcome", "Ended", "Took", "Failure"],
        [
            [
                page_of(
                    each.workload,
                    display.named(each.workload.definition_id, each.workload.workload_id),
                ),
                page_of(each, f"no. {each.number}"),
                badge(each.status),
                age(each.ended_at),
                display.took(each.claimed_at, each.ended_at or display.now()),
                (each.failure or {}).get("kind") or display.ABSENT,
            ]
            for each in recent
        ],
        "It has not finished any attempt yet.",
        note=list_of(Attempt, "All of its attempts", worker=row.pk),
    )


def _work(workload: Workload) -> object:
    return page_of(workload, display.named(workload.definition_id, workload.workload_id))


def _attempts(row: Worker) -> QuerySet[Attempt]:
    return (
        Attempt.objects.filter(worker=row)
        .select_related("workload")
        .only(
            *(each.attname for each in Attempt._meta.concrete_fields),
            "workload__workload_id",
            "workload__definition_id",
        )
    )


def _identity(row: Worker) -> Facts:
    return Facts(
        "About",
        [
            Fact("Tenant", row.tenant.name),
            Fact("Application", row.application.name),
            Fact("Runtime", f"{row.runtime} {row.version}"),
            Fact("Registered by", row.registered_by),
            Fact("Registered", age(row.registered_at)),
            Fact("Incarnation", row.incarnation, "how often it registered"),
            Fact("Grant", page_of(row.grant, display.short(row.grant.grant_id))),
            Fact("Grant ends", age(row.grant.expires_at)),
            Fact(
                "Heartbeat",
                f"every {display.milliseconds(row.heartbeat_interval_ms)}, silent after "
                f"{display.milliseconds(row.heartbeat_timeout_ms)}",
            ),
            Fact(
                "Clock skew",
                "–" if row.clock_skew_ms is None else f"{row.clock_skew_ms} ms",
            ),
        ],
    )


def _capabilities(row: Worker) -> Facts:
    refused = [each for each in row.declared_capabilities if each not in row.granted_capabilities]
    return Facts(
        "Capabilities",
        [
            Fact("Granted", display.chips(row.granted_capabilities, tone="good"), is_wide=True),
            Fact(
                "Refused",
                display.chips(refused, tone="bad"),
                "declared, but its grant does not allow them",
                is_wide=True,
            ),
            Fact("Declared", display.chips(row.declared_capabilities), is_wide=True),
            Fact(
                "Kinds of work",
                display.chips(row.workload_kinds, empty="any definition"),
                is_wide=True,
            ),
        ],
    )


def _labels(row: Worker) -> Facts:
    return Facts(
        "Labels and resources",
        [
            Fact("Labels", display.pairs(row.labels), is_wide=True),
            Fact("Resources", resources(row.resource_profile), is_wide=True),
        ],
    )
