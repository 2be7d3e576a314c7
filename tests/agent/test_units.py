"""The parts of the agent one by one: client, leases, spool, logs, state folder."""

import stat
import threading
import time
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import respx

from mesh.agent import logs
from mesh.agent import spool as spool_module
from mesh.agent.client import (
    ApiClient,
    ApiError,
    Backoff,
    UnreachableError,
    WorkerClient,
    retrying,
)
from mesh.agent.delivery import Deliverer, instead_of
from mesh.agent.options import AgentOptions
from mesh.agent.outcomes import judge
from mesh.agent.session import Session
from mesh.agent.spool import Report, Spool
from mesh.agent.state import State, StateForeignError, StateInUseError
from mesh.agent.works import ServerClock, StopReason, Work, WorkTable

URL = "http://mesh.test"
IDENTITY = {"tenant": "acme", "application": "app", "name": "one"}


def claim(**fields: Any) -> dict[str, Any]:
    return {
        "claim_id": "c",
        "workload_id": "w",
        "attempt_id": "a",
        "fencing_token": 1,
        "issued_at": "2026-01-01T00:00:00.000Z",
        "expires_at": "2026-01-01T00:00:30.000Z",
        "workload": {
            "definition_id": "d",
            "input": None,
            "attempt_number": 1,
            "timeouts": {"execution_ms": 5000},
        },
        "checkpoint": None,
        "runtime_policy": None,
        "lost_policy": "requeue",
    } | fields


def work(asked_at: float = 100.0, **fields: Any) -> Work:
    return Work.from_claim(claim(**fields), asked_at=asked_at, clock=ServerClock())


def report(outcome: str = "complete", **body: Any) -> Report:
    return Report(outcome, "c", "w", "a/../x", 1, False, body)


# Client


@respx.mock
def test_a_problem_becomes_an_error_with_its_code() -> None:
    problem = {"code": "STORAGE_BUSY", "detail": "later", "retry_after_ms": 250}
    respx.get(f"{URL}/api/v1/x").respond(503, json=problem)
    with pytest.raises(ApiError, match="STORAGE_BUSY") as refused:
        ApiClient(URL).call("GET", "x")
    assert (refused.value.status, refused.value.retry_after_ms) == (503, 250)
    assert refused.value.is_transient


@respx.mock
def test_an_answer_of_something_in_between_is_no_code_of_the_server() -> None:
    respx.get(f"{URL}/api/v1/x").respond(502, html="<h1>Bad gateway</h1>")
    with pytest.raises(ApiError, match="HTTP_502") as refused:
        ApiClient(URL).call("GET", "x")
    assert refused.value.is_transient


@respx.mock
def test_an_error_shows_neither_token_nor_body() -> None:
    respx.post(f"{URL}/api/v1/x").mock(side_effect=httpx.ConnectError("fpw_secret grant"))
    with pytest.raises(UnreachableError) as failed:
        ApiClient(URL, token="fpw_secret").call("POST", "x", {"grant": "eyJ.secret"})
    assert "secret" not in repr(failed.value)
    assert failed.value.__suppress_context__


@respx.mock
def test_retrying_repeats_what_may_pass_and_nothing_else() -> None:
    route = respx.post(f"{URL}/api/v1/x")
    route.side_effect = [
        httpx.ReadTimeout("lost"),
        httpx.Response(503, json={"code": "STORAGE_BUSY"}),
        httpx.Response(409, json={"code": "WORKLOAD_STALE_FENCE"}),
    ]
    with pytest.raises(ApiError, match="STALE_FENCE"):
        retrying(lambda: ApiClient(URL).call("POST", "x", {}), halt=threading.Event())
    assert route.call_count == 3


def test_a_delay_grows_to_its_cap_and_is_never_under_what_the_server_asked() -> None:
    backoff = Backoff(base=1.0, cap=4.0)
    busy = ApiError(503, "STORAGE_BUSY", "", 2000)
    assert all(2.0 <= backoff.next(busy) <= 6.0 for _ in range(50))


# Session


@respx.mock
def test_a_call_that_met_a_new_registration_is_repeated_with_the_new_credential(
    tmp_path: Path,
) -> None:
    grant = tmp_path / "grant"
    grant.write_text("first")
    options = AgentOptions(
        url=URL,
        tenant="acme",
        application="app",
        name="one",
        state_dir=tmp_path / "state",
        grant_file=grant,
    )
    state = State(options.state_dir, options.identity)
    session = Session(options, state, WorkerClient(URL), threading.Event())
    worker = {"worker_id": "w", "name": "one", "capability_version": 1, "incarnation": 1}
    worker |= {"granted_capabilities": [], "last_seen_at": "2026-01-01T00:00:00.000Z"}
    credentials = iter(["fpw_1", "fpw_2"])
    respx.post(f"{URL}/api/v1/workers").mock(
        side_effect=lambda request: httpx.Response(
            200,
            json={
                "worker": worker,
                "credential": next(credentials),
                "reconcile_required": False,
            },
        )
    )

    def displaced_meanwhile(request: httpx.Request) -> httpx.Response:
        if request.headers["Authorization"] == "Bearer fpw_2":
            return httpx.Response(200, json={})
        grant.write_text("second")
        session.refresh()
        return httpx.Response(401, json={"code": "TOKEN_INVALID"})

    beats = respx.post(f"{URL}/api/v1/workers/w/heartbeat").mock(side_effect=displaced_meanwhile)
    session.register(("d",))
    session.call(lambda: session.client.heartbeat({}))
    assert beats.call_count == 2
    assert not session.displaced.is_set()


