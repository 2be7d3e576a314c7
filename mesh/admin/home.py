"""The home page's question: is anything wrong? Every number is one cheap, capped query."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, QuerySet
from django.http import HttpRequest

from .. import recovery
from ..models import (
    Attempt,
    Grant,
    Incident,
    Lifecycle,
    Pause,
    Role,
    State,
    SweepRun,
    Worker,
    Workload,
)
from . import access, sweeps
from .attempts import overdue, stuck
from .display import list_url, now, page_url
from .paging import capped_count, capped_text

_DAY: Final = timedelta(days=1)
_SHOWN: Final = 5
# An alarm need not know how many beyond this.
_MANY: Final = 1_000
_OPEN_STATES: Final = (
    State.READY,
    State.CLAIMED,
    State.RUNNING,
    State.CHECKPOINTED,
    State.CANCELLATION_REQUESTED,
    State.HELD,
    State.DEAD_LETTER,
)


@dataclass(frozen=True)
class Tile:
    """A number that leads to its rows."""

    state: str
    label: str
    number: str
    url: str
    is_zero: bool


@dataclass(frozen=True)
class Alarm:
    """Something that a person should look at, and where."""

    tone: str
    icon: str
    title: str
    text: str
    url: str


@dataclass
class Overview:
    """All that the home page shows, as of `at`."""

    at: datetime
    is_member: bool
    may_issue: bool
    alarms: list[Alarm]
    workers: list[Tile]
    work: list[Tile]
    stuck: list[Attempt]
    dead: list[Workload]
    sweeps: list[tuple[SweepRun, str, str]]
    oldest_ready: Workload | None

    @property
    def has_workers(self) -> bool:
        return any(not each.is_zero for each in self.workers)


# What else may be wrong, by who registered it: asked with the keys of the person's tenants.
_also: Final[list[Callable[[list[int]], list[Alarm]]]] = []


def also(alarms: Callable[[list[int]], list[Alarm]]) -> None:
    """Have the home page show these alarms too; a repeat changes nothing."""
    if alarms not in _also:
        _also.append(alarms)


def overview(request: HttpRequest) -> Overview:
    """What the person's tenants are up to."""
    mine = access.tenant_ids(request)
    work = Workload.objects.filter(tenant_id__in=mine)
    attempts = Attempt.objects.filter(worker__tenant_id__in=mine)
    dead = _dead(work)
    stuck_ones = stuck(attempts)
    runs = list(SweepRun.objects.filter(name__in=recovery.SWEEPS))
    return Overview(
        at=now(),
        is_member=bool(mine),
        may_issue=access.can(request, Role.ADMIN),
        alarms=_alarms(mine, attempts, stuck_ones, dead, runs) if mine else [],
        workers=_workers(mine),
        work=_work(work),
        stuck=list(_shown(stuck_ones)),
        dead=list(dead.order_by("-created_at", "-id").defer("input", "policy")[:_SHOWN]),
        sweeps=[(each, sweeps.status(each), sweeps.does(each.name)) for each in runs],
        oldest_ready=work.filter(state=State.READY, claimable=True)
        .only("id", "workload_id", "definition_id", "ready_at")
        .order_by("created_at", "id")
        .first(),
    )


def _workers(mine: list[int]) -> list[Tile]:
    found = Worker.objects.filter(tenant_id__in=mine, removed_at__isnull=True)
    counted = dict(
        found.order_by()
        .values_list("lifecycle")
        .annotate(n=Count("pk"))
        .values_list("lifecycle", "n")
    )
    return [
        _tile(
            each.value, str(each.label), counted.get(each.value, 0), Worker, "lifecycle", each.value
        )
        for each in (
            Lifecycle.READY,
            Lifecycle.BUSY,
            Lifecycle.DRAINING,
            Lifecycle.OFFLINE,
            Lifecycle.RECOVERING,
            Lifecycle.REGISTERED,
        )
    ]


def _work(work: QuerySet[Workload]) -> list[Tile]:
    return [
        _tile(
            "QUEUED" if each == State.READY else each.value,
            "Cancelling" if each == State.CANCELLATION_REQUESTED else str(each.label),
            capped_count(work.filter(state=each)),
            Workload,
            "state",
            each.value,
        )
        for each in _OPEN_STATES
    ]


def _tile(state: str, label: str, count: int, model: Any, name: str, value: str) -> Tile:
    return Tile(state, label, capped_text(count), list_url(model, **{name: value}), count == 0)


