"""The mesh in a few hundred lines of plain Python: what each call must answer and change.

Written from the rules, not from the code, and kept small enough to be read against them. Times are
whole milliseconds. A refused call raises `Refusal` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

OUTAGE_MS = BRAKE_HOLD_MS = 30_000
PATIENCE = 2  # losses before start in a row that cost no delay
STARTED = {"RUNNING", "CHECKPOINTED"}
LIVE = {"CLAIMED", *STARTED}
ENDED = {"SUCCEEDED", "CANCELLED", "DEAD_LETTER"}
PLACEABLE = {"READY", "BUSY"}
MEMORY = 100  # what each worker declares
RETRIED = {"execution", "heartbeat"}  # causes that the retry rule looks at


class Refusal(Exception):  # noqa: N818 - it is no error of the reference
    def __init__(self, code: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(code)
        self.code = code
        self.reasons = reasons


@dataclass(eq=False)
class Try:
    """An attempt, and the claim that it is while it lives."""

    work: Work
    worker: Man
    token: int
    lease_ms: int
    claimed_at: int
    expires_at: int
    is_placed: bool
    serial: int
    status: str = "CLAIMED"
    started_at: int | None = None
    heard_at: int = 0
    report: Any = None
    claim_id: str = ""

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def attempt_id(self) -> str:
        return self.claim_id.replace("claim_", "attempt_")


@dataclass(eq=False)
class Work:
    number: int
    priority: int
    created_at: int
    available_at: int
    zone: str | None
    policy: dict[str, Any]
    timeouts: dict[str, int]
    workload_id: str = ""
    is_hold: bool = False
    in_pool: bool = False
    memory: int = 0
    state: str = "READY"
    path: list[str] = field(default_factory=lambda: ["READY"])
    ready_at: int = 0
    tries: list[Try] = field(default_factory=list)
    started: int = 0
    extra: int = 0
    retries: int = 0
    unstarted: int = 0
    overall_from: int = 0
    cancel_at: int = 0
    is_cancel_asked: bool = False
    checkpoint: tuple[Try, int, Any] | None = None
    result: tuple[str, Try, Any] | None = None

    @property
    def current(self) -> Try | None:
        return next((each for each in self.tries if each.is_live), None)

    @property
    def overall_at(self) -> int | None:
        limit = self.timeouts.get("overall_ms")
        return None if limit is None else self.overall_from + limit

    def go(self, *states: str) -> None:
        self.path += states
        self.state = states[-1]

    def is_claimable(self, now: int) -> bool:
        return self.state == "READY" and self.available_at <= now


@dataclass(eq=False)
class Man:
    """A worker."""

    name: str
    zone: str
    concurrency: int
    last_seen: int
    worker_id: str = ""
    lifecycle: str = "REGISTERED"
    health: str = "UNKNOWN"
    incarnation: int = 1
    is_unreconciled: bool = False
    drain_cause: str = ""
    drain_deadline: int | None = None
    recovering_since: int = 0
    timeout_ms: int = 30_000
    interval_ms: int = 10_000

    def silent_at(self) -> int:
        since = self.recovering_since if self.lifecycle == "RECOVERING" else 0
        return max(self.last_seen, since) + self.timeout_ms

    def undrain(self) -> None:
        self.drain_cause, self.drain_deadline = "", None


@dataclass(eq=False)
class Incident:
    opened_at: int
    workers: list[Man]
    is_open: bool = True


class Mesh:
    """The whole state; each method is one call."""

    def __init__(self) -> None:
        self.now = self.given = 0
        self.works: list[Work] = []
        self.workers: dict[str, Man] = {}
        self.finished: dict[str, int] = {}
        self.incidents: list[Incident] = []
        # The one pool: who is in it (None: there is none), and its limit.
        self.pool: set[Man] | None = None
        self.limit: int | None = None
        self.late: set[Any] = set()

    # --- what follows from what

    def live(self, man: Man) -> list[Try]:
        return [t for w in self.works for t in w.tries if t.is_live and t.worker is man]

    def _own(self, man: Man) -> list[Try]:
        return [t for w in self.works for t in w.tries if t.worker is man]

    def _rest(self, man: Man) -> None:
        """READY and BUSY follow from claims against capacity; a drained worker goes OFFLINE."""
        active = len(self.live(man))
        if man.lifecycle in PLACEABLE:
            man.lifecycle = "READY" if active < man.concurrency else "BUSY"
        elif man.lifecycle == "DRAINING" and active == 0:
            man.lifecycle = "OFFLINE"

    def sweeps_are_out(self) -> bool:
        last = self.finished.get("recover_expired_leases")
        return last is not None and self.now - last > OUTAGE_MS

    def reasons(self, man: Man, work: Work | None = None) -> tuple[str, ...]:
        failed = {
            "LIFECYCLE": man.lifecycle not in PLACEABLE or man.is_unreconciled,
            "HEALTH": man.health != "HEALTHY",
            "CAPACITY": len(self.live(man)) >= man.concurrency,
            "LABEL": work is not None and work.zone not in {None, man.zone},
            "POOL": work is not None and work.in_pool and man not in (self.pool or ()),
            "POOL_CAPACITY": work is not None and work.in_pool and self._is_full(),
            "RESOURCES": work is not None and work.memory > MEMORY - self._used(man),
        }
        return tuple(reason for reason, is_failed in failed.items() if is_failed)

    def _is_full(self) -> bool:
        live = [each for each in self.works if each.in_pool and each.current]
        return self.pool is not None and self.limit is not None and len(live) >= self.limit

    def _used(self, man: Man) -> int:
        return sum(each.work.memory for each in self.live(man))

    # --- workloads

    def submit(self, work: Work) -> Work:
        work.ready_at = work.overall_from = self.now
        self.works.append(work)
        return work

    def cancel(self, work: Work) -> str:
        if work.state in {"CANCELLED", "CANCELLATION_REQUESTED"}:
            return work.state
        if work.state in {"SUCCEEDED", "HELD"}:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        work.go("CANCELLED" if work.current is None else "CANCELLATION_REQUESTED")
        work.cancel_at, work.is_cancel_asked = self.now, True
        return work.state

    def resolve(self, work: Work, resolution: str) -> None:
        if work.state != "HELD":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        last = work.tries[-1]
        if resolution == "succeeded":
            work.go("SUCCEEDED")
            work.result = (f"resolution of {last.claim_id}", last, None)
            last.status = "SUCCEEDED"
        elif resolution == "requeue":
            work.extra += 1
            work.overall_from = self.now
            self._offer(work, self.now)
        else:
            work.go(*(["CANCELLED"] if resolution == "cancelled" else ["FAILED", "DEAD_LETTER"]))

    def reclaim(self, work: Work) -> None:
        if work.current is None:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        current = work.current
        self._lose(current)
        self._rest(current.worker)

    def retry(self, work: Work, extra: int) -> None:
        if work.state != "DEAD_LETTER":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        work.extra += extra
        work.unstarted = work.retries = 0
        work.overall_from = self.now
        self._offer(work, self.now)

    def _offer(self, work: Work, available_at: int) -> None:
        work.go("READY")
        work.available_at, work.ready_at = available_at, self.now
        work.is_cancel_asked = False

    def _delay(self, work: Work, n: int) -> int:
        growth = 2 ** (n - 1) if work.policy["backoff"] == "exponential" else 1
        delay: int = min(work.policy["initial_delay_ms"] * growth, work.policy["max_delay_ms"])
        return delay

    def _too_late(self, work: Work, at: int) -> bool:
        return work.overall_at is not None and at >= work.overall_at

    def _after_start(self, work: Work, kind: str) -> None:
        """A started attempt ended badly, and was counted: the retry rule."""
        at = self.now + self._delay(work, work.retries)
        has_budget = work.started < work.policy["max_attempts"] + work.extra
        if kind in work.policy["retry_on"] and has_budget and not self._too_late(work, at):
            self._offer(work, at)
        else:
            work.go("DEAD_LETTER")

    def _before_start(self, work: Work) -> None:
        """A loss before start: no attempt of the budget, but not for ever either."""
        work.unstarted += 1
        beyond = work.unstarted - PATIENCE
        at = self.now if beyond <= 0 else self.now + self._delay(work, beyond)
        if work.unstarted <= work.policy["max_unstarted"] and not self._too_late(work, at):
            self._offer(work, at)
        elif work.state == "CLAIMED":
            work.go("READY", "DEAD_LETTER")
        else:
            work.go("DEAD_LETTER")

    def _lose(self, attempt: Try) -> None:
        work = attempt.work
        attempt.status = "WORKER_LOST"
        if attempt.started_at is not None:
            work.retries += 1
        if work.is_hold and attempt.started_at is not None:
            work.go("HELD")
            return
        if work.state == "CANCELLATION_REQUESTED":
            work.go("CANCELLED")
            return
        work.go("RECOVERING")
        if attempt.started_at is None:
            self._before_start(work)
        else:
            self._after_start(work, "worker_failure")

    # --- claims

    def _give(self, man: Man, work: Work, lease_ms: int | None, *, is_placed: bool) -> Try:
        length = lease_ms or max(30_000, 3 * man.interval_ms)
        token = len(work.tries) + 1
        self.given += 1
        end = self.now + length
        given = Try(work, man, token, length, self.now, end, is_placed, self.given)
        work.tries.append(given)
        work.go("CLAIMED")
        return given

    def claim(self, man: Man, maximum: int, lease_ms: int | None) -> tuple[list[Try], str | None]:
        if man.lifecycle in {"OFFLINE", "RECOVERING"} or man.is_unreconciled:
            raise Refusal("WORKER_RECOVERY_REQUIRED")
        placed = [
            each
            for each in sorted(self.live(man), key=lambda each: each.serial)
            if each.is_placed and each.started_at is None
        ]
        reason = next(iter(self.reasons(man)), None)
        fresh: list[Try] = []
        if reason is None:
            queue = [
                each
                for each in self.works
                if each.is_claimable(self.now) and each.zone in {None, man.zone}
            ]
            queue.sort(key=lambda each: (-each.priority, each.created_at, each.number))
            room = min(maximum, man.concurrency - len(self.live(man)))
            for work in queue:
                # Each is judged with what the ones before it have taken.
                if len(fresh) < room and not set(self.reasons(man, work)) - {"CAPACITY"}:
                    fresh.append(self._give(man, work, lease_ms, is_placed=False))
            self._rest(man)
        return [*placed, *fresh], reason

    def place(self, work: Work, named: Man | None) -> Try:
        if work.state != "READY":
            raise Refusal("WORKLOAD_NOT_READY")
        if work.available_at > self.now:
            raise Refusal("WORKLOAD_NOT_YET_ELIGIBLE")
        if named is not None:
            if reasons := self.reasons(named, work):
                raise Refusal("MESH_PLACEMENT_DENIED", reasons)
            chosen = named
        else:
            able = [each for each in self.workers.values() if not self.reasons(each, work)]
            if not able:
                raise Refusal("MESH_NO_ELIGIBLE_WORKER")
            chosen = min(
                able, key=lambda each: (len(self.live(each)), -each.concurrency, each.worker_id)
            )
        given = self._give(chosen, work, None, is_placed=True)
        self._rest(chosen)
        return given

    def _current(self, shown: Try, man: Man, token: int) -> Try:
        current = shown.work.current
        if current is None:
            raise Refusal("WORKLOAD_CLAIM_INVALID")
        if (shown, man, token) != (current, current.worker, current.token):
            raise Refusal("WORKLOAD_STALE_FENCE")
        return current

    def _fence(self, shown: Try, man: Man, token: int) -> Try:
        current = self._current(shown, man, token)
        if current.expires_at <= self.now:
            raise Refusal("WORKLOAD_LEASE_EXPIRED")
        return current

    def start(self, shown: Try, man: Man, token: int) -> None:
        current = self._fence(shown, man, token)
        if man.lifecycle in {"OFFLINE", "RECOVERING"} or man.is_unreconciled:
            raise Refusal("WORKER_RECOVERY_REQUIRED")
        if current.work.state == "CANCELLATION_REQUESTED":
            raise Refusal("WORKLOAD_CANCELLATION_REQUESTED")
        if current.started_at is not None:
            return
        current.work.go("RUNNING")
        current.status = "RUNNING"
        current.started_at = current.heard_at = self.now
        current.work.unstarted = 0
        current.work.started += 1

    def renew(self, shown: Try, man: Man, token: int, lease_ms: int | None) -> None:
        current = self._current(shown, man, token)
        if current.expires_at <= self.now and not self.sweeps_are_out():
            raise Refusal("WORKLOAD_LEASE_EXPIRED")
        if self._drain_is_over(man):
            raise Refusal("WORKER_DRAINED")
        length = lease_ms or max(30_000, 3 * man.interval_ms)
        self._extend(current, length)

    def _drain_is_over(self, man: Man) -> bool:
        return man.drain_deadline is not None and man.drain_deadline <= self.now

    def _extend(self, attempt: Try, length: int) -> None:
        attempt.expires_at = max(attempt.expires_at, self.now + length)
        attempt.heard_at = self.now

    def checkpoint(self, shown: Try, man: Man, token: int, state: Any) -> None:
        is_own = shown.worker is man and shown.token == token
        if is_own and shown.work.checkpoint == (shown, token, state):
            return
        current = self._fence(shown, man, token)
        self._require_running(current)
        current.work.go("CHECKPOINTED")
        current.status = "CHECKPOINTED"
        current.heard_at = self.now
        current.work.checkpoint = (current, token, state)

    def _require_running(self, attempt: Try) -> None:
        if attempt.work.state not in STARTED:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")

    def _is_of_held_kind(self, shown: Try) -> bool:
        return shown.work.is_hold and shown.started_at is not None

    def can_still_report(self, shown: Try) -> bool:
        """The lease does not matter to started hold work of the latest claim."""
        is_latest = shown is shown.work.tries[-1]
        is_open = shown.is_live or shown.work.state == "HELD"
        return self._is_of_held_kind(shown) and is_latest and is_open

    def _late_fence(self, shown: Try, man: Man, token: int, report: Any) -> Try:
        """The fence of complete and fail; what it refuses of hold work is kept."""
        if (shown.worker, shown.token) != (man, token) or not self._is_of_held_kind(shown):
            return self._fence(shown, man, token)
        if self.can_still_report(shown):
            return shown
        self.late.add((shown.claim_id, report))
        if shown is not shown.work.tries[-1]:
            raise Refusal("WORKLOAD_STALE_FENCE")
        return self._fence(shown, man, token)

    def _require_open(self, attempt: Try) -> None:
        states = {"HELD", "CANCELLATION_REQUESTED"} if self._is_of_held_kind(attempt) else set()
        if attempt.work.state not in states | STARTED:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")

    # --- reports

    def _is_repeat(self, shown: Try, man: Man, report: Any) -> bool:
        return shown.worker is man and shown.report == report

    def complete(self, shown: Try, man: Man, token: int, result_id: str, output: Any) -> None:
        report = ("complete", token, result_id, output)
        stored = shown.work.result
        if stored is not None and stored[0] == result_id:
            if self._is_repeat(shown, man, report) and stored[1] is shown:
                return
            raise Refusal("WORKLOAD_RESULT_DUPLICATE")
        current = self._late_fence(shown, man, token, report)
        self._require_open(current)
        current.work.go("SUCCEEDED")
        current.work.result = (result_id, current, output)
        self._end(current, "SUCCEEDED", report)

    def fail(self, shown: Try, man: Man, token: int, kind: str, no_effect: bool) -> None:
        report = ("fail", token, kind, no_effect)
        if self._is_repeat(shown, man, report):
            return
        current = self._late_fence(shown, man, token, report)
        self._require_open(current)
        work = current.work
        work.retries += work.state != "HELD"  # what is held was counted then
        work.go("FAILED")
        if work.is_cancel_asked:
            work.go("CANCELLED")
        elif work.is_hold and not no_effect:
            work.go("DEAD_LETTER")
        else:
            self._after_start(work, kind)
        self._end(current, "FAILED", report)

    def cancelled(self, shown: Try, man: Man, token: int) -> None:
        if self._is_repeat(shown, man, ("cancelled", token)):
            return
        current = self._fence(shown, man, token)
        if current.work.state != "CANCELLATION_REQUESTED":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        current.work.go("CANCELLED")
        self._end(current, "CANCELLED", ("cancelled", token))

    def release(self, shown: Try, man: Man, token: int) -> None:
        report = ("release", token)
        if self._is_repeat(shown, man, report):
            return
        current = self._fence(shown, man, token)
        if current.work.state == "CANCELLATION_REQUESTED":
            current.work.go("CANCELLED")
            self._end(current, "CANCELLED", report)
            return
        if current.work.state != "CLAIMED":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        self._before_start(current.work)
        self._end(current, "RELEASED", report)

    def _end(self, attempt: Try, status: str, report: Any = None) -> None:
        attempt.status, attempt.report = status, report
        self._rest(attempt.worker)

    # --- workers

    def register(self, man: Man, *, is_itself: bool, abandon: bool) -> bool:
        """Over a known worker; whether it must reconcile."""
        known = self.workers[man.name]
        is_heard = known.lifecycle != "OFFLINE" and known.silent_at() > self.now
        if is_heard and not is_itself:
            raise Refusal("WORKER_UNAUTHORIZED")
        known.incarnation += 1
        known.concurrency, known.zone = man.concurrency, man.zone
        known.last_seen = self.now
        live = self.live(known)
        is_away = known.lifecycle in {"OFFLINE", "RECOVERING"}
        known.is_unreconciled = is_away or (bool(live) and not abandon)
        if known.drain_cause == "worker":
            known.undrain()
            if known.lifecycle == "DRAINING":
                known.lifecycle = "READY"
        if abandon:
            for each in live:
                self._lose(each)
        self._rest(known)
        if known.lifecycle == "OFFLINE":
            # A drain that an operator asked for ended with the last claim.
            known.is_unreconciled = True
        return known.is_unreconciled

    def heartbeat(
        self, man: Man, listed: list[Try], health: str, concurrency: int | None
    ) -> dict[str, set[str]]:
        if man.lifecycle in {"OFFLINE", "RECOVERING"} or man.is_unreconciled:
            raise Refusal("WORKER_RECOVERY_REQUIRED")
        man.last_seen, man.health = self.now, health
        man.concurrency = concurrency or man.concurrency
        live = self.live(man)
        renewed = [
            each
            for each in listed
            if each in live
            and (each.expires_at > self.now or self.sweeps_are_out())
            and not self._drain_is_over(man)
        ]
        for each in renewed:
            self._extend(each, each.lease_ms)
        if man.lifecycle == "REGISTERED":
            man.lifecycle = "READY"
        self._rest(man)
        own = [each for each in live if each.expires_at > self.now]
        wanted = [each for each in live if each.work.state == "CANCELLATION_REQUESTED"]
        unlisted = [each for each in live if each not in listed]
        return {
            "renewed": _ids(renewed),
            "fenced": _ids(each for each in listed if each not in own),
            "cancel": _ids(wanted),
            "missing": _ids(each for each in unlisted if each.started_at is not None),
            "assigned": _ids(each for each in unlisted if each.started_at is None),
        }

    def reconcile(self, man: Man, known: list[Try], reported: list[Try]) -> dict[str, Any]:
        if man.lifecycle == "OFFLINE" and man.drain_cause == "operator":
            raise Refusal("WORKER_DRAINED")
        was_draining = man.lifecycle == "DRAINING"
        named = {*known, *reported}
        for each in self.live(man):
            if each not in named:
                self._lose(each)
        own = [each for each in self.live(man) if each.expires_at > self.now]
        man.last_seen, man.is_unreconciled, man.health = self.now, False, "UNKNOWN"
        if not was_draining:
            if man.lifecycle == "OFFLINE":
                man.undrain()
            if man.lifecycle in {"OFFLINE", "RECOVERING"}:
                man.lifecycle = "READY"
        self._rest(man)
        settling = {*own, *(t for t in self._own(man) if self.can_still_report(t))}
        verdicts = {
            each.attempt_id: "accepted"
            if each in settling
            else ("already_recorded" if each.report and each.worker is man else "fenced")
            for each in reported
        }
        return {
            "authoritative": _ids(own),
            "fenced": _ids(each for each in known if each not in own),
            "cancel": {each.attempt_id for each in known if each not in settling},
            "reports": verdicts,
        }

    def drain(self, man: Man, cause: str, deadline_ms: int | None) -> None:
        if man.lifecycle == "DRAINING":
            return
        if man.lifecycle in {"OFFLINE", "RECOVERING"}:
            raise Refusal("WORKER_TRANSITION_DENIED")
        man.lifecycle, man.drain_cause = "DRAINING", cause
        man.drain_deadline = None if deadline_ms is None else self.now + deadline_ms
        self._rest(man)

    def undrain(self, man: Man) -> None:
        if man.lifecycle != "DRAINING":
            raise Refusal("WORKER_TRANSITION_DENIED")
        man.undrain()
        man.lifecycle = "READY"
        self._rest(man)

    def recover(self, man: Man) -> None:
        if man.lifecycle != "OFFLINE":
            raise Refusal("WORKER_TRANSITION_DENIED")
        man.undrain()
        man.lifecycle, man.recovering_since = "RECOVERING", self.now

    # --- sweeps

    def _release_dependents(self, last: int | None) -> set[str]:
        """No work of the reference waits for other work."""
        return set()

    def sweep(self, name: str) -> set[str]:
        """One pass; the ids of what it changed."""
        last = self.finished.get(name)
        if self.sweeps_are_out():
            self._move_ends(self.workers.values(), also_over=True)
            self.finished["recover_expired_leases"] = self.now
        changed: set[str] = getattr(self, f"_{name}")(last)
        self.finished[name] = self.now
        return changed

    def _move_ends(self, workers: Iterable[Man], *, also_over: bool) -> None:
        for man in workers:
            for each in self.live(man):
                if also_over or each.expires_at > self.now:
                    each.expires_at = max(each.expires_at, self.now + man.timeout_ms)

    def _recover_expired_leases(self, last: int | None) -> set[str]:
        lost = [
            each
            for man in self.workers.values()
            for each in self.live(man)
            if each.expires_at <= self.now
        ]
        for each in lost:
            self._lose(each)
            self._rest(each.worker)
        return {each.work.workload_id for each in lost}

    def due(self, work: Work) -> str | None:
        """The first cause, in their order, that has passed."""
        tried, limits = work.current, work.timeouts
        ends: dict[str, int | None] = {}
        if work.state not in ENDED | {"HELD"}:
            ends["overall"] = work.overall_at
        if work.state == "CANCELLATION_REQUESTED":
            ends["cancel_grace"] = work.cancel_at + limits.get("cancel_grace_ms", 60_000)
        if tried is not None and tried.started_at is not None and work.state in STARTED:
            ends["execution"] = _after(tried.started_at, limits.get("execution_ms"))
            ends["heartbeat"] = _after(tried.heard_at, limits.get("heartbeat_ms"))
        if tried is not None and work.state == "CLAIMED":
            ends["claim"] = _after(tried.claimed_at, limits.get("claim_ms"))
        if work.state == "READY":
            waits_from = max(work.ready_at, work.available_at)
            ends["queue"] = _after(waits_from, limits.get("queue_ms"))
        return next((c for c, end in ends.items() if end is not None and end <= self.now), None)

    def _enforce_deadlines(self, last: int | None) -> set[str]:
        late = {each: cause for each in self.works if (cause := self.due(each))}
        for work, cause in late.items():
            tried = work.current
            status = "TIMED_OUT"
            is_started = tried is not None and tried.started_at is not None
            is_held = work.is_hold and is_started
            if work.state != "CANCELLATION_REQUESTED":
                work.go("TIMED_OUT")
            work.retries += is_held or (work.state == "TIMED_OUT" and cause in RETRIED)
            if is_held:
                work.go("HELD")
            elif work.state == "CANCELLATION_REQUESTED":
                work.go("CANCELLED")
                status = "CANCELLED"
            else:
                if cause in {"overall", "queue"}:
                    work.go("DEAD_LETTER")
                elif cause == "claim":
                    self._before_start(work)
                else:
                    self._after_start(work, "timeout")
            if tried is not None:
                self._end(tried, status)
        return {each.workload_id for each in late}

    def _promote_due(self, last: int | None) -> set[str]:
        return set()

    def _prune_history(self, last: int | None) -> set[str]:
        return set()  # no time here is long enough

    def _detect_silent_workers(self, last: int | None) -> set[str]:
        taken: set[str] = set()
        for incident in self.incidents:
            if incident.is_open and incident.opened_at + BRAKE_HOLD_MS <= self.now:
                taken |= {each.worker_id for each in incident.workers if self._silence(each)}
                incident.is_open = False
        held = {man for each in self.incidents if each.is_open for man in each.workers}
        silent = [
            each
            for each in self.workers.values()
            if each.lifecycle != "OFFLINE" and each.silent_at() <= self.now and each not in held
        ]
        is_late = last is not None and self.now - last > OUTAGE_MS
        fallen = [
            each for each in silent if (each.lifecycle, each.drain_cause) != ("DRAINING", "worker")
        ]
        if is_late and fallen:
            self.incidents.append(Incident(self.now, fallen))
            self._move_ends(fallen, also_over=False)
            silent = [each for each in silent if each not in fallen]
        return taken | {each.worker_id for each in silent if self._silence(each)}

    def _silence(self, man: Man) -> bool:
        if man.lifecycle == "OFFLINE" or man.silent_at() > self.now:
            return False
        man.lifecycle, man.health = "OFFLINE", "UNHEALTHY"
        for each in self.live(man):
            if each.started_at is None:
                self._lose(each)
        return True

    def boundaries(self) -> list[int]:
        """Moments to come at which something turns."""
        found = [each.silent_at() for each in self.workers.values()]
        for work in self.works:
            found.append(work.available_at)
            if work.overall_at is not None:
                found.append(work.overall_at)
            if work.current is not None:
                found.append(work.current.expires_at)
                found += [work.current.heard_at + each for each in work.timeouts.values()]
                found += [work.current.claimed_at + each for each in work.timeouts.values()]
            found += [work.cancel_at + each for each in work.timeouts.values()]
            found += [work.ready_at + each for each in work.timeouts.values()]
        return sorted({each for each in found if each > self.now})


def _ids(tries: Iterable[Try]) -> set[str]:
    return {each.claim_id for each in tries}


def _after(start: int, limit: int | None) -> int | None:
    return None if limit is None else start + limit
