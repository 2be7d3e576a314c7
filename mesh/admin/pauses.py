"""Pauses: what is stopped for a while, by whom and why; making one and lifting it."""

from datetime import timedelta
from typing import Any, ClassVar, Final

from django import forms
from django.contrib.admin import display as column
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from .. import pauses
from ..models import Application, Pause, Role, Workload
from ..tenancy import Caller
from ..words import count
from . import access, display, filters
from .acts import Act
from .base import Maker
from .display import age, badge, now
from .forms import ApplicationChoice
from .making import MakingAdmin
from .pages import Fact, Facts, Page
from .paging import capped_count, capped_text


class PauseForm(forms.Form):
    """What to hold back, why, and for how long."""

    application = ApplicationChoice(
        queryset=Application.objects.none(), empty_label=None, widget=UnfoldAdminSelectWidget()
    )
    definition_id = forms.CharField(
        required=False,
        max_length=200,
        label="Only work of this definition",
        help_text="Left empty, all work of the application is held back.",
        widget=UnfoldAdminTextInputWidget(attrs={"spellcheck": "false"}),
    )
    reason = forms.CharField(
        max_length=500,
        help_text="Told to whoever asks why the work does not run, beside your name.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
    )
    minutes = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=527_040,
        label="For so many minutes (optional)",
        help_text="Left empty, it stands until somebody lifts it.",
        widget=UnfoldAdminIntegerFieldWidget(),
    )

    def __init__(self, request: HttpRequest, data: Any = None) -> None:
        super().__init__(data)
        tenants = access.tenants(request, Role.OPERATOR)
        field: Any = self.fields["application"]
        field.queryset = Application.objects.filter(tenant__in=tenants).select_related("tenant")


def status(pause: Pause) -> str:
    """What became of it."""
    if pause.lifted_at is not None:
        return "LIFTED"
    return "STANDING" if pause.is_standing(now()) else "OVER"


def _why_not_lift(pause: Pause) -> str:
    return "" if pause.is_standing(now()) else "It does not stand any more."


def _lift(caller: Caller, pause: Pause, data: dict[str, Any]) -> object:
    return pauses.lift(caller=caller, pause_id=pause.pause_id, reason=data["reason"])


LIFT: Final = Act(
    "lift",
    "Lift",
    "play_circle",
    "Its work may be claimed again at once; the queue timeout counts anew from now.",
    _lift,
    _why_not_lift,
)


def _of_status(rows: QuerySet[Any], value: str) -> QuerySet[Any]:
    if value == "LIFTED":
        return rows.filter(lifted_at__isnull=False)
    if value == "OVER":
        return rows.filter(lifted_at__isnull=True, until__lte=now())
    return rows.filter(Q(until__isnull=True) | Q(until__gt=now()), lifted_at__isnull=True)


class PauseAdmin(MakingAdmin):
    related = ("tenant", "application")
    ordering = ("-pk",)
    acts = (LIFT,)
    maker = Maker("pause", "Pause work", "pause_circle")
    maker_form: ClassVar[Any] = PauseForm
    maker_intro = "Work that matches is not given to workers meanwhile. What runs already goes on."
    about = "Work that is held back for a while without being cancelled."
    empty_title = "Nothing was ever paused"
    empty_text = "Pause the work of a bad release here, or with POST /api/v1/pauses."
    list_display = (
        "show_what",
        "show_status",
        "show_reason",
        "show_created",
        "show_until",
        "show_tenant",
    )
    list_filter = (
        filters.choice(
            "status",
            "status",
            [("STANDING", "Standing"), ("LIFTED", "Lifted"), ("OVER", "Over")],
            _of_status,
        ),
        filters.application(),
    )

    def may_make(self, request: HttpRequest) -> bool:
        return access.can(request, Role.OPERATOR)

    @column(description="What")
    def show_what(self, pause: Pause) -> str:
        return display.two_lines(pause.definition_id or "all work", pause.application.name)

    @column(description="Status")
    def show_status(self, pause: Pause) -> str:
        return badge(status(pause))

    @column(description="Why")
    def show_reason(self, pause: Pause) -> str:
        return display.clipped(pause.reason)

    @column(description="Paused")
    def show_created(self, pause: Pause) -> str:
        return display.two_lines(age(pause.created_at), pause.created_by)

    @column(description="Until")
    def show_until(self, pause: Pause) -> str:
        return age(pause.lifted_at or pause.until, absent="it is lifted")

    @column(description="Tenant")
    def show_tenant(self, pause: Pause) -> str:
        return pause.tenant.name

    def make(self, request: HttpRequest, data: dict[str, Any]) -> tuple[Pause, str]:
        """Pause the work as of now."""
        minutes = data["minutes"]
        pause = pauses.create(
            caller=access.acting(request, data["application"].tenant),
            application=data["application"].name,
            definition_id=data["definition_id"] or None,
            reason=data["reason"],
            until=None if minutes is None else now() + timedelta(minutes=minutes),
        )
        return pause, ""

    def page(self, request: HttpRequest, row: Pause) -> Page:
        """One pause, and how much work it keeps waiting."""
        facts = [
            Fact("Why", row.reason, is_wide=True),
            Fact("Tenant", row.tenant.name),
            Fact("Application", row.application.name),
            Fact("Definition", row.definition_id or "all of them"),
            Fact("Paused", age(row.created_at)),
            Fact("By", row.created_by),
            Fact("Until", age(row.until, absent="it is lifted")),
            Fact("Lifted", age(row.lifted_at)),
            Fact("Lifted by", row.lifted_by or display.ABSENT),
        ]
        return Page(
            title=str(row),
            public_id=row.pause_id,
            badges=[badge(status(row))],
            sentence=_about(row),
            main=[Facts("About", facts)],
        )


def _about(pause: Pause) -> str:
    if not pause.is_standing(now()):
        return "It holds nothing back any more."
    waiting = Workload.objects.filter(claimable=True, application=pause.application_id)
    if pause.definition_id:
        waiting = waiting.filter(requirement__definition_id=pause.definition_id)
    number = capped_count(waiting)
    told = count(number, "workload") if number < 10_000 else f"{capped_text(number)} workloads"
    return f"Holds back {told} that could be claimed now, and whatever comes."
