"""Filters of the lists of runs and of what belongs to them."""

from collections.abc import Callable
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest

from mesh.admin import access
from mesh.admin.filters import ConsoleFilter, Rows, choice
from mesh.models import State

from ..models import Coordinator, CoordinatorKind, Definition, OutcomeKind
from . import reading

_MAX_DEFINITIONS: Final = 200
_FOCUS: Final[dict[str, tuple[str, Callable[[Any], QuerySet[Any]]]]] = {
    "person": ("needs a person", reading.needing),
    "ambiguous": ("a step is ambiguous", reading.ambiguous),
    "never_started": ("a step never starts", reading.never_started),
    "stopped": ("cannot go on", reading.stopped),
    "barred": ("recovers after a hand-over", reading.barred),
    "left": ("its service is gone", reading.left),
    "paused": ("paused", lambda rows: rows.open().filter(user_paused__isnull=False)),
    "cancelling": ("being cancelled", lambda rows: rows.open().filter(cancelled__isnull=False)),
}

Focus = choice(
    "focus",
    "attention",
    [(key, label) for key, (label, _) in _FOCUS.items()],
    lambda rows, value: _FOCUS[value][1](rows),
)
Kind = choice("coordinator", "driven by", CoordinatorKind.choices)


class OfDefinition(ConsoleFilter):
    """The newest definitions of the person's tenants, and the one that was asked for."""

    title = "definition"
    parameter_name = "definition"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
        rows = Definition.objects.filter(tenant_id__in=access.tenant_ids(request))
        slim = rows.only("definition_id", "version").order_by("-id")
        found = list(slim[:_MAX_DEFINITIONS])
        asked = _key(request, "definition")
        if asked is not None and asked not in {each.pk for each in found}:
            found += slim.filter(pk=asked)
        return [(each.pk, f"{each.definition_id} v{each.version}") for each in found]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        value = self.value()
        return queryset if value is None else queryset.filter(definition_id=int(value))


class OfOwner(ConsoleFilter):
    """Runs whose authority one coordinator has, reached by a link from its page."""

    title = "owner"
    parameter_name = "owner"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
        asked = _key(request, "owner")
        if asked is None:
            return []
        rows = Coordinator.objects.filter(tenant_id__in=access.tenant_ids(request), pk=asked)
        return [(each.pk, each.instance_id) for each in rows]

    def has_output(self) -> bool:
        return bool(self.lookup_choices)

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        value = self.value()
        if value is None:
            return queryset
        owner = Coordinator.objects.filter(pk=int(value)).first()
        if owner is None:
            return queryset.none()
        return queryset.filter(tenant_id=owner.tenant_id, instance_id=owner.instance_id)


def _key(request: HttpRequest, parameter: str) -> int | None:
    given = request.GET.get(parameter, "")
    is_key = given.isascii() and given.isdigit() and int(given) < 2**63
    return int(given) if is_key else None


def _by_outcome(rows: Rows, value: str) -> Rows:
    if value == "ambiguous":
        return rows.filter(outcome__isnull=True, workload__state=State.HELD)
    if value == "unsettled":
        return rows.filter(outcome__isnull=True)
    return rows.filter(outcome=value)


Outcome = choice(
    "outcome",
    "outcome",
    [("ambiguous", "ambiguous"), ("unsettled", "not settled"), *OutcomeKind.choices],
    _by_outcome,
)


def _by_liveness(rows: Rows, value: str) -> Rows:
    live = [reading.ALIVE, reading.LATE]
    found = reading.with_liveness(rows)
    return found.filter(liveness__in=live if value == "alive" else reading.STOPPED)


Liveness = choice(
    "liveness", "liveness", [("alive", "alive"), ("stopped", "gone or relinquished")], _by_liveness
)
BuiltIn = choice(
    "kind",
    "kind",
    list(CoordinatorKind.choices),
    lambda rows, value: rows.filter(token__isnull=value == CoordinatorKind.BUILTIN),
)
Completeness = choice(
    "complete",
    "complete",
    [("no", "waits for another person"), ("yes", "complete")],
    lambda rows, value: rows.filter(completed_at__isnull=value == "no"),
)
