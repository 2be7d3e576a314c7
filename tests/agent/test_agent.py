"""An agent as a process against a small server: the life of claims, and of the agent itself."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import ROOT, StartAgent, eventually, is_running
from tests.agent.fake_mesh import FakeMesh


def test_work_is_started_before_it_runs_and_completed_after(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    work = mesh.submit("test.echo", {"text": "é", "n": 1})
    agent = start_agent()
    eventually(lambda: work.state == "SUCCEEDED")
    on_claims = [path.rsplit("/", 1)[1] for path, _b, _a in mesh.calls if "/claims/" in path]
    assert on_claims == ["start", "complete"]
    assert work.result is not None
    assert work.result["output"] == {"text": "é", "n": 1}
    assert work.result["result_id"] == f"result_{work.attempt_id}"
    assert agent.terminate() == 0


def test_an_agent_asks_for_what_it_has_handlers_and_commands_for(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    start_agent("--command", "files.count=wc -c", "--capability", "c", "--label", "zone=a")
    eventually(lambda: mesh.count("workers"))
    (body,) = mesh.bodies("workers")
    assert "files.count" in body["workload_kinds"]
    assert "test.echo" in body["workload_kinds"]
    assert (body["capabilities"], body["labels"]) == (["c"], {"zone": "a"})


def test_several_claims_are_asked_for_at_once_and_never_more_than_slots(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    works = [mesh.submit("test.echo", number) for number in range(40)]
    start_agent("--concurrency", "8")
    eventually(lambda: all(work.state == "SUCCEEDED" for work in works))
    assert max(body["max"] for body in mesh.bodies("claims")) == 8
    assert {body["wait_ms"] for body in mesh.bodies("claims")} == {20_000}


@pytest.mark.parametrize(
    ("definition", "value", "kind"),
    [
        ("test.fail", {"kind": "transient_connection"}, "transient_connection"),
        ("test.raise", None, "exception"),
        ("test.raise.odd", None, "exception"),
        ("test.crash", "exit", "exit_3"),
        ("test.crash", "signal", "signal_11"),
        ("test.output", "not json", "output_invalid"),
        ("test.output", "nan", "output_invalid"),
        ("test.output", "surrogate", "output_invalid"),
        ("test.output", "secret", "secret_rejected"),
    ],
)
def test_every_way_to_fail_is_reported_by_its_kind(
    mesh: FakeMesh, start_agent: StartAgent, definition: str, value: Any, kind: str
) -> None:
    work = mesh.submit(definition, value)
    after = mesh.submit("test.echo", "next")
    start_agent("--concurrency", "1")
    eventually(lambda: work.failure and after.state == "SUCCEEDED")
    assert work.failure is not None
    assert work.failure["kind"] == kind
    assert "hunter2" not in str(work.failure)


def test_a_handler_may_state_that_nothing_happened(mesh: FakeMesh, start_agent: StartAgent) -> None:
    held = mesh.submit("test.fail", {"kind": "k"}, lost_policy="hold")
    other = mesh.submit("test.fail", {"kind": "k"})
    start_agent()
    eventually(lambda: held.failure and other.failure)
    assert other.failure == {"kind": "k", "error": "as asked", "details": {"why": "test"}}
    assert held.failure == other.failure | {"no_effect": True}


def test_a_later_attempt_goes_on_from_the_checkpoint(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    work = mesh.submit("test.checkpoints", {"steps": 4}, checkpoint={"done": 2}, attempts=1)
    start_agent()
    eventually(lambda: work.result)
    assert work.result is not None
    assert work.result["output"] == {"steps": [3, 4], "attempt": 2}
    assert work.checkpoint == {"done": 4}


def test_at_the_tenant_s_limit_an_agent_waits_as_long_as_it_is_told(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    work = mesh.submit("test.echo", "x")
    mesh.refuse("claims", 429, "LIMIT_EXCEEDED", retry_after_ms=1_000)
    start_agent()
    eventually(lambda: mesh.count("claims"))
    refused_at = time.monotonic()
    eventually(lambda: work.state == "SUCCEEDED")
    assert time.monotonic() - refused_at > 0.9
    assert mesh.count("claims") >= 2


def test_work_of_a_blocked_run_is_released(mesh: FakeMesh, start_agent: StartAgent) -> None:
    work = mesh.submit("test.echo", "x")
    mesh.refuse("start", 409, "MESH_RUN_BLOCKED")
    start_agent()
    eventually(lambda: work.state == "SUCCEEDED")
    assert (mesh.count("release"), work.token) == (1, 2)


def test_work_cancelled_before_its_start_is_confirmed(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    work = mesh.submit("test.echo", "x")
    # Busy until the cancel stands, however often the agent asks before.
    mesh.refuse("start", 503, "STORAGE_BUSY", times=1_000)
    start_agent()
    eventually(lambda: mesh.count("start"))
    mesh.cancel(work)
    mesh.refuse("start", 503, "STORAGE_BUSY", times=0)
    eventually(lambda: work.state == "CANCELLED")
    assert work.result is None


@pytest.mark.parametrize("code", ["WORKLOAD_STALE_FENCE", "WORKLOAD_LEASE_EXPIRED"])
def test_a_claim_that_is_lost_before_its_start_is_dropped(
    mesh: FakeMesh, start_agent: StartAgent, code: str, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    lost = mesh.submit("test.wait", {"started": str(started), "until": str(tmp_path)})
    mesh.refuse("start", 409, code)
    start_agent("--concurrency", "2")
    eventually(lambda: mesh.count("start") == 1)
    after = mesh.submit("test.echo", "next")
    eventually(lambda: after.state == "SUCCEEDED")
    assert not started.exists()
    assert lost.result is None


def test_cancelled_work_is_stopped_and_then_confirmed(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    work = mesh.submit("test.deaf", {"started": str(started)})
    start_agent()
    eventually(lambda: started.exists() and started.read_text().count(" "))
    mesh.cancel(work)
    eventually(lambda: work.state == "CANCELLED")
    assert not any(is_running(int(pid)) for pid in started.read_text().split())


def test_work_that_is_fenced_stops_at_once_without_a_report(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    work = mesh.submit("test.deaf", {"started": str(started)})
    start_agent()
    eventually(lambda: started.exists() and started.read_text().count(" "))
    with mesh.lock:
        mesh.give(work, "somebody else")
    pids = [int(pid) for pid in started.read_text().split()]
    eventually(lambda: not any(is_running(pid) for pid in pids))
    assert mesh.count("fail") == mesh.count("cancelled") == 0


def test_a_command_that_is_fenced_is_killed_with_its_whole_group(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    script = f"sh -c 'sleep 600 & echo $$ $! > {pids}; wait'"
    work = mesh.submit("cmd.sleep", None)
    start_agent("--command", f"cmd.sleep={script}")
    eventually(lambda: pids.exists() and pids.read_text().count(" "))
    with mesh.lock:
        mesh.give(work, "somebody else")
    eventually(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))
    assert mesh.count("fail") == 0


def test_a_lease_that_cannot_be_renewed_ends_the_work(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    mesh.submit("test.deaf", {"started": str(started)})
    start_agent("--lease-ms", "2000")
    eventually(lambda: started.exists() and started.read_text().count(" "))
    mesh.is_away = True
    pids = [int(pid) for pid in started.read_text().split()]
    eventually(lambda: not any(is_running(pid) for pid in pids))


def test_hold_work_finishes_and_reports_after_its_lease(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    value = {"started": str(started), "until": str(until)}
    work = mesh.submit("test.wait", value, lost_policy="hold")
    agent = start_agent("--lease-ms", "1000")
    eventually(started.exists)
    with mesh.lock:
        work.state = "HELD"
        beats = mesh.count("heartbeat")
    eventually(lambda: mesh.count("heartbeat") > beats + 2)
    assert is_running(int(started.read_text())), agent.log
    until.touch()
    eventually(lambda: work.state == "SUCCEEDED")


def test_results_that_are_ready_together_go_together(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    works = [mesh.submit("test.echo", number) for number in range(8)]
    mesh.hangs_on = ("complete", "results")
    agent = start_agent("--concurrency", "8")
    eventually(lambda: len(spooled(agent.state)) == 8)
    mesh.hangs_on = ()
    mesh.goes_on.set()
    eventually(lambda: all(work.state == "SUCCEEDED" for work in works))
    assert [work.result and work.result["output"] for work in works] == list(range(8))
    # Two calls were under way, with one report or more; the rest came in one.
    assert mesh.count("complete") + mesh.count("results") <= 3
    eventually(lambda: not list((agent.state / "spool").iterdir()))


def test_as_many_jobs_run_at_once_as_there_are_slots_also_after_short_ones(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    short = [mesh.submit("test.echo", number) for number in range(40)]
    start_agent("--concurrency", "6")
    eventually(lambda: all(work.state == "SUCCEEDED" for work in short))
    until, started = tmp_path / "until", [tmp_path / f"started-{n}" for n in range(6)]
    works = [mesh.submit("test.wait", {"started": str(s), "until": str(until)}) for s in started]
    eventually(lambda: all(each.exists() for each in started))
    until.touch()
    eventually(lambda: all(work.state == "SUCCEEDED" for work in works))


def test_claims_that_wait_together_are_started_together_and_each_has_its_own_answer(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    """The reply is lost once: then all are asked for again, and run once."""
    works = [mesh.submit("test.echo", number) for number in range(7)]
    late = mesh.submit("test.wait", {"started": str(tmp_path / "x"), "until": str(tmp_path)})
    mesh.lose_reply("starts")
    mesh.refuse_start_of(late, "WORKLOAD_STALE_FENCE")
    agent = start_agent("--concurrency", "8")
    eventually(lambda: all(work.state == "SUCCEEDED" for work in works))
    first, again = mesh.bodies("starts")
    assert len(first["starts"]) == 8
    assert first == again
    assert not (tmp_path / "x").exists()
    assert f"{late.workload_id} not started: WORKLOAD_STALE_FENCE" in agent.log
    assert {work.token for work in works} == {1}


def spooled(state: Path) -> list[str]:
    """The reports that wait on disk to be answered."""
    return [
        line for path in (state / "spool").glob("[!.]*") for line in path.read_text().splitlines()
    ]


def test_short_leases_are_renewed_between_heartbeats(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    mesh.renews_leases = False
    start_agent("--lease-ms", "1500")
    eventually(lambda: mesh.count("renew") >= 3)
    until.touch()
    eventually(lambda: work.state == "SUCCEEDED")
    assert work.token == 1


def test_a_claims_answer_that_was_lost_comes_with_the_heartbeat(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    work = mesh.submit("test.echo", "x")
    mesh.lose_reply("claims")
    start_agent()
    eventually(lambda: work.state == "SUCCEEDED")
    assert (work.token, mesh.count("complete")) == (1, 1)


@pytest.mark.parametrize("operation", ["start", "complete"])
def test_a_lost_answer_is_asked_for_again_and_the_work_runs_once(
    mesh: FakeMesh, start_agent: StartAgent, operation: str
) -> None:
    work = mesh.submit("test.echo", "x")
    mesh.lose_reply(operation)
    start_agent()
    eventually(lambda: mesh.count(operation) == 2)
    eventually(lambda: work.state == "SUCCEEDED")
    first, second = mesh.bodies(operation)
    assert first == second


def test_work_past_its_time_limit_is_killed_and_fails_with_timeout(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    limits = {"execution_ms": 1500}
    work = mesh.submit("test.deaf", {"started": str(started)}, timeouts=limits)
    start_agent()
    eventually(lambda: work.failure)
    assert work.failure is not None
    assert work.failure["kind"] == "timeout"
    assert not any(is_running(int(pid)) for pid in started.read_text().split())


def test_a_command_past_its_time_limit_ends_with_its_whole_group(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    script = f"sh -c 'sleep 600 & echo $! > {pid}; wait'"
    work = mesh.submit("cmd.sleep", None)
    agent = start_agent("--command", f"cmd.sleep={script}", "--time-limit", "1")
    eventually(lambda: work.failure)
    assert work.failure is not None
    assert work.failure["kind"] == "timeout"
    assert not is_running(int(pid.read_text()))
    assert not list((agent.state / "work").iterdir())


def test_a_command_gets_its_input_in_a_folder_of_its_own(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    work = mesh.submit("cmd.show", {"name": "a b"})
    refused = mesh.submit("cmd.show", {"name": "-rf"})
    agent = start_agent("--command", """cmd.show=sh -c 'pwd; cat; echo "$0"' {input.name}""")
    eventually(lambda: work.result and refused.failure)
    assert work.result is not None
    folder, given = work.result["output"]["stdout"].split("\n")[:2]
    assert Path(folder).parent == agent.state / "work"
    assert not Path(folder).exists()
    assert given == '{"name": "a b"}a b'
    assert refused.failure is not None
    assert refused.failure["kind"] == "input_invalid"


def test_handlers_do_not_see_the_grant(mesh: FakeMesh, start_agent: StartAgent) -> None:
    work = mesh.submit("test.environment")
    start_agent()
    eventually(lambda: work.result)
    assert work.result is not None
    assert "MARK" in work.result["output"]
    assert not any(name.startswith("FENCEPOST_GRANT") for name in work.result["output"])


def test_nothing_secret_is_logged_or_left_readable(mesh: FakeMesh, start_agent: StartAgent) -> None:
    work = mesh.submit("test.echo", "x")
    agent = start_agent(grant="bad-grant")
    assert agent.wait() == 3
    assert "GRANT_INVALID" in agent.log
    agent = start_agent()
    eventually(lambda: work.state == "SUCCEEDED")
    for text in ("bad-grant", "good-grant", "env-grant-secret", "fpw_"):
        assert text not in agent.log
    for folder, _folders, files in os.walk(agent.state):
        for path in [Path(folder), *(Path(folder) / name for name in files)]:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_handler_module_that_breaks_is_an_error_at_start(start_agent: StartAgent) -> None:
    agent = start_agent("--handlers", "no.such.module")
    assert agent.wait() == 2
    assert "the handlers cannot be loaded" in agent.log


def test_a_kind_that_nobody_can_carry_out_is_an_error_at_start(start_agent: StartAgent) -> None:
    agent = start_agent("--kind", "other.work")
    assert agent.wait() == 2
    assert "other.work" in agent.log


def test_an_empty_answer_says_why(mesh: FakeMesh, start_agent: StartAgent) -> None:
    mesh.empty_reason = "GRANT"
    agent = start_agent()
    eventually(lambda: "no work for this worker: GRANT" in agent.log)
    assert agent.terminate() == 0


def test_logs_can_be_json_lines(mesh: FakeMesh, start_agent: StartAgent) -> None:
    work = mesh.submit("test.fail", {"kind": "k"})
    agent = start_agent("--json-logs", "--quiet")
    eventually(lambda: work.failure and agent.log)
    assert agent.terminate() == 0
    lines = [json.loads(line) for line in agent.log.splitlines()]
    assert {"level": "warning", "message": "w0 failed: k"}.items() <= lines[0].items()


@pytest.mark.parametrize(
    "options",
    [("--label", "zone"), ("--command", "no separator"), ("--resource", "cpu_millis=many")],
)
def test_options_that_cannot_be_read_are_refused(
    start_agent: StartAgent, options: tuple[str, str]
) -> None:
    agent = start_agent(*options)
    assert agent.wait() == 2
    assert options[0] in agent.log


def test_the_agent_loads_nothing_of_the_server() -> None:
    modules = "mesh.agent.loop, mesh.agent.child, mesh.agent.__main__, demo.handlers"
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    ours = {name for name in loaded if name.split(".")[0] in ("mesh", "config", "django")}
    assert {name for name in ours if not name.startswith("mesh.agent")} == {"mesh"}
