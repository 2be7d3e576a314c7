"""Leases: the fence, start, renew, checkpoint, and losing them.

Guarantees: only the current claim of its own worker, with its own token and a lease that is not
over, changes anything. `start` answers "go" only while that holds, also when it is repeated, so a
stalled worker never acts on work that it lost. A lease is never made shorter.

Locks: the worker; start and checkpoint also the workload; renew changes the attempt only.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from . import clock, locking, outcomes, statements, workers, workloads
from .canonical import digest, size
from .changes import Changes
from .errors import DomainError
from .giving import lease_length, require_worker
from .models import (
    STARTED_STATES,
    Attempt,
    AttemptStatus,
    Checkpoint,
    Grant,
    GrantStatus,
    State,
    SweepRun,
    Worker,
    Workload,
    WorkloadEvent,
    uid_of,
)
from .screening import require_no_secrets
from .tenancy import Caller

MAX_CHECKPOINT: Final = 256 * 1024
KEPT_CHECKPOINTS: Final = 10
RECOVER_SWEEP: Final = "recover_expired_leases"
# What a renewal sets, with `{at}` for the time.
RENEWAL: Final = statements.load("renewal")
_RENEW: Final = statements.load("renew").replace(
    "{renewal}", RENEWAL.replace("{at}", "%(at)s::timestamptz")
)
_MOVE: Final = statements.load("move_leases")


@dataclass(slots=True)
class Presented:
    """A claim as a worker presents it: the worker is locked; so is the workload where asked."""

    worker: Worker
    workload: Workload
    attempt: Attempt
    # The workload's live attempt, which may be another one by now, or none.
    current: Attempt | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal tells; at `deadline` the work is ended whatever it does."""

    state: str
    expires_at: datetime
    cancel_requested: bool
    deadline: datetime | None


def present(caller: Caller, claim_id: str, *, lock_workload: bool = True) -> Presented:
    """Lock the calling worker and, where asked, the workload of the claim; read the time.

    Refuses with PERMISSION_DENIED (no worker), TOKEN_INVALID (displaced while it waited) and
    CLAIM_NOT_FOUND (unknown, another tenant's). Must run in the transaction that makes the change.
    """
    require_worker(caller)
    uid = uid_of(claim_id, "claim")
    worker = workers.lock_self(caller)
    find = locking.lock_claim if lock_workload else locking.read_claim
    attempt = find(uid, caller.tenant_id) if uid else None
    if attempt is None:
        raise DomainError("CLAIM_NOT_FOUND", "There is no such claim.")
    if attempt.worker_id == worker.pk:
        attempt.worker = worker
    current = _current(attempt, worker)
    return Presented(worker, attempt.workload, attempt, current, clock.now())


def require_fence(presented: Presented, fencing_token: int) -> Attempt:
    """The attempt, if it is the current claim of this worker and its lease is not over.

    Refuses in this order: WORKLOAD_CLAIM_INVALID (the work has no current claim),
    WORKLOAD_STALE_FENCE (claim, worker or token is not the current one), WORKLOAD_LEASE_EXPIRED.
    """
    attempt = require_current(presented, fencing_token)
    if attempt.is_lease_over(presented.at):
        raise DomainError("WORKLOAD_LEASE_EXPIRED", "The lease is over.")
    return attempt


def require_current(presented: Presented, fencing_token: int) -> Attempt:
    """The fence without its last test."""
    current = presented.current
    if current is None:
        raise DomainError("WORKLOAD_CLAIM_INVALID", "The work has no current claim.")
    shown = (presented.attempt.pk, presented.worker.pk, fencing_token)
    if shown != (current.pk, current.worker_id, current.fencing_token):
        raise DomainError("WORKLOAD_STALE_FENCE", "Another claim is current.")
    return current


def start(*, caller: Caller, claim_id: str, fencing_token: int) -> Attempt:
    """Say that the work begins; no effect may happen before this succeeded.

    A repeat gets the same answer while the claim is current and its lease is not over, never
    later. Refuses in this order: CLAIM_NOT_FOUND; the fence's codes; WORKER_RECOVERY_REQUIRED;
    WORKLOAD_CANCELLATION_REQUESTED; MESH_RUN_BLOCKED (release it); WORKLOAD_TRANSITION_DENIED.
    """
    with transaction.atomic():
        shown = present(caller, claim_id)
        event = begin(shown, fencing_token, actor=caller.subject)
        if event is not None:
            _write(shown, shown.attempt, event)
    return shown.attempt


def begin(shown: Presented, fencing_token: int, *, actor: str) -> WorkloadEvent | None:
    """Have presented work begin, in memory; what is to be written with it, None for a repeat.

    The rules of `start`, for one claim or many; refuses as it does, but for CLAIM_NOT_FOUND.
    """
    attempt, workload, at = require_fence(shown, fencing_token), shown.workload, shown.at
    workers.require_reconciled(shown.worker)
    if workload.state == State.CANCELLATION_REQUESTED:
        raise DomainError("WORKLOAD_CANCELLATION_REQUESTED", "A cancel was requested.")
    if attempt.started_at is not None:
        return None
    if workload.held:
        raise DomainError("MESH_RUN_BLOCKED", "Its run is blocked: it must not start now.")
    evidence = outcomes.of_attempt(attempt)
    event = workloads.move(workload, State.RUNNING, actor=actor, at=at, evidence=evidence)
    workload.unstarted_losses = 0
    workload.started_attempts += 1
    attempt.status = AttemptStatus.RUNNING
    attempt.started_at = attempt.last_progress_at = at
    execution_ms = workload.timeouts["execution_ms"]
    if execution_ms is not None:
        attempt.execution_deadline_at = at + timedelta(milliseconds=execution_ms)
    set_deadline(attempt, heard_at=at)
    return event


