"""`manage.py migrate`: one process at a time, however long the first one takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pglock
import psycopg

from config.keys import make_development_keys
from tests.house.commands import ROOT, environment
from tests.house.running import wait_until

WAITING = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
TABLES = "select count(*) from pg_tables where schemaname = 'public'"


def test_migrate_waits_for_another_one_longer_than_for_any_other_lock(
    tmp_path: Path, outside_postgres: str
) -> None:
    make_development_keys(tmp_path)
    given = {
        "DATABASE_URL": outside_postgres,
        "SECRET_KEY": "x",
        "FENCEPOST_GRANT_KEY_FILE": str(tmp_path / "grant_key.pem"),
        "FENCEPOST_LOCK_TIMEOUT_MS": "50",
    }
    key = pglock.advisory("fencepost.migrate").int_lock_id
    with psycopg.connect(outside_postgres, autocommit=True) as other:
        other.execute("select pg_advisory_lock(%s)", [key])
        migrate = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "migrate", "--verbosity=0"],
            env=environment(**given),
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        try:
            wait_until(lambda: other.execute(WAITING).fetchone() == (1,), "it waits")
            since = other.execute("select clock_timestamp()").fetchone()
            waited = "select clock_timestamp() - %s > interval '200 ms'"
            wait_until(lambda: other.execute(waited, since).fetchone() == (True,), "time passes")
            assert other.execute(WAITING).fetchone() == (1,)
            assert other.execute(TABLES).fetchone() == (0,)
            other.execute("select pg_advisory_unlock(%s)", [key])
            assert migrate.wait(60) == 0, migrate.stderr and migrate.stderr.read()
        finally:
            migrate.kill()
            migrate.communicate()
        assert other.execute(TABLES).fetchone() != (0,)
