"""What is going on with a row, in one sentence."""

from datetime import timedelta
from typing import Final

from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import Attempt, DrainCause, Grant, GrantStatus, Lifecycle, State, Worker, Workload
from ..words import span
from .display import age, countdown, now, page_of

# Without progress for this long an attempt counts as stuck, and a worker that does not ask as deaf.
STUCK_AFTER: Final = timedelta(minutes=10)
DEAF_AFTER: Final = timedelta(minutes=2)
RUNNING: Final = frozenset({State.RUNNING, State.CHECKPOINTED})

Sentence = SafeString | str


def is_silent(worker: Worker) -> bool:
    return worker.lifecycle != Lifecycle.OFFLINE and worker.is_silent(now())


def is_deaf(worker: Worker) -> bool:
    """It beats but does not ask for work although it has room."""
    is_open = worker.lifecycle in {Lifecycle.READY, Lifecycle.BUSY} and worker.free_slots > 0
    heard = worker.last_poll_at or worker.registered_at
    return is_open and not is_silent(worker) and now() - heard > DEAF_AFTER


def end_of_grant(worker: Worker) -> str:
    """What became of the grant it rests on, under which it gets no work; empty while in force."""
    if worker.grant.status == GrantStatus.REVOKED:
        return "revoked"
    return "over" if worker.grant.expires_at <= now() else ""


def concern_of_worker(worker: Worker) -> str:
    """What is off about a worker, in a few words for a list; empty when nothing is."""
    if worker.is_removed:
        return "removed"
    if worker.lifecycle == Lifecycle.OFFLINE:
        return f"drained: {worker.drain_reason}" if worker.drain_cause else "fell silent"
    if is_silent(worker):
        return "silent, about to be taken offline"
    if worker.lifecycle == Lifecycle.DRAINING:
        return worker.drain_reason or f"drain by {worker.drain_cause or 'operator'}"
    if worker.is_unreconciled:
        return "must reconcile before it may work"
    if end := end_of_grant(worker):
        return f"its grant is {end}: gets no work"
    if is_deaf(worker):
        return "beats, but does not ask for work"
    return ""


def about_worker(worker: Worker) -> Sentence:
    if worker.is_removed:
        return format_html("Removed {}; kept for its history.", age(worker.removed_at))
    if worker.lifecycle == Lifecycle.OFFLINE:
        return _about_offline(worker)
    if worker.lifecycle == Lifecycle.DRAINING:
        return _about_draining(worker)
    if is_silent(worker):
        return format_html(
            "Last heard {}: the next sweep takes it offline.", age(worker.last_seen_at)
        )
    if worker.is_unreconciled:
        return "Registered again while earlier claims live: it must reconcile before it may work."
    if worker.lifecycle == Lifecycle.REGISTERED:
        return "Registered; it takes work once it has beaten for the first time."
    if worker.lifecycle == Lifecycle.RECOVERING:
        return format_html(
            "Asked to come back {}; it must register or reconcile.", age(worker.recovering_since)
        )
    if end := end_of_grant(worker):
        return f"Its grant is {end}: it gets no work until it registers under another."
    if is_deaf(worker):
        return "It beats but does not ask for work, although it has room."
    if worker.free_slots == 0:
        return f"Full: all {worker.concurrency} slots are taken."
    return f"Takes work: {worker.free_slots} of {worker.concurrency} slots are free."


def _about_offline(worker: Worker) -> Sentence:
    if worker.drain_cause:
        why = f" ({worker.drain_reason})" if worker.drain_reason else ""
        back = (
            "Registering under another grant brings it back"
            if worker.drain_cause == DrainCause.REVOCATION
            else "Recover lets it back"
        )
        return f"Drained by {worker.drain_cause}{why} and now offline. {back}."
    return format_html(
        "Offline: last heard {}. It comes back by registering and reconciling.",
        age(worker.last_seen_at),
    )


def _about_draining(worker: Worker) -> Sentence:
    why = f" ({worker.drain_reason})" if worker.drain_reason else ""
    left = f"{worker.active} {'claim' if worker.active == 1 else 'claims'} still to end"
    if worker.drain_deadline_at is None:
        return f"Draining, asked by {worker.drain_cause or 'operator'}{why}: {left}."
    return format_html(
        "Draining, asked by {}{}: {}; deadline {}.",
        worker.drain_cause or "operator",
        why,
        left,
        age(worker.drain_deadline_at),
    )


def last_failure(workload: Workload) -> str:
    failure = workload.last_failure or {}
    kind, error = failure.get("kind", ""), failure.get("error", "")
    return f"{kind}: {error}" if kind and error else kind or error


