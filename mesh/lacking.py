"""What a worker lacks that may not take some work: for each failed test, what exactly, in words.

Each entry completes "it lacks …". Reads only.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .models import LIVE_ATTEMPT, Attempt, GrantStatus, Pool, Requirement, Worker
from .placement import REASONS
from .words import amount, count, resource

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Nearest:
    """The worker that fails the fewest tests, and what it lacks."""

    worker_id: str
    name: str
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Match:
    """A worker beside what the work needs."""

    worker: Worker
    need: Requirement
    pool: Pool | None


def describe(worker_id: str, reasons: Iterable[str], need: Requirement) -> Nearest | None:
    """What the worker lacks, which failed these tests; None if it is gone meanwhile."""
    worker = Worker.objects.select_related("grant").filter(worker_id=worker_id).first()
    if worker is None:
        return None
    match = _Match(worker, need, _pool_of(need))
    failed = set(reasons)
    told = [text for reason in REASONS if reason in failed for text in _TELL[reason](match)]
    return Nearest(worker_id, worker.name, tuple(told))


def _pool_of(need: Requirement) -> Pool | None:
    if not need.pool_id:
        return None
    return Pool.objects.filter(application_id=need.application_id, pool_id=need.pool_id).first()


def _lifecycle(match: _Match) -> list[str]:
    worker = match.worker
    if worker.is_unreconciled:
        return ["a reconcile: it registered again and has not said what it still runs"]
    return [f"lifecycle READY (it is {worker.lifecycle})"]


def _health(match: _Match) -> list[str]:
    return [f"good health (it is {match.worker.health})"]


def _capacity(match: _Match) -> list[str]:
    worker = match.worker
    return [f"a free slot: {worker.active} of {worker.concurrency} are taken"]


def _capability(match: _Match) -> list[str]:
    return _capabilities(match.worker, match.need.capabilities)


def _capabilities(worker: Worker, wanted: Iterable[str], by: str = "") -> list[str]:
    missing = sorted(set(wanted) - set(worker.granted_capabilities))
    declared = set(worker.declared_capabilities)
    why = " (it declares it, but its grant does not allow it)"
    return [f"capability {name}{by}{why if name in declared else ''}" for name in missing]


def _kind(match: _Match) -> list[str]:
    kinds = match.worker.workload_kinds
    shown = ", ".join(kinds[:_SHOWN]) + (", …" if len(kinds) > _SHOWN else "")
    return [f"kind {match.need.definition_id}: it takes only {shown}"]


def _label(match: _Match) -> list[str]:
    return _labels(match.worker, match.need.required_labels)


def _labels(worker: Worker, wanted: Mapping[str, str], by: str = "") -> list[str]:
    return [
        f"label {key} = {value}{by} (it has {worker.labels.get(key, 'none')})"
        for key, value in sorted(wanted.items())
        if worker.labels.get(key) != value
    ]


def _anti_affinity(match: _Match) -> list[str]:
    unwanted = match.need.anti_affinity.items() & match.worker.labels.items()
    return [f"a {key} other than {value}, which the work avoids" for key, value in sorted(unwanted)]


def _member(match: _Match) -> list[str]:
    pool_id, pool = match.need.pool_id, match.pool
    if pool is None:
        return [f"pool {pool_id}: there is no such pool"]
    by = f", which pool {pool_id} asks for"
    told = _capabilities(match.worker, pool.capabilities, by)
    told += _labels(match.worker, pool.required_labels, by)
    if not pool.members.filter(worker=match.worker).exists():
        told.insert(0, f"membership of pool {pool_id}")
    return told


def _pool_capacity(match: _Match) -> list[str]:
    most = (match.pool.max_concurrency if match.pool else None) or 0
    limit = count(most, "live attempt")
    return [f"room in pool {match.need.pool_id}: its limit of {limit} is reached"]


def _resources(match: _Match) -> list[str]:
    profile = match.worker.resource_profile
    live = Attempt.objects.filter(worker=match.worker, status__in=LIVE_ATTEMPT)
    taken = list(live.values_list("workload__requirement__resources", flat=True))
    told = []
    for key, needed in sorted(match.need.resources.items()):
        left = profile.get(key, needed) - sum(each.get(key, 0) for each in taken)
        if left < needed:
            told.append(
                f"{resource(key, needed - left)}: the work needs {amount(key, needed)},"
                f" {amount(key, max(left, 0))} of {amount(key, profile[key])} are left"
            )
    return told


def _grant(match: _Match) -> list[str]:
    grant = match.worker.grant
    if grant.status == GrantStatus.REVOKED:
        return ["a grant in force: its own is revoked"]
    return [f"a grant in force: its own ended {grant.expires_at:%Y-%m-%d %H:%M:%S} UTC"]


_TELL: Final[Mapping[str, Callable[[_Match], list[str]]]] = {
    "LIFECYCLE": _lifecycle,
    "HEALTH": _health,
    "CAPACITY": _capacity,
    "CAPABILITY": _capability,
    "KIND": _kind,
    "LABEL": _label,
    "ANTI_AFFINITY": _anti_affinity,
    "POOL": _member,
    "POOL_CAPACITY": _pool_capacity,
    "RESOURCES": _resources,
    "GRANT": _grant,
}
