"""Reports that are ready together go together, each with its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from mesh.agent import sending
from mesh.agent.client import ApiError, UnreachableError
from mesh.agent.sending import Sender
from mesh.agent.session import Session
from mesh.agent.spool import Report
from tests.agent.conftest import eventually

Json = dict[str, Any]


def report(number: int, **members: Any) -> Report:
    said = {"outcome": "complete", "is_hold": False, "body": {"output": number}, **members}
    return Report(
        claim_id=f"c{number}",
        workload_id=f"w{number}",
        attempt_id=f"a{number}",
        fencing_token=1,
        **said,
    )


class Line:
    """A session and its client: notes the calls, answers as it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.passes = threading.Semaphore(0)
        self.is_open = True
        self.answer: Callable[[Json], Json] = lambda item: {"status": "SUCCEEDED"}
        self.whole: Exception | None = None

    @property
    def client(self) -> Line:
        return self

    def has_calls(self, number: int) -> bool:
        return len(self.calls) == number

    def call(self, send: Callable[[], Any]) -> Any:
        return send()

    def _note(self, claims: list[str]) -> None:
        self.calls.append(claims)
        if not self.is_open:
            assert self.passes.acquire(timeout=20)

    def results(self, items: list[Json]) -> Json:
        self._note([item["claim_id"] for item in items])
        if self.whole is not None:
            raise self.whole
        return {"results": [{"claim_id": i["claim_id"], **self.answer(i)} for i in items]}

    def _one(self, claim_id: str, token: int, **said: Any) -> Json:
        self._note([claim_id])
        return {"status": "SUCCEEDED"}

    complete = fail = cancelled = _one


def refusals(line: Line, *reports: Report) -> list[str | None]:
    told = Sender(cast(Session, line)).send(list(reports))
    return [None if each is None else getattr(each, "code", type(each).__name__) for each in told]


def test_one_report_goes_by_its_own_route() -> None:
    line = Line()
    assert refusals(line, report(1)) == [None]
    assert line.calls == [["c1"]]


def test_several_go_together_and_each_has_its_own_answer() -> None:
    line = Line()
    answers = {"c1": {"status": "SUCCEEDED"}, "c2": {"code": "STORAGE_BUSY", "detail": "x"}}
    line.answer = lambda item: answers.get(
        item["claim_id"], {"code": "WORKLOAD_STALE_FENCE", "detail": "x"}
    )
    told = Sender(cast(Session, line)).send([report(1), report(2), report(3)])
    assert line.calls == [["c1", "c2", "c3"]]
    assert told[0] is None
    busy, stale = told[1:]
    assert isinstance(busy, ApiError)
    assert isinstance(stale, ApiError)
    assert (busy.code, busy.is_transient) == ("STORAGE_BUSY", True)
    assert (stale.code, stale.is_transient) == ("WORKLOAD_STALE_FENCE", False)


def test_what_comes_while_two_calls_are_under_way_gathers_for_the_next() -> None:
    line = Line()
    line.is_open = False
    sender = Sender(cast(Session, line))
    threads = []
    for number in range(8):
        thread = threading.Thread(target=sender.send, args=([report(number)],))
        thread.start()
        threads.append(thread)
        if number < 2:
            eventually(partial(line.has_calls, number + 1))
    eventually(lambda: len(sender._waiting) == 6)
    for _ in range(3):
        line.passes.release()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert line.calls[:2] == [["c0"], ["c1"]]
    assert sorted(line.calls[2]) == [f"c{number}" for number in range(2, 8)]
    assert len(line.calls) == 3


def test_a_call_that_the_server_will_not_have_is_sent_one_by_one() -> None:
    line = Line()
    line.whole = ApiError(422, "REQUEST_INVALID", "", None)
    assert refusals(line, report(1), report(2)) == [None, None]
    assert line.calls == [["c1", "c2"], ["c1"], ["c2"]]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (UnreachableError("ReadTimeout"), "UnreachableError"),
        (ApiError(503, "STORAGE_BUSY", "", 500), "STORAGE_BUSY"),
    ],
)
def test_a_call_that_came_to_nothing_leaves_all_to_be_sent_again(
    trouble: Exception, told: str
) -> None:
    line = Line()
    line.whole = trouble
    assert refusals(line, report(1), report(2)) == [told, told]
    assert len(line.calls) == 1


def test_an_answer_that_does_not_fit_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    monkeypatch.setattr(line, "results", lambda items: {"results": []})
    assert refusals(line, report(1), report(2)) == ["UnreachableError"] * 2


def test_a_call_holds_no_more_than_the_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    assert refusals(line, *map(report, range(250))) == [None] * 250
    assert [len(each) for each in line.calls] == [100, 100, 50]
    monkeypatch.setattr(sending, "_MOST_BYTES", 3_000)
    line = Line()
    large = [report(n, body={"output": "x" * 900}) for n in range(3)]
    refusals(line, *large, report(3, body={"output": "x" * 9_000}), report(4))
    assert line.calls == [["c0", "c1"], ["c2"], ["c3"], ["c4"]]
