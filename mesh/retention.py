"""Retention: what is removed when it is old enough, and what never is.

| rows | kept for | counted from |
|---|---|---|
| ended work, with all that hangs on it | `KEEP_ENDED_WORK_DAYS` | its end |
| history: of ended work, of workers | `KEEP_HISTORY_DAYS` | the work's end; the event |
| placement decisions | `KEEP_DECISIONS_DAYS` | the decision |
| audit | `KEEP_AUDIT_DAYS` | the entry |

Guarantees: rows of work that has not ended stay, however old; so does ended work that other work
still names as a dependency, until that one is removed, and work that others keep (`keep`). A dead
letter counts as ended. Removing work frees its idempotency key: the same key is then new work,
whose tokens begin anew. The last event of anything stays as long as the thing itself, so that its
history still says where it stands. A retired worker stays while a row points to it.

History is append-only: its triggers let through only this, and only rows from before the moment
that stands in the transaction's own setting `fencepost.prune_before`.

Locks: each page is a transaction of its own. It locks the rows that it removes and leaves out those
that another call holds; the next pass finds them again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.utils.dateparse import parse_datetime

from . import statements
from .models import SweepRun

SWEEP: Final = "prune_history"
PAGE: Final = 500
# A pass ends after so many pages of one kind of rows; the next one goes on.
MAX_PAGES: Final = 1_000

_ALLOW: Final = "select set_config('fencepost.prune_before', %(before)s::timestamptz::text, true)"

# The newest first: work that others name as a dependency ended before them.
_ENDED: Final = """
    select id, ended_at from mesh_workload w
    where ended_at <= %(before)s and (ended_at, id) < (%(at)s, %(pk)s)
        and (sweep_after is null or sweep_after <= %(now)s){kept}
    order by ended_at desc, id desc
    limit %(page)s
"""
_LOCK_ENDED: Final = """
    select id from mesh_workload
    where id = any(%(pks)s) and ended_at <= %(before)s
    order by id for update skip locked
"""
# Asked once the rows are locked: submit locks what its work depends on, so none is added now.
_FREE: Final = """
    select w.id from mesh_workload w
    where w.id = any(%(pks)s)
        and not exists (select 1 from mesh_dependency d where d.depends_on_id = w.id){kept}
"""
_DELETE_WORK: Final = (
    """
    delete from mesh_latereport r using mesh_attempt a
    where a.id = r.attempt_id and a.workload_id = any(%(pks)s)
    """,
    "delete from mesh_result where workload_id = any(%(pks)s)",
    "delete from mesh_checkpoint where workload_id = any(%(pks)s)",
    "delete from mesh_decision where workload_id = any(%(pks)s)",
    "delete from mesh_dependency where workload_id = any(%(pks)s)",
    "delete from mesh_attempt where workload_id = any(%(pks)s)",
    "delete from mesh_workloadevent where workload_id = any(%(pks)s)",
    "delete from mesh_workload where id = any(%(pks)s)",
)

_ENDED_SINCE: Final = """
    select id, ended_at from mesh_workload
    where ended_at <= %(before)s and (ended_at, id) > (%(at)s, %(pk)s)
    order by ended_at, id
    limit %(page)s
"""
_DELETE_EVENTS: Final = """
    delete from mesh_workloadevent e using mesh_workload w
    where w.id = any(%(pks)s) and w.ended_at is not null
        and e.workload_id = w.id and e.sequence < w.event_sequence and e.at <= %(before)s
"""

_WORKERS_WITH_OLD_EVENTS: Final = """
    select w.id from mesh_worker w
    cross join lateral (
        select e.at, e.sequence from mesh_workerevent e
        where e.worker_id = w.id order by e.sequence limit 1
    ) first
    where w.id > %(pk)s and first.at <= %(before)s and first.sequence < w.event_sequence
    order by w.id
    limit %(page)s
"""
_DELETE_WORKER_EVENTS: Final = """
    delete from mesh_workerevent where id in (
        select e.id from mesh_workerevent e join mesh_worker w on w.id = e.worker_id
        where e.worker_id = %(pk)s and e.sequence < w.event_sequence and e.at <= %(before)s
        order by e.sequence
        limit %(page)s
    )
