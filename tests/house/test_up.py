"""`up`: one command starts everything, one signal ends everything, nothing is lost or left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest

from config.logs import SECRET
from config.runfile import RunFile
from tests.conftest import missing
from tests.house.commands import ROOT, assert_one_line, environment, manage
from tests.house.running import Up, wait_until

# One run serves all tests that leave it as it is; so they belong on one xdist worker.
pytestmark = pytest.mark.xdist_group("up")

NOBODY = 65_534
EVERY_SWEEP = {
    "promote_due",
    "recover_expired_leases",
    "enforce_deadlines",
    "release_dependents",
    "detect_silent_workers",
    "prune_history",
    "take_over_dead_coordinators",
    "settle_finished_attempts",
    "finish_cancellations",
    "advance_runs",
}


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    run = Up("--no-demo", prefix=("nohup",)).start()
    yield run
    run.remove()


@pytest.fixture
def another() -> Iterator[Callable[..., Up]]:
    runs: list[Up] = []

    def make(*arguments: str, prefix: tuple[str, ...] = (), **env: str) -> Up:
        runs.append(Up("--no-demo", *arguments, prefix=prefix, **env))
        return runs[-1]

    yield make
    for run in runs:
        run.remove()


def swept(run: Up) -> set[str]:
    """The sweeps that finished a pass, as monitoring sees them."""
    lines = run.get("/metrics")[1].splitlines()
    return {line.split('"')[1] for line in lines if line.startswith("fencepost_sweep_lag_seconds{")}


def is_another(run: Up, name: str, before: int) -> bool:
    return run.child(name) not in (0, before)


# --- While it runs -------------------------------------------------------------------------------


def test_it_is_ready_when_it_says_so(up: Up) -> None:
    status, body = up.get("/readyz")
    assert status == 200
    assert json.loads(body) == {
        "status": "ok",
        **{part: {"ok": True} for part in ("database", "migrations", "broker", "sweeps")},
    }
    assert up.get("/healthz") == (200, '{"status": "ok"}')


def test_every_sweep_runs_through_celery(up: Up) -> None:
    wait_until(lambda: swept(up) == EVERY_SWEEP, "all sweeps ran")


def test_the_sign_in_page_comes_with_its_styles(up: Up) -> None:
    status, page = up.get("/admin/login/")
    assert status == 200
    sheets = [part.split('"')[0] for part in page.split('href="') if ".css" in part.split('"')[0]]
    assert sheets
    assert {up.get(sheet)[0] for sheet in sheets} == {200}


def test_other_commands_find_its_database(up: Up) -> None:
    done = manage("showmigrations", "mesh", FENCEPOST_DATA_DIR=str(up.data))
    assert done.returncode == 0, done.stderr
    assert "[X] 0001_initial" in done.stdout


def test_the_first_five_minutes_of_the_readme_work(up: Up) -> None:
    readme = (ROOT / "README.md").read_text()
    block = readme.split("<!-- begin: first five minutes -->")[1].split("```")[1]
    script = block.removeprefix("sh\n").replace(":8000", f":{up.port}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(".venv/bin/python", sys.executable)],
        env=environment(FENCEPOST_DATA_DIR=str(up.data)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-9:-1] == [
        "READY",
        "RUNNING",
        "SUCCEEDED",
        "{'letters': 3}",
        *(f"workload.{event}" for event in ("ready", "claimed", "started", "completed")),
    ]
    logs = "".join(file.read_text() for file in (up.data / "logs").iterdir())
    assert SECRET.search(logs.replace("***", " ")) is None


def sent(run: Up, *lines: str) -> str:
    """The answer to a request that no client library would send."""
    head = [*lines, "Host: localhost", "Connection: close", "", ""]
    with socket.create_connection(("127.0.0.1", run.port), timeout=60) as connection:
        connection.sendall("\r\n".join(head).encode() + b"zz\r\n")
        return connection.makefile("rb").read().decode()


def test_what_a_client_says_of_address_and_path_is_not_believed(up: Up) -> None:
    said = ("X-Forwarded-Proto: https", "SCRIPT_NAME: /admin")
    answer = sent(up, "GET /admin HTTP/1.1", *said)
    assert answer.startswith("HTTP/1.1 302 ")
    assert "\r\nLocation: /admin/\r\n" in answer


def test_broken_chunks_are_refused_by_the_server(up: Up) -> None:
    kind = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    answer = sent(up, "POST /api/v1/workers HTTP/1.1", *kind)
    assert answer.startswith("HTTP/1.1 400 ")
    assert "REQUEST_MALFORMED" in answer


def test_only_what_was_refused_leaves_a_line_in_the_log(up: Up) -> None:
    assert up.get("/healthz?answered")[0] == 200
    assert up.get("/api/v1/workers?refused")[0] == 401
    log = up.data / "logs" / "web.log"
    wait_until(lambda: "GET /api/v1/workers" in log.read_text(), "the refusal is in the log")
    assert "?answered" not in log.read_text()


def test_it_listens_on_this_machine_alone(up: Up) -> None:
    listening = {
        connection.laddr.ip
        for child in up.children()
        for connection in child.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_keys_and_logs_are_for_their_owner_alone(up: Up) -> None:
    modes = {
        name: stat.S_IMODE((up.data / name).stat().st_mode)
        for name in ("secret_key", "grant_key.pem", "logs")
    }
    assert modes == {"secret_key": 0o600, "grant_key.pem": 0o600, "logs": 0o700}


def test_a_second_run_in_its_folder_is_refused(up: Up, another: Callable[..., Up]) -> None:
    refused = manage("up", "--port", str(another().port), "--data-dir", str(up.data))
    assert_one_line(refused, "in use by another run", "--data-dir")
    assert up.is_ready()


def test_a_taken_port_is_refused(up: Up, another: Callable[..., Up]) -> None:
    data = str(another().data)
    refused = manage("up", "--port", str(up.port), "--data-dir", data)
    assert_one_line(refused, f"port {up.port}", "Address already in use", "--port")


def test_what_dies_is_started_again(up: Up) -> None:
    for name in ("web", "postgres", "broker", "sweeps"):
        before = up.child(name)
        os.kill(before, signal.SIGKILL)
        wait_until(partial(is_another, up, name, before), f"{name} again")
    wait_until(up.is_ready, "ready again", 120)
    assert "web ended (exit code -9); starting it again" in up.output


def test_under_nohup_it_outlives_its_terminal(up: Up) -> None:
    assert up.process is not None
    up.process.send_signal(signal.SIGHUP)
    # That it tends to a child shows that it did not heed the signal: it would have ended first.
    before = up.child("beat")
    os.kill(before, signal.SIGKILL)
    wait_until(partial(is_another, up, "beat", before), "beat again")


# --- How it ends ---------------------------------------------------------------------------------


def test_a_killed_run_leaves_nothing_behind_and_the_next_has_its_data(
    another: Callable[..., Up],
) -> None:
    run = another()
    run.arguments = ("--agents", "2")  # with the demo, the most there is to leave behind
    run.start()
    assert re.search(r"Sign in  demo / \S{12,}\n", run.output)
    wait_until(lambda: 'lifecycle="READY"} 2.0' in run.get("/metrics")[1], "demo agents", 120)
    database = RunFile(run.data).read()["database_url"].removeprefix("postgres://fencepost@/")
    address = f"host={database.removesuffix('/fencepost')} user=fencepost dbname=fencepost"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("create table kept as select 7 as id")
    family = run.children()
    run.end(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert run.left_over() == []

    run.start()
    assert "Sign in  demo / (the password was shown at the first start)" in run.output
    with psycopg.connect(address) as connection:
        assert connection.execute("select id from kept").fetchone() == (7,)
    family = run.children()
    assert run.end(signal.SIGINT) == 0
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert run.left_over() == []
    assert not RunFile(run.data).path.exists()


def test_a_run_that_is_ended_while_it_starts_leaves_nothing(another: Callable[..., Up]) -> None:
    run = another()
    run.launch()
    wait_until(lambda: (run.data / "logs" / "migrate.log").exists(), "it is under way")
    assert run.end(signal.SIGHUP) == 0
    assert run.left_over() == []


# --- Where it runs -------------------------------------------------------------------------------


def test_an_ordinary_user_can_run_it_beside_another_run(up: Up, another: Callable[..., Up]) -> None:
    run = another(prefix=ordinary_user())
    if os.geteuid() == 0:
        os.chown(run.folder, NOBODY, NOBODY)
    assert run.start().is_ready()
    assert up.is_ready()
    if os.geteuid() == 0:
        assert {child.uids().real for child in run.children()} == {NOBODY}
    assert run.end() == 0
    assert run.left_over() == []
    assert up.is_ready()


def ordinary_user() -> tuple[str, ...]:
    """What runs a command as somebody who is not root."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        missing("no setpriv to become an ordinary user with")
    nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    # May read where this Python lives (root's home, often), and nothing else that is not theirs.
    return (*nobody, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


def test_production_runs_on_outside_servers_without_demo_and_open_metrics(
    up: Up, another: Callable[..., Up], outside_postgres: str, outside_redis: str
) -> None:
    run = another(
        DATABASE_URL=outside_postgres,
        CELERY_BROKER_URL=outside_redis,
        SECRET_KEY="production" * 6,
        FENCEPOST_GRANT_KEY_FILE=str(up.data / "grant_key.pem"),
    )
    run.arguments = ()  # as if nobody had thought of --no-demo
    run.start()
    assert run.is_ready()
    assert run.get("/metrics")[0] == 404
    assert "Sign in" not in run.output
    made = {path.name for path in run.data.iterdir()}
    assert made.isdisjoint({"postgres", "broker", "secret_key", "grant_key.pem"})
    with psycopg.connect(outside_postgres, autocommit=True) as connection:
        for table in ("auth_user", "mesh_tenant"):
            assert connection.execute(f"select 1 from {table}".encode()).fetchall() == []
        finished = b"select name from mesh_sweeprun where last_finished_at is not null"
        wait_until(
            lambda: {row[0] for row in connection.execute(finished)} == EVERY_SWEEP, "sweeps ran"
        )
    assert run.end() == 0


def test_sweeps_run_through_rabbitmq(another: Callable[..., Up], outside_rabbitmq: str) -> None:
    run = another(CELERY_BROKER_URL=outside_rabbitmq).start()
    wait_until(lambda: swept(run) == EVERY_SWEEP, "all sweeps ran")
    assert not (run.data / "broker").exists()


# --- What it refuses -----------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_refused(another: Callable[..., Up]) -> None:
    run = another()
    (run.folder / "file").touch()
    refused = manage("up", "--port", str(run.port), "--data-dir", str(run.folder / "file" / "x"))
    assert_one_line(refused, "cannot write in", "choose another --data-dir")


def test_an_address_that_is_not_ours_is_refused(another: Callable[..., Up]) -> None:
    run = another()
    refused = manage(
        "up", "--host", "192.0.2.1", "--port", str(run.port), "--data-dir", str(run.data)
    )
    assert_one_line(refused, "cannot listen on 192.0.2.1", "--host")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (
            "DATABASE_URL",
            "postgres://u:p@127.0.0.1:1/x",
            ("cannot use the database", "Connection refused"),
        ),
        (
            "CELERY_BROKER_URL",
            "redis://:secret@127.0.0.1:1/0",
            ("the broker at redis://:**@127.0.0.1:1/0", "CELERY_BROKER_URL"),
        ),
        ("CELERY_BROKER_URL", "nonsense", ("CELERY_BROKER_URL",)),
    ],
)
def test_a_server_that_does_not_answer_is_refused(
    up: Up, another: Callable[..., Up], variable: str, value: str, words: tuple[str, ...]
) -> None:
    run = another()
    refused = manage(
        "up",
        *("--port", str(run.port), "--data-dir", str(run.data)),
        SECRET_KEY="x",
        FENCEPOST_GRANT_KEY_FILE=str(up.data / "grant_key.pem"),
        **{variable: value},
    )
    assert_one_line(refused, *words)
    assert "secret" not in refused.stderr
    assert run.left_over() == []


