"""Retention: runs that ended long enough ago are removed, whole, with the work that they made.

A run goes when neither the work's retention (`KEEP_ENDED_WORK_DAYS`) nor that of history
(`KEEP_HISTORY_DAYS`) still asks for it, both counted from its end. With it go its attempts,
events, blocks, receipts, handoffs, attestations and what else belongs to it, and in the same
transaction the workloads of its attempts: the run id is then free, and a new run of that id can
never meet work of the old one.

Guarantees: an open run stays, however old; so does work that an attempt of any run points to, for
the mesh is told to pass over it. An ended run stays while other work names one of its workloads as
a dependency, while somebody has touched one since, and while a row of its history is too young.

Asks of writers that were refused a resource count for a minute; here those of an hour ago go. So do
the rows of resources by which admissions wait for each other, where nobody reserves them.

A coordinator goes once it has been over for as long as history is kept, unless it is the authority
of an open run, whose hand-over asks whether it stopped. Its instance id is then free again.

Locks: each page is a transaction of its own; it locks runs, then their work, and leaves out what
another call holds. The next pass finds that again.
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import DatabaseError, transaction

from mesh import retention, statements

from .models import Run

logger = logging.getLogger(__name__)

PAGE: Final = 100
# A pass ends after so many pages; the next one goes on.
MAX_PAGES: Final = 1_000
KEEP_ASKS: Final = timedelta(hours=1)
PUSHED_BACK: Final = timedelta(seconds=30)

# On a workload `w` of the mesh: never removed but with its run.
KEPT_WORK: Final = "exists (select 1 from workflows_runattempt a where a.workload_id = w.id)"

_ENDED: Final = """
    select id, ended_at from workflows_run
    where ended_at <= %(before)s and (ended_at, id) > (%(at)s, %(pk)s)
        and (sweep_after is null or sweep_after <= %(now)s)
    order by ended_at, id
    limit %(page)s
"""
_LOCK_ENDED: Final = """
    select id from workflows_run
    where id = any(%(pks)s) and ended_at <= %(before)s
    order by id for update skip locked
"""
_WORK: Final = """
    select w.id from mesh_workload w join workflows_runattempt a on a.workload_id = w.id
    where a.run_id = any(%(pks)s) order by w.id
"""
_LOCK_WORK: Final = """
    select id from mesh_workload
    where id = any(%(pks)s) and ended_at <= %(before)s
    order by id for update skip locked
"""
# Asked once runs and work are locked; `work` is what could be locked and is old enough.
_FREE: Final = """
    select r.id from workflows_run r
    where r.id = any(%(pks)s)
        and not exists (
            select 1 from workflows_runattempt a
            where a.run_id = r.id and (
                a.workload_id <> all(%(work)s)
                or exists (select 1 from mesh_dependency d where d.depends_on_id = a.workload_id)
            )
        )
        and not exists (
            select 1 from workflows_runevent e where e.run_id = r.id and e.at > %(before)s
        )
        and not exists (
            select 1 from workflows_receipt e where e.run_id = r.id and e.at > %(before)s
        )
    order by r.id
"""
_DELETE: Final = (
    "delete from workflows_resourcelease where run_id = any(%(pks)s)",
    "delete from workflows_refusedwriter where run_id = any(%(pks)s)",
    "delete from workflows_runattempt where run_id = any(%(pks)s)",
    "delete from workflows_activation where run_id = any(%(pks)s)",
    "delete from workflows_userpause where run_id = any(%(pks)s)",
    "delete from workflows_cancellationrequest where run_id = any(%(pks)s)",
    "delete from workflows_controlfailure where run_id = any(%(pks)s)",
    "delete from workflows_recoverybarrier where run_id = any(%(pks)s)",
    "delete from workflows_handoff where run_id = any(%(pks)s)",
    "delete from workflows_receipt where run_id = any(%(pks)s)",
    """
    delete from workflows_statement s using workflows_attestation a
    where a.id = s.attestation_id and a.run_id = any(%(pks)s)
    """,
    "delete from workflows_attestation where run_id = any(%(pks)s)",
    "delete from workflows_runevent where run_id = any(%(pks)s)",
    "delete from workflows_run where id = any(%(pks)s)",
)
_DELETE_ASKS: Final = """
    delete from workflows_refusedwriter where id in (
        select id from workflows_refusedwriter where asked_at <= %(before)s
        order by asked_at limit %(page)s
        for update skip locked
    )
"""
# The rows that admissions lock; one that is gone is made again by whoever needs it.
_KEYS: Final = """
    select id from workflows_resourcekey where id > %(pk)s order by id limit %(page)s
