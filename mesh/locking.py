"""The only places that lock rows, in the one global order, and what a busy store means.

Order: run → resource key → worker → pool → workload, by primary key within each. Attempt rows
change only under their worker's lock and are not locked themselves. Locks are `for no key update`,
so that rows pointing here by foreign key can be inserted meanwhile. The lock on a tenant's rights,
which is no row, comes before all of them.

A call that starts from a workload learns its worker without a lock, locks the worker, then the
workload, and looks again; if the work changed hands meanwhile, it tries anew, at most three times.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pglock
import psycopg
from django.db import DatabaseError, InterfaceError, transaction
from psycopg import errors as pg
from psycopg_pool import PoolTimeout, TooManyRequests

from . import statements
from .errors import DomainError
from .models import Attempt, Pool, Worker, Workload

_TRIES: Final = 3
_RETRY_AFTER_MS: Final = 500
_BUSY: Final = (
    pg.LockNotAvailable,
    pg.DeadlockDetected,
    pg.QueryCanceled,
    pg.SerializationFailure,
    pg.TooManyConnections,
    # An operator has to make room; but it passes, nothing was changed, and the caller is not wrong.
    pg.DiskFull,
    pg.OutOfMemory,
    pg.CannotConnectNow,
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.IdleInTransactionSessionTimeout,
    PoolTimeout,
    TooManyRequests,
)

# The statements that every call of a worker, and the sweep that ends leases, begin with.
_WORKER: Final = statements.Reader(Worker)
_ATTEMPT: Final = statements.Reader(Attempt)
_WORKLOAD: Final = statements.Reader(Workload, but=["input"])
_WORK: Final = Attempt._meta.get_field("workload")
_LOCK_WORKER: Final = (
    f"select {_WORKER.columns('w')} from mesh_worker w where w.id = %(pk)s for no key update"  # noqa: S608  # our own column names
)
_LOCK_FREE_WORKERS: Final = (
    f"select {_WORKER.columns('w')} from mesh_worker w where w.id = any(%(pks)s::bigint[])"  # noqa: S608  # our own column names
    " order by w.id for no key update skip locked"
)
# The tenant's work is never to be gone through for these, which the planner would do while it knows
# no better than that there is little of it: hence the `+ 0`, for which there is no index.
_READ_CLAIM: Final = (
    f"select {_ATTEMPT.columns('a')}, {_WORKLOAD.columns('w')}"  # noqa: S608  # our own column names
    " from mesh_attempt a join mesh_workload w on w.id = a.workload_id"
    " where a.uid = %(uid)s::uuid and w.tenant_id + 0 = %(tenant)s"
)
_LOCK_CLAIM: Final = f"{_READ_CLAIM} for no key update of w"
_LOCK_CLAIMS: Final = (
    f"select {_ATTEMPT.columns('a')}, {_WORKLOAD.columns('w')}"  # noqa: S608  # our own column names
    " from mesh_attempt a join mesh_workload w on w.id = a.workload_id"
    " where a.uid = any(%(uids)s::uuid[]) and w.tenant_id + 0 = %(tenant)s"
    " order by w.id for no key update of w skip locked"
)


_SHARE: Final = (
    "select id as pk, application_id as application_pk, workload_id, state from mesh_workload"
    " where workload_id = any(%(ids)s::text[]) and application_id = any(%(applications)s::bigint[])"
    " order by id for share"
)


class Shared(NamedTuple):
    """Work that others wait for, as it is and stays while the share lock on it is held."""

    pk: int
    application_pk: int
    workload_id: str
    state: str


_KEEP_WORKERS: Final = (
    "select id from mesh_worker where id = any(%(pks)s::bigint[]) order by id for key share"
)


@dataclass(slots=True)
class Held:
    """A locked workload, with the attempt that was asked for and that one's locked worker."""

    workload: Workload
    worker: Worker | None = None
    attempt: Attempt | None = None


