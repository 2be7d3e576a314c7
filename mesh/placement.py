"""The pure choice of a worker: candidates in, ranked answer with reasons out; no queries.

Every failed test has its own reason, so that an operator can be told why a worker was not chosen.
The tests that depend only on what the work needs and what the worker is (`lasting_reasons`) are
worked out when either changes; the others (`passing_reasons`) change from moment to moment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from .models import Grant, GrantStatus, Health, Requirement, Worker
from .models.workers import PLACEABLE

# In the order in which they are shown.
REASONS: Final = (
    "TENANT",
    "LIFECYCLE",
    "HEALTH",
    "CAPACITY",
    "CAPABILITY",
    "KIND",
    "LABEL",
    "ANTI_AFFINITY",
    "GRANT",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found out about one candidate; no reasons means eligible."""

    worker: Worker
    reasons: tuple[str, ...]

    @property
    def is_eligible(self) -> bool:
        return not self.reasons


def lasting_reasons(requirement: Requirement, worker: Worker) -> tuple[str, ...]:
    """Why this worker can never take such work as the two now stand; empty if it can."""
    kinds = worker.workload_kinds
    failed = {
        "TENANT": worker.application_id != requirement.application_id,
        "CAPABILITY": not set(requirement.capabilities) <= set(worker.granted_capabilities),
        "KIND": bool(kinds) and requirement.definition_id not in kinds,
        "LABEL": not requirement.required_labels.items() <= worker.labels.items(),
        "ANTI_AFFINITY": bool(requirement.anti_affinity.items() & worker.labels.items()),
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


def judge(requirement: Requirement, worker: Worker, grant: Grant, at: datetime) -> Verdict:
    """All reasons why this worker may not take the work at `at`, in the order of the tests."""
    found = {*lasting_reasons(requirement, worker), *passing_reasons(worker, grant, at)}
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


def count_reasons(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many candidates failed each test."""
    counts: dict[str, int] = {}
    for verdict in verdicts:
        for reason in verdict.reasons:
            counts[reason] = counts.get(reason, 0) + 1
    return counts
