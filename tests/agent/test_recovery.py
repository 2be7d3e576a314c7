"""What survives: the server away, the agent killed, its name taken, its end asked for."""

import stat
from pathlib import Path

from tests.agent.conftest import StartAgent, eventually, is_running
from tests.agent.fake_mesh import FakeMesh


def spooled(state: Path) -> list[Path]:
    return list((state / "spool").glob("[!.]*"))


def test_a_result_finished_while_the_server_is_away_comes_later(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    agent = start_agent()
    eventually(started.exists)
    mesh.is_away = True
    until.touch()
    eventually(lambda: "waits for the server" in agent.log)
    (path,) = spooled(agent.state)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    mesh.is_away = False
    eventually(lambda: work.state == "SUCCEEDED")
    eventually(lambda: not spooled(agent.state))


def test_a_finished_result_survives_the_end_of_the_agent(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    agent = start_agent()
    eventually(started.exists)
    mesh.is_away = True
    until.touch()
    eventually(lambda: spooled(agent.state))
    agent.kill()
    mesh.is_away = False
    again = start_agent()
    eventually(lambda: work.state == "SUCCEEDED")
    (reconcile,) = mesh.bodies("reconcile")
    assert reconcile["completed_attempts"] == [work.attempt_id]
    assert work.token == 1
    eventually(lambda: not spooled(again.state))


def test_a_result_is_on_disk_before_it_is_sent(mesh: FakeMesh, start_agent: StartAgent) -> None:
    work = mesh.submit("test.echo", "x")
    mesh.hangs_on = ("complete",)
    agent = start_agent()
    eventually(lambda: mesh.count("start"))
    eventually(lambda: spooled(agent.state))
    mesh.goes_on.set()
    eventually(lambda: work.state == "SUCCEEDED" and not spooled(agent.state))


def test_a_stored_result_that_is_fenced_is_dropped(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    other = mesh.submit("test.deaf", {"started": str(tmp_path / "other")})
    agent = start_agent("--concurrency", "2")
    eventually(lambda: started.exists() and other.started)
    mesh.is_away = True
    until.touch()
    eventually(lambda: spooled(agent.state))
    agent.kill()
    with mesh.lock:
        mesh.give(work, "somebody else")
    mesh.is_away = False
    again = start_agent()
    eventually(lambda: mesh.count("reconcile") and not spooled(again.state))
    assert "dropped: fenced" in again.log
    assert mesh.count("complete") == 0


def test_after_a_kill_the_next_agent_owns_up_to_nothing_and_the_work_runs_again(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    agent = start_agent()
    eventually(started.exists)
    agent.kill()
    until.touch()
    start_agent()
    eventually(lambda: work.state == "SUCCEEDED")
    (reconcile,) = mesh.bodies("reconcile")
    assert reconcile["known_claims"] == reconcile["running_attempts"] == []
    assert work.token == 2


def test_children_die_with_a_killed_agent(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    handler, command = tmp_path / "handler", tmp_path / "command"
    mesh.submit("test.deaf", {"started": str(handler)})
    mesh.submit("cmd.sleep", None)
    script = f"sh -c 'sleep 600 & echo $$ $! > {command}; wait'"
    agent = start_agent("--command", f"cmd.sleep={script}", "--concurrency", "2")
    files = (handler, command)
    eventually(lambda: all(file.exists() and file.read_text().count(" ") for file in files))
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert all(is_running(pid) for pid in pids)
    agent.kill()
    eventually(lambda: not any(is_running(pid) for pid in pids), "no child is left")


def test_a_displaced_agent_ends_and_does_not_register_again(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    mesh.submit("test.deaf", {"started": str(started)})
    agent = start_agent()
    eventually(lambda: started.exists() and started.read_text().count(" "))
    with mesh.lock:
        mesh.workers["one"].credential = "fpw_of_another"
    assert agent.wait() == 4
    assert "displaced" in agent.log
    assert mesh.count("workers") == 1
    assert not any(is_running(int(pid)) for pid in started.read_text().split())


def test_the_kept_credential_is_sent_when_registering_again(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    agent = start_agent()
    eventually(lambda: mesh.count("claims"))
    agent.kill()
    start_agent()
    eventually(lambda: mesh.count("workers") == 2)
    auths = [auth for path, _body, auth in mesh.calls if path.endswith("/workers")]
    assert auths == [None, "Bearer fpw_one1"]


def test_a_name_that_is_taken_is_waited_for(mesh: FakeMesh, start_agent: StartAgent) -> None:
    mesh.refuse("workers", 403, "WORKER_UNAUTHORIZED", times=2)
    start_agent()
    eventually(lambda: mesh.count("claims"))
    assert mesh.count("workers") == 3


def test_an_agent_that_was_taken_offline_reconciles_with_its_work_running(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    start_agent()
    eventually(started.exists)
    mesh.take_offline("one")
    eventually(lambda: mesh.count("reconcile"))
    assert mesh.bodies("reconcile")[0]["running_attempts"] == [work.attempt_id]
    until.touch()
    eventually(lambda: work.state == "SUCCEEDED")
    assert work.token == 1


def test_an_operators_drain_is_waited_out(mesh: FakeMesh, start_agent: StartAgent) -> None:
    agent = start_agent()
    eventually(lambda: mesh.count("claims"))
    mesh.refuse("reconcile", 409, "WORKER_DRAINED", times=2)
    mesh.take_offline("one")
    work = mesh.submit("test.echo", "x")
    eventually(lambda: work.state == "SUCCEEDED")
    assert mesh.count("reconcile") == 3
    assert agent.log.count("drained by an operator") == 1


def test_a_stopped_agent_drains_finishes_and_delivers(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    agent = start_agent("--concurrency", "1")
    eventually(started.exists)
    agent.process.terminate()
    eventually(lambda: mesh.count("drain"))
    later = mesh.submit("test.echo", "x")
    until.touch()
    assert agent.wait() == 0
    assert work.state == "SUCCEEDED"
    assert later.token == 0


def test_a_stopped_agent_takes_no_work_even_if_it_cannot_drain(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    agent = start_agent("--concurrency", "4")
    eventually(started.exists)
    mesh.refuse("drain", 503, "STORAGE_BUSY", times=3)
    agent.process.terminate()
    eventually(lambda: "not drained" in agent.log)
    later = mesh.submit("test.echo", "x")
    beats = mesh.count("heartbeat")
    eventually(lambda: mesh.count("heartbeat") >= beats + 2)
    until.touch()
    assert agent.wait() == 0
    assert (work.state, later.token) == ("SUCCEEDED", 0)


def test_work_that_outlasts_the_drain_is_stopped_and_reported(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    work = mesh.submit("test.deaf", {"started": str(started)})
    agent = start_agent("--drain-grace", "0.2")
    eventually(lambda: started.exists() and started.read_text().count(" "))
    assert agent.terminate() == 0
    assert work.failure == {"kind": "worker_failure", "error": "the agent was stopped"}
    assert not any(is_running(int(pid)) for pid in started.read_text().split())


def test_hold_work_that_outlasts_the_drain_is_not_called_a_failure(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    work = mesh.submit("test.deaf", {"started": str(started)}, lost_policy="hold")
    agent = start_agent("--drain-grace", "0.2")
    eventually(lambda: started.exists() and started.read_text().count(" "))
    assert agent.terminate() == 0
    assert (work.state, mesh.count("fail")) == ("RUNNING", 0)


def test_a_second_signal_ends_it_at_once(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    mesh.submit("test.deaf", {"started": str(started)})
    agent = start_agent()
    eventually(lambda: started.exists() and started.read_text().count(" "))
    agent.process.terminate()
    eventually(lambda: "stopping" in agent.log)
    assert agent.terminate() == 1
    assert not any(is_running(int(pid)) for pid in started.read_text().split())


def test_an_agent_waits_for_a_server_that_is_not_there_yet(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    mesh.is_away = True
    agent = start_agent()
    eventually(lambda: "registration waits" in agent.log)
    mesh.is_away = False
    work = mesh.submit("test.echo", "x")
    eventually(lambda: work.state == "SUCCEEDED")
    assert agent.terminate() == 0


def test_a_stop_before_the_registration_ends_it(mesh: FakeMesh, start_agent: StartAgent) -> None:
    mesh.is_away = True
    agent = start_agent()
    eventually(lambda: "registration waits" in agent.log)
    assert agent.terminate() == 0


def test_two_agents_with_one_state_folder_are_told_apart(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    start_agent()
    eventually(lambda: mesh.count("claims"))
    second = start_agent()
    assert second.wait() == 5
    assert mesh.count("workers") == 1


def test_a_new_grant_in_the_file_is_registered_without_losing_work(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    agent = start_agent("--concurrency", "2")
    eventually(started.exists)
    (agent.folder / "grant").write_text("good-grant\n ")
    mesh.empty_reason = "GRANT"
    eventually(lambda: "no work for this worker" in agent.log)
    assert mesh.count("workers") == 1, "the same grant is not registered again"
    with mesh.lock:
        mesh.grants.add("newer-grant")
    (agent.folder / "grant").write_text("newer-grant")
    eventually(lambda: mesh.count("workers") == 2)
    until.touch()
    eventually(lambda: work.state == "SUCCEEDED")
    assert (work.token, agent.process.poll()) == (1, None)


def test_in_the_last_fifth_of_its_grant_a_new_one_is_taken_up_although_work_still_comes(
    mesh: FakeMesh, start_agent: StartAgent, tmp_path: Path
) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    work = mesh.submit("test.wait", {"started": str(started), "until": str(until)})
    agent = start_agent("--concurrency", "2")
    eventually(started.exists)
    with mesh.lock:
        mesh.grants.add("newer-grant")
    (agent.folder / "grant").write_text("newer-grant")
    beats = mesh.count("heartbeat")
    eventually(lambda: mesh.count("heartbeat") >= beats + 2)
    assert mesh.count("workers") == 1, "two days are not the last fifth"
    mesh.grant_left_s = 0.1
    eventually(lambda: mesh.count("workers") == 2)
    until.touch()
    eventually(lambda: work.state == "SUCCEEDED")
    assert (work.token, agent.process.poll()) == (1, None)


def test_a_new_grant_that_is_refused_is_sent_once(mesh: FakeMesh, start_agent: StartAgent) -> None:
    agent = start_agent()
    eventually(lambda: mesh.count("claims"))
    mesh.empty_reason = "GRANT"
    (agent.folder / "grant").write_text("bad-grant")
    eventually(lambda: "the new grant is refused" in agent.log)
    polls = mesh.count("claims")
    eventually(lambda: mesh.count("claims") > polls + 2)
    assert mesh.count("workers") == 2
    assert agent.log.count("the new grant is refused") == 1


def test_a_new_grant_that_must_wait_does_not_stop_the_beats(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    agent = start_agent()
    eventually(lambda: mesh.count("claims"))
    with mesh.lock:
        mesh.grants.add("newer-grant")
        mesh.refuse("workers", 409, "WORKER_BUSY", times=3)
    mesh.empty_reason = "GRANT"
    beats = mesh.count("heartbeat")
    (agent.folder / "grant").write_text("newer-grant")
    eventually(lambda: mesh.count("workers") == 5)
    assert "the new grant must wait" in agent.log
    eventually(lambda: mesh.count("heartbeat") > beats)


def test_a_worker_that_a_revocation_drained_comes_back_with_a_new_grant(
    mesh: FakeMesh, start_agent: StartAgent
) -> None:
    agent = start_agent()
    eventually(lambda: mesh.count("claims"))
    with mesh.lock:
        mesh.grants = {"newer-grant"}
        mesh.workers["one"].lifecycle = "OFFLINE"
        mesh.refuse("reconcile", 409, "WORKER_DRAINED", times=2)
    eventually(lambda: "drained by an operator or a revocation" in agent.log)
    (agent.folder / "grant").write_text("newer-grant")
    eventually(lambda: mesh.workers["one"].lifecycle == "READY")
    assert agent.process.poll() is None
