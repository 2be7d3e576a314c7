"""Blocks: the four reasons why nothing new may start in a run, and the flag that the mesh obeys.

Guarantees: at most one of each kind stands; what a block stops it stops at once: in the same
transaction, under the run's lock, the workloads of all unsettled attempts are held, and they are
let go when the last block ends. A block ends nothing and claims nothing undone.

Locks: the caller has locked the run; here its workloads are locked, in the order of their keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from django.db.models import FilteredRelation, Q, QuerySet

from mesh import clock, workloads
from mesh import locking as mesh_locking
from mesh.errors import DomainError
from mesh.screening import require_no_secrets

from .models import (
    Block,
    CancellationRequest,
    ControlFailure,
    RecoveryBarrier,
    Run,
    RunAttempt,
    UserPause,
)

MAX_REASON: Final = 4_000
# In the order in which an admission names them.
_CODES: Final[Mapping[str, tuple[str, str]]] = {
    "user_paused": ("RUN_PAUSED", "The run is paused."),
    "cancelled": ("RUN_CANCELLING", "The run is being cancelled."),
    "control_failure": ("RUN_CONTROL_FAILURE", "The run cannot go on by itself."),
    "recovery": ("RUN_RECOVERING", "What was under way before the hand-over is not explained yet."),
}

# The rows of each kind, as a run's relations name them.
_ROWS: Final[Mapping[str, str]] = {
    "user_paused": "userpause",
    "cancelled": "cancellationrequest",
    "control_failure": "controlfailure",
    "recovery": "recoverybarrier",
}


class Owner(Protocol):
    """An authority, as far as a barrier belongs to one."""

    @property
    def target_artifact_id(self) -> str: ...
    @property
    def instance_id(self) -> str: ...
    @property
    def generation(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """What blocks a run, as of one moment; None where that kind does not."""

    user_paused: UserPause | None
    cancelled: CancellationRequest | None
    control_failure: ControlFailure | None
    recovery: RecoveryBarrier | None

    @property
    def any(self) -> bool:
        return any(self.rows().values())

    def rows(self) -> dict[str, Block | None]:
        return {
            "user_paused": self.user_paused,
            "cancelled": self.cancelled,
            "control_failure": self.control_failure,
            "recovery": self.recovery,
        }


def standing(run_pk: int) -> Standing:
    """The blocks that stand, as of one moment: it is one statement."""
    return of(beside(Run.objects.only("pk")).filter(pk=run_pk).first())


def beside(found: QuerySet[Run]) -> QuerySet[Run]:
    """These runs, each read together with the blocks that stand; `of` tells them."""
    kinds = {
        name: FilteredRelation(f"{each}_rows", condition=Q(**{f"{each}_rows__ended_at": None}))
        for name, each in _ROWS.items()
    }
    return found.annotate(**kinds).select_related(*kinds)


def of(run: Run | None) -> Standing:
    """The blocks that a run was read with by `beside`; none stand in no run."""
    return Standing(**{name: getattr(run, name, None) for name in _ROWS})


def require_none(blocks: Standing) -> None:
    """Refuse with the code of the first block: RUN_PAUSED, RUN_CANCELLING, RUN_CONTROL_FAILURE,
    RUN_RECOVERING."""
    for name, row in blocks.rows().items():
        if row is not None:
            code, detail = _CODES[name]
            raise DomainError(code, detail, since=row.since, by=row.by, reason=row.reason)


def require_reason(reason: str, *, what: str = "reason", may_be_blank: bool = False) -> None:
    """Refuse with ADMISSION_INVALID a reason out of bounds; WORKLOAD_SECRET_REJECTED."""
    if len(reason) > MAX_REASON or not (may_be_blank or reason.strip()):
        raise DomainError(
            "ADMISSION_INVALID",
            f"The {what} is {'' if may_be_blank else 'not blank and '}at most {MAX_REASON} long.",
            field=what,
        )
    require_no_secrets(**{what: reason})


def moment(run: Run) -> datetime:
    """The time at which a block of a locked run begins or ends, its unsettled work locked first.

    So a claim that was made before a block began is also older than it, by the clock.
    """
    mesh_locking.lock_workloads(_unsettled(run))
    return clock.now()


def end(block: Block, *, by: str, at: datetime, reason: str = "") -> None:
    """End a block that stands; its row is kept. The caller then calls `obey`."""
    block.ended_at, block.ended_by, block.end_reason = at, by, reason
    block.save(update_fields=["ended_at", "ended_by", "end_reason"])


def obey(run: Run) -> None:
    """Hold, or let go, the workloads of all unsettled attempts, as the blocks now say.

    To be called in the transaction of each change of a block.
    """
    pks = _unsettled(run)
    if not pks:
        return
    if standing(run.pk).any:
        workloads.hold(pks)
    else:
        workloads.unhold(pks)


def open_barrier(run: Run, *, owner: Owner | None, by: str, reason: str) -> RecoveryBarrier:
    """Have nothing new start in a locked run until what is under way is explained.

    Opens a barrier that belongs to `owner` (to nobody where there is none); one that stands goes
    over to it, and keeps since when, by whom and why. The unsettled work is held. A repeat changes
    nothing.
    """
    barrier = RecoveryBarrier.objects.filter(run=run, ended_at__isnull=True).first()
    if barrier is None:
        barrier = RecoveryBarrier.objects.create(
            run=run, since=moment(run), by=by, reason=reason, **_owning(owner)
        )
    elif owner is not None:
        for name, value in _owning(owner).items():
            setattr(barrier, name, value)
        barrier.save(update_fields=["instance_id", "target_artifact_id", "generation"])
    obey(run)
    return barrier


def is_owned(barrier: RecoveryBarrier, owner: Owner) -> bool:
    """Whether the barrier belongs to that authority."""
    return all(getattr(barrier, name) == value for name, value in _owning(owner).items())


def _owning(owner: Owner | None) -> dict[str, Any]:
    """The columns by which a barrier belongs to that authority; its token is none of them."""
    if owner is None:
        return {}
    return {
        "instance_id": owner.instance_id,
        "target_artifact_id": owner.target_artifact_id,
        "generation": owner.generation,
    }


def _unsettled(run: Run) -> list[int]:
    """The workloads of the attempts whose outcome is not known yet."""
    found = RunAttempt.objects.unsettled().filter(run=run).order_by("workload_id")
    return list(found.values_list("workload_id", flat=True))


def own_barrier(run: Run) -> None:
    """A barrier that belongs to nobody becomes that of the authority the run has by now."""
    RecoveryBarrier.objects.filter(run=run, ended_at__isnull=True, instance_id__isnull=True).update(
        instance_id=run.instance_id,
        target_artifact_id=run.target_artifact_id,
        generation=run.generation,
    )