def concern_of_workload(workload: Workload) -> str:
    """What is off, or what it waits for, in a few words for a list."""
    if workload.state == State.READY and workload.held:
        return "held by its run"
    if workload.state == State.READY and workload.open_dependencies:
        return f"waits for {_other_work(workload)}"
    if workload.state == State.READY and not workload.claimable:
        wait = workload.available_at - now()
        due = f"due in {span(wait)}" if wait > timedelta(0) else "due"
        return f"{due}, after {last_failure(workload)}" if workload.last_failure else due
    if workload.state == State.DEAD_LETTER:
        return last_failure(workload) or "gave up"
    if workload.state == State.HELD:
        return f"waits to be resolved, after {last_failure(workload) or 'its worker was lost'}"
    if workload.state == State.CANCELLATION_REQUESTED:
        return "the worker was told to stop"
    if workload.state in {State.SUCCEEDED, State.CANCELLED}:
        return ""
    return last_failure(workload)


def about_workload(workload: Workload, live: Attempt | None) -> Sentence:
    if live is not None:
        return _about_live(workload, live)
    if workload.state == State.READY:
        return _about_ready(workload)
    if workload.state == State.SUCCEEDED:
        return format_html("Done {}.", age(workload.ended_at))
    if workload.state == State.CANCELLED:
        return format_html("Cancelled {}.", age(workload.ended_at))
    if workload.state == State.HELD:
        return format_html(
            "Held {}: it had begun, and nobody knows what it did ({}). Its worker may still report;"
            " otherwise find out and resolve it, or have it done again.",
            age(workload.updated_at),
            (last_failure(workload) or "its worker was lost").rstrip("."),
        )
    if workload.state == State.DEAD_LETTER:
        return format_html(
            "Given up {} after {}. Retry puts it back, cancel closes it.",
            age(workload.ended_at),
            last_failure(workload) or f"{workload.started_attempts} started attempts",
        )
    return ""


def _about_ready(workload: Workload) -> Sentence:
    after = (
        f" The last attempt ended with {last_failure(workload)}." if workload.last_failure else ""
    )
    if workload.held:
        return f"Its run is blocked: nothing of it starts.{after}"
    if workload.open_dependencies:
        return f"Waits for {_other_work(workload)} to end; see below.{after}"
    if workload.available_at > now():
        return format_html("Not due yet: may be claimed {}.{}", age(workload.available_at), after)
    if not workload.claimable:
        return f"Due; the next sweep makes it claimable.{after}"
    since = age(workload.ready_at)
    return format_html("Became ready {}; why it waits is told below.{}", since, after)


def _other_work(workload: Workload) -> str:
    number = workload.open_dependencies
    return f"{number} other {'piece' if number == 1 else 'pieces'} of work"


def _about_live(workload: Workload, live: Attempt) -> Sentence:
    who = page_of(live.worker, live.worker.name)
    lease = countdown(live.expires_at)
    if workload.state == State.CANCELLATION_REQUESTED:
        return format_html(
            "Cancel was asked {}; {} was told and must confirm. Lease: {}.",
            age(workload.cancel_requested_at),
            who,
            lease,
        )
    if workload.state == State.CLAIMED:
        return format_html("Claimed by {}, not started yet. Lease: {}.", who, lease)
    return format_html(
        "Runs on {}, last progress {}. Lease: {}.",
        who,
        age(live.last_progress_at or live.started_at),
        lease,
    )


def about_grant(grant: Grant) -> Sentence:
    """What a grant allows, in words."""
    workers = [each.removeprefix(_CAP) for each in grant.capabilities if each.startswith(_CAP)]
    others = [each for each in grant.capabilities if not each.startswith(_CAP)]
    right = ", ".join(_RIGHTS.get(each, each) for each in others)
    where = f"in application {grant.application.name}"
    names = grant.constraints.get("worker_names") or []
    only = f", but only under the {'name' if len(names) == 1 else 'names'} {', '.join(names)}"
    able = f" Workers under it may hold {', '.join(workers)}." if workers else ""
    return f"Lets {grant.subject} {right or 'nothing'} {where}{only if names else ''}.{able}"


_CAP: Final = "worker:capability:"
_RIGHTS: Final = {
    "worker:register": "register workers",
    "worker:heartbeat": "send heartbeats",
    "worker:manage": "manage workers",
    "worker:read": "read workers",
    "workload:create": "submit workloads",
    "workload:read": "read workloads",
    "workload:claim": "claim workloads",
    "workload:execute": "execute workloads",
    "workload:cancel": "cancel workloads",
    "workload:retry": "retry workloads",
    "authorization:grant": "pass on grants",
}
