"""How far work stands from the head of its queue, and how fast that queue moves.

A queue is all claimable work of one requirement, in the order in which a claim takes it. Both
answers cost the same however long it is: the position is counted up to `MAX_AHEAD`, the rate worked
out from the newest claims of some of the workers. Reads only.
"""

from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q

from . import statements
from .models import Workload
from .survey import LASTING, Survey

# Work further back than this is told as that far or more.
MAX_AHEAD: Final = 10_000
# What "lately" means for a rate.
WINDOW: Final = timedelta(minutes=5)
# Of so many workers so many of the newest claims each are looked at.
_WORKERS: Final = 100
_NEWEST: Final = 20
_SHORTEST: Final = timedelta(seconds=1)
_SQL: Final = statements.load("rate")


def ahead(work: Workload) -> int:
    """How much claimable work of its requirement comes before it; counted up to `MAX_AHEAD`."""
    queue = Workload.objects.filter(requirement_id=work.requirement_id, claimable=True).order_by()
    above = queue.filter(priority__gt=work.priority)
    # The first condition follows from the second; with it the index range ends at the work itself.
    older = queue.filter(priority=work.priority, created_at__lte=work.created_at).filter(
        Q(created_at__lt=work.created_at) | Q(pk__lt=work.pk)
    )
    found = above[:MAX_AHEAD].count()
    return found if found >= MAX_AHEAD else found + older[: MAX_AHEAD - found].count()


def rate_per_minute(requirement_pk: int, survey: Survey, at: datetime) -> float:
    """Claims of that requirement a minute, lately, by the workers that are made for it."""
    sampled = [
        each.worker_id for each in survey.candidates if not LASTING.intersection(each.reasons)
    ][:_WORKERS]
    if not sampled:
        return 0.0
    since = at - WINDOW
    found = statements.rows(
        _SQL,
        {
            "requirement": requirement_pk,
            "worker_ids": sampled,
            "newest": _NEWEST,
            "since": since,
        },
    )
    rate = 0.0
    for row in found:
        seen = max(at - row["since"], _SHORTEST) if row["is_full"] else WINDOW
        rate += row["number"] / (seen / timedelta(minutes=1))
    # The others are taken to be as fast as those that were looked at.
    return round(rate * max(survey.fitting, len(sampled)) / len(sampled), 1)
