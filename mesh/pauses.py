"""Pauses: what a person stops for a while without cancelling it, like the work of a bad release.

While a pause stands, matching work of its application is not claimable: all of it, or that of one
definition. Work that a worker holds already goes on. No row of work is touched, for there may be a
million; claims, placements and deadlines look a pause up. So lifting it, or its `until`, frees the
work at once. Rows are kept as a record.

Locks: the pause row when it is lifted.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Max, Q
from django.db.models.functions import Least

from . import clock, history
from .errors import DomainError
from .models import Pause, Requirement, Role
from .tenancy import Caller, get_application

# Every claim looks at those that stand.
MAX_STANDING: Final = 256
MAX_REASON: Final = 4_000
_MAX_DEFINITION: Final = 200
_MAX_AHEAD: Final = timedelta(days=3_650)


@history.audited("pause.created", on="application", writes=False)
def create(
    *,
    caller: Caller,
    application: str,
    reason: str,
    definition_id: str | None = None,
    until: datetime | None = None,
) -> Pause:
    """Hold back the work of one definition, or all work of the application, until it is lifted.

    With `until` it ends by itself at that moment. Refuses in this order: PERMISSION_DENIED;
    APPLICATION_NOT_FOUND; REQUEST_INVALID (a blank or too long reason or definition, `until` that
    has passed or is more than ten years away); LIMIT_EXCEEDED while `MAX_STANDING` stand in the
    application (which may be overshot by calls at the same time). A repeat makes another one.
    """
    caller.require(Role.OPERATOR)
    found = get_application(caller, application)
    with transaction.atomic():
        at = clock.now()
        _require_values(reason, definition_id, until, at)
        if found.pauses.standing(at).count() >= MAX_STANDING:
            raise DomainError(
                "LIMIT_EXCEEDED",
                f"{MAX_STANDING} pauses stand in the application; lift some first.",
                retry_after_ms=60_000,
            )
        pause = Pause.objects.create(
            tenant_id=caller.tenant_id,
            application=found,
            definition_id=definition_id or "",
            reason=reason,
            until=until,
            created_at=at,
            created_by=caller.subject,
        )
        _audit(pause, "pause.created", caller, at, reason)
    return pause


@history.audited("pause.lifted", on="pause_id", writes=False)
def lift(*, caller: Caller, pause_id: str, reason: str = "") -> Pause:
    """End a pause now. One that is over is gone: PAUSE_NOT_FOUND, and so is a repeat."""
    caller.require(Role.OPERATOR)
    with transaction.atomic():
        locked = Pause.objects.visible_to(caller).select_for_update(of=("self",), no_key=True)
        pause = locked.select_related("application").filter(pk=key_of(pause_id)).first()
        at = clock.now()
        if pause is None or not pause.is_standing(at):
            raise not_found()
        pause.lifted_at = at
        pause.lifted_by = caller.subject
        pause.save(update_fields=["lifted_at", "lifted_by"])
        _audit(pause, "pause.lifted", caller, at, reason)
    return pause


def standing(application_pk: int, at: datetime) -> list[Pause]:
    """The pauses of an application that hold work back at `at`, the oldest first."""
    found = Pause.objects.filter(application_id=application_pk).standing(at)
    return list(found.order_by("pk"))


def matching(requirement: Requirement, at: datetime) -> list[Pause]:
    """The pauses that hold work of this requirement back at `at`, the oldest first."""
    return matches(standing(requirement.application_id, at), requirement.definition_id)


def matches(pauses: Iterable[Pause], definition_id: str) -> list[Pause]:
    """Those of an application's pauses that are about work of this definition."""
    return [each for each in pauses if each.definition_id in {"", definition_id}]


def last_end(application_pk: int, definition_id: str, at: datetime) -> datetime | None:
    """When work of this definition was last let go: `at` itself while a pause stands.

    None if no pause ever matched it. Where waiting time counts from, if that is later.
    """
    own = Pause.objects.filter(
        Q(definition_id="") | Q(definition_id=definition_id), application_id=application_pk
    )
    if own.standing(at).exists():
        return at
    # The one of the two that is not null is the least.
    ended: datetime | None = own.aggregate(end=Max(Least("lifted_at", "until")))["end"]
    return ended


def key_of(pause_id: str) -> int:
    """The key in a public id; 0, which no row has, where it is none."""
    number = pause_id.removeprefix("pause_")
    is_key = pause_id != number and number.isascii() and number.isdigit() and len(number) < 19
    return int(number) if is_key else 0


def not_found() -> DomainError:
    return DomainError("PAUSE_NOT_FOUND", "No such pause stands.")


def _require_values(
    reason: str, definition_id: str | None, until: datetime | None, at: datetime
) -> None:
    rules = {
        "reason": bool(reason.strip()) and len(reason) <= MAX_REASON,
        "definition_id": definition_id is None
        or (bool(definition_id.strip()) and len(definition_id) <= _MAX_DEFINITION),
        "until": until is None or at < until <= at + _MAX_AHEAD,
    }
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise DomainError("REQUEST_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken)


def _audit(pause: Pause, action: str, caller: Caller, at: datetime, reason: str) -> None:
    history.audit(
        tenant_id=pause.tenant_id,
        actor=caller.subject,
        action=action,
        target=pause.pause_id,
        at=at,
        reason=reason,
        evidence={
            "application": pause.application.name,
            "definition_id": pause.definition_id or None,
            "until": pause.until and pause.until.isoformat(),
        },
    )
