"""The pure choice of a worker: candidates in, ranked answer with reasons out; no queries.

Every failed test has its own reason, so that an operator can be told why a worker was not chosen.
The tests that depend only on what the work needs, what the worker is and the pool that the work
names (`lasting_reasons`) are worked out when any of these changes; the others change from moment
to moment. What they ask besides the rows of the two is read before (`mesh.capacity`) and handed in
as `Around`.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from .models import Grant, GrantStatus, Health, Requirement, Worker
from .models.workers import PLACEABLE

# In the order in which they are shown; the last one is of the work, not of the worker.
REASONS: Final = (
    "TENANT",
    "LIFECYCLE",
    "HEALTH",
    "CAPACITY",
    "CAPABILITY",
    "KIND",
    "LABEL",
    "ANTI_AFFINITY",
    "POOL",
    "POOL_CAPACITY",
    "RESOURCES",
    "GRANT",
    "PAUSED",
)
RESOURCES: Final = ("cpu_millis", "memory_bytes", "disk_bytes", "gpu_count")

# Amounts by the names in `RESOURCES`; what is not named is not declared.
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PoolRules:
    """A pool as placement looks at it: its tests, and who (by key) has a place in it."""

    capabilities: frozenset[str]
    required_labels: Mapping[str, str]
    members: Container[int]

    def counts(self, worker: Worker) -> bool:
        """Whether the worker is a member that passes the pool's own tests."""
        return worker.pk in self.members and not self.lacks(worker)

    def lacks(self, worker: Worker) -> list[str]:
        """What the pool asks of a member and the worker does not have, in words."""
        labels = self.required_labels.items() - worker.labels.items()
        return [
            *sorted(self.capabilities - set(worker.granted_capabilities)),
            *sorted(f"{key}={value}" for key, value in labels),
        ]


@dataclass(frozen=True, slots=True)
class Around:
    """What a judgement of work for workers must know besides the rows of the two."""

    # The pool that the work names; None where it names none, or one that does not exist.
    pool: PoolRules | None = None
    # How many more live attempts the pool takes; None is no limit.
    pool_room: int | None = None
    # What the live attempts of a worker, by its key, have of its resources.
    used: Mapping[int, Amounts] = field(default_factory=dict)
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found out about one candidate; no reasons means eligible."""

    worker: Worker
    reasons: tuple[str, ...]

    @property
    def is_eligible(self) -> bool:
        return not self.reasons


def lasting_reasons(
    requirement: Requirement, worker: Worker, pool: PoolRules | None = None
) -> tuple[str, ...]:
    """Why this worker can never take such work as things now stand; empty if it can.

    `pool` is the one that the work names; None is nobody's, so work that names one is not taken.
    """
    kinds = worker.workload_kinds
    failed = {
        "TENANT": worker.application_id != requirement.application_id,
        "CAPABILITY": not set(requirement.capabilities) <= set(worker.granted_capabilities),
        "KIND": bool(kinds) and requirement.definition_id not in kinds,
        "LABEL": not requirement.required_labels.items() <= worker.labels.items(),
        "ANTI_AFFINITY": bool(requirement.anti_affinity.items() & worker.labels.items()),
        "POOL": bool(requirement.pool_id) and not (pool and pool.counts(worker)),
    }
    return tuple(reason for reason, is_failed in failed.items() if is_failed)


def passing_reasons(worker: Worker, grant: Grant, at: datetime) -> tuple[str, ...]:
    """Why this worker may take no work at all at this moment; empty if it may."""
    is_in_place = worker.lifecycle in PLACEABLE and not worker.is_unreconciled
    failed = {
        "LIFECYCLE": not is_in_place or worker.is_removed,
        "HEALTH": worker.health != Health.HEALTHY,
        "CAPACITY": worker.active >= worker.concurrency,
        "GRANT": grant.status == GrantStatus.REVOKED or grant.expires_at <= at,
    }
    return tuple(reason for reason, is_failed in failed.items() if is_failed)


def counted_reasons(requirement: Requirement, worker: Worker, around: Around) -> tuple[str, ...]:
    """Why this worker may not take such work at this moment, by what is counted or paused."""
    used = around.used.get(worker.pk, {})
    failed = {
        "POOL_CAPACITY": around.pool_room is not None and around.pool_room < 1,
        "RESOURCES": not is_within(requirement.resources, left(worker.resource_profile, used)),
        "PAUSED": around.is_paused,
    }
    return tuple(reason for reason, is_failed in failed.items() if is_failed)


def left(profile: Amounts, used: Amounts) -> dict[str, int]:
    """What is left over of the resources that a worker declares."""
    return {name: amount - used.get(name, 0) for name, amount in profile.items()}


def is_within(needed: Amounts, available: Amounts) -> bool:
    """Whether all that both sides declare is there; a need of nothing always is."""
    return all(
        amount <= max(available[name], 0) for name, amount in needed.items() if name in available
    )


def judge(
    requirement: Requirement,
    worker: Worker,
    grant: Grant,
    at: datetime,
    around: Around = Around(),  # frozen
) -> Verdict:
    """All reasons why this worker may not take the work at `at`, in the order of the tests."""
    found = {
        *lasting_reasons(requirement, worker, around.pool),
        *passing_reasons(worker, grant, at),
        *counted_reasons(requirement, worker, around),
    }
    return Verdict(worker, tuple(reason for reason in REASONS if reason in found))


def rank(requirement: Requirement, verdicts: Iterable[Verdict]) -> list[Worker]:
    """The eligible workers, best first.

    Most matching affinity pairs, then fewest active, then largest concurrency, then lowest id.
    """
    affinity = requirement.affinity.items()

    def order(worker: Worker) -> tuple[int, int, int, str]:
        matching = len(affinity & worker.labels.items())
        return (-matching, worker.active, -worker.concurrency, worker.worker_id)

    return sorted((each.worker for each in verdicts if each.is_eligible), key=order)
