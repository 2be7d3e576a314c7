"""Leases that are over: the claims end as lost work and the slots are free; no worker is judged.

Guarantees: all that a worker holds beyond its lease ends in one transaction, and once, however many
sweepers there are. Several workers share a transaction where they can: when many fall silent at
once, a commit for each of them would take longer than all the rest.

Locks: the workers in the order of their keys, then their workloads.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.db import connection, transaction

from . import clock, leases, locking, workers
from .models import Attempt, Worker, Workload

logger = logging.getLogger(__name__)

# How many claims may be ended in one transaction that is about several workers.
AT_ONCE: Final = 200
_ACTOR: Final = f"system:{leases.RECOVER_SWEEP}"
_CAUSE: Final = "lease over"


@dataclass(frozen=True, slots=True)
class Ended:
    """The work that was lost, and the keys of the workers that are still to be done singly."""

    lost: list[Workload] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


def end_of(worker_pk: int) -> list[Workload]:
    """End all expired claims of one worker; the lost work. Waits for the worker."""
    with transaction.atomic():
        worker = locking.lock_worker(worker_pk)
        at = clock.now()
        expired = list(Attempt.objects.expired(at).filter(worker=worker).order_by("pk"))
        lost = leases.lose(worker, expired, cause=_CAUSE, actor=_ACTOR, at=at)
        workers.save(worker)
    return lost


def end_of_free(worker_pks: Sequence[int]) -> Ended:
    """The same of several workers in one transaction; waits for nobody and raises nothing.

    Workers that another call holds are left to be done singly. So are all of them where the work
    of one is held or raises: it will again, alone.
    """
    if len(worker_pks) == 1:
        return Ended(left=list(worker_pks))
    try:
        with transaction.atomic():
            free = locking.lock_free_workers(worker_pks)
            at = clock.now()
            expired = list(Attempt.objects.expired(at).filter(worker__in=free).order_by("pk"))
            lost = leases.lose_together(free, expired, cause=_CAUSE, actor=_ACTOR, at=at)
    except Exception:
        logger.debug("Worker by worker: %s", worker_pks, exc_info=True)
        connection.close_if_unusable_or_obsolete()
        return Ended(left=list(worker_pks))
    done = {each.pk for each in free}
    return Ended(lost, [pk for pk in worker_pks if pk not in done])


def small_groups(worker_pks: Sequence[int]) -> Iterator[list[int]]:
    """These workers, so many at a time that they hold at most `AT_ONCE` claims, or one of them."""
    active = dict(Worker.objects.filter(pk__in=worker_pks).values_list("pk", "active"))
    group: list[int] = []
    total = 0
    for pk in worker_pks:
        total += active.get(pk, 0)
        if group and total > AT_ONCE:
            yield group
            group, total = [], active.get(pk, 0)
        group.append(pk)
    if group:
        yield group