"""

_RETIRED: Final = """
    select w.id from mesh_worker w
    where w.id > %(pk)s and w.removed_at <= %(before)s
        and not exists (select 1 from mesh_attempt a where a.worker_id = w.id)
        and not exists (select 1 from mesh_decision d where d.chosen_id = w.id)
    order by w.id
    limit %(page)s
"""
_LOCK_RETIRED: Final = """
    select id from mesh_worker
    where id = any(%(pks)s) and removed_at <= %(before)s
    order by id for update skip locked
"""
_DELETE_RETIRED: Final = (
    "delete from mesh_workerevent where worker_id = any(%(pks)s)",
    "delete from mesh_eligibleset where worker_id = any(%(pks)s)",
    "delete from mesh_poolmember where worker_id = any(%(pks)s)",
    "delete from mesh_incident_workers where worker_id = any(%(pks)s)",
    "delete from mesh_worker where id = any(%(pks)s)",
)

_DECISIONS: Final = """
    select id, at from mesh_decision
    where at <= %(before)s and (at, id) > (%(at)s, %(pk)s)
    order by at, id
    limit %(page)s
"""
_DELETE_DECISIONS: Final = """
    delete from mesh_decision d using mesh_workload w
    where d.id = any(%(pks)s) and w.id = d.workload_id and w.ended_at is not null
