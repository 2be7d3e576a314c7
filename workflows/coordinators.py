"""Coordinators: processes that drive runs, and whether they are alive.

Guarantees: a coordinator belongs to one tenant and to the API token that registered it; only that
token heartbeats or relinquishes. It is alive until its lease ends, by database time, or until it
relinquished; what ended never revives: a new instance id is needed. So "it stopped" stays true
once it was. It says something about the owner of a run only where it was known before it became
that (`speaks_for`).

The server's own coordinators belong to no token and are in all tenants under one instance id; they
are moved by the functions with `builtin` in their names, each one statement.

Locks: a coordinator's row alone, after the run's if one is locked. The time is read after it.
"""

from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Value

from mesh import clock, history
from mesh.errors import DomainError
from mesh.models import Role, Tenant
from mesh.tenancy import Caller

from .authority import Authority, owned_since
from .locking import lock_coordinator
from .models import Coordinator
from .names import require_id, require_name

MIN_LEASE_MS: Final = 1_000
MAX_LEASE_MS: Final = 600_000
_MILLISECOND: Final = timedelta(milliseconds=1)


@history.audited("coordinator.registered", on="instance_id", writes=False)
def register(
    *, caller: Caller, instance_id: str, artifact: str, lease_ms: int
) -> tuple[Coordinator, bool]:
    """Make a coordinator known, alive for `lease_ms`; with it whether it is new.

    A repeat by the same token while it lives gets the row as it is: neither artifact nor lease
    change. Refuses in this order: PERMISSION_DENIED (operator, no API token); ADMISSION_INVALID
    (ids); REQUEST_INVALID (lease out of bounds); PERMISSION_DENIED (another token has it);
    COORDINATOR_ENDED.
    """
    token_pk = _require_token(caller)
    require_id(instance_id, "instance_id")
    require_name(artifact, "artifact")
    _require_lease(lease_ms)
    with transaction.atomic():
        tenant = Tenant.objects.get(pk=caller.tenant_id)
        row, is_new = _get_or_create(
            tenant, instance_id, artifact, lease_ms, by=caller.subject, token_pk=token_pk
        )
        if is_new:
            _audit(row, "coordinator.registered", caller, row.registered_at)
        else:
            row, at = _own(caller, token_pk, instance_id)
            _require_alive(row, at)
    return row, is_new


@history.audited("coordinator.heartbeat", on="instance_id", writes=False)
def heartbeat(*, caller: Caller, instance_id: str, lease_ms: int | None = None) -> Coordinator:
    """Have it live on for `lease_ms` from now (as long as before where none is said).

    Refuses in this order: PERMISSION_DENIED (operator, no API token); REQUEST_INVALID (lease out of
    bounds); COORDINATOR_NOT_FOUND; PERMISSION_DENIED (another token registered it);
    COORDINATOR_ENDED (it relinquished, or its lease ended: nothing revives it).
    """
    token_pk = _require_token(caller)
    if lease_ms is not None:
        _require_lease(lease_ms)
    with transaction.atomic():
        row, at = _own(caller, token_pk, instance_id)
        _require_alive(row, at)
        row.lease_ms = row.lease_ms if lease_ms is None else lease_ms
        row.heartbeat_at = at
        row.lease_ends_at = at + row.lease_ms * _MILLISECOND
        row.save(update_fields=["lease_ms", "heartbeat_at", "lease_ends_at"])
    return row


@history.audited("coordinator.relinquished", on="instance_id", writes=False)
def relinquish(*, caller: Caller, instance_id: str) -> Coordinator:
    """Say that it drives no run any more, so that another may take over at once.

    Twice is fine while the lease lasts. Refuses in this order: PERMISSION_DENIED (operator, no API
    token); COORDINATOR_NOT_FOUND; PERMISSION_DENIED (another token registered it);
    COORDINATOR_ENDED (its lease ended).
    """
    token_pk = _require_token(caller)
    with transaction.atomic():
        row, at = _own(caller, token_pk, instance_id)
        if at >= row.lease_ends_at:
            raise _ended(row)
        if row.relinquished_at is None:
            row.relinquished_at = at
            row.save(update_fields=["relinquished_at"])
            _audit(row, "coordinator.relinquished", caller, at)
    return row


def register_builtin(
    *, tenant: Tenant, instance_id: str, artifact: str, lease_ms: int, by: str = "system:builtin"
) -> Coordinator:
    """Make the server's own coordinator known in a tenant; a repeat gets the row as it is.

    Refuses with PERMISSION_DENIED where a token has that instance id, and with COORDINATOR_ENDED.
    """
    with transaction.atomic():
        row, is_new = _get_or_create(tenant, instance_id, artifact, lease_ms, by=by, token_pk=None)
        if not is_new:
            if not row.is_builtin:
                raise _foreign()
            _require_alive(row, clock.now())
    return row


