"""Sending reports: one alone by its own route, several that are ready together in one call.

Two calls may be under way; reports that come meanwhile gather and go with the next call, so a busy
agent sends few large calls and an idle one waits for nothing. Each report gets its own answer. A
call whose answer was lost may be repeated as it is, alone or in other company: the server knows a
report that it has.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mesh.agent.client import ApiError, UnreachableError
from mesh.agent.session import DisplacedError, Session
from mesh.agent.spool import Report, encoded

_LANES = 2
_MOST = 100
# Well below what the server takes in one body; a report that is larger goes alone.
_MOST_BYTES = 1_500_000
_STATUS = {"STORAGE_BUSY": 503}
Refusal = ApiError | UnreachableError | DisplacedError


@dataclass(eq=False)
class _Entry:
    report: Report
    size: int
    is_answered: bool = False
    # Until an answer says otherwise, also when something breaks on the way.
    refusal: Refusal | None = field(default_factory=lambda: UnreachableError("not sent"))


class Sender:
    """Brings reports to the server. Safe to use from all threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: deque[_Entry] = deque()
        self._calls = 0
        self._changed = threading.Condition()

    def send(self, reports: Sequence[Report]) -> list[Refusal | None]:
        """Send these and wait: None for each that was taken, or why it was not."""
        entries = [_Entry(report, _size(report)) for report in reports]
        with self._changed:
            self._waiting.extend(entries)
        while batch := self._next(entries):
            try:
                self._call(batch)
            finally:
                self._done(batch)
        return [entry.refusal for entry in entries]

    def _next(self, entries: list[_Entry]) -> list[_Entry]:
        """What this thread has to send next, perhaps for others too; nothing once all is told."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    all(entry.is_answered for entry in entries)
                    or (bool(self._waiting) and self._calls < _LANES)
                )
            )
            if all(entry.is_answered for entry in entries):
                return []
            self._calls += 1
            batch = [self._waiting.popleft()]
            room = _MOST_BYTES - batch[0].size
            while self._waiting and len(batch) < _MOST and self._waiting[0].size <= room:
                room -= self._waiting[0].size
                batch.append(self._waiting.popleft())
            return batch

    def _done(self, batch: list[_Entry]) -> None:
        with self._changed:
            self._calls -= 1
            for entry in batch:
                entry.is_answered = True
            self._changed.notify_all()

    def _call(self, batch: list[_Entry]) -> None:
        if len(batch) > 1 and self._together(batch):
            return
        for entry in batch:
            try:
                self._session.call(partial(self._alone, entry.report))
                entry.refusal = None
            except (ApiError, UnreachableError, DisplacedError) as error:
                entry.refusal = error

    def _together(self, batch: list[_Entry]) -> bool:
        """One call for all; False where the server will not have it, and each must go alone."""
        items = [_item(entry.report) for entry in batch]
        refusals: Sequence[Refusal | None]
        try:
            answer = self._session.call(lambda: self._session.client.results(items))
            refusals = _refusals(answer, len(batch))
        except ApiError as error:
            if not error.is_transient:
                return False
            refusals = [error] * len(batch)
        except (UnreachableError, DisplacedError) as error:
            refusals = [error] * len(batch)
        for entry, refusal in zip(batch, refusals, strict=True):
            entry.refusal = refusal
        return True

    def _alone(self, report: Report) -> dict[str, Any]:
        client = self._session.client
        if report.outcome == "complete":
            return client.complete(report.claim_id, report.fencing_token, result=report.body)
        if report.outcome == "fail":
            return client.fail(report.claim_id, report.fencing_token, failure=report.body)
        if report.outcome == "release":
            return client.release(report.claim_id, report.fencing_token)
        return client.cancelled(report.claim_id, report.fencing_token)


def _item(report: Report) -> dict[str, Any]:
    return {
        **report.body,
        "claim_id": report.claim_id,
        "fencing_token": report.fencing_token,
        "outcome": report.outcome,
    }


def _refusals(answer: dict[str, Any], number: int) -> list[ApiError | None]:
    answers = answer.get("results")
    if not isinstance(answers, list) or len(answers) != number:
        raise UnreachableError("answer does not fit the reports")
    return [refusal_of(each) for each in answers]


def refusal_of(answer: dict[str, Any]) -> ApiError | None:
    """The refusal of one item of many; None if it was accepted."""
    code = answer.get("code")
    if code is None:
        return None
    return ApiError(_STATUS.get(code, 409), code, str(answer.get("detail") or "")[:500], None)


def _size(report: Report) -> int:
    """About what it takes in a body."""
    return len(encoded(report.body).encode("utf-8", "replace")) + 500
