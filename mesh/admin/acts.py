"""Acts on rows: a form with a reason, then the domain function row by row, then a report.

No rule stands here. Whether an act is allowed is decided by the function it calls; a button only
foretells that answer.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django import forms
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextareaWidget,
)

from ..errors import DomainError
from ..locking import busy_error
from ..models import Role
from ..tenancy import Caller
from . import access

logger = logging.getLogger(__name__)
MAX_ROWS: Final = 500
_MAX_KEY: Final = 2**63 - 1


class ReasonForm(forms.Form):
    """Every act says why; the reason stands in the history beside the person's name."""

    reason = forms.CharField(
        max_length=500,
        label="Reason",
        help_text="Stands in the history beside your name.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "autofocus": True}),
    )


class DrainForm(ReasonForm):
    deadline_minutes = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=10_080,
        label="Deadline in minutes (optional)",
        help_text="When it passes, leases are no longer renewed and unfinished work is given away.",
        widget=UnfoldAdminIntegerFieldWidget(),
    )


@dataclass(frozen=True)
class Act:
    """One thing that a person may do to rows."""

    name: str
    label: str
    icon: str
    explain: str
    run: Callable[[Caller, Any, dict[str, Any]], object]
    # Why the domain would refuse it for this row as it stands now; empty when it would not.
    why_not: Callable[[Any], str]
    role: Role = Role.OPERATOR
    # Where a right decides and not a role: whether the person has it in that tenant, or in any.
    right: Callable[[HttpRequest, int | None], bool] | None = None
    is_dangerous: bool = False
    form: type[ReasonForm] = ReasonForm
    # What else it will reach, said before it is done.
    effect: Callable[[Sequence[Any]], str] | None = None
    # What the form begins with: the row as it is. Such an act takes one row at a time.
    initial: Callable[[Any], dict[str, Any]] | None = None

    def is_allowed(self, request: HttpRequest, tenant_id: int | None = None) -> bool:
        """Whether the person may do it in that tenant, or in any when none is named."""
        allowed = self.right or (lambda asked, of: access.can(asked, self.role, of))
        return allowed(request, tenant_id)

    @property
    def needs(self) -> str:
        """Why somebody may not do it."""
        if self.right:
            return "Needs the role admin or a permission of its own."
        return f"Needs the role {self.role.value}."

    @property
    def most(self) -> int:
        """How many rows one run takes."""
        return 1 if self.initial else MAX_ROWS


@dataclass(frozen=True)
class Outcome:
    """What became of one row."""

    title: str
    row: Any
    code: str = ""
    detail: str = ""
    # What the domain function answered, where it was done.
    made: object = None

    @property
    def is_done(self) -> bool:
        return not self.code


@dataclass
class Report:
    """What became of all of them, in the order in which they were meant."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def done(self) -> int:
        return sum(each.is_done for each in self.outcomes)

    @property
    def refused(self) -> int:
        return len(self.outcomes) - self.done

    def __str__(self) -> str:
        codes = ", ".join(sorted({each.code for each in self.outcomes if each.code}))
        refused = f"{self.refused} refused: {codes}" if self.refused else "0 refused"
        return f"{self.done} done, {refused}"


def keys(values: Sequence[str]) -> list[int]:
    """The row keys among what a browser sent, each once, in their order."""
    numbers = (int(each) for each in values if each.isascii() and each.isdigit())
    return list(dict.fromkeys(each for each in numbers if each <= _MAX_KEY))


def run(
    request: HttpRequest,
    act: Act,
    wanted: Sequence[int],
    rows: dict[int, Any],
    data: dict[str, Any],
) -> Report:
    """Do the act to each wanted row by itself; `rows` are those that the person may see."""
    report = Report()
    for key in wanted:
        row = rows.get(key)
        if row is None:
            report.outcomes.append(
                Outcome(f"#{key}", None, "NOT_FOUND", "There is no such row (any more).")
            )
            continue
        report.outcomes.append(_run_one(request, act, row, data))
    return report


def _run_one(request: HttpRequest, act: Act, row: Any, data: dict[str, Any]) -> Outcome:
    title = str(row)
    try:
        made = act.run(access.acting(request, row.tenant), row, data)
    except DomainError as refusal:
        return Outcome(title, row, refusal.code, refusal.detail)
    except (OperationalError, InterfaceError) as trouble:
        refusal_by_store = busy_error(trouble)
        if refusal_by_store is None:
            raise
        return Outcome(title, row, refusal_by_store.code, refusal_by_store.detail)
    except Exception:
        # The rows before this one are done; the person must learn which.
        logger.exception("console act %s failed", act.name)
        return Outcome(title, row, "INTERNAL_ERROR", "This failed inside the server; see its log.")
    return Outcome(title, row, made=made)