"""

# Entries are numbered as they were made, nearly: the first page that is not all old is the last.
_AUDIT: Final = "select id, at from mesh_auditentry order by id limit %(page)s"
_DELETE_AUDIT: Final = "delete from mesh_auditentry where id = any(%(pks)s)"


# Of those who build on the mesh: conditions on `w`, and what else a pass removes, by outcome.
_keeping: Final[list[str]] = []
_others: Final[dict[str, Callable[[datetime], int]]] = {}


def keep(condition: str) -> None:
    """Never remove ended work for which this SQL condition on the workload `w` is true.

    It is asked of each old workload, so it must be answered from an index.
    """
    if condition not in _keeping:
        _keeping.append(condition)


def also(outcome: str, prune: Callable[[datetime], int]) -> None:
    """Have each pass of `prune_history` call this too; it says how many rows it removed."""
    _others[outcome] = prune


def others() -> Mapping[str, Callable[[datetime], int]]:
    """What `also` was told, by outcome."""
    return _others


def ended_work(now: datetime) -> Iterator[list[int]]:
    """Keys of work that ended long enough ago, a page at a time, the newest first."""
    before = _before(now, settings.KEEP_ENDED_WORK_DAYS)
    at, pk = before, 2**63 - 1
    for _ in range(MAX_PAGES):
        values = {"before": before, "now": now, "at": at, "pk": pk, "page": PAGE}
        page = statements.rows(_sparing(_ENDED), values)
        if page:
            yield [row["id"] for row in page]
        if len(page) < PAGE:
            return
        at, pk = page[-1]["ended_at"], page[-1]["id"]


def delete_work(pks: Sequence[int], now: datetime) -> int:
    """Remove these workloads with all that hangs on them, as far as they may go; how many went.

    Left out are those that another call holds, that are not ended any more, that other work names
    as a dependency, or that others keep. They go in one savepoint of the caller's transaction.
    """
    before = _before(now, settings.KEEP_ENDED_WORK_DAYS)
    with transaction.atomic():
        allow(before)
        locked = _keys(_LOCK_ENDED, pks=list(pks), before=before)
        removed = 0
        # Work of one page may depend on other work of it; the dependents go first.
        while free := _keys(_sparing(_FREE), pks=locked):
            for statement in _DELETE_WORK:
                statements.change(statement, {"pks": free})
            removed += len(free)
            locked = sorted(set(locked) - set(free))
        return removed


def prune_work_history(now: datetime) -> int:
    """Remove all but the last event of work that ended long enough ago; how many events went.

    Does nothing where history is kept as long as the work itself. Where the last pass ended is
    kept, for the work stays and is not to be looked at again.
    """
    before = _before(now, settings.KEEP_HISTORY_DAYS)
    kept = SweepRun.objects.filter(name=SWEEP).values_list("progress", flat=True).first() or {}
    at = parse_datetime(kept.get("history_at", "")) or _before(now, settings.KEEP_ENDED_WORK_DAYS)
    pk, removed = kept.get("history_pk", 0), 0
    for _ in range(MAX_PAGES if at < before else 0):
        values = {"before": before, "at": at, "pk": pk, "page": PAGE}
        page = statements.rows(_ENDED_SINCE, values)
        if page:
            pks = [row["id"] for row in page]
            removed += _delete(_DELETE_EVENTS, before, pks=pks, before=before)
            at, pk = page[-1]["ended_at"], page[-1]["id"]
            progress = {"history_at": at.isoformat(), "history_pk": pk}
            SweepRun.objects.filter(name=SWEEP).update(progress=progress)
        if len(page) < PAGE:
            break
    return removed


def prune_worker_history(now: datetime) -> int:
    """Remove old events of workers, but the last one of each; how many went."""
    before = _before(now, settings.KEEP_HISTORY_DAYS)
    removed = 0
    for pks in _by_key(_WORKERS_WITH_OLD_EVENTS, before):
        for pk in pks:
            more = PAGE
            while more == PAGE:
                more = _delete(_DELETE_WORKER_EVENTS, before, pk=pk, before=before, page=PAGE)
                removed += more
    return removed


def prune_retired_workers(now: datetime) -> int:
    """Remove workers that were retired long enough ago and that no row points to; how many went."""
    before = _before(now, settings.KEEP_HISTORY_DAYS)
    removed = 0
    for pks in _by_key(_RETIRED, before):
        with transaction.atomic():
            allow(before)
            locked = _keys(_LOCK_RETIRED, pks=pks, before=before)
            for statement in _DELETE_RETIRED:
                statements.change(statement, {"pks": locked})
            removed += len(locked)
    return removed


def prune_decisions(now: datetime) -> int:
    """Remove old placement decisions about work that has ended; how many went."""
    before = _before(now, settings.KEEP_DECISIONS_DAYS)
    at, pk, removed = datetime.min.replace(tzinfo=before.tzinfo), 0, 0
    for _ in range(MAX_PAGES):
        values = {"before": before, "at": at, "pk": pk, "page": PAGE}
        page = statements.rows(_DECISIONS, values)
        if page:
            removed += _delete(_DELETE_DECISIONS, before, pks=[row["id"] for row in page])
            at, pk = page[-1]["at"], page[-1]["id"]
        if len(page) < PAGE:
            break
    return removed


def prune_audit(now: datetime) -> int:
    """Remove old entries of the audit; how many went."""
    before = _before(now, settings.KEEP_AUDIT_DAYS)
    removed = 0
    for _ in range(MAX_PAGES):
        page = statements.rows(_AUDIT, {"page": PAGE})
        old = [row["id"] for row in page if row["at"] <= before]
        if old:
            removed += _delete(_DELETE_AUDIT, before, pks=old)
        if len(old) < PAGE:
            break
    return removed


def _sparing(statement: str) -> str:
    return statement.format(kept="".join(f" and not ({each})" for each in _keeping))


def _before(now: datetime, days: float) -> datetime:
    return now - timedelta(days=days)


def _by_key(statement: str, before: datetime) -> Iterator[list[int]]:
    pk = 0
    for _ in range(MAX_PAGES):
        pks = _keys(statement, pk=pk, before=before, page=PAGE)
        if pks:
            yield pks
        if len(pks) < PAGE:
            return
        pk = pks[-1]


def _keys(statement: str, **values: Any) -> list[int]:
    return [row["id"] for row in statements.rows(statement, values)]


def _delete(statement: str, allowed: datetime, **values: Any) -> int:
    with transaction.atomic():
        allow(allowed)
        return statements.change(statement, values)


def allow(before: datetime) -> None:
    """Let this transaction delete history from before that moment."""
    statements.first(_ALLOW, {"before": before})
