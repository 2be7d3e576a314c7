"""Ending: a run becomes COMPLETED, FAILED or CANCELLED, once, when nothing of it is under way.

Guarantees: an ended run has no unsettled attempt, no lease and no barrier, and never changes again.
A cancellation decides before a failure, and a failure before what was done. Locks: the run.
"""

from django.db import transaction

from mesh import clock
from mesh.errors import DomainError
from mesh.history import audited
from mesh.models import Role
from mesh.tenancy import Caller

from . import blocks, history, runs
from .authority import Authority, require_current
from .locking import lock_run
from .models import WAITING_STEPS, RefusedWriter, Run, RunStatus, StepState


@audited("run.terminalized", on="run_id")
def terminalize(*, caller: Caller, run_id: str, authority: Authority) -> Run:
    """End the run: CANCELLED if that was asked for, else FAILED if it failed, else COMPLETED.

    It failed where a control failure stands, or a step that fails its run did not succeed. Steps
    that were never begun become CANCELLED in a cancelled run, otherwise SKIPPED; a pause ends with
    the run. A repeat by the current authority is answered with what the run became.

    Refuses in this order: PERMISSION_DENIED (operator); RUN_NOT_FOUND; AUTHORITY_STALE;
    WORK_OUTSTANDING (not quiescent; or steps are left although it neither failed nor is to be
    cancelled); RECOVERY_PENDING (a barrier stands).
    """
    caller.require(Role.OPERATOR)
    with transaction.atomic():
        run = lock_run(caller, run_id)
        require_current(run, authority)
        if not run.is_open:
            return run
        standing = blocks.standing(run.pk)
        status = _status(run, standing)
        if standing.recovery is not None:
            raise DomainError(
                "RECOVERY_PENDING",
                "What was under way before the hand-over is not explained yet.",
                since=standing.recovery.since,
            )
        _end(run, status, standing, caller.subject)
    return run


def _status(run: Run, standing: blocks.Standing) -> RunStatus:
    """What the run comes to; refuses while something is left to be done."""
    if not runs.is_quiescent(run):
        raise DomainError(
            "WORK_OUTSTANDING",
            "Attempts of the run are not settled yet.",
            active_attempts=run.active_attempts,
        )
    if standing.cancelled is not None:
        return RunStatus.CANCELLED
    if standing.control_failure is not None or runs.is_failed(run):
        return RunStatus.FAILED
    if not runs.are_exits_done(run):
        raise DomainError("WORK_OUTSTANDING", "Steps of the run are left to be done.")
    return RunStatus.COMPLETED


def _end(run: Run, status: RunStatus, standing: blocks.Standing, by: str) -> None:
    at = clock.now()
    if standing.user_paused is not None:
        blocks.end(standing.user_paused, by=by, at=at, reason="the run ended")
    left = StepState.CANCELLED if status == RunStatus.CANCELLED else StepState.SKIPPED
    run.activations.filter(state__in=WAITING_STEPS).update(state=left, updated_at=at)
    # Nobody waits for a writer of a run that is over.
    RefusedWriter.objects.filter(run=run).delete()
    run.status, run.ended_at = status, at
    run.save(update_fields=["status", "ended_at"])
    history.record(run, status.lower(), actor=by, at=at)
