"""The docket of one call: the claims that its reports are about, locked and read at once.

Guarantees: a constant number of statements, however many claims there are; a claim that another
call holds at this moment does not hold up the others; two reports on one workload see one row, so
the later is judged by what the earlier did. What changes is written with one statement.

Locks: the calling worker, then the workloads in the order of their keys.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from . import clock, locking, workers
from .changes import Changes
from .errors import DomainError
from .leases import Presented
from .models import Attempt, LateReport, Result, State, Worker, Workload, WorkloadEvent, uid_of
from .reports import COMPLETE, Report
from .tenancy import Caller

# Of one attempt no more reports are kept that came too late.
MAX_LATE: Final = 20


class Docket:
    """The worker that calls, its claims, and the changes that judging its reports leads to."""

    def __init__(
        self, caller: Caller, worker: Worker, reports: Sequence[Report], *, skip_locked: bool
    ) -> None:
        self.worker = worker
        self.late: list[LateReport] = []
        self.changes = Changes()
        self._freed = 0
        uids = {uid for each in reports if (uid := uid_of(each.claim_id, "claim"))}
        found = _find(sorted(uids), caller.tenant_id, skip_locked=skip_locked)
        self._claims: dict[str, Attempt] = {each.uid.hex: each for each in found}
        locked = self._claims.keys()
        missing = sorted(uids - locked) if skip_locked else []
        self._busy = locking.known_claims(missing, caller.tenant_id) if missing else frozenset()
        for each in found:
            if each.worker_id == worker.pk:
                each.worker = worker
        self._live = self._live_attempts(found)
        self._results = _results(found, reports)
        self.at: datetime = clock.now()

    def present(self, claim_id: str) -> Presented:
        """The claim as it stands now, with what earlier reports of this call did to it.

        Refuses with CLAIM_NOT_FOUND (unknown, another tenant's) and with STORAGE_BUSY (another
        call holds its workload).
        """
        uid = uid_of(claim_id, "claim")
        attempt = self._claims.get(uid or "")
        if attempt is None:
            if uid in self._busy:
                raise locking.busy()
            raise DomainError("CLAIM_NOT_FOUND", "There is no such claim.")
        live = self._live.get(attempt.workload_id)
        current = live if live is not None and live.is_live else None
        return Presented(self.worker, attempt.workload, attempt, current, self.at)

    def result_of(self, workload: Workload, result_id: str) -> Result | None:
        """What is stored under that result id; only work that succeeded has a result."""
        stored = self._results.get(workload.pk)
        return stored if stored is not None and stored.result_id == result_id else None

    def end(
        self, report: Report, attempt: Attempt, *events: WorkloadEvent, was_live: bool = True
    ) -> None:
        """Note that a report ended this attempt; its slot is free if it still had one."""
        attempt.report_step = report.step
        attempt.report_digest = report.digest
        self.changes.add(attempt.workload, attempt, *events)
        self._freed += was_live

    def store(self, result: Result) -> None:
        """Note the result of work that succeeded."""
        self.changes.results.append(result)
        self._results[result.workload_id] = result

    def write(self) -> None:
        """Store all that the reports changed and free the slots; nothing changed, no statement."""
        if not self.changes.attempts:
            return
        worker = self.worker
        worker.last_progress_at = self.at
        active = worker.active - self._freed
        workers.occupy(worker, active, actor=workers.subject_of(worker), at=self.at)
        self.changes.add_worker(worker)
        self.changes.write()

    def _live_attempts(self, found: Sequence[Attempt]) -> dict[int, Attempt]:
        """By workload. A live attempt of the caller's own worker cannot change under its lock."""
        own = {
            each.workload_id: each
            for each in found
            if each.is_live and each.worker_id == self.worker.pk
        }
        others = {each.workload_id for each in found} - own.keys()
        if others:
            for each in Attempt.objects.live().filter(workload_id__in=others):
                own[each.workload_id] = self._claims.get(each.uid.hex, each)
        return own


def keep_late(late: Sequence[LateReport]) -> None:
    """Store reports that came too late, each once, and not without end for one attempt."""
    kept: dict[int, int] = {}
    stored = LateReport.objects.filter(attempt__in=[each.attempt_id for each in late])
    for pk in stored.values_list("attempt_id", flat=True):
        kept[pk] = kept.get(pk, 0) + 1
    room = [each for each in late if kept.get(each.attempt_id, 0) < MAX_LATE]
    LateReport.objects.bulk_create(room, ignore_conflicts=True)


def _find(uids: Sequence[str], tenant_id: int, *, skip_locked: bool) -> list[Attempt]:
    if skip_locked:
        return locking.lock_claims(uids, tenant_id) if uids else []
    found = [locking.lock_claim(uid, tenant_id) for uid in uids]
    return [each for each in found if each is not None]


def _results(found: Sequence[Attempt], reports: Sequence[Report]) -> dict[int, Result]:
    succeeded = {each.workload_id for each in found if each.workload.state == State.SUCCEEDED}
    if not succeeded or all(each.step != COMPLETE for each in reports):
        return {}
    return {each.workload_id: each for each in Result.objects.filter(workload__in=succeeded)}