"""
_DELETE_KEYS: Final = """
    delete from workflows_resourcekey where id in (
        select k.id from workflows_resourcekey k
        where k.id = any(%(pks)s) and not exists (
            select 1 from workflows_resourcelease l
            where l.application_id = k.application_id and l.resource = k.resource
                and l.scope = 'application'
        )
        order by k.id for update skip locked
    )
"""
_ENDED_COORDINATORS: Final = """
    select c.id from workflows_coordinator c
    where c.id > %(pk)s and least(c.lease_ends_at, c.relinquished_at) <= %(before)s
        and not exists (
            select 1 from workflows_run r
            where r.status = 'OPEN' and r.coordinator = any(array['builtin', 'external'])
                and r.instance_id = c.instance_id and r.tenant_id = c.tenant_id
        )
    order by c.id
    limit %(page)s
"""
_DELETE_COORDINATORS: Final = "delete from workflows_coordinator where id = any(%(pks)s)"


def prune_runs(now: datetime) -> int:
    """Remove runs that ended long enough ago with all that belongs to them; how many went."""
    before = now - timedelta(days=max(settings.KEEP_ENDED_WORK_DAYS, settings.KEEP_HISTORY_DAYS))
    return sum(_prune(pks, now, before) for pks in _pages(now, before))


def _prune(pks: Sequence[int], now: datetime, before: datetime) -> int:
    """One page at once; run by run where one of them raises, so that it alone stays."""
    try:
        return delete_runs(pks, now, before)
    except (DatabaseError, _StillNeeded):
        if len(pks) > 1:
            return sum(_prune([pk], now, before) for pk in pks)
        logger.exception("Retention passes over run %s", pks[0])
        Run.objects.filter(pk=pks[0]).update(sweep_after=now + PUSHED_BACK)
        return 0


class _StillNeeded(Exception):  # noqa: N818  # never leaves this module
    """Work of these runs could not be removed, so the runs stay too."""


def delete_runs(pks: Sequence[int], now: datetime, before: datetime) -> int:
    """Remove these runs, as far as they may go; how many went."""
    with transaction.atomic():
        retention.allow(before)
        locked = _keys(_LOCK_ENDED, pks=list(pks), before=before)
        work = _keys(_LOCK_WORK, pks=_keys(_WORK, pks=locked), before=before)
        free = _keys(_FREE, pks=locked, work=work, before=before)
        theirs = _keys(_WORK, pks=free)
        for statement in _DELETE:
            statements.change(statement, {"pks": free})
        if retention.delete_work(theirs, now) != len(theirs):
            # It is locked and old and nothing names it; somebody else has the mesh keep it.
            raise _StillNeeded
    return len(free)


def prune_asks(now: datetime) -> int:
    """Remove what refused writers asked for long ago; how many rows went."""
    values = {"before": now - KEEP_ASKS, "page": PAGE}
    removed = 0
    for _ in range(MAX_PAGES):
        with transaction.atomic():
            gone = statements.change(_DELETE_ASKS, values)
        removed += gone
        if gone < PAGE:
            break
    return removed


def prune_keys(now: datetime) -> int:
    """Remove the lock rows of resources that nobody reserves; how many went.

    One that an admission holds stays.
    """
    return _delete_by_key(_KEYS, _DELETE_KEYS)


def prune_coordinators(now: datetime) -> int:
    """Remove coordinators that ended long enough ago and that no open run has; how many went."""
    before = now - timedelta(days=settings.KEEP_HISTORY_DAYS)
    return _delete_by_key(_ENDED_COORDINATORS, _DELETE_COORDINATORS, before=before)


def _delete_by_key(find: str, delete: str, **values: Any) -> int:
    """What is found, a page at a time in the order of keys, each in a transaction of its own."""
    removed = pk = 0
    for _ in range(MAX_PAGES):
        page = _keys(find, pk=pk, page=PAGE, **values)
        if page:
            with transaction.atomic():
                removed += statements.change(delete, {"pks": page})
            pk = page[-1]
        if len(page) < PAGE:
            break
    return removed


def _pages(now: datetime, before: datetime) -> Iterator[list[int]]:
    at, pk = datetime.min.replace(tzinfo=before.tzinfo), 0
    for _ in range(MAX_PAGES):
        values = {"before": before, "now": now, "at": at, "pk": pk, "page": PAGE}
        page = statements.rows(_ENDED, values)
        if page:
            yield [row["id"] for row in page]
        if len(page) < PAGE:
            return
        at, pk = page[-1]["ended_at"], page[-1]["id"]


def _keys(statement: str, **values: Any) -> list[int]:
    return [row["id"] for row in statements.rows(statement, values)]
