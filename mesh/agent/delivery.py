"""Reports on their way to the server: tried at once, kept on disk, tried until answered."""

import logging
import threading
from dataclasses import replace

from mesh.agent.client import Backoff, UnreachableError
from mesh.agent.sending import Refusal, Sender
from mesh.agent.session import DisplacedError, Session
from mesh.agent.spool import Report, Spool

log = logging.getLogger("mesh.agent")

_UNSENDABLE = frozenset(
    {"REQUEST_INVALID", "REQUEST_MALFORMED", "WORKLOAD_INVALID", "BODY_TOO_LARGE"}
)
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

    def deliver(self, report: Report) -> None:
        """Store the report and send it; when it cannot be had, `run` goes on with it.

        DisplacedError leaves it on disk.
        """
        self._store(report, durable=report.is_hold)
        remaining = self._try(report)
        if remaining is not None:
            self._store(remaining, durable=True)
            self.keep(remaining)

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
        settled_all = True
        for report, refusal in zip(reports, self._sender.send(reports), strict=True):
            remaining = self._judge(report, refusal)
            with self._lock:
                if remaining is None:
                    self._pending.pop(report.attempt_id, None)
                elif report.attempt_id in self._pending:
                    self._pending[report.attempt_id] = remaining
            settled_all = settled_all and remaining is None
        return settled_all

    def wake(self) -> None:
        self._wake.set()

    def _try(self, report: Report) -> Report | None:
        """One try, with what may take the report's place; the report that is left, if any."""
        return self._judge(report, self._sender.send([report])[0])

    def _judge(self, report: Report, refusal: Refusal | None) -> Report | None:
        """What the server's answer to a report leads to; the report that is left, if any."""
        if refusal is None:
            self._spool.remove(report)
            _say(report)
            return None
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
        return self._try(other)


def _say(report: Report) -> None:
    if report.outcome == "fail":
        log.warning("%s failed: %s", report.workload_id, report.body["kind"])
    else:
        log.info(
            "%s %s",
            report.workload_id,
            "cancelled" if report.outcome == "cancelled" else "completed",
        )
