"""Agents against the real server: what a kill, a stop or an outage leaves behind."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import AgentProcess, eventually, is_running
from tests.agent.real import RealServer

OPTIONS = ("--capability", "test", "--heartbeat-timeout-ms", "3000", "--lease-ms", "4000")


@pytest.fixture
def server(transactional_db: None, tmp_path: Path) -> Iterator[RealServer]:
    real = RealServer(tmp_path)
    yield real
    real.close()


@pytest.fixture
def agent(server: RealServer, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    started: list[AgentProcess] = []

    def start(name: str = "one", *options: str) -> AgentProcess:
        process = AgentProcess(
            server.url, tmp_path / name, *OPTIONS, *options, grant=server.grant(name)
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


def test_the_history_of_clean_work_is_ready_claimed_started_completed(
    server: RealServer, agent: Callable[..., AgentProcess]
) -> None:
    work = server.submit("test.checkpoints", {"steps": 2})
    process = agent()
    eventually(lambda: server.state(work) == "SUCCEEDED")
    detail = server.workload(work)
    assert detail["result"]["output"] == {"steps": [1, 2], "attempt": 1}
    assert detail["checkpoint"]["state"] == {"done": 2}
    rows = server.api.call("GET", f"workloads/{work}/history")["results"]
    assert [row["event"].removeprefix("workload.") for row in rows] == [
        "ready",
        "claimed",
        "started",
        "checkpointed",
        "checkpointed",
        "completed",
    ]
    assert process.terminate() == 0


def test_work_that_comes_while_the_agent_waits_has_its_whole_lease_and_a_stop_ends_the_wait(
    server: RealServer, agent: Callable[..., AgentProcess]
) -> None:
    process = agent()
    eventually(lambda: server.worker("one").get("last_poll_at"), "it waits")
    # Longer than the lease of 4 s that it asks for: counted from the question it would be over.
    time.sleep(4.5)
    work = server.submit("test.echo", 1)
    eventually(lambda: server.state(work) == "SUCCEEDED")
    assert server.workload(work)["attempt_count"] == 1
    assert process.terminate() == 0
    assert server.worker("one")["lifecycle"] == "OFFLINE"


def test_many_small_jobs_are_each_done_once(
    server: RealServer, agent: Callable[..., AgentProcess]
) -> None:
    works = [server.submit("test.echo", number) for number in range(30)]
    agent("one", "--concurrency", "8")
    agent("two", "--concurrency", "8")
    eventually(lambda: all(server.state(work) == "SUCCEEDED" for work in works))
    details = [server.workload(work) for work in works]
    assert [detail["result"]["output"] for detail in details] == list(range(30))
    assert {detail["attempt_count"] for detail in details} == {1}


def test_work_of_a_killed_agent_is_done_by_another_under_a_higher_token(
    server: RealServer, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = server.submit("test.wait", {"started": str(started), "until": str(until)})
    first = agent("one", "--concurrency", "1")
    eventually(started.exists)
    agent("two")
    first.kill()
    eventually(lambda: not is_running(int(started.read_text())))
    until.touch()
    again = agent("one", "--kind", "test.echo")
    eventually(lambda: server.state(work) == "SUCCEEDED")
    detail = server.workload(work)
    assert [one["status"] for one in sorted(detail["attempts"], key=lambda a: a["number"])] == [
        "WORKER_LOST",
        "SUCCEEDED",
    ]
    assert detail["fencing_token"] == 2
    assert detail["attempts"][0]["worker_id"] != detail["attempts"][1]["worker_id"]
    assert "reconciled" in again.log


def test_the_sweeps_hand_on_the_work_of_an_agent_that_never_comes_back(
    server: RealServer, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = server.submit("test.wait", {"started": str(started), "until": str(until)})
    first = agent("one", "--concurrency", "1")
    eventually(started.exists)
    agent("two")
    first.kill()
    until.touch()

    def has_recovered() -> bool:
        server.manage("sweep", "recover_expired_leases")
        return server.state(work) not in ("RUNNING", "CLAIMED")

    eventually(has_recovered, "the lease is over and the work lost")
    eventually(lambda: server.state(work) == "SUCCEEDED")
    detail = server.workload(work)
    assert (detail["attempt_count"], detail["fencing_token"]) == (2, 2)
    assert server.worker("one")["lifecycle"] == "READY", "only silence makes a worker OFFLINE"
    server.manage("sweep", "detect_silent_workers")
    assert server.worker("one")["lifecycle"] == "OFFLINE"


def test_a_result_finished_during_an_outage_is_delivered_after_it(
    server: RealServer, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = server.submit("test.wait", {"started": str(started), "until": str(until)})
    process = agent("one", "--lease-ms", "60000")
    eventually(started.exists)
    server.stop()
    until.touch()
    eventually(lambda: "waits for the server" in process.log)
    process.kill()
    server.start()
    again = agent("one", "--lease-ms", "60000")
    eventually(lambda: server.state(work) == "SUCCEEDED")
    assert server.workload(work)["attempt_count"] == 1
    eventually(lambda: not list((again.state / "spool").iterdir()))


def test_an_agent_outlives_restarts_of_the_server(
    server: RealServer, agent: Callable[..., AgentProcess]
) -> None:
    process = agent()
    eventually(lambda: server.worker("one")["lifecycle"] == "READY")
    server.stop()
    eventually(lambda: "Error" in process.log)
    server.start()
    work = server.submit("test.echo", "x")
    eventually(lambda: server.state(work) == "SUCCEEDED")
    assert process.process.poll() is None


def test_a_cancelled_piece_of_work_is_stopped_and_confirmed(
    server: RealServer, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    started = tmp_path / "started"
    work = server.submit("test.deaf", {"started": str(started)})
    agent()
    eventually(lambda: started.exists() and started.read_text().count(" "))
    server.api.call("POST", f"workloads/{work}/cancel", {})
    eventually(lambda: server.state(work) == "CANCELLED")
    assert not any(is_running(int(pid)) for pid in started.read_text().split())


def test_held_work_runs_on_and_reports_after_its_claim_was_taken(
    server: RealServer, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    value = {"started": str(started), "until": str(until)}
    work = server.submit("test.wait", value, lost_policy="hold")
    process = agent()
    eventually(started.exists)
    server.api.call("POST", f"workloads/{work}/reclaim", {"reason": "it hangs"})
    assert server.state(work) == "HELD"
    beats = server.worker("one")["last_seen_at"]
    eventually(lambda: server.worker("one")["last_seen_at"] != beats)
    assert is_running(int(started.read_text())), process.log
    until.touch()
    eventually(lambda: server.state(work) == "SUCCEEDED")
    assert server.workload(work)["attempts"][0]["status"] == "SUCCEEDED"


def test_a_result_of_held_work_counts_after_the_agent_and_the_lease_are_gone(
    server: RealServer, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    value = {"started": str(started), "until": str(until)}
    work = server.submit("test.wait", value, lost_policy="hold")
    process = agent("one", "--lease-ms", "1000")
    eventually(started.exists)
    server.stop()
    until.touch()
    eventually(lambda: "waits for the server" in process.log)
    process.kill()
    server.start()

    def is_held() -> bool:
        server.manage("sweep", "recover_expired_leases")
        return server.state(work) == "HELD"

    eventually(is_held)
    agent("one")
    eventually(lambda: server.state(work) == "SUCCEEDED")
    assert server.workload(work)["attempt_count"] == 1


def test_a_failure_is_tried_again_as_its_policy_says(
    server: RealServer, agent: Callable[..., AgentProcess]
) -> None:
    again = server.submit("test.fail", {"kind": "transient_connection"})
    once = server.submit("test.fail", {"kind": "other"})
    secret = server.submit("test.output", "secret")
    careless = server.submit("test.careless", 1)
    agent()
    works = (again, once, secret, careless)
    eventually(lambda: all(server.state(work) == "DEAD_LETTER" for work in works))
    assert [server.workload(work)["attempt_count"] for work in works] == [3, 1, 1, 1]
    assert server.workload(secret)["last_failure"]["kind"] == "secret_rejected"
    refused = server.workload(careless)["last_failure"]
    assert refused["kind"] == "secret_rejected"
    assert refused["error"].startswith("checkpoint refused: The checkpoint holds")


def test_a_displaced_agent_ends_and_the_other_goes_on(
    server: RealServer, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    first = agent()
    eventually(lambda: server.worker("one")["lifecycle"] == "READY")
    second = AgentProcess(server.url, tmp_path / "b" / "one", *OPTIONS, grant=server.grant("one"))
    try:
        assert first.wait() == 4
        work = server.submit("test.echo", "x")
        eventually(lambda: server.state(work) == "SUCCEEDED")
        assert second.process.poll() is None
    finally:
        second.close()


def test_a_stopped_agent_is_drained_by_itself_and_ready_after_its_next_start(
    server: RealServer, agent: Callable[..., AgentProcess]
) -> None:
    process = agent()
    eventually(lambda: server.worker("one")["lifecycle"] == "READY")
    assert process.terminate() == 0
    assert server.worker("one")["lifecycle"] == "OFFLINE"
    agent()
    eventually(lambda: server.worker("one")["lifecycle"] == "READY")
    work = server.submit("test.echo", "x")
    eventually(lambda: server.state(work) == "SUCCEEDED")


def test_an_operators_drain_keeps_an_agent_out_until_it_is_recovered(
    server: RealServer, agent: Callable[..., AgentProcess]
) -> None:
    process = agent()
    eventually(lambda: server.worker("one")["lifecycle"] == "READY")
    worker = server.worker("one")["worker_id"]
    server.api.call("POST", f"workers/{worker}/drain", {"reason": "repair"})
    work = server.submit("test.echo", "x")
    eventually(lambda: "drained by an operator" in process.log)
    assert server.state(work) == "READY"
    server.api.call("POST", f"workers/{worker}/recover", {})
    eventually(lambda: server.state(work) == "SUCCEEDED")


def test_a_name_without_its_credential_is_had_once_its_holder_is_silent(
    server: RealServer, agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    first = agent()
    eventually(lambda: server.worker("one")["lifecycle"] == "READY")
    first.kill()
    (first.state / "worker.json").unlink()
    second = AgentProcess(server.url, tmp_path / "one", *OPTIONS, grant=server.grant())
    try:
        eventually(lambda: "registration waits: WORKER_UNAUTHORIZED" in second.log)
        eventually(lambda: server.worker("one")["incarnation"] == 2)
    finally:
        second.close()