def lock_worker(pk: int) -> Worker:
    """Lock one worker; WORKER_NOT_FOUND if the row is gone."""
    row = statements.first(_LOCK_WORKER, {"pk": pk})
    if row is None:
        raise DomainError("WORKER_NOT_FOUND", "There is no such worker.")
    return _WORKER.read(row)


def lock_workers(pks: Sequence[int]) -> None:
    """Lock these workers in the order of their keys; nothing is read of them."""
    locked = Worker.objects.select_for_update(of=("self",), no_key=True)
    list(locked.filter(pk__in=pks).order_by("pk").values_list("pk"))


def lock_free_workers(pks: Sequence[int]) -> list[Worker]:
    """Lock those of these workers that nobody else holds, in the order of their keys."""
    return [
        _WORKER.read(row) for row in statements.all_rows(_LOCK_FREE_WORKERS, {"pks": list(pks)})
    ]


def lock_claim(uid: str, tenant_id: int) -> Attempt | None:
    """The attempt of that uid with its workload, which is locked; the caller has locked a worker.

    The attempt is read as it is; only one of the caller's own worker cannot change any more.
    """
    row = statements.first(_LOCK_CLAIM, {"uid": uid, "tenant": tenant_id})
    return None if row is None else _claim(row)


def read_claim(uid: str, tenant_id: int) -> Attempt | None:
    """The attempt of that uid with its workload, neither locked."""
    row = statements.first(_READ_CLAIM, {"uid": uid, "tenant": tenant_id})
    return None if row is None else _claim(row)


def lock_pools(application_pk: int, pool_ids: Collection[str]) -> list[Pool]:
    """Lock those of these pools that have a limit, in the order of their keys.

    The caller has locked a worker. Claims of pools without a limit do not wait for each other.
    """
    if not pool_ids:
        return []
    locked = Pool.objects.select_for_update(of=("self",), no_key=True)
    limited = locked.filter(
        application_id=application_pk, pool_id__in=pool_ids, max_concurrency__isnull=False
    )
    return list(limited.order_by("pk"))


def lock_claims(uids: Sequence[str], tenant_id: int) -> list[Attempt]:
    """The attempts of these uids with their workloads, locked in the order of their keys.

    Those whose workload another call holds are left out. Attempts of one workload share its row.
    """
    values = {"uids": list(uids), "tenant": tenant_id}
    found = [_claim(row) for row in statements.all_rows(_LOCK_CLAIMS, values)]
    shared: dict[int, Workload] = {}
    for each in found:
        # As the ORM puts what it reads together: a `set` of a relation costs many times as much.
        _WORK.set_cached_value(each, shared.setdefault(each.workload_id, each.workload))
    return found


def known_claims(uids: Sequence[str], tenant_id: int) -> frozenset[str]:
    """Those of these uids that are claims of the tenant; nothing is locked."""
    known = Attempt.objects.filter(uid__in=uids, workload__tenant_id=tenant_id)
    return frozenset(uid.hex for uid in known.values_list("uid", flat=True))


def lock_workload(pk: int, *, nowait: bool = False) -> Workload | None:
    """Lock one workload; None if it is gone. With `nowait` it is busy at once if another has it."""
    locked = Workload.objects.select_for_update(of=("self",), no_key=True, nowait=nowait)
    return locked.filter(pk=pk).first()


def lock_workloads(pks: list[int], *, nowait: bool = False) -> dict[int, Workload]:
    """Lock these workloads in the order of their keys; inputs, which may be long, are not read.

    With `nowait` they are busy at once if another has one of them.
    """
    locked = Workload.objects.select_for_update(of=("self",), no_key=True, nowait=nowait)
    return {each.pk: each for each in locked.filter(pk__in=pks).order_by("pk").defer("input")}


def keep_workers(pks: Collection[int]) -> None:
    """Have these workers stay and keep their credentials until the transaction ends.

    In the order of their keys. Claims and heartbeats go on; a register or removal under way is
    waited for. Rows that point to workers take this lock by themselves, but only at commit, when
    their transaction holds what a register may be waiting for.
    """
    statements.rows(_KEEP_WORKERS, {"pks": list(pks)})