def renew(
    *, caller: Caller, claim_id: str, fencing_token: int, lease_ms: int | None = None
) -> Renewal:
    """Have the lease end at now + `lease_ms`, never sooner than it would.

    Each call renews anew. While the sweeps have been out for longer than their outage limit, a
    lease that is over but was not given away may still be renewed. Refuses in this order:
    CLAIM_NOT_FOUND; the fence's codes; GRANT_REVOKED; WORKER_DRAINED (drain deadline passed);
    WORKLOAD_INVALID (`lease_ms`). A renewal is no progress.
    """
    with transaction.atomic():
        shown = present(caller, claim_id, lock_workload=False)
        attempt, at = require_current(shown, fencing_token), shown.at
        if attempt.is_lease_over(at) and not are_sweeps_out(at):
            raise DomainError("WORKLOAD_LEASE_EXPIRED", "The lease is over.")
        require_renewable(shown.worker, grant_of(shown.worker), at)
        length = timedelta(milliseconds=lease_length(shown.worker, lease_ms))
        attempt.expires_at = max(attempt.expires_at, at + length)
        set_deadline(attempt, heard_at=at)
        attempt.save(update_fields=["expires_at", "deadline_at"])
    workload = shown.workload
    limits = (attempt.execution_deadline_at, workload.overall_deadline_at)
    return Renewal(
        state=workload.state,
        expires_at=attempt.expires_at,
        cancel_requested=workload.state == State.CANCELLATION_REQUESTED,
        deadline=min((each for each in limits if each), default=None),
    )


def checkpoint(*, caller: Caller, claim_id: str, fencing_token: int, state: Any) -> Attempt:
    """Keep progress for the next claimant, who gets the latest checkpoint with its claim.

    An exact repeat of the latest one is answered from what is stored. Refuses in this order:
    CLAIM_NOT_FOUND; the fence's codes; WORKLOAD_TRANSITION_DENIED (not running);
    WORKLOAD_SECRET_REJECTED; WORKLOAD_INVALID (over 256 KiB).
    """
    with transaction.atomic():
        shown = present(caller, claim_id)
        latest = shown.workload.checkpoints.first()
        if _is_repeat(shown, fencing_token, latest, state):
            return shown.attempt
        attempt, workload, at = require_fence(shown, fencing_token), shown.workload, shown.at
        require_running(workload, State.CHECKPOINTED)
        require_no_secrets(checkpoint=state)
        if size(state) > MAX_CHECKPOINT:
            raise DomainError("WORKLOAD_INVALID", "A checkpoint has at most 256 KiB.")
        sequence = 1 if latest is None else latest.sequence + 1
        evidence = {**outcomes.of_attempt(attempt), "checkpoint": sequence}
        event = workloads.move(
            workload, State.CHECKPOINTED, actor=caller.subject, at=at, evidence=evidence
        )
        workload.checkpoint_bytes = size(state)
        attempt.status = AttemptStatus.CHECKPOINTED
        attempt.last_progress_at = at
        set_deadline(attempt, heard_at=at)
        Checkpoint.objects.create(
            workload=workload,
            attempt=attempt,
            sequence=sequence,
            state=state,
            digest=digest(state),
            created_at=at,
        )
        workload.checkpoints.filter(sequence__lte=sequence - KEPT_CHECKPOINTS).delete()
        _write(shown, attempt, event)
    return attempt


def require_running(workload: Workload, to: State) -> None:
    """Refuse with WORKLOAD_TRANSITION_DENIED what only running work can report."""
    if workload.state not in STARTED_STATES:
        raise workloads.denied(workload, to)


def require_renewable(worker: Worker, grant: Grant, at: datetime) -> None:
    """Refuse with GRANT_REVOKED or WORKER_DRAINED a worker whose leases are left to end."""
    if grant.status == GrantStatus.REVOKED:
        raise DomainError("GRANT_REVOKED", "The grant was revoked: leases run out.")
    if worker.drain_deadline_at is not None and worker.drain_deadline_at <= at:
        raise DomainError("WORKER_DRAINED", "The drain's deadline has passed: leases run out.")


def grant_of(worker: Worker) -> Grant:
    """Status and end of the worker's grant as they are now; read, never locked."""
    return Grant.objects.only("status", "expires_at").get(pk=worker.grant_id)


