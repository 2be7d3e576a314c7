"""The brake: most workers of an application do not die in one moment; more likely we went deaf.

If one pass would take more than half of an application's live workers offline (and it has at least
five), or the sweep itself was away, it takes none: an incident records who fell silent, and the
leases of these workers that are not over are moved once. When the incident's hold is over, or an
operator resumes, those of its list that are still silent are taken, whatever others do; so the
brake always lets go. An incident is closed once every worker of its list was judged: one that
another call holds at that moment is judged by a later pass. Workers that drain themselves are
never counted and never held.

Locks: resume changes the incident alone; then, apart, each worker.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import transaction
from django.db.models import (
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    QuerySet,
    Value,
)

from . import clock, history, leases, liveness, locking
from .errors import DomainError
from .models import Application, DrainCause, Incident, Lifecycle, Role, Worker, not_pushed_back
from .tenancy import Caller

SWEEP: Final = "detect_silent_workers"
_ACTOR: Final = f"system:{SWEEP}"
_PAGE: Final = 500
# How many workers an operator's resume takes itself; the next pass goes on with the others.
_AT_ONCE: Final = 200
_MAX_REASON: Final = 4_000
_DRAINS_ITSELF: Final = Q(lifecycle=Lifecycle.DRAINING, drain_cause=DrainCause.WORKER)


@dataclass(slots=True)
class Silent:
    """The silent workers of one application, by key: those that drain themselves, and the rest."""

    leaving: list[int] = field(default_factory=list)
    fallen: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Taken:
    """What became of the list of an incident."""

    worker_ids: list[str] = field(default_factory=list)
    heard_again: int = 0


def silent_by_application(at: datetime) -> dict[int, Silent]:
    """Silent workers that no open incident holds, by the key of their application."""
    held = Incident.objects.filter(closed_at__isnull=True, workers=OuterRef("pk"))
    suspects = (
        _silent(_living(), at).filter(not_pushed_back(at)).exclude(Exists(held)).order_by("pk")
    )
    found: dict[int, Silent] = {}
    columns = ("application_id", "pk", "lifecycle", "drain_cause")
    for application_pk, pk, lifecycle, cause in suspects.values_list(*columns):
        silent = found.setdefault(application_pk, Silent())
        drains_itself = (lifecycle, cause) == (Lifecycle.DRAINING, DrainCause.WORKER)
        (silent.leaving if drains_itself else silent.fallen).append(pk)
    return found


def admit(
    application_pk: int, silent: Silent, at: datetime, *, sweep_is_late: bool
) -> tuple[list[int], int]:
    """Keys of those that may be taken offline now, and for how many an incident was opened."""
    living = _living().filter(application_id=application_pk).exclude(_DRAINS_ITSELF).count()
    is_many = (
        living >= settings.BRAKE_MIN_WORKERS
        and len(silent.fallen) > living * settings.BRAKE_FRACTION
    )
    if silent.fallen and (is_many or sweep_is_late):
        reason = "too_many_silent" if is_many else "sweep_was_away"
        _open(application_pk, silent.fallen, reason, at)
        return silent.leaving, len(silent.fallen)
    return sorted([*silent.leaving, *silent.fallen]), 0


def due(at: datetime) -> list[Incident]:
    """Open incidents whose hold is over, or was ended by an operator."""
    hold = timedelta(milliseconds=settings.BRAKE_HOLD_MS)
    is_over = Q(opened_at__lte=at - hold) | Q(resumed_at__isnull=False)
    return list(Incident.objects.filter(is_over, closed_at__isnull=True).order_by("pk"))


def let_go(
    incident: Incident,
    guard: Callable[[int], AbstractContextManager[None]],
    *,
    actor: str = _ACTOR,
    most: int | None = None,
) -> Taken:
    """Take the workers of an incident that are still silent, each in its own transaction.

    `guard` is entered with the key of each and decides what an error does to the others. The
    incident is closed once nobody of its list is still silent; until then the next pass goes on.
    """
    taken = Taken()
    at = clock.now()
    ripe = _still_silent(incident, at).filter(not_pushed_back(at)).order_by("pk")
    for pk in list(ripe.values_list("pk", flat=True)[:most]):
        with guard(pk):
            worker = liveness.silence(worker_pk=pk, actor=actor)
            if worker is None:
                taken.heard_again += 1
            else:
                taken.worker_ids.append(worker.worker_id)
    if not _still_silent(incident, at).exists():
        still_open = Incident.objects.filter(pk=incident.pk, closed_at__isnull=True)
        still_open.update(closed_at=clock.now())
    return taken


@history.audited("incident.resumed", on="incident_id", writes=False)
def resume(*, caller: Caller, incident_id: str, reason: str) -> Incident:
    """End the hold of an incident: the workers of its list that are still silent go OFFLINE now.

    Up to 200 of them are taken before this returns, by the function that the sweep uses; the next
    pass goes on with the others and with any that another call holds. Needs the role operator and
    a reason. Refuses in this order: PERMISSION_DENIED; REQUEST_INVALID (reason blank or over
    4 000 characters); INCIDENT_NOT_FOUND. A repeat, and a resume of an incident that is closed,
    changes nothing: the first time, person and reason stay.
    """
    caller.require(Role.OPERATOR)
    if not reason.strip() or len(reason) > _MAX_REASON:
        raise DomainError("REQUEST_INVALID", "A resume needs a reason.", fields=["reason"])
    incident = Incident.objects.visible_to(caller).filter(pk=_pk_of(incident_id)).first()
    if incident is None:
        raise DomainError("INCIDENT_NOT_FOUND", "There is no such incident.")
    if _mark_resumed(incident, caller, reason):
        # The hold is over by now: a locked worker must not make that look refused.
        let_go(incident, lambda _: locking.unless_busy(), actor=caller.subject, most=_AT_ONCE)
    incident.refresh_from_db()
    return incident


def _mark_resumed(incident: Incident, caller: Caller, reason: str) -> bool:
    """Whether this very call ended the hold."""
    with transaction.atomic():
        at = clock.now()
        still_holding = Incident.objects.filter(
            pk=incident.pk, closed_at__isnull=True, resumed_at__isnull=True
        )
        marked = still_holding.update(
            resumed_at=at, resumed_by=caller.subject, resume_reason=reason
        )
        if marked:
            history.audit(
                tenant_id=incident.tenant_id,
                actor=caller.subject,
                action="incident.resumed",
                target=incident.incident_id,
                reason=reason,
                at=at,
            )
    return bool(marked)


def _pk_of(incident_id: str) -> int:
    prefix, _, digits = incident_id.partition("_")
    is_one = prefix == "incident" and digits.isascii() and digits.isdigit() and len(digits) < 19
    return int(digits) if is_one else 0


def _open(application_pk: int, fallen: list[int], reason: str, at: datetime) -> None:
    # Leases first: who is held by an incident is not looked at again, so a crash between the two
    # would leave leases behind that nobody moves.
    for start in range(0, len(fallen), _PAGE):
        leases.move_ends(fallen[start : start + _PAGE])
    with transaction.atomic():
        application = Application.objects.get(pk=application_pk)
        incident = Incident.objects.create(
            tenant_id=application.tenant_id,
            application=application,
            sweep=SWEEP,
            reason=reason,
            opened_at=at,
        )
        incident.workers.set(fallen)


def _living() -> QuerySet[Worker]:
    return Worker.objects.filter(removed_at__isnull=True).exclude(lifecycle=Lifecycle.OFFLINE)


def _silent(rows: QuerySet[Worker], at: datetime) -> QuerySet[Worker]:
    """Those of them that are silent at `at`, as `Worker.is_silent` says of one."""
    timeout = ExpressionWrapper(
        F("heartbeat_timeout_ms") * Value(timedelta(milliseconds=1)), output_field=DurationField()
    )
    since = Value(at) - timeout
    is_asked_back = Q(lifecycle=Lifecycle.RECOVERING, recovering_since__gt=since)
    return rows.filter(last_seen_at__lte=since).exclude(is_asked_back)


def _still_silent(incident: Incident, at: datetime) -> QuerySet[Worker]:
    return _silent(_living(), at).filter(incidents=incident)
