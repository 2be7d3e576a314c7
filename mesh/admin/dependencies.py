"""What work waits for, and what waits for it, on its page."""

from typing import Final

from ..models import Dependency, RequiredState, Workload
from . import display
from .display import badge, page_of, state_badge
from .pages import Table

_SHOWN: Final = 30
_NAMED: Final = ("workload_id", "definition_id", "state")


def ties(row: Workload) -> list[Table]:
    """Both as tables; none where there are none."""
    named = Dependency.objects.only(
        "is_open",
        "required_state",
        *(f"{side}__{name}" for side in ("workload", "depends_on") for name in _NAMED),
    )
    before = named.filter(workload=row).select_related("depends_on").order_by("depends_on_id")
    after = named.filter(depends_on=row).select_related("workload").order_by("workload_id")
    return [
        *_table("Waits for", [(each, each.depends_on) for each in before[: _SHOWN + 1]]),
        *_table("Waited for by", [(each, each.workload) for each in after[: _SHOWN + 1]]),
    ]


def _table(title: str, found: list[tuple[Dependency, Workload]]) -> list[Table]:
    if not found:
        return []
    table = Table(
        title,
        ["Work", "State", "Needed", "Stands"],
        [
            [
                page_of(other, display.named(other.definition_id, other.workload_id)),
                state_badge(other.state),
                "any end" if tie.required_state == RequiredState.ANY_END else "success",
                badge("OPEN" if tie.is_open else "CLOSED", "open" if tie.is_open else "closed"),
            ]
            for tie, other in found[:_SHOWN]
        ],
        "",
        note=f"The first {_SHOWN} of more." if len(found) > _SHOWN else "",
    )
    return [table]
