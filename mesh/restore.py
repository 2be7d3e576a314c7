"""After a database was restored: what it remembers is older than what is true outside.

Workers may hold claims that the restored database never gave, and tokens that it is about to give
again. So every fencing token is raised beyond any that was given since the backup, every live
attempt ends as lost work, and every worker must reconcile before it may take or start anything.

What others remember is distrusted first (`also`): what they stop is stopped before lost work is
offered again.

Run it before the server starts; it may also run beside it. It goes in pages, each a transaction of
its own. After a crash run it again: tokens that were raised already are raised once more, which
does no harm.

Locks: a page of workloads by key; then each worker with the workloads of its claims.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import transaction

from . import clock, history, leases, locking, statements, workers
from .models import Attempt, Worker

# More than the tokens that one workload can have been given since any backup.
RAISE: Final = 1_000_000
PAGE: Final = 1_000
_RAISE_TOKENS: Final = """
    with page as (
        select id from mesh_workload where id > %(after)s
        order by id limit %(page)s for no key update
    ),
    raised as (
        update mesh_workload w set fencing_token = w.fencing_token + %(raise)s
        from page where page.id = w.id
        returning w.id
    )
    select max(id) as last, count(*) as number from raised
"""


@dataclass(frozen=True, slots=True)
class Restored:
    """How many rows of each kind were touched."""

    tokens_raised: int
    attempts_ended: int
    workers_to_reconcile: int
    # What others did, by their own names for it.
    others: Mapping[str, int] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """All numbers by name."""
        return {
            "tokens_raised": self.tokens_raised,
            "attempts_ended": self.attempts_ended,
            "workers_to_reconcile": self.workers_to_reconcile,
            **self.others,
        }


# By what they count; each is given the actor, and says how many rows it touched.
_others: Final[dict[str, Callable[[str], int]]] = {}


def also(counted: str, distrust: Callable[[str], int]) -> None:
    """Have `distrust` called after each restore; the answer tells its number as `counted`.

    It takes the actor, goes in pages with transactions of its own, and may be run again.
    """
    _others[counted] = distrust


def after_restore(*, actor: str) -> Restored:
    """Make the old claims and tokens of a restored database worth nothing.

    Raises every fencing token by 1 000 000, also those of work that ended; ends live attempts as
    lost (`mesh.outcomes` says what becomes of the work); has every worker reconcile. A repeat does
    it all again, to what is there by then.
    """
    others = {counted: distrust(actor) for counted, distrust in _others.items()}
    raised = _raise_tokens()
    ended = seen = after = 0
    while pks := _worker_page(after):
        for pk in pks:
            ended += _distrust(pk, actor)
        seen += len(pks)
        after = pks[-1]
    done = Restored(raised, ended, seen, others)
    history.audit(
        tenant_id=None,
        actor=actor,
        action="database.restored",
        target="database",
        at=clock.now(),
        evidence=done.shown(),
    )
    return done


def _raise_tokens() -> int:
    after, raised = 0, 0
    while True:
        with transaction.atomic():
            values = {"after": after, "page": PAGE, "raise": RAISE}
            (page,) = statements.rows(_RAISE_TOKENS, values)
        number: int = page["number"]
        raised += number
        if number < PAGE:
            return raised
        after = page["last"]


def _worker_page(after: int) -> list[int]:
    there = Worker.objects.filter(removed_at__isnull=True, pk__gt=after)
    return list(there.order_by("pk").values_list("pk", flat=True)[:PAGE])


def _distrust(worker_pk: int, actor: str) -> int:
    """End all claims of one worker and have it reconcile; how many there were."""
    with transaction.atomic():
        worker = locking.lock_worker(worker_pk)
        at = clock.now()
        live = list(Attempt.objects.live().filter(worker=worker).order_by("pk"))
        leases.lose(worker, live, cause="restored", actor=actor, at=at)
        worker.is_unreconciled = True
        workers.record(worker, "restored", actor=actor, at=at, evidence={"lost": len(live)})
        workers.save(worker)
    return len(live)
