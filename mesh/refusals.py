"""What must survive a refusal: a decision, a late report, an audited denial.

A refusal rolls back the transaction that it was raised in, and with it whatever that one wrote.
So what is to stay is not written there: the `DomainError` carries it as `keep`, a callable that
writes, and the operation stands in `with kept():`, outside of its `transaction.atomic()`:

    with refusals.kept(), transaction.atomic():
        ...
        raise DomainError("MESH_PLACEMENT_DENIED", "…", keep=partial(_record, …))

Guarantees: written once, in a transaction of its own, after the rollback; the refusal goes on as it
was. An operation that runs inside another's transaction leaves the writing to that one's `kept`,
for what it wrote would be rolled back too. Where it cannot be written, the caller is told that the
store is busy instead, so that a repeat keeps it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from .errors import DomainError


@contextmanager
def kept() -> Iterator[None]:
    """Write what a refusal from this block carries, unless a transaction is still open here."""
    try:
        yield
    except DomainError as refusal:
        if not _is_in_transaction():
            keep(refusal)
        raise


def keep(refusal: DomainError) -> None:
    """Write what this refusal carries, in a transaction of its own; a repeat writes nothing."""
    write, refusal.keep = refusal.keep, None
    if write is not None:
        with transaction.atomic():
            write()


def _is_in_transaction() -> bool:
    """Whether there is an outer transaction; the one that a test case wraps around is none.

    The same question that `atomic(durable=True)` asks.
    """
    blocks = connection.atomic_blocks
    return bool(blocks) and not blocks[-1]._from_testcase  # type: ignore[attr-defined]  # no stub
