"""The reference, of work and claims: what each call must answer and change."""

from __future__ import annotations

from typing import Any

from .rows import (
    MEMORY,
    OUTAGE_MS,
    PATIENCE,
    PLACEABLE,
    REASONS,
    STARTED,
    Incident,
    Man,
    Refusal,
    Right,
    Stop,
    Try,
    Work,
)
from .waiting import Waiting


class Working(Waiting):
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
        self.order: dict[str, int] = {}
        self.rights: list[Right] = []
        self.stops: list[Stop] = []

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
            "GRANT": not man.right.is_good(self.now),
            "PAUSED": work is not None and self.is_paused(work),
        }
        return tuple(reason for reason, is_failed in failed.items() if is_failed)

    def _everybodys_reasons(self, work: Work) -> tuple[str, ...]:
        told = [set(self.reasons(each, work)) for each in self.workers.values()]
        return tuple(each for each in REASONS if any(each in some for some in told))

    def _stops_of(self, work: Work) -> list[Stop]:
        return [each for each in self.stops if each.definition in {None, work.definition}]

    def is_paused(self, work: Work) -> bool:
        return any(each.stands(self.now) for each in self._stops_of(work))

    def waits_from(self, work: Work) -> int:
        """READY, due, and not paused: held work does not wait at all."""
        ends = [self.now if each.end is None else each.end for each in self._stops_of(work)]
        passed = [min(each, self.now) for each in ends]
        return max([work.ready_at, work.available_at, *passed])

    def _is_full(self) -> bool:
        live = [each for each in self.works if each.in_pool and each.current]
        return self.pool is not None and self.limit is not None and len(live) >= self.limit

    def _used(self, man: Man) -> int:
        return sum(each.work.memory for each in self.live(man))

    # --- workloads

    def submit(self, work: Work, waits: list[tuple[Work, str]]) -> Work:
        self.tie(work, waits)
        work.ready_at = work.overall_from = self.now
        self.works.append(work)
        return work

    def unhold(self, work: Work) -> None:
        work.is_held_back = False
        if work.state == "READY":
            work.ready_at = self.now

    def lift(self, stop: Stop) -> None:
        if not stop.stands(self.now):
            raise Refusal("PAUSE_NOT_FOUND")
        stop.end = self.now

    def cancel(self, work: Work) -> str:
        if work.state in {"CANCELLED", "CANCELLATION_REQUESTED"}:
            return work.state
        if work.state in {"SUCCEEDED", "HELD"}:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        self.go(work, "CANCELLED" if work.current is None else "CANCELLATION_REQUESTED")
        work.cancel_at, work.is_cancel_asked = self.now, True
        return work.state

    def resolve(self, work: Work, resolution: str) -> None:
        if work.state != "HELD":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        last = work.tries[-1]
        if resolution == "succeeded":
            self.go(work, "SUCCEEDED")
            work.result = (f"resolution of {last.claim_id}", last, None)
            last.status = "SUCCEEDED"
        elif resolution == "requeue":
            work.extra += 1
            work.overall_from = self.now
            self._offer(work, self.now)
        elif resolution == "cancelled":
            self.go(work, "CANCELLED")
        else:
            self.go(work, "FAILED", "DEAD_LETTER")

    def reclaim(self, work: Work) -> None:
        if work.current is None:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        current = work.current
        self._lose(current)
        self._rest(current.worker)

    def retry(self, work: Work, extra: int, *, dependents: bool) -> None:
        if work.state != "DEAD_LETTER":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        self.require_met(work)
        # Found before it is brought back; with it those come back that wait for nothing bad.
        below = self.buried_below(work) if dependents else []
        work.extra += extra
        for each in [work, *below]:
            if not any(tie.has_failed for tie in each.ties):
                self._bring_back(each)

    def _bring_back(self, work: Work) -> None:
        self.wait_again(work)
        work.unstarted = work.retries = 0
        work.overall_from = self.now
        self._offer(work, self.now)

    def _offer(self, work: Work, available_at: int) -> None:
        self.go(work, "READY")
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
            self.go(work, "DEAD_LETTER")

    def _before_start(self, work: Work) -> None:
        """A loss before start: no attempt of the budget, but not for ever either."""
        work.unstarted += 1
        beyond = work.unstarted - PATIENCE
        at = self.now if beyond <= 0 else self.now + self._delay(work, beyond)
        if work.unstarted <= work.policy["max_unstarted"] and not self._too_late(work, at):
            self._offer(work, at)
        elif work.state == "CLAIMED":
            self.go(work, "READY", "DEAD_LETTER")
        else:
            self.go(work, "DEAD_LETTER")

    def _lose(self, attempt: Try) -> None:
        work = attempt.work
        attempt.status = "WORKER_LOST"
        if attempt.started_at is not None:
            work.retries += 1
        if work.is_hold and attempt.started_at is not None:
            self.go(work, "HELD")
            return
        if work.state == "CANCELLATION_REQUESTED":
            self.go(work, "CANCELLED")
            return
        self.go(work, "RECOVERING")
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
        self.go(work, "CLAIMED")
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
        if man.right.is_revoked:
            reason = "GRANT_REVOKED"
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
        if work.is_held_back:
            raise Refusal("MESH_RUN_BLOCKED")
        if work.available_at > self.now:
            raise Refusal("WORKLOAD_NOT_YET_ELIGIBLE")
        if work.is_blocked:
            raise Refusal("WORKLOAD_DEPENDENCY_OPEN")
        if named is not None:
            if reasons := self.reasons(named, work):
                raise Refusal("MESH_PLACEMENT_DENIED", reasons)
            chosen = named
        elif self.is_paused(work):
            raise Refusal("MESH_PLACEMENT_DENIED", ("PAUSED",))
        else:
            able = [each for each in self.workers.values() if not self.reasons(each, work)]
            if not able:
                raise Refusal("MESH_NO_ELIGIBLE_WORKER", self._everybodys_reasons(work))
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
        if current.work.is_held_back:
            raise Refusal("MESH_RUN_BLOCKED")
        self.go(current.work, "RUNNING")
        current.status = "RUNNING"
        current.started_at = current.heard_at = self.now
        current.work.unstarted = 0
        current.work.started += 1

    def renew(self, shown: Try, man: Man, token: int, lease_ms: int | None) -> None:
        current = self._current(shown, man, token)
        if current.expires_at <= self.now and not self.sweeps_are_out():
            raise Refusal("WORKLOAD_LEASE_EXPIRED")
        if man.right.is_revoked:
            raise Refusal("GRANT_REVOKED")
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
        self.go(current.work, "CHECKPOINTED")
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
        self.go(current.work, "SUCCEEDED")
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
        self.go(work, "FAILED")
        if work.is_cancel_asked:
            self.go(work, "CANCELLED")
        elif work.is_hold and not no_effect:
            self.go(work, "DEAD_LETTER")
        else:
            self._after_start(work, kind)
        self._end(current, "FAILED", report)

    def cancelled(self, shown: Try, man: Man, token: int) -> None:
        if self._is_repeat(shown, man, ("cancelled", token)):
            return
        current = self._fence(shown, man, token)
        if current.work.state != "CANCELLATION_REQUESTED":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        self.go(current.work, "CANCELLED")
        self._end(current, "CANCELLED", ("cancelled", token))

    def release(self, shown: Try, man: Man, token: int) -> None:
        report = ("release", token)
        if self._is_repeat(shown, man, report):
            return
        current = self._fence(shown, man, token)
        if current.work.state == "CANCELLATION_REQUESTED":
            self.go(current.work, "CANCELLED")
            self._end(current, "CANCELLED", report)
            return
        if current.work.state != "CLAIMED":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        self._before_start(current.work)
        self._end(current, "RELEASED", report)

    def _end(self, attempt: Try, status: str, report: Any = None) -> None:
        attempt.status, attempt.report = status, report
        self._rest(attempt.worker)
