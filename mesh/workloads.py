"""Workloads: submit, cancel, retry. Owns the moves of work.

Guarantees: a key stands for one workload for ever and equal content; a state changes only along a
legal arrow, and each change has its event, numbered without a gap, in the same transaction;
SUCCEEDED and CANCELLED are never left. Claims and their leases belong to `mesh.leases`.

Locks: submit locks nothing but the application row when a new kind of work appears; cancel locks
the workload only (it frees no slot); retry the application row, then the workload.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction

from . import clock, grants, history, locking, requirements
from .canonical import digest, identity, size
from .errors import DomainError
from .models import (
    ENDED_STATES,
    WORKLOAD_MOVES,
    Application,
    Backoff,
    Grant,
    LostPolicy,
    Role,
    State,
    Workload,
    WorkloadEvent,
)
from .requirements import Need
from .screening import require_no_secrets
from .tenancy import Caller, get_application
from .workers import MAX_LABELS, are_names, is_label

RETRY_DEFAULTS: Final[Mapping[str, Any]] = {
    "max_attempts": 3,
    "initial_delay_ms": 1_000,
    "max_delay_ms": 300_000,
    "backoff": Backoff.EXPONENTIAL.value,
    "retry_on": ["timeout", "transient_connection", "worker_failure"],
    "jitter": 0,
    "max_unstarted": 10,
}
TIMEOUT_DEFAULTS: Final[Mapping[str, int | None]] = {
    "queue_ms": None,
    "claim_ms": None,
    "execution_ms": None,
    "heartbeat_ms": None,
    "overall_ms": None,
    "cancel_grace_ms": 60_000,
}
POLICY_DEFAULTS: Final[Mapping[str, Any]] = {
    "required_labels": {},
    "affinity": {},
    "anti_affinity": {},
}
MAX_INPUT: Final = 1024 * 1024
PRIORITY: Final = range(-(2**31), 2**31)
MAX_SPAN_MS: Final = 10 * 365 * 86_400_000
_EVENTS: Final[Mapping[tuple[str, str], str]] = {
    (State.CLAIMED, State.READY): "released",
    (State.DEAD_LETTER, State.READY): "retried",
    (State.HELD, State.READY): "resolved",
}
_NAMES: Final[Mapping[str, str]] = {
    State.RUNNING: "started",
    State.RECOVERING: "recovered",
    State.SUCCEEDED: "completed",
    State.DEAD_LETTER: "dead_lettered",
}


_COPIED: Final = (
    "environment",
    "definition_id",
    "definition_revision",
    "trigger",
    "input",
    "idempotency_key",
    "capability_snapshot",
    "priority",
    "retry_policy",
    "timeouts",
    "policy",
    "lost_policy",
    "connection_scopes",
    "session_id",
)
# What moves change; the rest of the row is written once.
MOVING: Final = (
    "state",
    "claimable",
    "held",
    "open_dependencies",
    "dependents_pending",
    "available_at",
    "ready_at",
    "fencing_token",
    "attempt_count",
    "started_attempts",
    "extra_attempts",
    "retries",
    "unstarted_losses",
    "event_sequence",
    "checkpoint_bytes",
    "last_failure",
    "cancel_requested_at",
    "overall_from",
    "deadline_at",
    "ended_at",
    "updated_at",
    "sweep_after",
)


@dataclass(frozen=True, slots=True)
class Submission:
    """Work as a client describes it; mappings hold only what the client sent."""

    application: str
    environment: str
    definition_id: str
    definition_revision: str
    trigger: str
    input: Any
    idempotency_key: str
    capability_snapshot: Sequence[str] = ()
    priority: int = 0
    retry_policy: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Mapping[str, int | None] = field(default_factory=dict)
    policy: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lost_policy: str = LostPolicy.REQUEUE.value
    not_before: datetime | None = None
    connection_scopes: Sequence[str] = ()
    session_id: str = ""

    def content(self) -> dict[str, Any]:
        """All that was sent, after defaults, in one form: equal content has an equal digest."""
        retry = {**RETRY_DEFAULTS, **self.retry_policy}
        return {
            "application": self.application,
            "environment": self.environment,
            "definition_id": self.definition_id,
            "definition_revision": self.definition_revision,
            "trigger": self.trigger,
            "input": self.input,
            "idempotency_key": self.idempotency_key,
            "capability_snapshot": sorted(set(self.capability_snapshot)),
            "priority": self.priority,
            "retry_policy": {**retry, "retry_on": sorted(set(retry["retry_on"]))},
            "timeouts": {**TIMEOUT_DEFAULTS, **self.timeouts},
            "policy": {**POLICY_DEFAULTS, **self.policy},
            "lost_policy": self.lost_policy,
            "not_before": self.not_before and self.not_before.timestamp(),
            "connection_scopes": list(self.connection_scopes),
            "session_id": self.session_id,
        }


@dataclass(frozen=True, slots=True)
class Submitted:
    workload: Workload
    created: bool


def submit(*, caller: Caller, submission: Submission, grant: str | None = None) -> Submitted:
    """Take in one workload, READY when due. The same key with the same content is the same work.

    Needs the role operator, or a grant that names the caller. Refuses in this order:
    PERMISSION_DENIED; APPLICATION_NOT_FOUND; WORKLOAD_SECRET_REJECTED; WORKLOAD_INVALID;
    WORKLOAD_IDEMPOTENCY_MISMATCH; the grant's codes (`grants.verify_for_submit`); LIMIT_EXCEEDED.
    """
    if caller.is_worker:
        raise DomainError("PERMISSION_DENIED", "A worker submits no work.")
    if grant is None:
        caller.require(Role.OPERATOR)
    application = get_application(caller, submission.application)
    require_no_secrets(input=submission.input)
    content = submission.content()
    _require_values(submission, content)
    content_digest = digest(content)
    stored = _stored(application, submission, content_digest)
    if stored is not None:
        return Submitted(stored, created=False)
    proof = (
        None
        if grant is None
        else grants.verify_for_submit(grant, caller, application.name, clock.now())
    )
    try:
        with transaction.atomic():
            made = _create(caller, application, submission, content_digest, proof)
            return Submitted(made, created=True)
    except IntegrityError:
        # The same key was taken in this very moment.
        stored = _stored(application, submission, content_digest)
        if stored is None:
            raise
        return Submitted(stored, created=False)


def cancel(*, caller: Caller, workload_id: str, reason: str = "") -> Workload:
    """Ask that the work stops. Unclaimed work and a dead letter is CANCELLED at once.

    Claimed work becomes CANCELLATION_REQUESTED: its worker is told and confirms, or the grace
    passes. Cancelled or asked before: no change. SUCCEEDED: WORKLOAD_TRANSITION_DENIED.
    Locks the workload only, for no slot is freed here.
    """
    caller.require(Role.OPERATOR)
    pk = _pk_for(caller, workload_id)
    with transaction.atomic():
        workload = _locked(pk)
        if workload.state in {State.CANCELLED, State.CANCELLATION_REQUESTED}:
            return workload
        at = clock.now()
        to = State.CANCELLATION_REQUESTED if workload.is_claimed else State.CANCELLED
        event = move(workload, to, actor=caller.subject, at=at, evidence={"reason": reason})
        workload.cancel_requested_at = at
        set_deadline(workload)
        workload.save(update_fields=MOVING)
        history.write([event])
    return workload


def retry(
    *, caller: Caller, workload_id: str, extra_attempts: int = 1, reason: str = ""
) -> Workload:
    """Make a dead letter READY now, with `extra_attempts` on top of its budget.

    The unstarted counter starts anew, and so do the retry delays and the overall timeout.
    Refuses with WORKLOAD_TRANSITION_DENIED unless it is DEAD_LETTER, so a repeat is refused.
    """
    caller.require(Role.OPERATOR)
    if not 1 <= extra_attempts <= 100:
        raise DomainError("REQUEST_INVALID", "From 1 to 100 extra attempts.")
    pk = _pk_for(caller, workload_id)
    with transaction.atomic():
        requirements.keep_in_use(workload_pk=pk)
        workload = _locked(pk)
        if workload.state != State.DEAD_LETTER:
            raise denied(workload, State.READY)
        at = clock.now()
        evidence = {"reason": reason, "extra_attempts": extra_attempts}
        workload.extra_attempts += extra_attempts
        workload.unstarted_losses = workload.retries = 0
        workload.overall_from = at
        event = make_ready(workload, at, actor=caller.subject, at=at, evidence=evidence)
        workload.save(update_fields=MOVING)
        history.write([event])
    return workload


def move(
    workload: Workload,
    to: State,
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> WorkloadEvent:
    """Move a locked workload along a legal arrow, in memory; its event, to be written with it.

    Refuses with WORKLOAD_TRANSITION_DENIED where there is no such arrow.
    """
    if to not in WORKLOAD_MOVES[workload.state]:
        raise denied(workload, to)
    before, workload.state = workload.state, to
    workload.claimable = False
    workload.updated_at = at
    workload.ended_at = at if to in ENDED_STATES else None
    return history.of_workload(
        workload,
        event=_event_name(before, to),
        from_state=before,
        actor=actor,
        at=at,
        evidence=evidence or {},
    )


def make_ready(
    workload: Workload,
    available_at: datetime,
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> WorkloadEvent:
    """Move a locked workload to READY, claimable from `available_at` on."""
    told = {**(evidence or {}), "available_at": available_at.isoformat()}
    event = move(workload, State.READY, actor=actor, at=at, evidence=told)
    workload.available_at = available_at
    workload.ready_at = at
    workload.claimable = is_free(workload) and available_at <= at
    set_deadline(workload)
    return event


def is_free(workload: Workload) -> bool:
    """Neither held by its run nor waiting for other work; that it is due is another question."""
    return not workload.held and workload.open_dependencies == 0


def set_deadline(workload: Workload, *, unpaused_at: datetime | None = None) -> None:
    """Work out the earliest deadline that applies to the workload in its present state.

    `unpaused_at` as in `queue_deadline_at`; without it the deadline may come too early, never late,
    and is put off when it does.
    """
    grace = timedelta(milliseconds=workload.timeouts["cancel_grace_ms"])
    candidates = []
    if workload.state not in ENDED_STATES:
        candidates.append(workload.overall_deadline_at)
    if workload.state == State.READY and is_free(workload):
        candidates.append(queue_deadline_at(workload, unpaused_at))
    if workload.state == State.CANCELLATION_REQUESTED and workload.cancel_requested_at:
        candidates.append(workload.cancel_requested_at + grace)
    workload.deadline_at = min((each for each in candidates if each), default=None)


def queue_deadline_at(workload: Workload, unpaused_at: datetime | None) -> datetime | None:
    """When waiting in the queue has taken too long; counts from READY and due.

    If pauses matched it, then from the end of the last one (`pauses.last_end`).
    """
    queue_ms = workload.timeouts["queue_ms"]
    if queue_ms is None:
        return None
    free_from = max(workload.ready_at, workload.available_at, unpaused_at or workload.ready_at)
    return free_from + timedelta(milliseconds=queue_ms)


def retry_delay(policy: Mapping[str, Any], n: int) -> timedelta:
    """The wait before retry `n` (1, 2, …): initial × 2^(n-1), or fixed; at most the maximum.

    `jitter` j, from 0 to 1, takes a random part of up to j off it, so that retries spread out.
    """
    growth = 2 ** min(n - 1, 40) if policy["backoff"] == Backoff.EXPONENTIAL else 1
    delay_ms = min(policy["initial_delay_ms"] * growth, policy["max_delay_ms"])
    spread = 1 - policy["jitter"] * random.random()  # noqa: S311  # no secret
    return timedelta(milliseconds=delay_ms * spread)


def denied(workload: Workload, to: State) -> DomainError:
    """The refusal of a move."""
    return DomainError(
        "WORKLOAD_TRANSITION_DENIED",
        f"{workload.state} work does not become {to}.",
        state=workload.state,
    )


def _event_name(before: str, to: State) -> str:
    return _EVENTS.get((before, to)) or _NAMES.get(to) or to.lower()


def _pk_for(caller: Caller, workload_id: str) -> int:
    found = Workload.objects.filter(tenant_id=caller.tenant_id, workload_id=workload_id)
    pk = found.values_list("pk", flat=True).first()
    if pk is None:
        raise not_found()
    return pk


def _locked(pk: int) -> Workload:
    workload = locking.lock_workload(pk)
    if workload is None:
        raise not_found()
    return workload


def not_found() -> DomainError:
    return DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")


def _stored(
    application: Application, submission: Submission, content_digest: str
) -> Workload | None:
    """The workload that has the key; refuses with WORKLOAD_IDEMPOTENCY_MISMATCH other content."""
    stored = Workload.objects.filter(
        application=application, idempotency_key=submission.idempotency_key
    ).first()
    if stored is not None and stored.content_digest != content_digest:
        raise DomainError(
            "WORKLOAD_IDEMPOTENCY_MISMATCH",
            "This idempotency key stands for other content.",
            workload_id=stored.workload_id,
        )
    return stored


def _create(
    caller: Caller,
    application: Application,
    submission: Submission,
    content_digest: str,
    proof: Grant | None,
) -> Workload:
    content = submission.content()
    requirement = requirements.find(
        application,
        Need(
            submission.definition_id,
            tuple(submission.capability_snapshot),
            **content["policy"],
        ),
    )
    at = clock.now()
    available_at = max(at, submission.not_before or at)
    workload = Workload(
        workload_id=identity(
            "workload", [caller.tenant, application.name, content["idempotency_key"]]
        ),
        tenant_id=caller.tenant_id,
        application=application,
        requirement=requirement,
        requested_by=caller.subject,
        grant=proof,
        grant_digest="" if proof is None else proof.token_digest,
        content_digest=content_digest,
        input_bytes=size(submission.input),
        not_before=submission.not_before,
        created_at=at,
        updated_at=at,
        available_at=available_at,
        ready_at=at,
        overall_from=at,
        **{name: content[name] for name in _COPIED},
    )
    event = make_ready(workload, available_at, actor=caller.subject, at=at)
    workload.save(force_insert=True)
    event.workload_id = workload.pk
    history.write([event])
    return workload


def _require_values(submission: Submission, content: Mapping[str, Any]) -> None:
    """Refuse with WORKLOAD_INVALID what is out of bounds, naming each part of it."""
    key = submission.idempotency_key
    texts = {
        "environment": submission.environment,
        "definition_id": submission.definition_id,
        "definition_revision": submission.definition_revision,
        "trigger": submission.trigger,
    }
    rules = {
        **{name: bool(text.strip()) and len(text) <= 200 for name, text in texts.items()},
        "idempotency_key": bool(key.strip()) and len(key) <= 255 and not key.startswith("run:"),
        "session_id": len(submission.session_id) <= 200,
        "priority": submission.priority in PRIORITY,
        "capability_snapshot": are_names(submission.capability_snapshot),
        "connection_scopes": are_names(submission.connection_scopes),
        "input": size(submission.input) <= MAX_INPUT,
        "not_before": _is_near(submission.not_before),
        **_policy_rules(content["policy"]),
        **_retry_rules(content["retry_policy"]),
        **_timeout_rules(content["timeouts"]),
    }
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise DomainError("WORKLOAD_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken)


def _policy_rules(policy: Mapping[str, Mapping[str, str]]) -> dict[str, bool]:
    return {
        f"policy.{name}": len(pairs) <= MAX_LABELS
        and all(is_label(key, value) for key, value in pairs.items())
        for name, pairs in policy.items()
    }


def _retry_rules(policy: Mapping[str, Any]) -> dict[str, bool]:
    return {
        "retry_policy.max_attempts": 1 <= policy["max_attempts"] <= 1_000,
        "retry_policy.initial_delay_ms": 0 <= policy["initial_delay_ms"] <= MAX_SPAN_MS,
        "retry_policy.max_delay_ms": 0 <= policy["max_delay_ms"] <= MAX_SPAN_MS,
        "retry_policy.backoff": policy["backoff"] in Backoff.values,
        "retry_policy.retry_on": are_names(policy["retry_on"]),
        "retry_policy.jitter": 0 <= policy["jitter"] <= 1,
        "retry_policy.max_unstarted": 1 <= policy["max_unstarted"] <= 1_000,
    }


def _timeout_rules(timeouts: Mapping[str, int | None]) -> dict[str, bool]:
    return {
        f"timeouts.{name}": (value is None and name != "cancel_grace_ms")
        or (value is not None and 1 <= value <= MAX_SPAN_MS)
        for name, value in timeouts.items()
    }


def _is_near(not_before: datetime | None) -> bool:
    """Within ten years: no further than a span may reach, so that deadlines can be worked out."""
    return (
        not_before is None
        or abs(not_before.timestamp() - clock.now().timestamp()) * 1_000 <= MAX_SPAN_MS
    )
