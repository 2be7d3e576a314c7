"""The mesh in a few hundred lines of plain Python: what each call must answer and change.

Written from the rules, not from the code, and kept small enough to be read against them. Times are
whole milliseconds. A refused call raises `Refusal` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .rows import (
    BRAKE_HOLD_MS,
    DEPTH,
    ENDED,
    OUTAGE_MS,
    PLACEABLE,
    RETRIED,
    STARTED,
    Incident,
    Man,
    Refusal,
    Right,
    Try,
    Work,
)
from .working import Working


class Mesh(Working):
    """The whole: workers and sweeps too."""

    # --- workers

    def register(self, man: Man, *, is_itself: bool, abandon: bool) -> bool:
        """Anew or over a known worker; whether it must reconcile."""
        if man.right.ends_at <= self.now:
            raise Refusal("GRANT_EXPIRED")
        if man.right.is_revoked:
            raise Refusal("GRANT_REVOKED")
        if man.name not in self.workers:
            self.workers[man.name] = man
            return False
        known = self.workers[man.name]
        is_heard = known.lifecycle != "OFFLINE" and known.silent_at() > self.now
        if is_heard and not is_itself:
            raise Refusal("WORKER_UNAUTHORIZED")
        known.incarnation += 1
        known.concurrency, known.zone, known.right = man.concurrency, man.zone, man.right
        known.last_seen = self.now
        live = self.live(known)
        is_away = known.lifecycle in {"OFFLINE", "RECOVERING"}
        known.is_unreconciled = is_away or (bool(live) and not abandon)
        if known.drain_cause in {"worker", "revocation"}:
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
            and not man.right.is_revoked
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
        by_others = man.drain_cause in {"operator", "revocation"} or man.right.is_revoked
        if man.lifecycle in {"OFFLINE", "RECOVERING"} and by_others:
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
        if man.right.is_revoked:
            raise Refusal("GRANT_REVOKED")
        man.undrain()
        man.lifecycle = "READY"
        self._rest(man)

    def recover(self, man: Man) -> None:
        if man.lifecycle != "OFFLINE":
            raise Refusal("WORKER_TRANSITION_DENIED")
        if man.right.is_revoked:
            raise Refusal("GRANT_REVOKED")
        man.undrain()
        man.lifecycle, man.recovering_since = "RECOVERING", self.now

    # --- rights

    def derive(self, parent: Right, length: int, asked: int | None) -> int:
        """A grant within the parent; when it ends."""
        if parent.ends_at <= self.now:
            raise Refusal("GRANT_EXPIRED")
        if parent.is_revoked:
            raise Refusal("GRANT_REVOKED")
        ends_at = self.now + length
        if asked is None:
            ends_at = min(ends_at, parent.ends_at)
        if ends_at > parent.ends_at or len(parent.above) + 2 > DEPTH:
            raise Refusal("GRANT_DELEGATION_INVALID")
        return ends_at

    def revoke(self, rights: list[Right]) -> None:
        """These and all below them; the workers that rest on them drain."""
        for each in self.rights:
            each.is_revoked |= any(one in rights for one in [each, *each.above])
        for man in self.workers.values():
            if man.right.is_revoked and man.lifecycle in {"REGISTERED", *PLACEABLE}:
                self.drain(man, "revocation", None)

    # --- sweeps

    def sweep(self, name: str, told: list[str]) -> set[str]:
        """One pass; the ids of what it changed. `told` is the order in which it went on."""
        self.order = {each: place for place, each in enumerate(told)}
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
        if work.state == "READY" and not work.is_held_back and not work.is_blocked:
            ends["queue"] = _after(self.waits_from(work), limits.get("queue_ms"))
        return next((c for c, end in ends.items() if end is not None and end <= self.now), None)

    def _enforce_deadlines(self, last: int | None) -> set[str]:
        late: dict[Work, str] = {}
        # One that ends may bury or free others that are late too: which comes first is not said.
        last_of_all = len(self.order)
        for work in sorted(
            self.works, key=lambda each: self.order.get(each.workload_id, last_of_all)
        ):
            if (cause := self.due(work)) is None:
                continue
            late[work] = cause
            tried = work.current
            status = "TIMED_OUT"
            is_started = tried is not None and tried.started_at is not None
            is_held = work.is_hold and is_started
            if work.state != "CANCELLATION_REQUESTED":
                self.go(work, "TIMED_OUT")
            work.retries += is_held or (work.state == "TIMED_OUT" and cause in RETRIED)
            if is_held:
                self.go(work, "HELD")
            elif work.state == "CANCELLATION_REQUESTED":
                self.go(work, "CANCELLED")
                status = "CANCELLED"
            else:
                if cause in {"overall", "queue"}:
                    self.go(work, "DEAD_LETTER")
                elif cause == "claim":
                    self._before_start(work)
                else:
                    self._after_start(work, "timeout")
            if tried is not None:
                self._end(tried, status)
        told = {
            each
            for each in self.workers.values()
            if each.lifecycle == "DRAINING" and self._drain_is_over(each) and not each.is_drain_told
        }
        for man in told:
            man.is_drain_told = True
        return {each.workload_id for each in late} | {each.worker_id for each in told}

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
        found += [each.drain_deadline for each in self.workers.values() if each.drain_deadline]
        found += [each.ends_at for each in self.rights]
        found += [each.end for each in self.stops if each.end is not None]
        for work in self.works:
            found.append(work.available_at)
            if work.overall_at is not None:
                found.append(work.overall_at)
            if work.current is not None:
                found.append(work.current.expires_at)
                found += [work.current.heard_at + each for each in work.timeouts.values()]
                found += [work.current.claimed_at + each for each in work.timeouts.values()]
            found += [work.cancel_at + each for each in work.timeouts.values()]
            found += [self.waits_from(work) + each for each in work.timeouts.values()]
        return sorted({each for each in found if each > self.now})


def _ids(tries: Iterable[Try]) -> set[str]:
    return {each.claim_id for each in tries}


def _after(start: int, limit: int | None) -> int | None:
    return None if limit is None else start + limit
