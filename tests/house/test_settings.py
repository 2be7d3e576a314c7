"""Settings: what production must be given, what development finds by itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from django.db import connection

from config.keys import grant_key_problem, make_development_keys
from config.runfile import RunFile
from tests.house.commands import assert_one_line, manage

NOWHERE = "postgres://nobody:nothing@127.0.0.1:1/none"


@pytest.fixture
def grant_key(tmp_path: Path) -> str:
    make_development_keys(tmp_path)
    return str(tmp_path / "grant_key.pem")


def test_production_needs_a_secret_key(grant_key: str) -> None:
    done = manage("check", DATABASE_URL=NOWHERE, FENCEPOST_GRANT_KEY_FILE=grant_key)
    assert_one_line(done, "SECRET_KEY is required")


def test_production_needs_a_grant_key() -> None:
    done = manage("check", DATABASE_URL=NOWHERE, SECRET_KEY="x")
    assert_one_line(done, "FENCEPOST_GRANT_KEY_FILE is required")


def test_production_needs_a_grant_key_that_can_be_read(tmp_path: Path) -> None:
    path = str(tmp_path / "none.pem")
    done = manage("check", DATABASE_URL=NOWHERE, SECRET_KEY="x", FENCEPOST_GRANT_KEY_FILE=path)
    assert_one_line(done, "cannot read", path)


def test_another_kind_of_database_is_refused(grant_key: str) -> None:
    done = manage(
        "check",
        DATABASE_URL="sqlite:///db",
        SECRET_KEY="x",
        FENCEPOST_GRANT_KEY_FILE=grant_key,
    )
    assert_one_line(done, "DATABASE_URL must name a PostgreSQL server")


def test_a_command_without_its_database_says_so_in_one_line(grant_key: str) -> None:
    done = manage(
        "showmigrations",
        DATABASE_URL=NOWHERE,
        SECRET_KEY="x",
        FENCEPOST_GRANT_KEY_FILE=grant_key,
    )
    assert_one_line(done, "cannot use the database", "Connection refused")


def test_a_command_before_up_says_how_to_start(tmp_path: Path) -> None:
    done = manage("showmigrations", FENCEPOST_DATA_DIR=str(tmp_path))
    assert_one_line(done, "start it with make run", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FENCEPOST_LOCK_TIMEOUT_MS", "soon", "must be a whole number"),
        ("FENCEPOST_LOCK_TIMEOUT_MS", "-1", "must be from 0"),
        ("FENCEPOST_BRAKE_FRACTION", "half", "must be a number"),
        ("FENCEPOST_BRAKE_FRACTION", "2", "must be from 0 to 1"),
    ],
)
def test_a_number_that_is_none_is_refused(name: str, value: str, words: str) -> None:
    assert_one_line(manage("check", **{name: value}), name, words)


def test_a_run_whose_database_is_away_is_told_from_no_run(tmp_path: Path) -> None:
    RunFile(tmp_path).write(database_url="postgres://nobody@127.0.0.1:1/none")
    done = manage("showmigrations", FENCEPOST_DATA_DIR=str(tmp_path))
    assert_one_line(done, "does not answer", "Connection refused", str(tmp_path))


def test_a_secret_may_come_from_a_file(tmp_path: Path, grant_key: str) -> None:
    (tmp_path / "key").write_text("from-a-file")
    done = manage(
        "check",
        DATABASE_URL=NOWHERE,
        SECRET_KEY_FILE=str(tmp_path / "key"),
        FENCEPOST_GRANT_KEY_FILE=grant_key,
    )
    assert done.returncode == 0, done.stderr


def test_a_production_with_a_proxy_passes_djangos_deploy_check(grant_key: str) -> None:
    done = manage(
        "check",
        "--deploy",
        DATABASE_URL=NOWHERE,
        SECRET_KEY="x1y2z3w4" * 8,
        FENCEPOST_GRANT_KEY_FILE=grant_key,
        FENCEPOST_BEHIND_TLS_PROXY="1",
        ALLOWED_HOSTS="fencepost.example",
    )
    assert done.returncode == 0
    assert "security.W" not in done.stderr.replace("security.W005", "").replace("security.W021", "")


def test_keys_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    make_development_keys(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    make_development_keys(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"secret_key", "grant_key.pem"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_key_that_cannot_sign_grants_is_told_apart(tmp_path: Path) -> None:
    make_development_keys(tmp_path)
    assert grant_key_problem(str(tmp_path / "grant_key.pem")) is None
    assert grant_key_problem(str(tmp_path / "secret_key")) is not None
    assert grant_key_problem(str(tmp_path / "missing")) == "No such file or directory"


@pytest.mark.django_db
def test_connections_carry_their_time_limits() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "select current_setting('lock_timeout'), current_setting('statement_timeout'),"
            " current_setting('idle_in_transaction_session_timeout')"
        )
        assert cursor.fetchone() == ("2s", "15s", "10s")
