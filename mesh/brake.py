"""The brake: most workers of an application do not die in one moment; more likely we went deaf.

If one pass would take more than half of an application's live workers offline (and it has at least
five), or the sweep itself was away, it takes none: an incident records who fell silent, and the
leases of these workers that are not over are moved once. When the incident's hold is over, those
of its list that are still silent are taken, whatever others do; so the brake always lets go.
Workers that drain themselves are never counted and never held.
"""

from collections.abc import Sequence
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

from . import clock, leases
from .models import Application, DrainCause, Incident, Lifecycle, Worker

SWEEP: Final = "detect_silent_workers"
_PAGE: Final = 500
_DRAINS_ITSELF: Final = Q(lifecycle=Lifecycle.DRAINING, drain_cause=DrainCause.WORKER)


def silent_by_application(at: datetime) -> dict[int, list[Worker]]:
    """Silent workers that no open incident holds, by the key of their application."""
    timeout = ExpressionWrapper(
        F("heartbeat_timeout_ms") * Value(timedelta(milliseconds=1)), output_field=DurationField()
    )
    held = Incident.objects.filter(closed_at__isnull=True, workers=OuterRef("pk"))
    suspects = (
        _living()
        .filter(last_seen_at__lte=Value(at) - timeout)
        .filter(Q(sweep_after__isnull=True) | Q(sweep_after__lte=at))
        .exclude(Exists(held))
        .order_by("pk")
    )
    found: dict[int, list[Worker]] = {}
    for worker in suspects:
        if worker.is_silent(at):
            found.setdefault(worker.application_id, []).append(worker)
    return found


def admit(
    application_pk: int, silent: Sequence[Worker], at: datetime, *, sweep_is_late: bool
) -> list[int]:
    """Keys of those that may be taken offline now; for the others an incident is opened."""
    leaving = [each for each in silent if _drains_itself(each)]
    fallen = [each for each in silent if not _drains_itself(each)]
    living = _living().filter(application_id=application_pk).exclude(_DRAINS_ITSELF).count()
    is_many = (
        living >= settings.BRAKE_MIN_WORKERS and len(fallen) > living * settings.BRAKE_FRACTION
    )
    if fallen and (is_many or sweep_is_late):
        reason = "too_many_silent" if is_many else "sweep_was_away"
        _open(application_pk, fallen, reason, at)
        return [each.pk for each in leaving]
    return [each.pk for each in silent]


def due(at: datetime) -> list[Incident]:
    """Open incidents whose hold is over."""
    hold = timedelta(milliseconds=settings.BRAKE_HOLD_MS)
    return list(
        Incident.objects.filter(closed_at__isnull=True, opened_at__lte=at - hold).order_by("pk")
    )


def close(incident: Incident) -> None:
    """The incident holds nobody any more; a repeat keeps the first time."""
    Incident.objects.filter(pk=incident.pk, closed_at__isnull=True).update(closed_at=clock.now())


def _open(application_pk: int, fallen: Sequence[Worker], reason: str, at: datetime) -> None:
    pks = sorted(each.pk for each in fallen)
    # Leases first: who is held by an incident is not looked at again, so a crash between the two
    # would leave leases behind that nobody moves.
    for start in range(0, len(pks), _PAGE):
        leases.move_ends(pks[start : start + _PAGE])
    with transaction.atomic():
        application = Application.objects.get(pk=application_pk)
        incident = Incident.objects.create(
            tenant_id=application.tenant_id,
            application=application,
            sweep=SWEEP,
            reason=reason,
            opened_at=at,
        )
        incident.workers.set(pks)


def _living() -> QuerySet[Worker]:
    return Worker.objects.filter(removed_at__isnull=True).exclude(lifecycle=Lifecycle.OFFLINE)


def _drains_itself(worker: Worker) -> bool:
    return (worker.lifecycle, worker.drain_cause) == (Lifecycle.DRAINING, DrainCause.WORKER)
