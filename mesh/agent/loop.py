"""The agent: registers, beats, asks for work while slots are free, and ends in good order.

Threads: one beats, one asks for work, one starts it, one watches leases, two send reports, one
delivers those that had to wait, and each child process has its own. The main thread waits for a
reason to end.
"""

import logging
import random
import threading
import time
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from mesh.agent.client import (
    ApiError,
    Backoff,
    UnreachableError,
    WorkerClient,
    asked_to_wait,
    is_transient,
    retrying,
)
from mesh.agent.commands import Template
from mesh.agent.delivery import Deliverer
from mesh.agent.options import AgentOptions, GrantMissingError
from mesh.agent.reconcile import Reconciler
from mesh.agent.renewals import Renewals
from mesh.agent.runtimes import RunnerError, Runners, RunnerSettings
from mesh.agent.session import DisplacedError, HaltedError, RegistrationError, Session
from mesh.agent.signals import Signals
from mesh.agent.slots import Slots
from mesh.agent.spool import Spool
from mesh.agent.state import State
from mesh.agent.works import ServerClock, StopReason, Work, WorkTable

log = logging.getLogger("mesh.agent")

_POLL_MIN = 0.25
_POLL_MAX = 1.0
_LINGER = 0.004
_LINGER_BUSY = 0.05
_BUSY = 50
_WAIT_MS = 20_000
_MAX_CLAIMS = 100
_DELIVERY_GRACE = 10.0
_GRANT_WARNING_S = 24 * 3600


class Exit(IntEnum):
    """How the process ends."""

    STOPPED = 0
    FORCED = 1
    USAGE = 2
    REFUSED = 3
    DISPLACED = 4
    STATE_IN_USE = 5