def renew_listed(
    worker: Worker, attempts: Sequence[Attempt], grant: Grant, at: datetime
) -> list[Attempt]:
    """Renew these live claims of a locked worker, each by the length it was claimed with.

    Started or not; not under a revoked grant nor after the drain's deadline; a lease that is over
    only while the sweeps are out. Those that were renewed; the others are left as they are.
    """
    try:
        require_renewable(worker, grant, at)
    except DomainError:
        return []
    if not attempts:
        return []
    is_any_over = any(each.is_lease_over(at) for each in attempts)
    values = {
        "worker": worker.pk,
        "uids": [each.uid for each in attempts],
        "at": at,
        "sweeps_are_out": is_any_over and are_sweeps_out(at),
    }
    renewed = {row["id"]: row for row in statements.rows(_RENEW, values)}
    for each in attempts:
        if each.pk in renewed:
            each.expires_at = renewed[each.pk]["expires_at"]
            each.deadline_at = renewed[each.pk]["deadline_at"]
    return [each for each in attempts if each.pk in renewed]


def lose(
    worker: Worker, attempts: Sequence[Attempt], *, cause: str, actor: str, at: datetime
) -> list[Workload]:
    """End live claims of a locked worker as lost work and free their slots; the lost work.

    Locks the workloads in order. The caller saves the worker. `mesh.outcomes` says what becomes
    of the work; the worker itself is not judged.
    """
    changes = Changes()
    lost = _lose(changes, [worker], attempts, cause=cause, actor=actor, at=at)
    changes.write()
    return lost


def lose_together(
    holders: Sequence[Worker], attempts: Sequence[Attempt], *, cause: str, actor: str, at: datetime
) -> list[Workload]:
    """As `lose`, of several locked workers, which it saves too.

    Waits for no workload, as that would make all of these workers wait: busy if another holds one.
    """
    changes = Changes()
    lost = _lose(changes, holders, attempts, cause=cause, actor=actor, at=at, nowait=True)
    for worker in holders:
        changes.add_worker(worker)
    changes.write()
    return lost


def move_ends(worker_pks: Sequence[int], *, outage: datetime | None = None) -> int:
    """Have live leases of these workers end no sooner than their heartbeat timeout from now.

    With `outage` (the end of the last pass before it) also leases that are over, each at most once
    per outage; otherwise only those that are not. How many were moved. Locks the workers in order.
    """
    with transaction.atomic():
        locking.lock_workers(worker_pks)
        values = {"at": clock.now(), "outage": outage, "workers": list(worker_pks)}
        return statements.change(_MOVE, values)


def set_deadline(attempt: Attempt, *, heard_at: datetime) -> None:
    """The earliest deadline of a started attempt that was heard of at `heard_at`."""
    if attempt.started_at is None:
        return
    candidates = [attempt.execution_deadline_at]
    if attempt.heartbeat_timeout_ms is not None:
        candidates.append(heard_at + timedelta(milliseconds=attempt.heartbeat_timeout_ms))
    attempt.deadline_at = min((each for each in candidates if each), default=None)


def are_sweeps_out(at: datetime) -> bool:
    """Whether the last finished recover pass is older than the outage limit; never ran: no."""
    return sweeps_out_since(at) is not None


def sweeps_out_since(at: datetime) -> datetime | None:
    """The end of the last finished recover pass, if it is older than the outage limit."""
    run = SweepRun.objects.filter(name=RECOVER_SWEEP).only("last_finished_at").first()
    last = None if run is None else run.last_finished_at
    limit = timedelta(milliseconds=settings.SWEEP_OUTAGE_MS)
    return last if last is not None and at - last > limit else None


def _current(attempt: Attempt, worker: Worker) -> Attempt | None:
    """The workload's live attempt; one of this worker cannot change under the worker's lock."""
    if attempt.is_live and attempt.worker_id == worker.pk:
        return attempt
    return Attempt.objects.live().filter(workload_id=attempt.workload_id).first()


def _lose(
    changes: Changes,
    holders: Sequence[Worker],
    attempts: Sequence[Attempt],
    *,
    cause: str,
    actor: str,
    at: datetime,
    nowait: bool = False,
) -> list[Workload]:
    locked = locking.lock_workloads([each.workload_id for each in attempts], nowait=nowait)
    by_pk = {each.pk: each for each in holders}
    for attempt in attempts:
        attempt.worker = by_pk[attempt.worker_id]
        workload = locked[attempt.workload_id]
        outcomes.lose(changes, workload, attempt, cause=cause, actor=actor, at=at)
    ended = Counter(each.worker_id for each in attempts)
    for worker in holders:
        workers.occupy(worker, worker.active - ended[worker.pk], actor=actor, at=at)
    return list(locked.values())


def _is_repeat(shown: Presented, token: int, latest: Checkpoint | None, state: Any) -> bool:
    attempt = shown.attempt
    return (
        latest is not None
        and latest.attempt_id == attempt.pk
        and attempt.worker_id == shown.worker.pk
        and attempt.fencing_token == token
        and latest.digest == digest(state)
    )


def _write(shown: Presented, attempt: Attempt, event: WorkloadEvent) -> None:
    shown.worker.last_progress_at = shown.at
    changes = Changes()
    changes.add(shown.workload, attempt, event)
    changes.add_worker(shown.worker)
    changes.write()
