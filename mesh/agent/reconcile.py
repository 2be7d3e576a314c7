"""Coming to terms with the server after a gap: what is ours, what must stop, what to send."""

import logging
import threading
from datetime import UTC, datetime

from mesh.agent.client import ApiError
from mesh.agent.delivery import Deliverer
from mesh.agent.options import AgentOptions
from mesh.agent.session import Session
from mesh.agent.spool import Report
from mesh.agent.works import Phase, StopReason, WorkTable

log = logging.getLogger("mesh.agent")


class Reconciler:
    """Reconciles once at a time; callers that waited for another's pass take that as theirs."""

    def __init__(
        self, options: AgentOptions, session: Session, table: WorkTable, deliverer: Deliverer
    ) -> None:
        self._options = options
        self._session = session
        self._table = table
        self._deliverer = deliverer
        self._lock = threading.Lock()
        self._passes = 0
        self._drained_said = False

    def run(self, stored: list[Report] | None = None) -> bool:
        """One pass; False while a drain by an operator or a revocation keeps this worker out.

        `stored` are reports of an earlier process: kept for sending if they are accepted, dropped
        if not.
        """
        seen = self._passes
        with self._lock:
            if self._passes != seen and stored is None:
                return True
            try:
                self._reconcile(stored or [])
            except ApiError as error:
                if error.code != "WORKER_DRAINED":
                    raise
                if not self._drained_said:
                    log.warning(
                        "drained by an operator or a revocation: waiting for recover or a grant"
                    )
                self._drained_said = True
                return False
            self._passes += 1
            self._drained_said = False
            return True

    def _reconcile(self, stored: list[Report]) -> None:
        works = self._table.all()
        reports = {report.attempt_id: report for report in [*self._deliverer.pending(), *stored]}
        ended = {work.attempt_id: work.outcome for work in works if work.outcome is not None}
        ended |= {attempt_id: report.outcome for attempt_id, report in reports.items()}
        running = [
            work.attempt_id
            for work in works
            if work.phase is Phase.RUNNING and work.attempt_id not in ended
        ]
        body = {
            "worker_version": self._options.version,
            "capability_version": self._session.capability_version,
            "known_claims": sorted(
                {work.claim_id for work in works} | {one.claim_id for one in reports.values()}
            ),
            "running_attempts": running,
            "completed_attempts": [one for one, how in ended.items() if how == "complete"],
            "failed_attempts": [one for one, how in ended.items() if how != "complete"],
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        answer = self._session.call(lambda: self._session.client.reconcile(body))
        log.info(
            "reconciled: %d claims are ours, %d lost, %d to stop",
            len(answer["authoritative_claims"]),
            len(answer["fenced_claims"]),
            len(answer["cancel_attempts"]),
        )
        self._stop_lost(set(answer["fenced_claims"]), set(answer["cancel_attempts"]))
        self._judge(reports, answer["reports"])

    def _stop_lost(self, fenced_claims: set[str], cancel_attempts: set[str]) -> None:
        for work in self._table.all():
            if work.attempt_id in cancel_attempts:
                work.request_stop(StopReason.FENCED)
            elif work.claim_id in fenced_claims:
                work.lose()

    def _judge(self, reports: dict[str, Report], verdicts: dict[str, str]) -> None:
        pending = {report.attempt_id for report in self._deliverer.pending()}
        for attempt_id, report in reports.items():
            verdict = verdicts.get(attempt_id, "accepted")
            if verdict != "accepted":
                self._deliverer.drop(report, verdict)
            elif attempt_id not in pending:
                self._deliverer.keep(report)
