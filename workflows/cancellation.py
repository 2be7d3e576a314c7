"""Cancellation: a run is to end. The request is a fact; the end comes once nothing is under way.

Guarantees: the first request's time, requester and reason stay. It ends nothing, frees nothing and
claims nothing undone: unclaimed work can no longer be claimed, claimed work cannot start, and what
runs is asked to stop by whoever drives the run, and may still succeed. Locks: the run, then the
workloads of its unsettled attempts, by key.
"""

from django.db import transaction

from mesh.history import audited
from mesh.models import Role
from mesh.tenancy import Caller

from . import blocks, history, runs
from .authority import Authority, lock_open
from .models import CancellationRequest, Run


@audited("run.cancellation_requested", on="run_id")
def request(
    *, caller: Caller, run_id: str, reason: str = "", authority: Authority | None = None
) -> Run:
    """Ask that the run ends as CANCELLED. A later request changes nothing.

    With `authority` as the coordinator, otherwise as an operator. Refuses in this order:
    PERMISSION_DENIED (operator); ADMISSION_INVALID (reason too long), WORKLOAD_SECRET_REJECTED;
    RUN_NOT_FOUND; AUTHORITY_STALE; RUN_TERMINAL, also for a repeat.
    """
    caller.require(Role.OPERATOR)
    blocks.require_reason(reason, may_be_blank=True)
    with transaction.atomic():
        run = lock_open(caller, run_id, authority)
        if CancellationRequest.objects.filter(run=run).exists():
            return run
        at = blocks.moment(run)
        CancellationRequest.objects.create(run=run, since=at, by=caller.subject, reason=reason)
        blocks.obey(run)
        history.record(
            run, "cancellation_requested", actor=caller.subject, at=at, evidence={"reason": reason}
        )
        runs.wake(run)
    return run
