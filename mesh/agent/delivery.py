"""Reports on their way to the server: tried at once, kept on disk, tried until answered."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from mesh.agent.client import Backoff, UnreachableError, is_transient
from mesh.agent.sending import Refusal, Sender
from mesh.agent.session import DisplacedError, Session
from mesh.agent.spool import Report, Spool

log = logging.getLogger("mesh.agent")

_UNSENDABLE = frozenset(
    {"REQUEST_INVALID", "REQUEST_MALFORMED", "WORKLOAD_INVALID", "BODY_TOO_LARGE"}
)
_RELEASE_TRIES = 4
# Of so many that ended together each has a line in the log.
_SAID_APART = 10
_CANCEL_PENDING = frozenset({"WORKLOAD_TRANSITION_DENIED", "WORKLOAD_CANCELLATION_REQUESTED"})


def _failure(report: Report, kind: str, error: str) -> Report:
    return replace(report, outcome="fail", body={"kind": kind, "error": error})


def instead_of(report: Report, code: str) -> Report | None:
    """What to report when the server refused this report for good; None when nothing is left."""
    if code in _CANCEL_PENDING and report.outcome != "cancelled":
        return replace(report, outcome="cancelled", body={})
    was = report.body.get("kind")
    if code == "WORKLOAD_SECRET_REJECTED" and was != "secret_rejected":
        return _failure(report, "secret_rejected", "the report was refused: it held a secret")
    if code in _UNSENDABLE and was != "result_refused":
        bare = _failure(report, was or "result_refused", f"the report was refused: {code}")
        # Of a failure its kind is what counts: it decides whether the work is tried again.
        return (
            bare if bare != report else replace(bare, body=bare.body | {"kind": "result_refused"})
        )
    return None


class Deliverer:
    """Brings reports to the server; what could not be brought yet is `pending()`."""

    def __init__(self, session: Session, spool: Spool, halt: threading.Event) -> None:
        self._sender = Sender(session)
        self._spool = spool
        self._halt = halt
        self._pending: dict[str, Report] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()

    def store(self, report: Report) -> None:
        """Keep the report from being lost; it is to be sent next."""
        self._store(report, durable=report.is_hold)

    def deliver(self, *reports: Report) -> None:
        """Send stored reports, together; with what cannot be sent now `run` goes on.

        DisplacedError leaves them on disk.
        """
        for remaining in self._send(reports):
            if remaining is not None:
                self._store(remaining, durable=True)
                self.keep(remaining)

    def give_back(self, *releases: Report) -> None:
        """Release claims that were not begun, together; what cannot be told soon is left to end."""
        left, backoff = releases, Backoff()
        for _ in range(_RELEASE_TRIES):
            told = list(zip(left, self._sender.send(left), strict=True))
            for release, refusal in told:
                if refusal is None:
                    log.info("%s released", release.workload_id)
                elif not is_transient(refusal):
                    log.warning("%s not released: %s", release.workload_id, refusal)
            left = tuple(each for each, refusal in told if refusal and is_transient(refusal))
            if not left or self._halt.wait(backoff.next()):
                break
        for release in left:
            log.warning("%s not released", release.workload_id)

    def _store(self, report: Report, *, durable: bool) -> None:
        """Where the disk takes it: a full one is no reason not to tell the server."""
        try:
            self._spool.put(report, durable=durable)
        except OSError as error:
            log.error("report of %s is not on disk: %s", report.workload_id, error.strerror)

    def keep(self, report: Report) -> None:
        """Send a stored report as soon as that is possible."""
        with self._lock:
            self._pending[report.attempt_id] = report
        log.warning("report of %s waits for the server", report.workload_id)
        self._wake.set()

    def drop(self, report: Report, why: str) -> None:
        """Forget a report that has nothing to tell any more."""
        log.warning("report of %s dropped: %s", report.workload_id, why)
        self._spool.remove(report)
        with self._lock:
            self._pending.pop(report.attempt_id, None)

    def pending(self) -> list[Report]:
        with self._lock:
            return list(self._pending.values())

    def run(self) -> None:
        """Send what is pending, over and over, until the agent halts."""
        backoff = Backoff(base=0.5, cap=15.0)
        while not self._halt.is_set():
            reports = self.pending()
            if not reports:
                backoff.reset()
                self._wake.wait()
                self._wake.clear()
                continue
            if not self._send_all(reports):
                self._halt.wait(backoff.next())

    def _send_all(self, reports: list[Report]) -> bool:
        left = self._send(reports)
        with self._lock:
            for report, remaining in zip(reports, left, strict=True):
                if remaining is None:
                    self._pending.pop(report.attempt_id, None)
                elif report.attempt_id in self._pending:
                    self._pending[report.attempt_id] = remaining
        return not any(left)

    def wake(self) -> None:
        self._wake.set()

    def _send(self, reports: Sequence[Report]) -> list[Report | None]:
        """One try, with what may take a report's place; of each the report that is left, if any."""
        refusals = self._sender.send(reports)
        taken = [each for each, refusal in zip(reports, refusals, strict=True) if refusal is None]
        self._spool.remove(*taken)
        _say(taken)
        return [
            None if refusal is None else self._judge(report, refusal)
            for report, refusal in zip(reports, refusals, strict=True)
        ]

    def _judge(self, report: Report, refusal: Refusal) -> Report | None:
        """What the server's refusal of a report leads to; the report that is left, if any."""
        if isinstance(refusal, UnreachableError):
            return report
        if isinstance(refusal, DisplacedError):
            raise refusal
        if refusal.is_transient or refusal.code == "WORKER_RECOVERY_REQUIRED":
            return report
        other = instead_of(report, refusal.code)
        if other is None:
            self._spool.remove(report)
            log.warning("report of %s refused: %s", report.workload_id, refusal.code)
            return None
        log.warning("%s: %s refused (%s)", report.workload_id, report.outcome, refusal.code)
        self._store(other, durable=other.is_hold)
        return self._send([other])[0]


def _say(taken: Sequence[Report]) -> None:
    ended = [each for each in taken if each.outcome != "fail"]
    if len(ended) > _SAID_APART:
        log.info("%d completed or cancelled: %s …", len(ended), ended[0].workload_id)
        ended = []
    for each in ended:
        how = "cancelled" if each.outcome == "cancelled" else "completed"
        log.info("%s %s", each.workload_id, how)
    for each in taken:
        if each.outcome == "fail":
            log.warning("%s failed: %s", each.workload_id, each.body["kind"])
