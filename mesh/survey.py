"""A survey: all workers of an application judged at once, for one piece of work.

What an operator is told about work that does not run, and what is remembered of a placement. At
most `LISTED` workers are named, those that fail the fewest tests first; all are counted. Costs one
statement (`survey.sql`) however many workers there are, and a few more where nobody may take the
work, to say what the nearest one lacks.

Reads only, locks nothing: what it says was true a moment ago. Who gets the work is decided by
`mesh.placement`, on a locked worker.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson

from . import lacking, statements
from .lacking import Nearest
from .models import Requirement, Worker
from .placement import REASONS

LISTED: Final = 200
# The tests of a worker of the same application, in the order of `REASONS`.
TESTS: Final = tuple(each for each in REASONS if each not in {"TENANT", "PAUSED"})
# A worker that fails only these need do nothing: work that ends makes room.
ROOM: Final = frozenset({"CAPACITY", "POOL_CAPACITY", "RESOURCES"})
# A worker that fails any of these is not made for the work; the other tests come and go.
LASTING: Final = frozenset(REASONS) - ROOM - {"LIFECYCLE", "HEALTH", "GRANT", "PAUSED"}
# No test of placement: the row of the worker was locked by another call.
BUSY: Final = "BUSY"
_SQL: Final = statements.load("survey")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker, and which tests it failed; none means that it may take the work."""

    worker_id: str
    reasons: tuple[str, ...]

    @property
    def eligible(self) -> bool:
        return not self.reasons


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found out about the workers of the application."""

    considered: int
    # At most `LISTED`, those that fail the fewest tests first.
    candidates: tuple[Candidate, ...]
    # How many of all failed each test.
    counts: Mapping[str, int]
    eligible: int
    # How many could take it at once or as soon as other work ends.
    suited: int
    # How many are made for such work, whatever keeps them from it now.
    fitting: int
    # When one of the eligible last asked for work.
    asked_at: datetime | None
    # Only where no worker passes all tests of its own.
    nearest: Nearest | None


# Of work for which nobody was considered.
NOBODY: Final = Survey(0, (), {}, 0, 0, 0, None, None)


@dataclass(frozen=True, slots=True)
class _Group:
    """Workers that fail the same tests."""

    # Of the workers themselves.
    own: tuple[str, ...]
    is_paused: bool
    # What they declare would be enough if nothing ran on them.
    fits: bool
    number: int
    last_poll_at: datetime | None
    worker_ids: Sequence[str]

    @property
    def reasons(self) -> tuple[str, ...]:
        return (*self.own, "PAUSED") if self.is_paused else self.own

    @property
    def distance(self) -> tuple[int, int, str]:
        return (len(self.own), self.lasting, self.worker_ids[0])

    @property
    def lasting(self) -> int:
        """How many of the failed tests will go on failing as worker and work now stand."""
        return len(LASTING.intersection(self.own)) + (not self.fits)


def take(requirement: Requirement, at: datetime, *, is_paused: bool) -> Survey:
    """Judge all workers of the requirement's application as of `at`."""
    groups = sorted(_groups(requirement, at, is_paused), key=lambda each: each.distance)
    considered = sum(each.number for each in groups)
    named = [(name, each.reasons) for each in groups for name in each.worker_ids]
    counts = {
        reason: sum(each.number for each in groups if reason in each.reasons) for reason in REASONS
    }
    if is_paused:
        counts["PAUSED"] = considered
    willing = [each for each in groups if not each.own]
    nearest = None
    if groups and not willing:
        nearest = lacking.describe(groups[0].worker_ids[0], groups[0].own, requirement)
    return Survey(
        considered=considered,
        candidates=tuple(Candidate(*each) for each in named[:LISTED]),
        counts={name: n for name, n in counts.items() if n or (name == "PAUSED" and is_paused)},
        eligible=sum(each.number for each in groups if not each.reasons),
        suited=sum(each.number for each in groups if each.fits and ROOM.issuperset(each.own)),
        fitting=sum(each.number for each in groups if not each.lasting),
        asked_at=max((each.last_poll_at for each in willing if each.last_poll_at), default=None),
        nearest=nearest,
    )


def of_one(requirement: Requirement, worker: Worker, reasons: Sequence[str]) -> Survey:
    """What was found out about one worker that was named, judged by `mesh.candidates`."""
    own = [each for each in reasons if each not in {"TENANT", "PAUSED"}]
    return Survey(
        considered=1,
        candidates=(Candidate(worker.worker_id, tuple(reasons)),),
        counts=dict.fromkeys(reasons, 1),
        eligible=int(not reasons),
        suited=int(ROOM.issuperset(own)),
        fitting=int(LASTING.isdisjoint(own)),
        asked_at=worker.last_poll_at,
        nearest=lacking.describe(worker.worker_id, own, requirement) if own else None,
    )


def with_busy(found: Survey, worker_ids: Collection[str]) -> Survey:
    """The same, where these may take the work but were in another call each time."""
    marked = tuple(
        Candidate(each.worker_id, (BUSY,))
        if each.eligible and each.worker_id in worker_ids
        else each
        for each in found.candidates
    )
    number = sum(each.reasons == (BUSY,) for each in marked)
    counts = {**found.counts, BUSY: number} if number else found.counts
    return replace(
        found, candidates=marked, counts=counts, eligible=max(found.eligible - number, 0)
    )


def _groups(requirement: Requirement, at: datetime, is_paused: bool) -> list[_Group]:
    values: dict[str, Any] = {
        "application": requirement.application_id,
        "definition_id": requirement.definition_id,
        "capabilities": requirement.capabilities,
        "required_labels": _json(requirement.required_labels),
        "anti_affinity": [_json({k: v}) for k, v in requirement.anti_affinity.items()],
        "pool_id": requirement.pool_id,
        "resources": _json(requirement.resources),
        "at": at,
        "listed": LISTED,
    }
    return [
        _Group(
            own=tuple(name for bit, name in enumerate(TESTS) if row["failed"] >> bit & 1),
            is_paused=is_paused,
            fits=row["fits"],
            number=row["number"],
            last_poll_at=row["last_poll_at"],
            worker_ids=row["worker_ids"],
        )
        for row in statements.rows(_SQL, values)
    ]


def _json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value).decode()
