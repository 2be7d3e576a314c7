"""The one clock: the database's, read after the locks.

Rules ask `now()` once their rows are locked, so that a call that waited for a lock judges by the
time at which it acts. SQL statements that read the time themselves take `fixed()` as a parameter
and write `coalesce(%(fixed)s, clock_timestamp())`. Tests set the clock with `set_to`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import connection

_fixed: datetime | None = None


def now() -> datetime:
    """The present time of the database (not the start of the transaction), or as a test set it."""
    if _fixed is not None:
        return _fixed
    with connection.cursor() as cursor:
        cursor.execute("select clock_timestamp()")
        row: tuple[datetime] = cursor.fetchone()
    return row[0]


def fixed() -> datetime | None:
    """The time that a test set, for SQL that reads the clock itself; otherwise None."""
    return _fixed


@contextmanager
def set_to(at: datetime) -> Iterator[None]:
    """Stand still at `at`, in all threads of this process. For tests."""
    global _fixed
    before, _fixed = _fixed, at
    try:
        yield
    finally:
        _fixed = before