def test_a_broker_named_in_a_file_is_asked_for(another: Callable[..., Up], tmp_path: Path) -> None:
    run = another()
    (tmp_path / "broker").write_text("redis://:secret@127.0.0.1:1/0")
    refused = manage(
        "up",
        *("--port", str(run.port), "--data-dir", str(run.data)),
        CELERY_BROKER_URL_FILE=str(tmp_path / "broker"),
    )
    assert_one_line(refused, "the broker at redis://:**@127.0.0.1:1/0")
    assert run.left_over() == []


def test_wrong_credentials_are_refused(
    up: Up, another: Callable[..., Up], outside_postgres: str
) -> None:
    run = another()
    wrong = f"postgres://nobody_we_know:wrong@{outside_postgres.split('@')[1]}"
    refused = manage(
        "up",
        *("--port", str(run.port), "--data-dir", str(run.data)),
        DATABASE_URL=wrong,
        SECRET_KEY="x",
        FENCEPOST_GRANT_KEY_FILE=str(up.data / "grant_key.pem"),
    )
    assert_one_line(refused, "cannot use the database", "nobody_we_know")


def test_a_key_that_cannot_sign_is_refused(up: Up, another: Callable[..., Up]) -> None:
    run = another()
    refused = manage(
        "up",
        *("--port", str(run.port), "--data-dir", str(run.data)),
        DATABASE_URL="postgres://u:p@127.0.0.1:1/x",
        SECRET_KEY="x",
        FENCEPOST_GRANT_KEY_FILE=str(up.data / "secret_key"),
    )
    assert_one_line(refused, "FENCEPOST_GRANT_KEY_FILE", "not a private key")