# Leases


def test_a_lease_counts_from_before_the_request() -> None:
    assert work(asked_at=100.0).lease_until == 130.0


def test_a_claim_placed_long_ago_has_only_the_rest_of_its_lease() -> None:
    clock = ServerClock()
    clock.learn("2026-01-01T00:00:20.000Z", asked_at=95.0)
    late = Work.from_claim(claim(), asked_at=100.0, clock=clock)
    assert late.lease_until == 105.0


def test_requeue_work_stops_when_its_lease_is_over_and_not_before() -> None:
    one = work()
    assert one.stop_reason(129.9, None) is None
    assert one.stop_reason(130.0, None) is StopReason.LEASE_OVER
    one.renewed(110.0)
    assert one.stop_reason(130.0, None) is None


def test_started_hold_work_outlives_its_lease_and_a_fence_but_not_a_cancel() -> None:
    one = work(lost_policy="hold")
    one.started_at = 101.0
    one.lose()
    assert one.stop_reason(500.0, None) is None
    one.request_stop(StopReason.CANCELLED)
    assert one.stop_reason(500.0, None) is StopReason.CANCELLED


def test_hold_work_that_has_not_started_ends_with_its_lease() -> None:
    assert work(lost_policy="hold").stop_reason(130.0, None) is StopReason.LEASE_OVER


def test_the_stricter_time_limit_wins() -> None:
    one = work()
    one.started_at = 100.0
    assert one.stop_reason(104.9, 60.0) is None
    assert one.stop_reason(105.0, 60.0) is StopReason.TIMEOUT
    assert one.stop_reason(102.0, 2.0) is StopReason.TIMEOUT


def test_a_claim_is_taken_in_once_also_after_its_end() -> None:
    table = WorkTable()
    one = work()
    assert table.add(one)
    assert not table.add(work())
    table.remove(one)
    assert not table.add(work())


COMPLETE = {"outcome": "complete", "output": 1}
FAIL = {"outcome": "fail", "kind": "k", "error": "e"}


@pytest.mark.parametrize(
    ("policy", "reason", "frame", "told"),
    [
        ("requeue", None, COMPLETE, "complete"),
        ("requeue", StopReason.CANCELLED, COMPLETE, "cancelled"),
        ("requeue", StopReason.CANCELLED, FAIL, "cancelled"),
        ("requeue", StopReason.TIMEOUT, COMPLETE, "timeout"),
        ("requeue", StopReason.SHUTDOWN, COMPLETE, "complete"),
        ("requeue", StopReason.SHUTDOWN, None, "worker_failure"),
        ("requeue", StopReason.LEASE_OVER, None, None),
        ("hold", StopReason.CANCELLED, COMPLETE, "complete"),
        ("hold", StopReason.CANCELLED, FAIL, "k"),
        ("hold", StopReason.CANCELLED, None, "cancelled"),
        ("hold", StopReason.TIMEOUT, COMPLETE, "complete"),
        ("hold", StopReason.SHUTDOWN, None, None),
        ("hold", None, {"outcome": "cancelled"}, "exception"),
    ],
)
def test_what_is_told_of_work_that_was_asked_to_stop(
    policy: str, reason: StopReason | None, frame: dict[str, Any] | None, told: str | None
) -> None:
    """Of `hold` work the truth; other work that was told to stop counts as stopped."""
    told_of = judge(work(lost_policy=policy), frame, reason)
    found = None if told_of is None else told_of.body.get("kind", told_of.outcome)
    assert found == told


# Spool and delivery


def test_a_report_is_stored_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put(report(output={"x": "é\ud800"}), durable=True)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (again,) = spool.load()
    assert again.body == {"output": {"x": "é\ud800"}}
    spool.remove(again)
    assert spool.load() == []


def test_an_unreadable_report_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    spool = Spool(tmp_path)
    spool.put(report(), durable=False)
    assert len(spool.load()) == 1
    assert (tmp_path / "x.unreadable").exists()


def numbered(number: int, **body: Any) -> Report:
    return Report("complete", f"c{number}", "w", f"a{number}", 1, False, body)


def attempts(folder: Path) -> list[str]:
    """What the next process finds."""
    return [each.attempt_id for each in Spool(folder).load()]


