"""Why does it not run? One answer for any workload at any time: a state, a sentence, the facts.

The first of these that holds is the state, in the order in which a placement asks: held by its run,
not due, waiting for other work, paused, nobody may take it, queued behind others. The facts tell of
all of them. Work that waits for other work is followed down to the one that does not wait itself,
for that is where somebody has to look.

Reads only and locks nothing, so what it says was true a moment ago. Costs a bounded number of
statements that each read a bounded number of rows; only the survey reads all workers of the
application, once.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from django.db.models import Case, IntegerField, QuerySet, Value, When

from . import clauses, clock, giving, pauses, queues, survey
from .errors import DomainError
from .models import CLAIMED_STATES, Attempt, Pause, Role, State, Tenant, Workload
from .survey import Survey
from .tenancy import Caller

MAX_DEPENDENCIES: Final = 256
# How far down a chain of dependencies is followed.
MAX_DEPTH: Final = 50


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer for one workload at `at`. What does not apply is empty or None."""

    at: datetime
    state: str
    # What is the matter, without its subject: "is next in its queue; …".
    clause: str
    # While it is not due.
    available_at: datetime | None = None
    # The work that it waits for.
    dependencies: tuple[Workload, ...] = ()
    pauses: tuple[Pause, ...] = ()
    # 1 is the next to be claimed; only where it is queued.
    position: int | None = None
    rate_per_minute: float | None = None
    # Nobody is asked to take work that is not READY.
    survey: Survey | None = None

    @property
    def sentence(self) -> str:
        return f"It {self.clause}."


def explain(*, caller: Caller, workload_id: str) -> Explanation:
    """Why this workload does not run now. Refuses with PERMISSION_DENIED, WORKLOAD_NOT_FOUND."""
    caller.require(Role.VIEWER)
    rows = Workload.objects.visible_to(caller).defer("input").select_related("requirement")
    work = rows.filter(workload_id=workload_id).first()
    if work is None:
        raise DomainError("WORKLOAD_NOT_FOUND", "There is no such workload.")
    return about(work)


def about(work: Workload) -> Explanation:
    """Why work that the caller may see does not run now."""
    at = clock.now()
    found = _by_itself(work, at)
    if work.state != State.READY:
        return found
    waits = tuple(_open_dependencies(work)[:MAX_DEPENDENCIES]) if work.open_dependencies else ()
    if waits and not (work.held or work.available_at > at):
        found = replace(found, state="blocked", clause=_blocked(work, waits[0], at))
    is_queued = found.state == "queued"
    return replace(
        found,
        dependencies=waits,
        position=found.position if is_queued else None,
        rate_per_minute=found.rate_per_minute if is_queued else None,
    )


def _by_itself(work: Workload, at: datetime) -> Explanation:
    """The answer as far as it is not that it waits for other work."""
    if work.state != State.READY:
        return Explanation(at, "not_ready", clauses.unready(work, _live(work), at))
    standing = tuple(pauses.matching(work.requirement, at))
    found = survey.take(work.requirement, at, is_paused=bool(standing))
    known = Explanation(
        at,
        state="",
        clause="",
        available_at=work.available_at if work.available_at > at else None,
        pauses=standing,
        survey=found,
    )
    if work.held:
        return replace(known, state="held", clause=clauses.held())
    if known.available_at:
        return replace(known, state="delayed", clause=clauses.delayed(work, at))
    if standing:
        return replace(known, state="held", clause=clauses.paused(standing, at))
    if not found.suited:
        return replace(known, state="unplaceable", clause=clauses.unplaceable(found))
    ahead = queues.ahead(work)
    rate = queues.rate_per_minute(work.requirement_id, found, at)
    told = clauses.queued(found, ahead, rate, at, is_claimable=work.claimable)
    if _is_at_limit(work):
        told = clauses.limited(told)
    return replace(known, state="queued", clause=told, position=ahead + 1, rate_per_minute=rate)


def _blocked(work: Workload, first: Workload, at: datetime) -> str:
    """What it waits for, down to the one that does not wait itself."""
    chain = [first]
    while chain[-1].state == State.READY and chain[-1].open_dependencies:
        following = _open_dependencies(chain[-1]).first() if len(chain) <= MAX_DEPTH else None
        if following is None:
            return clauses.blocked(work.open_dependencies, chain, None)
        chain.append(following)
    return clauses.blocked(work.open_dependencies, chain, _by_itself(chain[-1], at).clause)


def _open_dependencies(work: Workload) -> QuerySet[Workload]:
    """The work that it waits for; what will not come to an end by itself comes first."""
    urgency = Case(
        When(state__in=[State.HELD, State.DEAD_LETTER], then=Value(0)),
        When(state=State.READY, open_dependencies__gt=0, then=Value(1)),
        When(state=State.READY, then=Value(2)),
        default=Value(3),
        output_field=IntegerField(),
    )
    return (
        Workload.objects.filter(dependents__workload=work, dependents__is_open=True)
        .defer("input")
        .select_related("requirement")
        .order_by(urgency, "pk")
    )


def _is_at_limit(work: Workload) -> bool:
    limit = Tenant.objects.values_list("max_live_claims", flat=True).get(pk=work.tenant_id)
    return limit is not None and not giving.claims_left(work.tenant_id, limit)


def _live(work: Workload) -> Attempt | None:
    if work.state not in CLAIMED_STATES:
        return None
    return Attempt.objects.live().filter(workload=work).select_related("worker").first()
