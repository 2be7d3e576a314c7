"""Steering: pauses and control failures, by which people and coordinators stop a run for a while.

| block | begins | ends |
|---|---|---|
| user pause | `pause` | `resume` |
| control failure | `fail`, or `set_failure` by a rule | `clear` |

Guarantees: of each kind one stands at most, and the first one stays until it is ended: its time,
author and reason never change. Each change of a block holds, or lets go, the work of all unsettled
attempts in the same transaction (`workflows.blocks`). To lift one block lifts no other.

Locks: the run, then the workloads of its unsettled attempts, by key.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from mesh.errors import DomainError
from mesh.history import audited
from mesh.models import Role
from mesh.tenancy import Caller

from . import blocks, history, runs
from .authority import Authority, lock_open
from .models import ControlFailure, Run, UserPause
from .steps import Steps

# Set by rules of the server, on every run.
INPUT_UNRESOLVED: Final = "input_unresolved"
DEADLINE_ELAPSED: Final = "deadline_elapsed"
NEVER_STARTED: Final = "never_started"
_CODE: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@audited("run.paused", on="run_id")
def pause(*, caller: Caller, run_id: str, reason: str, authority: Authority | None = None) -> Run:
    """Have nothing new start in the run; what runs goes on. Paused already: no change.

    With `authority` as the coordinator, otherwise as an operator. Refuses in this order:
    PERMISSION_DENIED (operator); ADMISSION_INVALID (reason blank or too long),
    WORKLOAD_SECRET_REJECTED; RUN_NOT_FOUND; AUTHORITY_STALE; RUN_TERMINAL.
    """
    caller.require(Role.OPERATOR)
    blocks.require_reason(reason)
    with transaction.atomic():
        run = lock_open(caller, run_id, authority)
        if UserPause.objects.filter(run=run, ended_at__isnull=True).exists():
            return run
        at = blocks.moment(run)
        UserPause.objects.create(run=run, since=at, by=caller.subject, reason=reason)
        _changed(run, "paused", by=caller.subject, at=at, evidence={"reason": reason})
    return run


@audited("run.resumed", on="run_id")
def resume(*, caller: Caller, run_id: str, reason: str, authority: Authority | None = None) -> Run:
    """End the pause; nothing else that blocks the run. Not paused: no change.

    Refuses as `pause` does.
    """
    caller.require(Role.OPERATOR)
    blocks.require_reason(reason)
    with transaction.atomic():
        run = lock_open(caller, run_id, authority)
        standing = UserPause.objects.filter(run=run, ended_at__isnull=True).first()
        if standing is None:
            return run
        at = blocks.moment(run)
        blocks.end(standing, by=caller.subject, at=at, reason=reason)
        _changed(run, "resumed", by=caller.subject, at=at, evidence={"reason": reason})
    return run


@audited("run.control_failure_set", on="run_id")
def fail(
    *,
    caller: Caller,
    run_id: str,
    authority: Authority,
    code: str,
    message: str,
    step: str = "",
) -> Run:
    """Say that the run cannot go on by itself, and why. The first failure stays until cleared.

    A failure is no end: once nothing is under way the coordinator ends the run as FAILED, or
    somebody clears it. Refuses in this order: PERMISSION_DENIED (operator); ADMISSION_INVALID
    (code, message), WORKLOAD_SECRET_REJECTED; RUN_NOT_FOUND; AUTHORITY_STALE; RUN_TERMINAL;
    ADMISSION_INVALID (no such step).
    """
    caller.require(Role.OPERATOR)
    if not _CODE.fullmatch(code):
        raise DomainError(
            "ADMISSION_INVALID", "A code has 1 to 64 of A-Z a-z 0-9 . _ : -", field="code"
        )
    blocks.require_reason(message, what="message", may_be_blank=True)
    with transaction.atomic():
        run = lock_open(caller, run_id, authority)
        if step and step not in Steps.of(run.definition):
            raise DomainError("ADMISSION_INVALID", "There is no such step.", field="step")
        set_failure(run, code=code, message=message, step=step, by=caller.subject)
    return run


def set_failure(
    run: Run, *, code: str, message: str, step: str, by: str, at: datetime | None = None
) -> bool:
    """Have a control failure stand in a locked, open run; False where one stands already.

    `at` is when the reason for it was found; the block begins when its work is locked.
    """
    if ControlFailure.objects.filter(run=run, ended_at__isnull=True).exists():
        return False
    since = blocks.moment(run)
    ControlFailure.objects.create(
        run=run, since=since, by=by, reason=message[: blocks.MAX_REASON], code=code, step=step
    )
    evidence = {"code": code, "message": message[: blocks.MAX_REASON], "step": step}
    _changed(run, "control_failure_set", by=by, at=at or since, evidence=evidence)
    return True


@audited("run.control_failure_cleared", on="run_id")
def clear(*, caller: Caller, run_id: str, reason: str, authority: Authority | None = None) -> Run:
    """Let a run go on whose control failure was dealt with. None stands: no change.

    A step that never started 21 times in a row is counted anew. What caused another failure is
    found again if it is still so (a deadline that has passed, an input that cannot be found).
    Refuses as `pause` does.
    """
    caller.require(Role.OPERATOR)
    blocks.require_reason(reason)
    with transaction.atomic():
        run = lock_open(caller, run_id, authority)
        standing = ControlFailure.objects.filter(run=run, ended_at__isnull=True).first()
        if standing is None:
            return run
        at = blocks.moment(run)
        blocks.end(standing, by=caller.subject, at=at, reason=reason)
        if standing.code == NEVER_STARTED:
            run.activations.filter(step=standing.step).update(unstarted=0)
        evidence = {"reason": reason, "code": standing.code, "step": standing.step}
        _changed(run, "control_failure_cleared", by=caller.subject, at=at, evidence=evidence)
    return run


def _changed(run: Run, event: str, *, by: str, at: datetime, evidence: Mapping[str, Any]) -> None:
    blocks.obey(run)
    history.record(run, event, actor=by, at=at, evidence=evidence)
    runs.wake(run)