def test_reports_are_found_by_the_next_process_until_they_are_answered(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    one, two, three = (numbered(n, output="é\ud800") for n in range(3))
    for each in (one, two, three):
        spool.put(each, durable=False)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert attempts(tmp_path) == ["a0", "a1", "a2"]
    spool.remove(one)
    spool.put(two, durable=True)
    assert attempts(tmp_path) == ["a1", "a2"]
    later = Spool(tmp_path)
    assert later.load()[1].body == {"output": "é\ud800"}
    later.put(numbered(3), durable=False)
    assert attempts(tmp_path) == ["a1", "a2", "a3"]
    later.remove(two, three, numbered(3))
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_was_cut_off_is_set_aside_and_costs_no_other(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put(numbered(1), durable=False)
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b'+{"outcome": "compl')
    later = Spool(tmp_path)
    assert [each.attempt_id for each in later.load()] == ["a1"]
    assert path.with_suffix(".unreadable").read_text() == '+{"outcome": "compl'
    later.put(numbered(2), durable=False)
    assert attempts(tmp_path) == ["a1", "a2"]


def test_a_long_journal_is_written_anew_with_what_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_LONG", 1_000)
    spool = Spool(tmp_path)
    spool.put(numbered(0), durable=False)
    for number in range(1, 40):
        spool.put(numbered(number), durable=False)
        spool.remove(numbered(number))
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 2_000
    assert attempts(tmp_path) == ["a0"]


@pytest.mark.parametrize(
    ("code", "outcome", "kind"),
    [
        ("WORKLOAD_SECRET_REJECTED", "fail", "secret_rejected"),
        ("WORKLOAD_INVALID", "fail", "result_refused"),
        ("WORKLOAD_TRANSITION_DENIED", "cancelled", None),
    ],
)
def test_a_refused_result_becomes_another_report(code: str, outcome: str, kind: str) -> None:
    other = instead_of(report(output="x"), code)
    assert other is not None
    assert (other.outcome, other.body.get("kind")) == (outcome, kind)
    assert "output" not in other.body
    assert instead_of(other, code) is None


def test_a_failure_that_cannot_be_read_keeps_its_kind_as_long_as_that_can_be_sent() -> None:
    bare = instead_of(report("fail", kind="k", error="e", details={}), "REQUEST_INVALID")
    assert bare is not None
    assert bare.body == {"kind": "k", "error": "the report was refused: REQUEST_INVALID"}
    last = instead_of(bare, "REQUEST_INVALID")
    assert last is not None
    assert last.body["kind"] == "result_refused"
    assert instead_of(last, "REQUEST_INVALID") is None


@pytest.mark.parametrize("code", ["WORKLOAD_STALE_FENCE", "WORKLOAD_LEASE_EXPIRED"])
def test_a_fenced_result_has_nothing_left_to_report(code: str) -> None:
    assert instead_of(report(), code) is None


# State folder and logs


def test_the_state_folder_is_private_and_keeps_the_credential(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    state = State(folder, IDENTITY)
    state.keep_credential("fpw_1")
    state.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "worker.json").stat().st_mode) == 0o600
    assert State(folder, IDENTITY).credential == "fpw_1"


def test_two_agents_cannot_share_a_state_folder(tmp_path: Path) -> None:
    State(tmp_path, IDENTITY)
    with pytest.raises(StateInUseError):
        State(tmp_path, IDENTITY)


def test_a_state_folder_of_another_worker_is_refused(tmp_path: Path) -> None:
    state = State(tmp_path, IDENTITY)
    state.keep_credential("fpw_1")
    state.close()
    with pytest.raises(StateForeignError):
        State(tmp_path, IDENTITY | {"name": "two"})


def test_logs_mask_what_looks_like_a_secret() -> None:
    masked = logs.masked("token fpw_abc-1 and fpt_x and eyJhbGciOi.eyJzdWI.c2ln end")
    assert masked == "token *** and *** and *** end"


def test_a_stop_wakes_whoever_waits() -> None:
    one, woken = work(asked_at=time.monotonic()), threading.Event()
    one.attach(woken.set)
    one.request_stop(StopReason.CANCELLED)
    assert woken.is_set()


@pytest.mark.parametrize("is_away", [False, True])
def test_a_report_that_the_disk_does_not_take_is_sent_all_the_same(
    tmp_path: Path, is_away: bool
) -> None:
    """The folder is gone, as a full disk has no room."""
    sent: list[str] = []

    class Line:
        def call(self, send: Any) -> None:
            sent.append("complete")
            if is_away:
                raise UnreachableError("ConnectError")

    deliverer = Deliverer(cast(Session, Line()), Spool(tmp_path / "gone"), threading.Event())
    one = Report("complete", "c", "w", "a", 1, is_hold=True, body={})
    deliverer.store(one)
    deliverer.deliver(one)
    assert sent == ["complete"]
    assert len(deliverer.pending()) == int(is_away)
