"""The append-only record of accepted changes, and of refusals worth keeping.

Each row is written in the transaction that made the change, by the function that made it. Events
of one workload or worker are numbered 1, 2, 3 … by a counter on its own row, which is locked
whenever an event is written.

What people and services do to work, workers and rights is audited: the operations that they call
stand under `audited`, which writes the row of what was accepted and of who was not allowed to.
What workers and sweeps do stands in the histories alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial, wraps
from hashlib import sha256
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from django.core.cache import cache
from django.db import transaction

from . import clock, refusals, statements
from .errors import DomainError
from .models import AuditEntry, Worker, WorkerEvent, Workload, WorkloadEvent

P = ParamSpec("P")
T = TypeVar("T")
# Refusals that say something about who asked, not about the state of things.
_KEPT: Final = frozenset(
    {
        "PERMISSION_DENIED",
        "GRANT_EXPIRED",
        "GRANT_REVOKED",
        "GRANT_SCOPE_DENIED",
        "GRANT_DELEGATION_INVALID",
        "WORKER_UNAUTHORIZED",
    }
)
# A caller that repeats a refused call leaves one row of it in this time.
_REPEAT_S: Final = 60
_MAX_TARGET: Final = 255


class Actor(Protocol):
    """The facts about a caller that an audit row holds."""

    @property
    def subject(self) -> str: ...
    @property
    def tenant_id(self) -> int: ...
    @property
    def is_worker(self) -> bool: ...


def of_workload(
    workload: Workload,
    *,
    event: str,
    from_state: str,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any],
) -> WorkloadEvent:
    """The next event of a locked workload, not yet written; the counter moves in memory."""
    workload.event_sequence += 1
    return statements.fresh(
        WorkloadEvent,
        workload_id=workload.pk,
        sequence=workload.event_sequence,
        event=f"workload.{event}",
        from_state=from_state,
        to_state=workload.state,
        actor=actor,
        at=at,
        evidence=dict(evidence),
    )


def of_worker(
    worker: Worker,
    *,
    event: str,
    from_state: str,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> WorkerEvent:
    """Write the next event of a locked worker; the caller saves the counter with its row."""
    worker.event_sequence += 1
    return WorkerEvent.objects.create(
        worker_id=worker.pk,
        sequence=worker.event_sequence,
        event=f"worker.{event}",
        from_state=from_state,
        to_state=worker.lifecycle,
        actor=actor,
        at=at,
        evidence=dict(evidence or {}),
    )


def write(events: Sequence[WorkloadEvent]) -> None:
    """Append workload events, all in one statement."""
    WorkloadEvent.objects.bulk_create(events)


def audit(
    *,
    tenant_id: int | None,
    actor: str,
    action: str,
    target: str,
    at: datetime,
    reason: str = "",
    code: str = "",
    evidence: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Append an act of a person or service, or a refusal (with its code) worth keeping."""
    return AuditEntry.objects.create(
        tenant_id=tenant_id,
        actor=actor,
        action=action,
        target=target[:_MAX_TARGET],
        reason=reason,
        code=code,
        evidence=dict(evidence or {}),
        at=at,
    )


def audited(
    action: str, *, on: str, writes: bool = True
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """The operation, audited as `action` on what its argument `on` names.

    What was accepted leaves a row in the same transaction, unless a worker did it; with
    `writes=False` the operation writes that row itself. Refusals that say something about the
    caller leave a row too, each once a minute. Takes `caller` and, where there is one, `reason`.
    """

    def decorate(operation: Callable[P, T]) -> Callable[P, T]:
        @wraps(operation)
        def act(*args: P.args, **said: P.kwargs) -> T:
            caller = cast(Actor, said["caller"])
            row = partial(
                audit,
                tenant_id=caller.tenant_id,
                actor=caller.subject,
                action=action,
                target=str(said[on]),
                reason=str(said.get("reason") or ""),
            )
            with refusals.kept(), keeping(row):
                if caller.is_worker or not writes:
                    return operation(*args, **said)
                with transaction.atomic():
                    done = operation(*args, **said)
                    row(at=clock.now(), evidence=_told({**said, on: None}, done))
                return done

        return act

    return decorate


@contextmanager
def keeping(row: "partial[AuditEntry]") -> Iterator[None]:
    """Have a refusal from this block that says something about the caller leave this row.

    It is written by the outermost `refusals.kept`, in a transaction of its own.
    """
    try:
        yield
    except DomainError as refusal:
        if refusal.code in _KEPT:
            refusal.keep = partial(_keep, row, refusal.code, refusal.keep)
        raise


def _keep(row: "partial[AuditEntry]", code: str, before: Callable[[], object] | None) -> None:
    if before is not None:
        before()
    said = [str(each) for each in row.keywords.values()]
    key = sha256("\n".join([*said, code]).encode()).hexdigest()
    if cache.add(f"refused.{key}", True, _REPEAT_S):
        row(at=clock.now(), code=code)


def _told(said: Mapping[str, Any], done: object) -> dict[str, Any]:
    """What else the act was given, and what its row became; free content is not copied."""
    given = {
        name: each
        for name, each in said.items()
        if name not in {"caller", "reason", "output"} and isinstance(each, (str, int, bool))
    }
    for name in ("lifecycle", "state"):
        if became := getattr(done, name, None):
            given["became"] = became
    return given
