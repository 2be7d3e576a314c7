"""The start of claims: nothing may happen before the server said "go".

Claims that wait together are started in one call, each with its own answer; one alone goes by its
own route. What cannot be started yet is asked for again, as long as its lease lasts; what must not
be started any more is turned down.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mesh.agent.client import ApiError, Backoff, UnreachableError, is_transient
from mesh.agent.delivery import Deliverer
from mesh.agent.outcomes import not_begun, report_of
from mesh.agent.reconcile import Reconciler
from mesh.agent.reporting import Reporter
from mesh.agent.sending import Refusal, refusal_of
from mesh.agent.session import DisplacedError, Session
from mesh.agent.spool import Report
from mesh.agent.works import Phase, StopReason, Work

log = logging.getLogger("mesh.agent")

_MOST = 500
_UNRECONCILED = "WORKER_RECOVERY_REQUIRED"
Tell = Callable[[Sequence[Work]], None]


@dataclass(eq=False)
class _Entry:
    work: Work
    due_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(base=0.1, cap=2.0))


class Starter:
    """Starts claims; `begin` is told of those that were accepted, `end` of those that are over."""

    def __init__(
        self,
        session: Session,
        deliverer: Deliverer,
        reconciler: Reconciler,
        reporter: Reporter,
        *,
        begin: Tell,
        end: Tell,
        halt: threading.Event,
    ) -> None:
        self._session = session
        self._deliverer = deliverer
        self._reconciler = reconciler
        self._reporter = reporter
        self._begin = begin
        self._end = end
        self._halt = halt
        self._entries: list[_Entry] = []
        self._changed = threading.Condition()

    def put(self, work: Work) -> None:
        """Start this claim as soon as may be."""
        self._keep([_Entry(work)])

    def release_waiting(self) -> None:
        """Give back what has not been started."""
        with self._changed:
            for entry in self._entries:
                entry.work.request_stop(StopReason.SHUTDOWN)
                entry.due_at = 0.0
            self._changed.notify()

    def run(self) -> None:
        """Start what comes, until the agent halts."""
        while not self._halt.is_set():
            entries = self._next()
            try:
                self._start(entries)
            except DisplacedError:
                self._give_up(entries)  # the session has told the agent
            except Exception:
                log.exception("%d claims came to nothing", len(entries))
                self._give_up(entries)

    def _give_up(self, entries: Sequence[_Entry]) -> None:
        self._end([each.work for each in entries if each.work.phase is Phase.WAITING])

    def _keep(self, entries: Sequence[_Entry]) -> None:
        with self._changed:
            self._entries.extend(entries)
            self._changed.notify()

    def _next(self) -> list[_Entry]:
        """What is due, once something is."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = [each for each in self._entries if each.due_at <= now][:_MOST]
                if due:
                    taken = set(map(id, due))
                    self._entries = [each for each in self._entries if id(each) not in taken]
                    return due
                first = min((each.due_at for each in self._entries), default=None)
                self._changed.wait(None if first is None else first - now)

    def _start(self, entries: Sequence[_Entry]) -> None:
        now, asked = time.monotonic(), []
        for entry in entries:
            reason = entry.work.stop_reason(now, None)
            if reason is None:
                asked.append(entry)
                continue
            log.info("%s not started: %s", entry.work.workload_id, reason.value)
            self._turn_down(entry.work, not_begun(entry.work, reason))
        if asked:
            self._ask(asked)

    def _ask(self, entries: Sequence[_Entry]) -> None:
        asked_at = time.monotonic()
        told = list(zip(entries, self._call(entries), strict=True))
        begun = [entry.work for entry, refusal in told if refusal is None]
        for work in begun:
            work.started_at = asked_at
            work.phase = Phase.RUNNING
        self._begin(begun)
        again = [(entry, refusal) for entry, refusal in told if refusal and _may_pass(refusal)]
        for entry, refusal in told:
            if refusal is not None and not _may_pass(refusal):
                self._turn_down(entry.work, _in_answer_to(entry.work, refusal))
        if any(_code(refusal) == _UNRECONCILED for _entry, refusal in again):
            self._come_to_terms()
        delays: dict[int, float] = {}
        for entry, refusal in again:
            # Those of a call that came to nothing stay together.
            delay = delays.setdefault(id(refusal), entry.backoff.next(refusal))
            entry.due_at = time.monotonic() + min(delay, max(0.0, entry.work.lease_left))
        self._keep([entry for entry, _refusal in again])

    def _turn_down(self, work: Work, report: Report | None) -> None:
        if report is None:
            self._end([work])
        elif report.outcome == "release":
            # Tried several times, and others need not wait for it.
            threading.Thread(target=self._release, args=(work, report), daemon=True).start()
        else:
            self._reporter.put(work, report)

    def _release(self, work: Work, release: Report) -> None:
        try:
            self._deliverer.give_back(release)
        except DisplacedError:
            pass  # the session has told the agent
        finally:
            self._end([work])

    def _call(self, entries: Sequence[_Entry]) -> Sequence[Refusal | None]:
        """The answer to each. DisplacedError."""
        client = self._session.client
        timeout = min(10.0, max(0.2, min(each.work.lease_left for each in entries)))
        if len(entries) > 1:
            items = [
                {"claim_id": each.work.claim_id, "fencing_token": each.work.fencing_token}
                for each in entries
            ]
            try:
                answer = self._session.call(lambda: client.starts(items, timeout=timeout))
                return _told(answer, len(entries))
            except UnreachableError as error:
                return [error] * len(entries)
            except ApiError as error:
                if error.is_transient:
                    return [error] * len(entries)
            # The server will not have them together.
            return [self._call([each])[0] for each in entries]
        work = entries[0].work
        try:
            self._session.call(
                lambda: client.start(work.claim_id, work.fencing_token, timeout=timeout)
            )
        except (ApiError, UnreachableError) as error:
            return [error]
        return [None]

    def _come_to_terms(self) -> None:
        try:
            self._reconciler.run()
        except (ApiError, UnreachableError) as problem:
            log.warning("reconcile: %s", problem)


def _told(answer: dict[str, Any], number: int) -> list[ApiError | None]:
    answers = answer.get("starts")
    if not isinstance(answers, list) or len(answers) != number:
        raise UnreachableError("answer does not fit the starts")
    return [refusal_of(each) for each in answers]


def _code(refusal: Refusal) -> str:
    return refusal.code if isinstance(refusal, ApiError) else ""


def _may_pass(refusal: Refusal) -> bool:
    """Whether to ask again."""
    return is_transient(refusal) or _code(refusal) == _UNRECONCILED


def _in_answer_to(work: Work, refusal: Refusal) -> Report | None:
    """What to report of a claim whose start was refused for good; None: it is lost."""
    if _code(refusal) == "MESH_RUN_BLOCKED":
        return report_of(work, "release", {})
    if _code(refusal) == "WORKLOAD_CANCELLATION_REQUESTED":
        return report_of(work, "cancelled", {})
    log.warning("%s not started: %s", work.workload_id, _code(refusal))
    return None
