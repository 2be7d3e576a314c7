"""Blocks: the four reasons why nothing new may start in a run, and the flag that the mesh obeys.

Guarantees: at most one of each kind stands; what a block stops it stops at once: in the same
transaction, under the run's lock, the workloads of all unsettled attempts are held, and they are
let go when the last block ends. A block ends nothing and claims nothing undone.

Locks: the caller has locked the run; here its workloads are locked, in the order of their keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import FilteredRelation, Q

from mesh import workloads
from mesh.errors import DomainError

from .models import (
    Block,
    CancellationRequest,
    ControlFailure,
    RecoveryBarrier,
    Run,
    RunAttempt,
    UserPause,
)

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
    kinds = {
        name: FilteredRelation(f"{each}_rows", condition=Q(**{f"{each}_rows__ended_at": None}))
        for name, each in _ROWS.items()
    }
    run = Run.objects.only("pk").annotate(**kinds).select_related(*kinds).filter(pk=run_pk).first()
    return Standing(**{name: getattr(run, name, None) for name in kinds})


def require_none(blocks: Standing) -> None:
    """Refuse with the code of the first block: RUN_PAUSED, RUN_CANCELLING, RUN_CONTROL_FAILURE,
    RUN_RECOVERING."""
    for name, row in blocks.rows().items():
        if row is not None:
            code, detail = _CODES[name]
            raise DomainError(code, detail, since=row.since, by=row.by, reason=row.reason)


def end(block: Block, *, by: str, at: datetime, reason: str = "") -> None:
    """End a block that stands; its row is kept. The caller then calls `obey`."""
    block.ended_at, block.ended_by, block.end_reason = at, by, reason
    block.save(update_fields=["ended_at", "ended_by", "end_reason"])


def obey(run: Run) -> None:
    """Hold, or let go, the workloads of all unsettled attempts, as the blocks now say.

    To be called in the transaction of each change of a block.
    """
    pks = list(
        RunAttempt.objects.unsettled()
        .filter(run=run)
        .order_by("workload_id")
        .values_list("workload_id", flat=True)
    )
    if not pks:
        return
    if standing(run.pk).any:
        workloads.hold(pks)
    else:
        workloads.unhold(pks)


def own_barrier(run: Run) -> None:
    """A barrier that belongs to nobody becomes that of the authority the run has by now."""
    RecoveryBarrier.objects.filter(run=run, ended_at__isnull=True, instance_id__isnull=True).update(
        instance_id=run.instance_id,
        target_artifact_id=run.target_artifact_id,
        generation=run.generation,
    )
