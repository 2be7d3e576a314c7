"""Filters of the lists: plain choices in one form, so that they work without JavaScript."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from django.contrib.admin import SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest

from ..models import Application
from . import access
from .display import now

Rows = QuerySet[Any]
_MAX_APPLICATIONS: Final = 200
WINDOWS: Final = {"1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days"}
_LENGTHS: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
# How many of the newest rows of a big table a list without another filter looks through.
RECENT: Final = 50_000


class ConsoleFilter(SimpleListFilter):
    """One `<select>`; a value that is none of its choices counts as not given."""

    # What the empty choice says; it may stand for a default and not for "all".
    all_label = "any"

    def has_output(self) -> bool:
        return True

    def value(self) -> str | None:
        given = super().value()
        known = {str(key) for key, _ in self.lookup_choices}
        return given if given in known else None

    def options(self) -> list[dict[str, Any]]:
        """For the template: the empty choice first."""
        listed = [("", self.all_label), *((str(key), label) for key, label in self.lookup_choices)]
        chosen = self.value() or ""
        return [{"value": v, "label": label, "chosen": v == chosen} for v, label in listed]


def choice(
    parameter: str,
    title_: str,
    choices: list[tuple[str, str]],
    apply: Callable[[Rows, str], Rows] | None = None,
    *,
    default: Callable[[Rows], Rows] | None = None,
    all_text: str = "any",
) -> type[ConsoleFilter]:
    """A filter of fixed choices; `apply` narrows by a choice, `default` when none was made."""

    class Chosen(ConsoleFilter):
        title = title_
        parameter_name = parameter
        all_label = all_text

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return choices

        def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
            value = self.value()
            if value is None:
                return default(queryset) if default else queryset
            return apply(queryset, value) if apply else queryset.filter(**{parameter: value})

    return Chosen


def application(path: str = "application") -> type[ConsoleFilter]:
    """The person's applications, with the tenant's name where they belong to several."""

    class OfApplication(ConsoleFilter):
        title = "application"
        parameter_name = "application"

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
            mine = access.callers(request)
            found = Application.objects.filter(tenant_id__in=list(mine))[:_MAX_APPLICATIONS]
            if len(mine) == 1:
                return [(each.pk, each.name) for each in found]
            return [(each.pk, f"{mine[each.tenant_id].tenant} / {each.name}") for each in found]

        def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
            value = self.value()
            return queryset if value is None else queryset.filter(**{f"{path}_id": int(value)})

    return OfApplication


def of_row(parameter: str, title_: str, path: str) -> type[ConsoleFilter]:
    """Rows that belong to one other row, reached by a link from that one's page."""

    class OfRow(ConsoleFilter):
        title = title_
        parameter_name = parameter

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
            given = request.GET.get(parameter, "")
            is_key = given.isascii() and given.isdigit() and int(given) < 2**63
            return [(given, f"no. {given}")] if is_key else []

        def has_output(self) -> bool:
            return bool(self.lookup_choices)

        def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
            value = self.value()
            return queryset if value is None else queryset.filter(**{f"{path}_id": int(value)})

    return OfRow


def newest(rows: Rows, *unless: bool) -> Rows:
    """Only the newest rows of a big table, unless another filter reads an index of its own."""
    if any(unless):
        return rows
    last = rows.model._default_manager.order_by("-pk").values_list("pk", flat=True).first() or 0
    return rows.filter(pk__gt=last - RECENT)


def window(field: str, title_: str, *, default: str | None = None) -> type[ConsoleFilter]:
    """A time window on `field`; with a `default`, "all" is a choice of its own."""
    choices = [(key, label) for key, label in WINDOWS.items() if key != default]

    def apply(rows: Rows, value: str) -> Rows:
        return rows if value == "all" else rows.filter(**{f"{field}__gte": now() - _LENGTHS[value]})

    if default is None:
        return choice("window", title_, choices, apply, all_text="any time")
    return choice(
        "window",
        title_,
        [*choices, ("all", "any time")],
        apply,
        default=lambda rows: apply(rows, default),
        all_text=WINDOWS[default],
    )
