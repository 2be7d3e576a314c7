"""The docket of one call: the claims that its items are about, locked and read at once.

Guarantees: a constant number of statements, however many claims there are; a claim that another
call holds at this moment does not hold up the others; two items on one workload see one row, so
the later is judged by what the earlier did. What changes is written with one statement.

Locks: the calling worker, then the workloads in the order of their keys.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from . import clock, locking, workers
from .changes import Changes
from .errors import DomainError
from .leases import Presented
from .models import Attempt, LateReport, Result, State, Worker, Workload, WorkloadEvent, uid_of
from .reports import Report
from .tenancy import Caller

# Of one attempt no more reports are kept that came too late.
MAX_LATE: Final = 20
_HOLDER: Final = Attempt._meta.get_field("worker")


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one item of many: the attempt as it is now, or the refusal."""

    claim_id: str
    attempt: Attempt | None = None
    refusal: DomainError | None = None


def judged(claim_id: str, judge: Callable[[], Attempt]) -> Judged:
    """Judge one item by itself: its refusal is its own, and the others go on."""
    try:
        return Judged(claim_id, judge())
    except DomainError as refusal:
        return Judged(claim_id, refusal=refusal)


class Docket:
    """The worker that calls, its claims, and the changes that judging its items leads to.

    With `wants_results` also the results that its work has already.
    """

    def __init__(
        self,
        caller: Caller,
        worker: Worker,
        claim_ids: Iterable[str],
        *,
        skip_locked: bool,
        wants_results: bool = False,
    ) -> None:
        self.worker = worker
        self.late: list[LateReport] = []
        self.changes = Changes()
        self._freed = 0
        uids = {uid for each in claim_ids if (uid := uid_of(each, "claim"))}
        found = _find(sorted(uids), caller.tenant_id, skip_locked=skip_locked)
        self._claims: dict[str, Attempt] = {each.uid.hex: each for each in found}
        locked = self._claims.keys()
        missing = sorted(uids - locked) if skip_locked else []
        self._busy = locking.known_claims(missing, caller.tenant_id) if missing else frozenset()
        for each in found:
            if each.worker_id == worker.pk:
                _HOLDER.set_cached_value(each, worker)
        self._live = self._live_attempts(found)
        self._results = _results(found) if wants_results else {}
        self.at: datetime = clock.now()

    def present(self, claim_id: str) -> Presented:
        """The claim as it stands now, with what earlier items of this call did to it.

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

    def begin(self, shown: Presented, event: WorkloadEvent) -> None:
        """Note that this work began."""
        self.changes.add(shown.workload, shown.attempt, event)

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
        """Store all that the items changed and free the slots; nothing changed, no statement."""
        if not self.changes.attempts:
            return
        worker = self.worker
        worker.last_progress_at = self.at
        if self._freed:
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


def _results(found: Sequence[Attempt]) -> dict[int, Result]:
    succeeded = {each.workload_id for each in found if each.workload.state == State.SUCCEEDED}
    if not succeeded:
        return {}
    return {each.workload_id: each for each in Result.objects.filter(workload__in=succeeded)}
