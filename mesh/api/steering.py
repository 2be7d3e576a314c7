"""Pauses, live answers and decisions as they are sent: their shapes, and what fills them.

What need not be there is left out where it does not apply.
"""

from collections.abc import Iterable
from typing import Any

from ..explain import Explanation
from ..lacking import Nearest as NearestWorker
from ..models import Decision as DecisionRow
from ..models import Pause as PauseRow
from ..models import State
from ..survey import Candidate as CandidateWorker
from .fields import Flag, Integer, Number, Object, Text, TextList, Time, Word
from .shapes import Shape, page_of

STATES = ("queued", "delayed", "blocked", "unplaceable", "held", "not_ready")


class Pause(Shape):
    pause_id = Text()
    application = Text()
    definition_id = Text(allow_null=True, help_text="Null: all work of the application.")
    reason = Text()
    until = Time(allow_null=True)
    created_at = Time()
    by = Text()


class OpenDependency(Shape):
    workload_id = Text()
    state = Word(choices=State.choices)


class Candidate(Shape):
    worker_id = Text()
    eligible = Flag()
    reasons = TextList(help_text="The tests that it failed, in their order.")


class Nearest(Shape):
    worker_id = Text()
    lacks = TextList(help_text="What exactly it lacks, for people.")


class Placement(Shape):
    state = Word(choices=STATES)
    sentence = Text(help_text="For people; its wording may change.")
    available_at = Time(required=False, help_text="While it is not due.")
    dependencies = OpenDependency(
        many=True, required=False, help_text="The work that it waits for, at most 256."
    )
    position = Integer(
        required=False, help_text="1 is claimed next; 10 001 stands for that or further back."
    )
    rate_per_minute = Number(
        required=False, help_text="Claims of its requirement a minute, lately; an estimate."
    )
    candidates = Candidate(
        many=True, help_text="At most 200 workers, those that fail the fewest tests first."
    )
    counts = Object(help_text="How many workers of all failed each test.")
    nearest = Nearest(required=False, help_text="Where no worker passes all tests of its own.")


class Decision(Shape):
    decision_id = Text()
    at = Time()
    actor = Text()
    chosen = Text(allow_null=True, help_text="The id of the worker that got the work.")
    code = Text(allow_null=True, help_text="The code of the refusal, where nobody got it.")
    considered = Integer(help_text="How many workers were looked at.")
    candidates = Candidate(many=True)
    counts = Object()
    nearest = Nearest(allow_null=True)


PausePage = page_of(Pause)
DecisionPage = page_of(Decision)


def pause(row: PauseRow) -> dict[str, Any]:
    return {
        "pause_id": row.pause_id,
        "application": row.application.name,
        "definition_id": row.definition_id or None,
        "reason": row.reason,
        "until": row.until,
        "created_at": row.created_at,
        "by": row.created_by,
    }


def placement(found: Explanation) -> dict[str, Any]:
    survey = found.survey
    waits = [{"workload_id": each.workload_id, "state": each.state} for each in found.dependencies]
    optional = {
        "available_at": found.available_at,
        "dependencies": waits or None,
        "position": found.position,
        "rate_per_minute": found.rate_per_minute,
        "nearest": None if survey is None or survey.nearest is None else nearest(survey.nearest),
    }
    return {
        "state": found.state,
        "sentence": found.sentence,
        "candidates": [] if survey is None else candidates(survey.candidates),
        "counts": {} if survey is None else dict(survey.counts),
        **{name: value for name, value in optional.items() if value is not None},
    }


def candidates(found: Iterable[CandidateWorker]) -> list[dict[str, Any]]:
    return [
        {"worker_id": each.worker_id, "eligible": each.eligible, "reasons": list(each.reasons)}
        for each in found
    ]


def nearest(found: NearestWorker) -> dict[str, Any]:
    return {"worker_id": found.worker_id, "lacks": list(found.lacks)}


def decision(row: DecisionRow) -> dict[str, Any]:
    return {
        "decision_id": row.decision_id,
        "at": row.at,
        "actor": row.actor,
        "chosen": None if row.chosen is None else row.chosen.worker_id,
        "code": row.code or None,
        "considered": row.considered,
        "candidates": row.candidates,
        "counts": row.counts,
        "nearest": row.nearest,
    }
