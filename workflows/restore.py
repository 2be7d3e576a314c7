"""After a database was restored: what its open runs remember is older than what is true outside.

Attempts may have been settled, and authority may have moved, since the backup. So a recovery
barrier is opened on every open run: nothing new starts before its authority has explained what was
under way. It belongs to the authority that the run has; where it has none, to the first that claims
it. Registered with `mesh.restore`, which calls it before lost work is offered again.

Locks: a page of runs by key, with the workloads of their unsettled attempts; each page is a
transaction of its own. A repeat leaves barriers that stand as they are.
"""

from typing import Final

from django.db import transaction

from . import blocks, history
from .authority import Authority
from .locking import lock_runs
from .models import RecoveryBarrier, Run

PAGE: Final = 100
REASON: Final = "the database was restored"


def bar_open_runs(actor: str) -> int:
    """Have a barrier stand on every open run; how many runs that are."""
    after = barred = 0
    while pks := _page(after):
        barred += _bar(pks, actor)
        after = pks[-1]
    return barred


def _page(after: int) -> list[int]:
    there = Run.objects.open().filter(pk__gt=after).order_by("pk")
    return list(there.values_list("pk", flat=True)[:PAGE])


def _bar(pks: list[int], actor: str) -> int:
    with transaction.atomic():
        open_runs = [each for each in lock_runs(pks).values() if each.is_open]
        standing = RecoveryBarrier.objects.filter(run_id__in=pks, ended_at__isnull=True)
        barred = set(standing.values_list("run_id", flat=True))
        for run in open_runs:
            if run.pk not in barred:
                owner = Authority.of(run)
                barrier = blocks.open_barrier(run, owner=owner, by=actor, reason=REASON)
                evidence = {"reason": REASON, "authority": owner and owner.public()}
                history.record(
                    run, "barrier_opened", actor=actor, at=barrier.since, evidence=evidence
                )
    return len(open_runs)
