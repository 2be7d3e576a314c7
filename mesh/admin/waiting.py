"""Why is it not running? The panel on the page of a workload, and the placements asked for."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString

from .. import explain
from ..clauses import FAILED
from ..explain import Explanation
from ..models import Decision, State, Worker, Workload
from ..queues import MAX_AHEAD
from ..survey import Candidate, Survey
from ..words import count, number
from . import display
from .display import age, badge, chips, page_of, state_badge, two_lines
from .pages import Fact, Facts, Table

_CANDIDATES: Final = 12
_WAITS: Final = 20
_DECISIONS: Final = 10


def panel(row: Workload) -> list[Any]:
    """The answer for work that waits, and who was looked at; nothing for other work."""
    if row.state != State.READY:
        return []
    found = explain.about(row)
    facts = Facts("Why is it not running?", _facts(found), lead=found.sentence)
    return [facts, _candidates(found.survey)] if found.survey else [facts]


def decisions(row: Workload) -> list[Any]:
    """Placements that were asked for; nothing where there were none."""
    rows = Decision.objects.filter(workload=row).select_related("chosen")
    found = list(rows[: _DECISIONS + 1])
    if not found:
        return []
    return [
        Table(
            "Placements asked for",
            ["When", "Outcome", "Why not, and what the nearest lacked"],
            [
                [
                    two_lines(age(each.at), each.actor),
                    _outcome(each),
                    display.wrapped(
                        display.lines(
                            [
                                f"{count(each.considered, 'worker')} looked at",
                                _by_reason(each.counts),
                                *(each.nearest or {}).get("lacks", []),
                            ]
                        )
                    ),
                ]
                for each in found[:_DECISIONS]
            ],
            "None.",
            note=f"The newest {_DECISIONS} of more." if len(found) > _DECISIONS else "",
        )
    ]


def _facts(found: Explanation) -> list[Fact]:
    survey = found.survey
    told: list[tuple[str, object, bool]] = [
        ("It is", _state(found), False),
        ("Due", age(found.available_at) if found.available_at else None, False),
        ("Place in its queue", _position(found), False),
        ("Pace", _pace(found), False),
        ("May take it", _shares(survey) if survey else None, False),
        ("Paused by", _pauses(found), True),
        ("Waits for", _waits(found.dependencies), True),
        ("Why not", _by_reason(survey.counts) if survey and survey.counts else None, True),
    ]
    if survey and survey.nearest:
        nearest = survey.nearest
        who = page_of(Worker.objects.get(worker_id=nearest.worker_id), nearest.name)
        told.append(("Nearest worker", who, False))
        told.append(("It lacks", display.lines(nearest.lacks), True))
    return [Fact(label, value, is_wide=is_wide) for label, value, is_wide in told if value]


def _state(found: Explanation) -> SafeString:
    """Work that a person paused is told apart from work of the state HELD."""
    return badge("HELD", "PAUSED") if found.pauses else badge(found.state.upper())


def _position(found: Explanation) -> str | None:
    if found.position is None:
        return None
    is_far = found.position > MAX_AHEAD
    return f"{number(found.position - 1)} or more before it" if is_far else number(found.position)


def _pace(found: Explanation) -> str | None:
    if found.rate_per_minute is None:
        return None
    return f"{found.rate_per_minute:g} of its kind claimed a minute"


def _shares(survey: Survey) -> str:
    return f"{number(survey.eligible)} of {number(survey.considered)} workers"


def _pauses(found: Explanation) -> object:
    told = [
        format_html("{} {}", page_of(each, each.pause_id), f"by {each.created_by}: {each.reason}")
        for each in found.pauses[:_WAITS]
    ]
    return display.lines(told) if told else None


def _waits(found: Sequence[Workload]) -> object:
    told: list[object] = [
        format_html("{} {}", page_of(each, each.definition_id), state_badge(each.state))
        for each in found[:_WAITS]
    ]
    if len(found) > _WAITS:
        told.append(f"and {len(found) - _WAITS} more")
    return display.lines(told) if told else None


def _by_reason(counts: dict[str, int] | Any) -> object:
    return chips(
        (f"{number(n)} {FAILED.get(reason, reason)}" for reason, n in counts.items()), empty="–"
    )


def _candidates(survey: Survey) -> Table:
    shown = survey.candidates[:_CANDIDATES]
    rows = {each.worker_id: each for each in _workers(shown)}
    rest = survey.considered - len(shown)
    return Table(
        "Who could take it",
        ["Worker", "Why not", "Slots taken", "Last asked for work"],
        [
            [
                two_lines(page_of(row, row.name), badge(row.lifecycle)),
                badge("ELIGIBLE", "may take it") if each.eligible else chips(_said(each.reasons)),
                f"{row.active} of {row.concurrency}",
                age(row.last_poll_at, absent="never"),
            ]
            for each in shown
            if (row := rows.get(each.worker_id)) is not None
        ],
        "The application has no workers: register one.",
        note=f"Those that fail the fewest tests come first; {number(rest)} more."
        if rest > 0
        else "",
    )


def _workers(candidates: Iterable[Candidate]) -> Iterable[Worker]:
    names = [each.worker_id for each in candidates]
    return Worker.objects.filter(worker_id__in=names)


def _said(reasons: Iterable[str]) -> list[str]:
    return [FAILED.get(each, each) for each in reasons]


def _outcome(decision: Decision) -> object:
    if decision.chosen is not None:
        return two_lines(badge("ELIGIBLE", "placed"), page_of(decision.chosen))
    return two_lines(badge("UNFIT", "refused"), display.mono(decision.code))