def _dead(work: QuerySet[Workload]) -> QuerySet[Workload]:
    return work.filter(state=State.DEAD_LETTER, ended_at__gte=now() - _DAY)


def _shown(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    return attempts.select_related("worker", "workload").defer("workload__input")[:_SHOWN]


def _alarms(
    mine: list[int],
    attempts: QuerySet[Attempt],
    stuck_ones: QuerySet[Attempt],
    dead: QuerySet[Workload],
    runs: list[SweepRun],
) -> list[Alarm]:
    alarms = _sweep_alarms(runs)
    open_ones = Incident.objects.filter(tenant_id__in=mine, closed_at__isnull=True)
    for incident in open_ones.select_related("application")[:_SHOWN]:
        alarms.append(_incident_alarm(incident))
    counted = [
        (
            capped_count(stuck_ones, _MANY),
            "attempt",
            Alarm(
                "warn",
                "hourglass_disabled",
                "without progress for 10 min",
                "They renew their lease but neither start, checkpoint nor finish.",
                list_url(Attempt, focus="stuck"),
            ),
        ),
        (
            capped_count(overdue(attempts), _MANY),
            "attempt",
            Alarm(
                "warn",
                "timer_off",
                "past lease end",
                "The next sweep gives their work back; many for long means the sweeps stand still.",
                list_url(Attempt, focus="overdue"),
            ),
        ),
        (
            capped_count(Workload.objects.filter(tenant_id__in=mine, state=State.HELD), _MANY),
            "workload",
            Alarm(
                "warn",
                "back_hand",
                "held for a person",
                "It had begun when its worker was lost. Find out what it did, then resolve it.",
                list_url(Workload, state="HELD"),
            ),
        ),
        (
            capped_count(dead, _MANY),
            "workload",
            Alarm(
                "bad",
                "report",
                "given up in 24 h",
                "Work that was given up. Look at the failure, then retry or cancel it.",
                list_url(Workload, state="DEAD_LETTER"),
            ),
        ),
        (
            capped_count(Pause.objects.filter(tenant_id__in=mine).standing(now()), _MANY),
            "pause",
            Alarm(
                "warn",
                "pause_circle",
                "in force",
                "Work is held back until somebody lifts it, or its time is over.",
                list_url(Pause, status="STANDING"),
            ),
        ),
        (
            _grants_ending(mine),
            "grant",
            Alarm(
                "warn",
                "event_busy",
                "in use and ending within 24 h",
                "Workers under an ended grant get no new work. Issue one with a higher revision.",
                list_url(Grant, status="ACTIVE"),
            ),
        ),
    ]
    alarms += [
        Alarm(each.tone, each.icon, f"{_many(count, noun)} {each.title}", each.text, each.url)
        for count, noun, each in counted
        if count
    ]
    return alarms + [each for told in _also for each in told(mine)]


def _many(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{capped_text(count, _MANY)} {noun}s"


def _sweep_alarms(runs: list[SweepRun]) -> list[Alarm]:
    if not runs:
        return [
            Alarm(
                "warn",
                "alarm_off",
                "No sweep has ever run",
                "Lost work is not recovered and nothing times out. Start the scheduler.",
                list_url(SweepRun),
            )
        ]
    late = [each.name for each in runs if sweeps.status(each) != "ON TIME"]
    if not late:
        return []
    return [
        Alarm(
            "bad",
            "alarm",
            f"{len(late)} of {len(runs)} sweeps {'is' if len(late) == 1 else 'are'} late",
            f"{', '.join(late)}. Look at the scheduler and its worker.",
            list_url(SweepRun),
        )
    ]


def _incident_alarm(incident: Incident) -> Alarm:
    return Alarm(
        "bad",
        "emergency_home",
        f"Brake incident {incident.pk} is open",
        f"Too many workers of {incident.application.name} fell silent at once. Look at it; resume"
        " if they are really gone.",
        page_url(incident),
    )


def _grants_ending(mine: list[int]) -> int:
    ending = Grant.objects.filter(
        tenant_id__in=mine,
        status="ACTIVE",
        expires_at__gt=now(),
        expires_at__lte=now() + _DAY,
        workers__removed_at__isnull=True,
        workers__isnull=False,
    )
    return capped_count(ending.values("pk").distinct(), _MANY)
