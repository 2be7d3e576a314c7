"""Decisions: what is remembered of placements, the refused ones too.

One row for every placement that the server makes or that a person or service asks for: who was
considered, why each of the others was not chosen, who was. Pulls store none. A refusal rolls back
what its transaction wrote, so its row is carried out of it by `mesh.refusals`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from . import clock
from .errors import DomainError
from .models import Decision, Worker, Workload
from .survey import LISTED, NOBODY, Candidate, Survey


def record(
    workload: Workload,
    found: Survey,
    *,
    chosen: Worker | None = None,
    code: str = "",
    actor: str,
    at: datetime,
) -> Decision:
    """Remember one placement: the chosen worker, or the code of the refusal."""
    if chosen is not None:
        found = _with(found, chosen)
    return Decision.objects.create(
        workload_id=workload.pk,
        chosen=chosen,
        code=code,
        actor=actor,
        at=at,
        considered=found.considered,
        candidates=[_told(each) for each in found.candidates],
        counts=dict(found.counts),
        nearest=None
        if found.nearest is None
        else {"worker_id": found.nearest.worker_id, "lacks": list(found.nearest.lacks)},
    )


@contextmanager
def remembered(workload: Workload, actor: str) -> Iterator[None]:
    """Have every refusal from this block leave a decision, which `mesh.refusals` writes.

    One that found out about workers carries its own; the others came before any was considered.
    """
    try:
        yield
    except DomainError as refusal:
        if refusal.keep is None:
            refusal.keep = refused(workload, NOBODY, refusal.code, actor, clock.now())
        raise


def refused(
    workload: Workload, found: Survey, code: str, actor: str, at: datetime
) -> "partial[Decision]":
    """What a refusal carries to be remembered of it."""
    return partial(record, workload, found, code=code, actor=actor, at=at)


def _with(found: Survey, chosen: Worker) -> Survey:
    """The chosen one is always named, also where so many may take the work that not all are."""
    if any(each.worker_id == chosen.worker_id for each in found.candidates):
        return found
    return replace(
        found, candidates=(Candidate(chosen.worker_id, ()), *found.candidates[: LISTED - 1])
    )


def _told(candidate: Candidate) -> dict[str, Any]:
    return {
        "worker_id": candidate.worker_id,
        "eligible": candidate.eligible,
        "reasons": list(candidate.reasons),
    }
