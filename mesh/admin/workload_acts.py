"""What a person may do to work: cancel, retry, reclaim, resolve; with the forms that ask for it."""

import json
import math
from typing import Any, Final

from django import forms
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldBooleanWidget,
)

from .. import resolutions, workloads
from ..models import WORKLOAD_MOVES, Resolution, State, Workload
from ..tenancy import Caller
from .acts import Act, ReasonForm

_MAX_OUTPUT: Final = 1024 * 1024
_MAX_DEPTH: Final = 64


class RetryForm(ReasonForm):
    extra_attempts = forms.IntegerField(
        min_value=1,
        max_value=100,
        initial=1,
        label="Extra attempts",
        help_text="Added to the attempts that the work may still make.",
        widget=UnfoldAdminIntegerFieldWidget(),
    )
    dependents = forms.BooleanField(
        required=False,
        label="What waited for it too",
        help_text="Also brings back the dead letters that its end buried; they wait for it again.",
        widget=UnfoldBooleanWidget(),
    )


class ResolveForm(ReasonForm):
    resolution = forms.ChoiceField(
        choices=Resolution.choices,
        label="What became of it",
        help_text="Look outside first: at what the work was to change, and at its worker's logs.",
        widget=UnfoldAdminSelectWidget(),
    )
    output = forms.CharField(
        required=False,
        max_length=_MAX_OUTPUT,
        label="Output as JSON (optional)",
        help_text="Only where it succeeded: stored as its result, under your name.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4, "spellcheck": "false"}),
    )
    field_order = ("resolution", "output", "reason")

    def clean_output(self) -> Any:
        text: str = self.cleaned_data["output"]
        if not text.strip():
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise forms.ValidationError("This is not JSON.") from None
        if not _is_plain(value):
            raise forms.ValidationError("This is nested too deep, or holds what cannot be stored.")
        return value


def _is_plain(value: Any, depth: int = 0) -> bool:
    """What the API takes too: no NUL, no half of a pair, no number beyond what is kept."""
    if isinstance(value, str):
        return "\x00" not in value and not any("\ud800" <= each <= "\udfff" for each in value)
    if isinstance(value, dict | list):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        return depth < _MAX_DEPTH and all(_is_plain(each, depth + 1) for each in inner)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or -(2**63) <= value < 2**63


def _why_not_cancel(workload: Workload) -> str:
    if workload.state == State.CANCELLATION_REQUESTED:
        return "Its cancel was requested already."
    if workload.state == State.HELD:
        return "It is held: resolve it."
    to = WORKLOAD_MOVES[workload.state]
    is_legal = bool({State.CANCELLED, State.CANCELLATION_REQUESTED} & to)
    return "" if is_legal else f"Work that is {workload.state} cannot be cancelled."


def _why_not_retry(workload: Workload) -> str:
    if workload.state != State.DEAD_LETTER:
        return "Only a dead letter can be retried."
    return "Its run has settled this attempt." if workload.sealed else ""


def _why_not_reclaim(workload: Workload) -> str:
    return "" if workload.is_claimed else "No worker has it."


def _why_not_resolve(workload: Workload) -> str:
    if workload.state != State.HELD:
        return "Only held work is resolved."
    return "Its run has settled this attempt." if workload.sealed else ""


def _cancel(caller: Caller, workload: Workload, data: dict[str, Any]) -> object:
    return workloads.cancel(caller=caller, workload_id=workload.workload_id, reason=data["reason"])


def _retry(caller: Caller, workload: Workload, data: dict[str, Any]) -> object:
    return workloads.retry(
        caller=caller,
        workload_id=workload.workload_id,
        extra_attempts=data["extra_attempts"],
        dependents=data["dependents"],
        reason=data["reason"],
    )


def _reclaim(caller: Caller, workload: Workload, data: dict[str, Any]) -> object:
    return resolutions.reclaim(
        caller=caller, workload_id=workload.workload_id, reason=data["reason"]
    )


def _resolve(caller: Caller, workload: Workload, data: dict[str, Any]) -> object:
    return resolutions.resolve(
        caller=caller,
        workload_id=workload.workload_id,
        resolution=data["resolution"],
        output=data["output"],
        reason=data["reason"],
    )


ACTS: Final = (
    Act(
        "cancel",
        "Cancel",
        "block",
        "Work that nobody holds ends at once. Otherwise its worker is told to stop and confirms.",
        _cancel,
        _why_not_cancel,
        is_dangerous=True,
    ),
    Act(
        "retry",
        "Retry",
        "replay",
        "A dead letter waits for a worker again at once, with attempts added to its budget.",
        _retry,
        _why_not_retry,
        form=RetryForm,
    ),
    Act(
        "resolve",
        "Resolve",
        "gavel",
        "Held work waits for somebody who knows what it did. What you say here is final: a report"
        " that its worker still sends is kept as evidence and changes nothing.",
        _resolve,
        _why_not_resolve,
        form=ResolveForm,
    ),
    Act(
        "reclaim",
        "Reclaim",
        "undo",
        "Takes the work from its worker at once, as lost, without waiting for the lease. The worker"
        " may still be at it: do this where you know that it is not.",
        _reclaim,
        _why_not_reclaim,
        is_dangerous=True,
    ),
)
