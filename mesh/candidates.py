"""Which workers may take work: the facts are read here, then `mesh.placement` judges by them.

Guarantees: every path (pull, push, "why is it not running?") judges by the same facts; the number
of queries does not depend on how many workers are looked at. What is read without locks may have
changed by the time of a claim, so whoever gives work asks again under the worker's and the pool's
lock. Reads only.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

from django.db.models import Case, Count, F, IntegerField, Q, QuerySet, Value, When

from . import pauses, placement
from .models import Attempt, GrantStatus, Health, Pool, PoolMember, Requirement, Worker
from .models.workers import PLACEABLE
from .placement import Around, PoolRules, Verdict

_PAGE: Final = 500
_MAX_PAGES: Final = 20


def look_around(requirement: Requirement, worker_pks: Collection[int], at: datetime) -> Around:
    """What the judgement of these workers for such work must know; at most five queries."""
    pool = _pool_of(requirement)
    return Around(
        pool=None if pool is None else rules_of(pool, worker_pks),
        pool_room=None if pool is None else room_in([pool]).get(pool.pool_id),
        used=resources_used(worker_pks) if requirement.resources else {},
        is_paused=bool(pauses.matching(requirement, at)),
    )


def judge(requirement: Requirement, workers: Collection[Worker], at: datetime) -> list[Verdict]:
    """Judge the workers, in their order, each with all its reasons; they come with their grants."""
    around = look_around(requirement, [each.pk for each in workers], at)
    return [placement.judge(requirement, each, each.grant, at, around) for each in workers]


def best(requirement: Requirement, at: datetime, most: int) -> list[int]:
    """Keys of up to `most` workers that may take it, best first; the store ranks and leaves out.

    Resources are counted for one page of workers after the other. Workers beyond the first 10 000
    that pass all other tests are not looked at.
    """
    found: list[int] = []
    fitting = _ranked(requirement, at)
    for start in range(0, _PAGE * _MAX_PAGES, _PAGE):
        page = list(fitting[start : start + _PAGE])
        found += [each.worker.pk for each in judge(requirement, page, at) if each.is_eligible]
        if len(found) >= most or len(page) < _PAGE:
            break
    return found[:most]


def pools_of(worker: Worker, pool_ids: Collection[str]) -> dict[str, PoolRules]:
    """The pools of these ids in which the worker has a place, by id."""
    if not pool_ids:
        return {}
    pools = Pool.objects.filter(
        application_id=worker.application_id, pool_id__in=pool_ids, members__worker=worker
    )
    return {each.pool_id: _rules(each, {worker.pk}) for each in pools}


def rules_of(pool: Pool, worker_pks: Collection[int]) -> PoolRules:
    """The pool's tests, with those of the workers that have a place in it."""
    members = PoolMember.objects.filter(pool=pool, worker_id__in=worker_pks)
    return _rules(pool, set(members.values_list("worker_id", flat=True)))


def room_in(pools: Iterable[Pool]) -> dict[str, int]:
    """How many more live attempts pools of one application take, by id; only those with a limit.

    Never below 0: a limit may have been lowered below what is live.
    """
    limited = {each.pool_id: each for each in pools if each.max_concurrency is not None}
    if not limited:
        return {}
    live = live_in(next(iter(limited.values())).application_id, limited)
    return {
        pool_id: max((pool.max_concurrency or 0) - live[pool_id], 0)
        for pool_id, pool in limited.items()
    }


def live_in(application_pk: int, pool_ids: Iterable[str]) -> Counter[str]:
    """How many live attempts of the application have work that names each of the pools."""
    live = (
        Attempt.objects.live()
        .filter(pool_id__in=list(pool_ids), worker__application_id=application_pk)
        .values_list("pool_id")
        .annotate(number=Count("pk"))
    )
    return Counter(dict(live))


def resources_used(worker_pks: Collection[int]) -> dict[int, Mapping[str, int]]:
    """What the live attempts of the workers have of resources, by worker."""
    held = (
        Attempt.objects.live()
        .filter(worker_id__in=worker_pks)
        .exclude(workload__requirement__resources={})
        .values_list("worker_id", "workload__requirement__resources")
        .annotate(number=Count("pk"))
    )
    used: dict[int, Counter[str]] = {}
    for worker_pk, resources, number in held:
        sums = used.setdefault(worker_pk, Counter())
        for name, amount in resources.items():
            sums[name] += amount * number
    return {**used}


def _pool_of(requirement: Requirement) -> Pool | None:
    if not requirement.pool_id:
        return None
    return Pool.objects.filter(
        application_id=requirement.application_id, pool_id=requirement.pool_id
    ).first()


def _rules(pool: Pool, members: set[int]) -> PoolRules:
    return PoolRules(frozenset(pool.capabilities), pool.required_labels, members)


def _ranked(requirement: Requirement, at: datetime) -> QuerySet[Worker]:
    """All that the store can say of who is eligible and who is better; the order of `rank`."""
    kind = requirement.definition_id
    fitting = Worker.objects.filter(
        Q(workload_kinds=[]) | Q(workload_kinds__contains=[kind]),
        application_id=requirement.application_id,
        removed_at__isnull=True,
        lifecycle__in=PLACEABLE,
        is_unreconciled=False,
        health=Health.HEALTHY,
        active__lt=F("concurrency"),
        granted_capabilities__contains=requirement.capabilities,
        labels__contains=requirement.required_labels,
        grant__expires_at__gt=at,
    ).exclude(grant__status=GrantStatus.REVOKED)
    for key, value in requirement.anti_affinity.items():
        fitting = fitting.exclude(labels__contains={key: value})
    if requirement.pool_id:
        fitting = fitting.filter(
            memberships__pool__application_id=requirement.application_id,
            memberships__pool__pool_id=requirement.pool_id,
        )
    matching = sum(
        (
            Case(When(labels__contains={key: value}, then=1), default=0)
            for key, value in requirement.affinity.items()
        ),
        start=Value(0, output_field=IntegerField()),
    )
    return (
        fitting.select_related("grant")
        .annotate(matching=matching)
        .order_by("-matching", "active", "-concurrency", "worker_id")
    )