def beat_builtin(*, instance_id: str) -> int:
    """Have the server's own coordinator live on in all tenants; in how many it does.

    Fewer than it registered in: there its lease ended, and it must register a new instance.
    """
    at = clock.now()
    lease = ExpressionWrapper(F("lease_ms") * Value(_MILLISECOND), output_field=DurationField())
    ends_at = ExpressionWrapper(Value(at) + lease, output_field=DateTimeField())
    return (
        Coordinator.objects.filter(instance_id=instance_id, token__isnull=True)
        .filter(relinquished_at__isnull=True, lease_ends_at__gt=at)
        .update(heartbeat_at=at, lease_ends_at=ends_at)
    )


def relinquish_builtin(*, instance_id: str) -> int:
    """Say in all tenants that the server's own coordinator drives no run any more; in how many."""
    at = clock.now()
    return (
        Coordinator.objects.filter(instance_id=instance_id, token__isnull=True)
        .filter(relinquished_at__isnull=True, lease_ends_at__gt=at)
        .update(relinquished_at=at)
    )


def known(tenant_pk: int, instance_ids: tuple[str, ...]) -> dict[str, Coordinator]:
    """Those of these instances that are registered in the tenant, by id; one statement."""
    rows = Coordinator.objects.filter(tenant_id=tenant_pk, instance_id__in=instance_ids)
    return {row.instance_id: row for row in rows}


def speaks_for(row: Coordinator, run_pk: int, owner: Authority) -> bool:
    """Whether what becomes of this instance says what became of that owner of a run.

    Not where a token made it known only after the run was that owner's: whoever did that need not
    be the owner, and could let the instance end while the owner is at work.
    """
    if row.is_builtin:
        return True
    since = owned_since(run_pk, owner.generation)
    return since is not None and row.registered_at <= since


def has_stopped(row: Coordinator, at: datetime, *, grace: timedelta) -> bool:
    """Whether it moves no run any more: it relinquished, or its lease ended that long ago."""
    return row.relinquished_at is not None or row.lease_ends_at + grace <= at


def _get_or_create(
    tenant: Tenant,
    instance_id: str,
    artifact: str,
    lease_ms: int,
    *,
    by: str,
    token_pk: int | None,
) -> tuple[Coordinator, bool]:
    at = clock.now()
    return Coordinator.objects.get_or_create(
        tenant=tenant,
        instance_id=instance_id,
        defaults={
            "artifact": artifact,
            "token_id": token_pk,
            "registered_by": by,
            "registered_at": at,
            "heartbeat_at": at,
            "lease_ms": lease_ms,
            "lease_ends_at": at + lease_ms * _MILLISECOND,
        },
    )


def _own(caller: Caller, token_pk: int, instance_id: str) -> tuple[Coordinator, datetime]:
    """The locked row, if it is that token's, and the time by which it is judged."""
    row = lock_coordinator(caller.tenant_id, instance_id)
    if row is None:
        raise DomainError("COORDINATOR_NOT_FOUND", "There is no such coordinator.")
    if row.token_id != token_pk:
        raise _foreign()
    return row, clock.now()


def _require_token(caller: Caller) -> int:
    caller.require(Role.OPERATOR)
    if caller.token_pk is None:
        raise DomainError("PERMISSION_DENIED", "A coordinator belongs to an API token.")
    return caller.token_pk


def _require_lease(lease_ms: int) -> None:
    if not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
        raise DomainError(
            "REQUEST_INVALID",
            f"The lease of a coordinator is {MIN_LEASE_MS} to {MAX_LEASE_MS} ms.",
        )


def _require_alive(row: Coordinator, at: datetime) -> None:
    if not row.is_alive(at):
        raise _ended(row)


def _ended(row: Coordinator) -> DomainError:
    how = "It relinquished" if row.relinquished_at else "Its lease ended"
    return DomainError("COORDINATOR_ENDED", f"{how}; register a new instance.")


def _foreign() -> DomainError:
    return DomainError("PERMISSION_DENIED", "The coordinator belongs to another token.")


def _audit(row: Coordinator, action: str, caller: Caller, at: datetime) -> None:
    history.audit(
        tenant_id=caller.tenant_id,
        actor=caller.subject,
        action=action,
        target=row.instance_id,
        at=at,
        evidence={"artifact": row.artifact, "lease_ms": row.lease_ms},
    )