def share_workloads(
    workload_ids: Collection[str], application_pks: Collection[int]
) -> list[Shared]:
    """Keep these workloads of these applications as they are until the transaction ends.

    In the order of their keys. Others may share them too; who would change one waits.
    """
    values = {"ids": list(workload_ids), "applications": list(application_pks)}
    return [Shared(**row) for row in statements.rows(_SHARE, values)]


def lock_held(workload_pk: int) -> Held:
    """Lock a workload and, if it is claimed, first the worker that holds it.

    Refuses with WORKLOAD_NOT_FOUND, and with STORAGE_BUSY when the work changed hands each time.
    """
    return _lock_held(workload_pk, _live_attempt)


def lock_latest(workload_pk: int) -> Held:
    """As `lock_held`, with the latest attempt there is, whether it lives or not."""
    return _lock_held(workload_pk, _latest_attempt)


def _lock_held(workload_pk: int, find: Callable[[int], Attempt | None]) -> Held:
    for _ in range(_TRIES):
        # A savepoint: giving it up also gives up the locks of a try that came too late.
        with transaction.atomic():
            seen = find(workload_pk)
            worker = None if seen is None else lock_worker(seen.worker_id)
            workload = lock_workload(workload_pk)
            if workload is None:
                raise DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")
            attempt = find(workload_pk)
            if attempt is None:
                return Held(workload)
            if worker is not None and attempt.worker_id == worker.pk:
                return Held(workload, worker, attempt)
            transaction.set_rollback(True)
    raise busy()


def share_rights(tenant_id: int) -> None:
    """Until the transaction ends, no revocation runs in the tenant. Before any row is locked."""
    pglock.advisory(
        f"fencepost.rights.{tenant_id}", shared=True, xact=True, side_effect=pglock.Raise
    ).acquire()


def hold_rights(tenant_id: int) -> None:
    """Wait for grants that are being made in the tenant; until the transaction ends none is."""
    pglock.advisory(f"fencepost.rights.{tenant_id}", xact=True, side_effect=pglock.Raise).acquire()


def busy() -> DomainError:
    """The refusal for a store that could not answer in time; nothing was changed, try again."""
    return DomainError(
        "STORAGE_BUSY",
        "The store could not do this in time. Nothing was changed; try again.",
        retry_after_ms=_RETRY_AFTER_MS,
    )


def is_busy(exc: Exception) -> bool:
    """Whether it failed for a reason that passes: a row locked by another, a store away."""
    is_refused = isinstance(exc, DomainError) and exc.code == "STORAGE_BUSY"
    return is_refused or busy_error(exc) is not None


@contextmanager
def unless_busy() -> Iterator[None]:
    """Pass over what the store was too busy for; a sweep goes on with it."""
    try:
        yield
    except Exception as error:
        if not is_busy(error):
            raise


def busy_error(exc: BaseException) -> DomainError | None:
    """STORAGE_BUSY where `exc` says that the store is busy or away; None for any other trouble."""
    cause = exc.__cause__ if isinstance(exc, DatabaseError | InterfaceError) else exc
    if isinstance(exc, InterfaceError) or isinstance(cause, _BUSY):
        return busy()
    is_lost = isinstance(cause, psycopg.OperationalError) and cause.sqlstate in {None, "57P01"}
    return busy() if is_lost else None


def _claim(row: Sequence[Any]) -> Attempt:
    width = len(_ATTEMPT.names)
    attempt = _ATTEMPT.read(row[:width])
    _WORK.set_cached_value(attempt, _WORKLOAD.read(row[width:]))
    return attempt


def _live_attempt(workload_pk: int) -> Attempt | None:
    return Attempt.objects.live().filter(workload_id=workload_pk).first()


def _latest_attempt(workload_pk: int) -> Attempt | None:
    return Attempt.objects.filter(workload_id=workload_pk).order_by("-number").first()
