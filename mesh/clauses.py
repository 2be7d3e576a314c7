"""What is the matter with a workload, said as a clause: "it" or "which" comes before.

Pure words: facts in, text out; no queries. Times to come are told in full, times gone by as ages.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from .models import Attempt, Pause, State, Workload
from .queues import MAX_AHEAD, WINDOW
from .survey import Survey
from .words import count, moment, number, span

# A worker that may take work and has not asked for so long is deaf, or waits to be given some.
DEAF_AFTER: Final = timedelta(minutes=2)
_SHOWN: Final = 3
_MAX_QUOTE: Final = 300
# What a worker is that failed a test.
FAILED: Final = {
    "LIFECYCLE": "not ready",
    "HEALTH": "not healthy",
    "CAPACITY": "full",
    "CAPABILITY": "without a capability",
    "KIND": "not for this kind of work",
    "LABEL": "without a label",
    "ANTI_AFFINITY": "with a label that it avoids",
    "POOL": "not in its pool",
    "POOL_CAPACITY": "kept out by the limit of the pool",
    "RESOURCES": "short of resources",
    "GRANT": "without a grant in force",
    "TENANT": "of another application",
    "PAUSED": "paused",
    "BUSY": "busy in another call",
}


def unready(work: Workload, live: Attempt | None, at: datetime) -> str:
    """Work that is not READY, with its live attempt if it has one."""
    if live is not None:
        return _claimed(work, live, at)
    ended = f" {_ago(work.ended_at, at)}" if work.ended_at else ""
    if work.state == State.DEAD_LETTER:
        why = f" ({_failure(work)})" if work.last_failure else ""
        return f"was given up{ended}{why}: a person must retry or cancel it"
    if work.state == State.HELD:
        return (
            "is HELD: its attempt was lost after it had started, and its worker's late report"
            " or a person must say what became of it"
        )
    said = {State.SUCCEEDED: "was done", State.CANCELLED: "was cancelled"}
    return f"{said.get(State(work.state), f'is {work.state}')}{ended}"


def held() -> str:
    return "is held by its run: nothing of it starts until the run lets it go"


def delayed(work: Workload, at: datetime) -> str:
    after = f"; it waits after {_failure(work)}" if work.last_failure else ""
    wait = span(work.available_at - at)
    return f"is not due until {moment(work.available_at)}, in {wait}{after}"


def paused(standing: Sequence[Pause], at: datetime) -> str:
    first = standing[0]
    what = f"work of {first.definition_id}" if first.definition_id else "all of its application"
    until = f" until {moment(first.until)}" if first.until else ""
    others = len(standing) - 1
    more = f"; {count(others, 'more pause')} {'stands' if others == 1 else 'stand'}"
    return (
        f"is paused with {what}{until} by {first.created_by}, {_ago(first.created_at, at)}:"
        f" {_quote(first.reason)}{more if others else ''}"
    )


def unplaceable(found: Survey) -> str:
    if not found.considered:
        return "has nobody to run it: its application has no workers"
    everyone = f"any of {count(found.considered, 'worker')}"
    whom = "the only worker" if found.considered == 1 else everyone
    told = ", ".join(f"{number(n)} {FAILED.get(each, each)}" for each, n in found.counts.items())
    return f"cannot be taken by {whom} ({told}){_nearest(found)}"


def queued(found: Survey, ahead: int, rate: float, at: datetime, *, is_claimable: bool) -> str:
    """How far back it stands, who could take it, and how fast the queue moves."""
    if ahead:
        many = f"{number(ahead)} or more others" if ahead >= MAX_AHEAD else count(ahead, "other")
        where = f"is queued behind {many} of its kind"
    else:
        where = "is next in its queue"
    late = "" if is_claimable else ", and the next sweep or claim makes it claimable"
    return f"{where}{late}; {_takers(found, at)}; {_pace(ahead, rate)}"


def limited(queued: str) -> str:
    return f"{queued}; but its tenant has as many live claims as it may have, so nobody gets any"


def blocked(others: int, chain: Sequence[Workload], root: str | None) -> str:
    """It waits for the first of the chain, that for the second …; `root` is about the last.

    None where the chain goes on further than it was followed.
    """
    among = f"{number(others)} others, among them " if others > 1 else ""
    names = [_name(each) for each in chain]
    if root is None:
        return f"waits for {among}{names[0]}, behind which {len(chain) - 1} or more wait in a row"
    if len(names) <= _SHOWN:
        return f"waits for {among}{', which waits for '.join(names)}, which {root}"
    through = f"which waits through {count(len(names) - 2, 'other')} for {names[-1]}"
    return f"waits for {among}{names[0]}, {through}, which {root}"


def _claimed(work: Workload, live: Attempt, at: datetime) -> str:
    who = live.worker.name
    if work.state == State.CANCELLATION_REQUESTED:
        asked = f" {_ago(work.cancel_requested_at, at)}" if work.cancel_requested_at else ""
        return f"was asked to stop{asked}: worker {who} must confirm"
    if work.state == State.CLAIMED:
        return f"is claimed by worker {who} since {_since(live.claimed_at, at)} and not started"
    return f"is {work.state} on worker {who} since {_since(live.started_at or live.claimed_at, at)}"


def _takers(found: Survey, at: datetime) -> str:
    if not found.eligible:
        whom = "the worker" if found.suited == 1 else f"all {count(found.suited, 'worker')}"
        room = {
            "CAPACITY": "full",
            "POOL_CAPACITY": "kept out by the limit of the pool",
            "RESOURCES": "short of resources",
        }
        why = " or ".join(text for reason, text in room.items() if reason in found.counts)
        return f"{whom} that could take it {'is' if found.suited == 1 else 'are'} {why} now"
    whom = f"{count(found.eligible, 'worker')} may take it"
    if found.asked_at is None:
        return f"{whom}, but none of them has ever asked for work"
    if at - found.asked_at > DEAF_AFTER:
        return f"{whom}, but none of them asked for work in the last {span(at - found.asked_at)}"
    return whom


def _pace(ahead: int, rate: float) -> str:
    if not rate:
        return f"none of the kind was claimed in the last {span(WINDOW)}"
    pace = f"{rate:g} of the kind are claimed a minute"
    if not ahead or ahead >= MAX_AHEAD:
        return pace
    return f"{pace}, so its turn comes in about {span(timedelta(minutes=(ahead + 1) / rate))}"


def _nearest(found: Survey) -> str:
    nearest = found.nearest
    if nearest is None or not nearest.lacks:
        return ""
    shown = list(nearest.lacks[:_SHOWN])
    more = len(nearest.lacks) - _SHOWN
    if more > 0:
        shown.append(f"{number(more)} more")
    told = ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + shown[-1]
    who = "it" if found.considered == 1 else f"the nearest, {nearest.name},"
    return f"; {who} lacks {told}"


def _name(work: Workload) -> str:
    return f"{work.definition_id} ({work.workload_id})"


def _failure(work: Workload) -> str:
    failure = work.last_failure or {}
    return _quote(f"{failure.get('kind', '')}: {failure.get('error', '')}")


def _quote(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _MAX_QUOTE else f"{line[:_MAX_QUOTE]}…"


def _ago(then: datetime, at: datetime) -> str:
    return f"{span(at - then)} ago"


def _since(then: datetime, at: datetime) -> str:
    return f"{moment(then)} ({span(at - then)})"
