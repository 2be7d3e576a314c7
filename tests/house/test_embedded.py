"""The servers from wheels: they start, keep their data, and never outlive or fight each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from config.embedded import EmbeddedBroker, EmbeddedError, EmbeddedPostgres
from tests.house.running import let_servers_in


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    let_servers_in(tmp_path)
    server = EmbeddedPostgres(tmp_path / "data" / "postgres", durable=False)
    yield server
    server.stop()


def query(server: EmbeddedPostgres, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server._address("fencepost"), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_data_is_kept_over_a_stop_and_over_a_kill(postgres: EmbeddedPostgres) -> None:
    postgres.start()
    query(postgres, "create table kept as select 1 as id")
    postgres.stop()
    postgres.start()
    assert postgres.process is not None
    postgres.process.send_signal(signal.SIGKILL)
    postgres.process.wait()
    postgres.launch()
    postgres.wait_until_ready()
    assert query(postgres, "select id from kept") == [(1,)]


def test_a_second_run_on_the_same_folder_is_refused(postgres: EmbeddedPostgres) -> None:
    postgres.start()
    with pytest.raises(EmbeddedError, match="in use by another run"):
        EmbeddedPostgres(postgres.base).start()
    assert query(postgres, "select 1") == [(1,)]


def test_a_recorded_process_id_that_now_belongs_to_another_is_not_touched(
    postgres: EmbeddedPostgres,
) -> None:
    postgres.start()
    postgres.stop()
    with subprocess.Popen(["/bin/sleep", "600"], **postgres.account.popen_options) as foreign:
        record = postgres.data / "postmaster.pid"
        record.write_text(f"{foreign.pid}\n{postgres.data}\n1\n5432\n{postgres.sockets}\n\n1 1\n")
        postgres.start()
        assert foreign.poll() is None
        foreign.kill()
    assert query(postgres, "select 1") == [(1,)]


def test_data_of_another_major_version_is_refused(postgres: EmbeddedPostgres) -> None:
    postgres.start()
    postgres.stop()
    (postgres.data / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 12"):
        postgres.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run what another user made")
def test_root_goes_on_with_data_that_a_user_made(postgres: EmbeddedPostgres) -> None:
    postgres.start()
    query(postgres, "create table kept as select 1 as id")
    postgres.stop()
    for path in (postgres.data, *postgres.data.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    again = EmbeddedPostgres(postgres.base, durable=False)
    try:
        again.start()
        assert query(again, "select id from kept") == [(1,)]
    finally:
        again.stop()


def test_a_set_up_that_was_killed_half_way_starts_anew(postgres: EmbeddedPostgres) -> None:
    half = postgres.base / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    postgres.start()
    assert query(postgres, "select 1") == [(1,)]


def test_a_failed_set_up_is_one_line_and_leaves_nothing(postgres: EmbeddedPostgres) -> None:
    broken = postgres.base / "initdb"
    broken.parent.mkdir(parents=True)
    broken.write_text(
        '#!/bin/sh\necho "running" >&2\necho "initdb: error: No space left" >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    postgres.home, postgres.programs = postgres.base, postgres.base
    postgres.data = postgres.home / "data"
    with pytest.raises(EmbeddedError, match="did not start: initdb: error: No space left"):
        postgres._make_cluster()
    assert not (postgres.home / "data.new").exists()


def test_a_path_that_no_socket_can_have_gets_a_short_one(tmp_path: Path) -> None:
    let_servers_in(tmp_path)
    long = tmp_path / "a folder with spaces" / ("x" * 100)
    broker = EmbeddedBroker(long / "broker")
    try:
        assert " " not in broker.start()
        assert len(str(broker.sockets)) < 80
    finally:
        broker.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could give something away")
def test_a_socket_folder_that_leads_elsewhere_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.mkdtemp(dir="/tmp"))
    broker = EmbeddedBroker(tmp_path / ("x" * 100))
    treasure = tmp_path / "treasure"
    treasure.mkdir(mode=0o755)
    name = f"fencepost-{broker.account.uid}-{broker._digest()}"
    (Path(tempfile.gettempdir()) / name).symlink_to(treasure)
    with pytest.raises(EmbeddedError, match="belongs to somebody else"):
        broker._socket_folder()
    assert (treasure.stat().st_uid, treasure.stat().st_mode & 0o777) == (0, 0o755)


def test_servers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    let_servers_in(tmp_path)
    script = (
        "import time; from config.embedded import *\n"
        f"a = EmbeddedPostgres('{tmp_path}/pg', durable=False); a.start()\n"
        f"b = EmbeddedBroker('{tmp_path}/broker'); b.start()\n"
        "print(a.process.pid, b.process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    ) as parent:
        assert parent.stdout is not None
        servers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    _, alive = psutil.wait_procs(servers, timeout=20)
    assert alive == []
