"""A busy store says so, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, connection
from psycopg import errors as pg
from psycopg_pool import PoolTimeout, TooManyRequests

from mesh import locking, workers, workloads
from mesh.errors import CODES, DomainError
from tests.factories import World
from tests.mesh.checks import raises


def raised(cause: BaseException) -> BaseException:
    """As Django raises what the driver raised: by the driver's class, which need not be its name's.

    That a transaction stood idle for too long is an internal error to the driver.
    """
    try:
        with connection.wrap_database_errors:
            raise cause
    except Exception as error:
        return error


BUSY = [
    pg.LockNotAvailable,
    pg.DeadlockDetected,
    pg.QueryCanceled,
    pg.SerializationFailure,
    pg.TooManyConnections,
    pg.DiskFull,
    pg.OutOfMemory,
    pg.CannotConnectNow,
    pg.AdminShutdown,
    pg.IdleInTransactionSessionTimeout,
    PoolTimeout,
    TooManyRequests,
    psycopg.OperationalError,
]


@pytest.mark.parametrize("cause", BUSY)
def test_a_busy_store_is_told_with_a_time_to_wait(cause: type[Exception]) -> None:
    refusal = locking.busy_error(raised(cause("x")))
    assert refusal is not None
    assert (refusal.code, refusal.status, refusal.kind) == ("STORAGE_BUSY", 503, "unavailable")
    assert refusal.facts["retry_after_ms"] > 0


def test_a_lost_connection_is_busy() -> None:
    assert locking.busy_error(InterfaceError("connection already closed")) is not None


@pytest.mark.parametrize(
    "error",
    [
        raised(pg.DuplicateFile("x")),
        raised(pg.UniqueViolation("x")),
        raised(pg.UndefinedTable("x")),
        IntegrityError("x"),
        ValueError("x"),
        DomainError("WORKER_BUSY", "x"),
    ],
)
def test_any_other_trouble_is_not(error: BaseException) -> None:
    assert locking.busy_error(error) is None


@pytest.fixture
def impatient(transactional_db: None) -> Iterator[None]:
    """Rows that others can see, and locks that are waited for no longer than a moment."""
    with connection.cursor() as cursor:
        cursor.execute("set lock_timeout = '20ms'")
        yield
        cursor.execute("reset lock_timeout")


@pytest.mark.usefixtures("impatient")
def test_a_row_that_another_call_holds_is_a_busy_store_and_nothing_was_changed() -> None:
    world = World()
    held = world.running()
    before = held.refresh().updated_at
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("select 1 from mesh_workload for update")
        with pytest.raises(OperationalError) as caught:
            workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
        with pytest.raises(OperationalError):
            held.worker.complete(held.claim)
        # Neither a beat nor a drain needs the workload.
        held.worker.beat(held.claim.claim_id)
        workers.drain(caller=world.operator, worker_id=held.worker.worker_id)
    finally:
        other.close()
    refusal = locking.busy_error(caught.value)
    assert refusal is not None
    assert refusal.code == "STORAGE_BUSY"
    assert (held.refresh().state, held.workload.updated_at) == ("RUNNING", before)


def test_what_is_not_there_is_not_found(db: None) -> None:
    with raises("WORKER_NOT_FOUND"):
        locking.lock_worker(0)
    with raises("WORKLOAD_NOT_FOUND"):
        locking.lock_held(0)


# --- Codes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("REQUEST_MALFORMED", 400, "invalid"),
        ("TOKEN_INVALID", 401, "unauthenticated"),
        ("GRANT_REVOKED", 403, "denied"),
        ("WORKER_UNAUTHORIZED", 403, "denied"),
        ("WORKLOAD_UNAUTHORIZED", 403, "denied"),
        ("CLAIM_NOT_FOUND", 404, "not_found"),
        ("WORKLOAD_CLAIM_INVALID", 409, "stale"),
        ("WORKLOAD_STALE_FENCE", 409, "stale"),
        ("WORKLOAD_LEASE_EXPIRED", 409, "stale"),
        ("WORKER_DRAINED", 409, "conflict"),
        ("WORKLOAD_NOT_YET_ELIGIBLE", 409, "conflict"),
        ("MESH_NO_ELIGIBLE_WORKER", 409, "conflict"),
        ("BODY_TOO_LARGE", 413, "invalid"),
        ("CONTENT_TYPE_UNSUPPORTED", 415, "invalid"),
        ("WORKER_CLOCK_INVALID", 422, "invalid"),
        ("WORKLOAD_SECRET_REJECTED", 422, "invalid"),
        ("LIMIT_EXCEEDED", 429, "unavailable"),
        ("STORAGE_BUSY", 503, "unavailable"),
    ],
)
def test_a_code_travels_with_its_status_and_kind(code: str, status: int, kind: str) -> None:
    assert tuple(CODES[code]) == (status, kind)


def test_a_code_that_nobody_declared_cannot_be_raised() -> None:
    with pytest.raises(AssertionError):
        DomainError("SOMETHING_ELSE", "x")
