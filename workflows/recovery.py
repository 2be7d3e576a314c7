"""Recovery: the barrier after a hand-over or a restore, lifted once everything is explained.

While it stands nothing new starts; workers go on and report, and the authority settles what they
did. Finishing settles nothing and guesses nothing: it only says that nothing is open any more.
Barriers are opened and moved by `workflows.blocks.open_barrier`. Locks: the run.
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
from .models import RecoveryBarrier, Run


@audited("run.recovery_finished", on="run_id")
def finish(*, caller: Caller, run_id: str, authority: Authority) -> Run:
    """End the barrier; its row is kept. Where none stands, and so on a repeat: no change.

    Refuses in this order: PERMISSION_DENIED (operator); RUN_NOT_FOUND; AUTHORITY_STALE;
    BARRIER_FOREIGN (it belongs to another authority, or to nobody); WORK_OUTSTANDING (not
    quiescent).
    """
    caller.require(Role.OPERATOR)
    with transaction.atomic():
        run = lock_run(caller, run_id)
        require_current(run, authority)
        barrier = RecoveryBarrier.objects.filter(run=run, ended_at__isnull=True).first()
        if barrier is None:
            return run
        if not blocks.is_owned(barrier, authority):
            raise DomainError("BARRIER_FOREIGN", "The barrier belongs to another authority.")
        if not runs.is_quiescent(run):
            raise DomainError(
                "WORK_OUTSTANDING",
                "Attempts from before are not settled yet.",
                active_attempts=run.active_attempts,
            )
        at = clock.now()
        blocks.end(barrier, by=caller.subject, at=at)
        blocks.obey(run)
        evidence = {"since": barrier.since.isoformat(), "authority": authority.public()}
        history.record(run, "recovery_finished", actor=caller.subject, at=at, evidence=evidence)
        runs.wake(run)
    return run
