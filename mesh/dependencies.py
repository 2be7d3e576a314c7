"""Dependencies: work that waits for other work.

Guarantees: blocked work is never claimable; an ending is never missed, since who adds a dependency
holds a share lock on the work it waits for until it commits; an ending with any number of
dependents stays short. The transaction that ends work goes on with at most `AT_ONCE` dependents,
skipping those that others hold, and flags itself with `dependents_pending` where some are left;
the sweep goes on from there. Where a dependency ends otherwise than required its dependent is a
dead letter, and so are that one's own dependents, by the sweep, one level per transaction and as
many levels as one pass goes down (`mesh.recovery`).

A dependency is *open* while it is waited for. One that ended is closed, as required or not; only
`workloads.retry` opens it again. `open_dependencies` counts the open ones of a workload.

Locks: the ended work, then its dependents with skip-locked. A dependency was there before its
dependent, so its key is lower: all of it is in the order of keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction

from . import clock, locking, statements
from .errors import DomainError
from .models import ENDED_STATES, RequiredState, State

AT_ONCE: Final = 100
MAX_DEPENDENCIES: Final = 256
FAILED: Final = "dependency_failed"
ACTOR: Final = "system:release_dependents"
_ERROR: Final = "What it waits for ended otherwise than required: "
MAX_RETRIED: Final = 1_000
_BURIED: Final = statements.load("buried_by")
_TIES: Final = (
    "select id, workload_id, depends_on_id, required_state, is_open from mesh_dependency"
    " where workload_id = any(%(workloads)s::bigint[]) order by workload_id, depends_on_id"
)
_SET: Final = (
    "update mesh_dependency as d set is_open = s.is_open"
    " from unnest(%(ids)s::bigint[], %(open)s::boolean[]) as s (id, is_open) where d.id = s.id"
)
_WAKE: Final = statements.load("wake")
_MISSED: Final = statements.load("missed_dependents")
_MISSED_PAGE: Final = 1_000


class Woken(NamedTuple):
    """What became of some dependents; `is_left`: there are more, or others held some."""

    unblocked: int
    buried: int
    touched: int
    # The ids of those that were unblocked or buried.
    changed: list[str]
    is_left: bool


@dataclass(slots=True)
class Tie:
    """One dependency as it is kept."""

    id: int
    workload_id: int
    depends_on_id: int
    required_state: str
    is_open: bool

    def judge(self, state: str) -> bool:
        """Look at it anew while the other is in that state; whether that one ended otherwise.

        One that was met stays closed whatever becomes of the other.
        """
        if not self.is_open and self.required_state == RequiredState.ANY_END:
            return False
        self.is_open = state not in ENDED_STATES
        return has_failed(self.required_state, state)


def is_met(required: str, state: str) -> bool:
    """Whether work in that state ended as its dependent requires. A dead letter is an end."""
    return state in ENDED_STATES if required == RequiredState.ANY_END else state == State.SUCCEEDED


def has_failed(required: str, state: str) -> bool:
    """Whether work in that state ended otherwise than its dependent requires."""
    return state in ENDED_STATES and not is_met(required, state)


def failure(workload_id: str) -> dict[str, str]:
    """What buries the dependents of that work."""
    return {"kind": FAILED, "error": f"{_ERROR}{workload_id}"}


def wake(ended_pks: Sequence[int], at: datetime) -> Woken:
    """Go on with what waits for this ended work, which the caller has locked and written."""
    values = {
        "ended": list(ended_pks),
        "at": at,
        "limit": AT_ONCE,
        "kind": FAILED,
        "error": _ERROR,
        "actor": ACTOR,
    }
    row: Mapping[str, Any] = statements.rows(_WAKE, values)[0]
    return Woken(**row)


def release(*, workload_pk: int) -> Woken:
    """Go on with some of what waits for one workload; nothing if it is not ended. For the sweep."""
    with transaction.atomic():
        locking.lock_workloads([workload_pk])
        return wake([workload_pk], clock.now())


def missed() -> list[int]:
    """Ended work that is waited for without its flag; looks at a page of what there is."""
    return [row["id"] for row in statements.rows(_MISSED, {"page": _MISSED_PAGE})]


def buried_by(workload_pk: int) -> list[int]:
    """The keys of what the end of this work buried, transitively, and its own; in their order.

    Nothing is locked. Refuses with REQUEST_INVALID more than `MAX_RETRIED`.
    """
    values = {"workload": workload_pk, "kind": FAILED, "limit": MAX_RETRIED + 2}
    found = sorted(row["id"] for row in statements.rows(_BURIED, values))
    if len(found) > MAX_RETRIED + 1:
        raise DomainError(
            "REQUEST_INVALID", f"More than {MAX_RETRIED} dependents: retry them by themselves."
        )
    return found


def ties_of(workload_pks: Sequence[int]) -> list[Tie]:
    """What these workloads wait for or waited for; it changes only while they are locked."""
    return [Tie(**row) for row in statements.rows(_TIES, {"workloads": list(workload_pks)})]


def write(ties: Sequence[Tie]) -> None:
    """Store which of them are open, in one statement; their workloads are locked."""
    if ties:
        values = {"ids": [each.id for each in ties], "open": [each.is_open for each in ties]}
        statements.change(_SET, values)