class Agent:
    """One worker, from registration to its end; `run` is its whole life."""

    def __init__(self, options: AgentOptions, state: State) -> None:
        self._options = options
        self._halt = threading.Event()
        self._stopping = threading.Event()
        self._kick = threading.Event()
        self._clock = ServerClock()
        self._client = WorkerClient(options.url, connections=options.concurrency + 8)
        self._session = Session(options, state, self._client, self._halt)
        self._spool = Spool(state.spool)
        self._table = WorkTable()
        self._deliverer = Deliverer(self._session, self._spool, self._halt)
        self._reconciler = Reconciler(options, self._session, self._table, self._deliverer)
        self._runners = Runners(RunnerSettings(options.handlers, options.commands))
        self._slots = Slots(
            options,
            state,
            self._session,
            self._table,
            self._deliverer,
            self._reconciler,
            self._runners,
            frozenset(Template.parse(text).definition_id for text in options.commands),
            self._halt,
        )
        self._reported_time = datetime.now(UTC)
        self._missing: set[str] = set()
        self._said: dict[str, object] = {}
        self._renewals = Renewals(self._session, self._table, self._halt)
        self._drained = threading.Event()
        self._failure: Exit | None = None

    # Life

    def run(self, signals: Signals) -> Exit:
        """Work until a signal comes or the name is lost."""
        try:
            kinds = self._kinds()
            opening = threading.Thread(target=self._open, args=(kinds,), daemon=True)
            opening.start()
            while not self._is_over(signals.wait(0.2)):
                pass
            if self._session.displaced.is_set():
                return self._displaced()
            if self._failure is not None:
                return self._failure
            return self._wind_up(signals)
        except RunnerError as error:
            log.error("the handlers cannot be loaded: %s", error)
            return Exit.USAGE
        finally:
            self._halt.set()
            self._deliverer.wake()
            self._runners.close()

    def _is_over(self, signals: int) -> bool:
        return bool(signals) or self._session.displaced.is_set() or self._failure is not None

    def _kinds(self) -> tuple[str, ...]:
        """The definitions to ask for: those this agent can carry out. RunnerError."""
        runner = self._runners.take()
        known = set(runner.definitions)
        known |= {Template.parse(text).definition_id for text in self._options.commands}
        self._runners.give_back(runner)
        wanted = set(self._options.kinds) or known
        if not wanted:
            raise RunnerError("there is neither a handler nor a command")
        if wanted - known:
            raise RunnerError(f"no handler or command for {', '.join(sorted(wanted - known))}")
        return tuple(sorted(wanted))

    def _open(self, kinds: tuple[str, ...]) -> None:
        """Register and begin to work. Its thread stays: the slots' children hang on theirs."""
        try:
            self._settle_in(self._session.register(kinds), self._spool.load())
        except (RegistrationError, GrantMissingError) as error:
            log.error("not registered: %s", error)
            self._failure = Exit.REFUSED
            return
        except (HaltedError, DisplacedError):
            return
        except Exception:
            log.exception("the agent could not begin")
            self._failure = Exit.FORCED
            return
        self._slots.start_threads()
        for target in (self._claim_forever, self._beat_forever, self._renewals.run):
            threading.Thread(target=self._guarded, args=(target,), daemon=True).start()
        threading.Thread(target=self._guarded, args=(self._deliverer.run,), daemon=True).start()

    def _settle_in(self, reconcile_required: bool, stored: list[Any]) -> None:
        """Reconcile if asked to, hand over what an earlier process finished, beat once."""
        backoff = Backoff(cap=5.0)
        while not self._halt.is_set():
            try:
                if reconcile_required:
                    if not self._reconciler.run(stored):
                        self._halt.wait(self._options.heartbeat_interval_ms / 1000)
                        continue
                    reconcile_required, stored = False, []
                for report in stored:
                    self._deliverer.keep(report)
                stored = []
                self._beat()
                return
            except (ApiError, UnreachableError) as error:
                log.warning("not ready yet: %s", error)
                if isinstance(error, ApiError) and error.code == "WORKER_RECOVERY_REQUIRED":
                    reconcile_required = True
                self._halt.wait(backoff.next(error))

    def _guarded(self, target: Any) -> None:
        try:
            target()
        except (DisplacedError, HaltedError):
            pass  # the main thread knows
        except Exception:
            log.exception("the agent ends: a thread of it broke")
            self._failure = Exit.FORCED

    def _displaced(self) -> Exit:
        log.error(
            "displaced: another process registered as %s, or the worker was removed; "
            "this one ends and does not register again",
            self._options.name,
        )
        return Exit.DISPLACED

    # Ending

    def _wind_up(self, signals: Signals) -> Exit:
        """Drain, finish what runs, deliver; a second signal cuts it short."""
        log.info("stopping: no new work; %d claims are still held", len(self._table))
        self._stopping.set()
        threading.Thread(target=self._guarded, args=(self._drain,), daemon=True).start()
        grace = time.monotonic() + self._options.drain_grace
        if self._wait_for(self._is_idle, grace, signals):
            for work in self._table.all():
                work.request_stop(StopReason.SHUTDOWN)
            last = time.monotonic() + self._options.stop_grace + 2.0
            self._wait_for(self._is_idle, last, signals)
        until = time.monotonic() + _DELIVERY_GRACE
        self._wait_for(lambda: not self._deliverer.pending(), until, signals)
        if signals.count > 1:
            log.warning("stopped at once; %d claims were held", len(self._table))
            return Exit.FORCED
        kept = len(self._spool.load())
        log.info("stopped" + (f"; {kept} reports wait on disk for the next start" if kept else ""))
        return Exit.STOPPED

    def _wait_for(self, is_done: Any, until: float, signals: Signals) -> bool:
        """Wait; True when the time passed before it was done."""
        while not is_done():
            if signals.wait(0.05) > 1 or self._session.displaced.is_set():
                return False
            if time.monotonic() >= until:
                return True
        return False

    def _is_idle(self) -> bool:
        return self._drained.is_set() and len(self._table) == 0

    def _drain(self) -> None:
        """Tell the server first, so that it sends nothing more; then give back the unbegun."""
        try:
            if self._client.worker_id:
                retrying(
                    lambda: self._session.call(
                        lambda: self._client.drain(reason="the agent stops", timeout=5.0)
                    ),
                    halt=self._halt,
                    tries=3,
                )
        except (ApiError, UnreachableError) as error:
            log.warning("not drained: %s", error)
        finally:
            self._slots.release_waiting()
            self._drained.set()

    # Heartbeats

    def _beat_forever(self) -> None:
        interval = self._options.heartbeat_interval_ms / 1000
        backoff = Backoff(base=0.5, cap=min(5.0, interval))
        delay = interval
        while not self._halt.is_set():
            self._kick.wait(delay)
            self._kick.clear()
            try:
                self._beat()
                backoff.reset()
                delay = interval
            except (ApiError, UnreachableError) as error:
                delay = backoff.next(error)
                self._after_refusal("heartbeat", error)

    def _after_refusal(self, about: str, error: Exception) -> None:
        """OFFLINE or unreconciled: come to terms, unless this agent is on its way out."""
        if not isinstance(error, ApiError) or error.code != "WORKER_RECOVERY_REQUIRED":
            self._say(about, f"{about}: {error}", logging.WARNING)
            return
        if self._stopping.is_set():
            return
        try:
            if not self._reconciler.run():
                # Where a revocation drained it, a grant in force brings it back.
                self._try_new_grant()
        except (ApiError, UnreachableError) as problem:
            log.warning("reconcile: %s", problem)

    def _beat(self) -> None:
        works = {work.claim_id: work for work in self._table.all()}
        reports = {report.claim_id for report in self._deliverer.pending()}
        # The local clock may be set back; the server takes no report from the past.
        self._reported_time = max(self._reported_time, datetime.now(UTC))
        body = {
            "version": self._options.version,
            "capability_version": self._session.capability_version,
            "health": "HEALTHY",
            "timestamp": self._reported_time.isoformat(timespec="milliseconds"),
            "running_claims": sorted(works.keys() | reports)[:1000],
            "capacity": {"concurrency": self._options.concurrency},
        }
        asked_at = time.monotonic()
        answer = self._session.call(lambda: self._client.heartbeat(body))
        self._clock.learn(answer["worker"]["last_seen_at"], asked_at=asked_at)
        for renewed in answer["renewed"]:
            if renewed["claim_id"] in works:
                works[renewed["claim_id"]].renewed(asked_at)
        self._obey(answer, works, asked_at)
        self._say("heartbeat", None)
        self._say("lifecycle", f"worker is {answer['worker']['lifecycle']}")
        self._watch_grant(answer.get("grant_ends_at"), answer["worker"]["last_seen_at"])

    def _obey(self, answer: dict[str, Any], works: dict[str, Work], asked_at: float) -> None:
        for claim_id in answer["fenced_claims"]:
            if claim_id in works:
                works[claim_id].lose()
        for claim_id in answer["cancel_claims"]:
            work = self._table.get(claim_id)
            if work is not None:
                work.request_stop(StopReason.CANCELLED)
        for claim in answer["assigned_claims"]:
            self._take_in(claim, asked_at)
        self._look_for_missing(set(answer["missing_claims"]))

    def _look_for_missing(self, missing: set[str]) -> None:
        """Claims the server thinks we run: unknown twice in a row, they are given up."""
        reports = {report.claim_id for report in self._deliverer.pending()}
        unknown = {
            claim_id
            for claim_id in missing - reports
            if self._table.get(claim_id) is None and not self._table.has_ended(claim_id)
        }
        if unknown & self._missing and not self._stopping.is_set():
            log.warning("%d claims are not known here: reconciling", len(unknown))
            self._reconciler.run()
        self._missing = unknown

    def _watch_grant(self, ends_at: str | None, at: str) -> None:
        """Warn of the grant's end, and in its last fifth look for the one that follows it."""
        if ends_at is None:
            return
        left = (datetime.fromisoformat(ends_at) - datetime.fromisoformat(at)).total_seconds()
        if left <= 0:
            self._say("grant", f"the grant ended at {ends_at}: no new work", logging.ERROR)
        elif left < _GRANT_WARNING_S:
            self._say("grant", f"the grant ends at {ends_at}", logging.WARNING)
        if self._session.is_ending(ends_at, at) and not self._stopping.is_set():
            self._try_new_grant()

    # Claims

    def _claim_forever(self) -> None:
        delay = _POLL_MIN
        while not self._stopping.is_set() and not self._halt.is_set():
            free = self._free()
            if free <= 0:
                self._slots.freed.wait(_POLL_MAX)
                self._slots.freed.clear()
                self._gather()
                continue
            self._slots.freed.clear()
            asked_at = time.monotonic()
            try:
                taken = self._claim(min(free, _MAX_CLAIMS), _WAIT_MS)
            except (ApiError, UnreachableError) as error:
                self._after_refusal("claims", error)
                delay = min(delay * 2, 10.0) if is_transient(error) else _POLL_MAX
                floor = asked_to_wait(error)
                taken = 0
            else:
                floor = 0.0
                # The server may be full of those who wait, and answer sooner.
                has_waited = time.monotonic() - asked_at >= _WAIT_MS / 2000
                delay = _POLL_MIN if taken or has_waited else min(delay * 1.5, _POLL_MAX)
                taken = taken or has_waited
            if not taken:
                self._halt.wait(floor + delay * random.uniform(0.7, 1.3))  # noqa: S311  jitter

    def _gather(self) -> None:
        """Slots seldom come free alone: wait a moment, and ask once for several."""
        slots, since = self._options.concurrency, time.monotonic()
        # The longer and for the more where enough is left to do meanwhile.
        while slots >= 4:
            is_busy = self._slots.backlog() >= _BUSY
            enough = min(slots // 2, _MAX_CLAIMS) if is_busy else slots // 4
            most = _LINGER_BUSY if is_busy else _LINGER
            if self._free() >= enough or time.monotonic() >= since + most:
                break
            self._halt.wait(0.001)

    def _free(self) -> int:
        held = len(self._table) + len(self._deliverer.pending())
        return self._options.concurrency - held

    def _claim(self, most: int, wait_ms: int) -> int:
        """Ask for work, and let the server answer when there is some.

        A drain, which comes first when the agent stops, ends the wait.
        """
        body: dict[str, Any] = {"max": most, "wait_ms": wait_ms}
        if self._options.lease_ms is not None:
            body["lease_ms"] = self._options.lease_ms
        asked_at = time.monotonic()
        answer = self._session.call(lambda: self._client.claim(body, wait_ms=wait_ms))
        reason = answer["reason"]
        # It was asked for long before it was claimed: then the server's own times say how long the
        # lease lasts.
        begun_at = time.monotonic() if self._clock.is_known else asked_at
        for claim in answer["claims"]:
            self._take_in(claim, begun_at)
        if self._stopping.is_set():
            self._slots.release_waiting()
        self._say("claims", f"no work for this worker: {reason}" if reason else None)
        if reason in ("GRANT", "GRANT_REVOKED"):
            self._try_new_grant()
        return len(answer["claims"])

    def _take_in(self, claim: dict[str, Any], asked_at: float) -> None:
        work = Work.from_claim(claim, asked_at=asked_at, clock=self._clock)
        if self._stopping.is_set():
            work.request_stop(StopReason.SHUTDOWN)
        self._slots.take_in(work)

    def _try_new_grant(self) -> None:
        try:
            required = self._session.refresh()
        except RegistrationError as error:
            log.error("the new grant is refused: %s", error)
            return
        if required:
            self._reconciler.run()
        if required is not None:
            self._kick.set()

    def _say(self, about: str, text: str | None, level: int = logging.INFO) -> None:
        """Log something only when it is news."""
        if self._said.get(about) != text:
            self._said[about] = text
            if text:
                log.log(level, "%s", text)
