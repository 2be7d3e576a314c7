"""`manage.py demo`: what it makes, once, and a short life of it."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from pytest_django import Settings

from mesh.models import ApiToken, Grant, Tenant
from tests.agent.conftest import ROOT, eventually, is_running
from tests.agent.real import RealServer

OPEN_GROUP = 0o077


def prepare(**options: Any) -> dict[str, Any]:
    output = StringIO()
    call_command("demo", prepare=True, json=True, stdout=output, **options)
    answer: dict[str, Any] = json.loads(output.getvalue())
    return answer


@pytest.fixture
def data(db: None, settings: Settings, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path


def test_prepare_makes_everything_once(data: Path) -> None:
    first = prepare()
    again = prepare()
    assert first["password"]
    assert again == first | {"password": None}
    person = get_user_model().objects.get(username=first["username"])
    assert person.check_password(first["password"])
    assert Tenant.objects.get().applications.get().name == "documents"
    assert (ApiToken.objects.count(), Grant.objects.count()) == (1, 3)


def test_prepare_keeps_its_secrets_from_others(data: Path) -> None:
    prepare()
    for path in [data / "demo", *(data / "demo").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & OPEN_GROUP == 0, path


def test_each_agent_has_a_grant_for_its_name_alone(data: Path) -> None:
    prepare(agents=2)
    names = [grant.constraints["worker_names"] for grant in Grant.objects.order_by("pk")]
    assert names == [["demo-1"], ["demo-2"]]


def test_a_token_whose_secret_is_lost_is_replaced(data: Path) -> None:
    prepare()
    before = (data / "demo" / "token").read_text()
    (data / "demo" / "token").unlink()
    prepare()
    assert (data / "demo" / "token").read_text() != before


def test_there_is_no_demo_in_production(data: Path, settings: Settings) -> None:
    settings.PRODUCTION = True
    with pytest.raises(CommandError):
        prepare()
    assert not Tenant.objects.exists()


@pytest.fixture
def server(transactional_db: None, tmp_path: Path) -> Iterator[RealServer]:
    real = RealServer(tmp_path)
    yield real
    real.close()


def agents_of(parent: int) -> list[int]:
    listing = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in listing.split()]


def start_demo(server: RealServer, agents: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "manage.py", "demo", "--url", server.url, "--agents", str(agents)],
        cwd=ROOT,
        env=server.environment,
    )


def ended(server: RealServer, state: str) -> list[dict[str, Any]]:
    query = {"application": "documents", "state": state}
    return list(server.api.call("GET", "workloads", params=query)["results"])


def test_the_demo_does_real_work_outlives_a_restart_and_ends_clean(server: RealServer) -> None:
    (server.data / "inbox").mkdir()
    (server.data / "inbox" / "note.txt").write_text("A worker renews its lease.\n")
    process = start_demo(server, agents=2)
    try:
        eventually(lambda: len(ended(server, "SUCCEEDED")) >= 4)
        server.stop()
        server.start()
        before = len(ended(server, "SUCCEEDED"))
        eventually(lambda: len(ended(server, "SUCCEEDED")) >= before + 2)
        agents = agents_of(process.pid)
        assert len(agents) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not any(is_running(pid) for pid in agents)
    finally:
        process.kill()
        process.wait()


def test_the_demos_agents_end_with_it(server: RealServer) -> None:
    process = start_demo(server, agents=1)
    try:
        eventually(lambda: len(agents_of(process.pid)) == 1)
        (agent,) = agents_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        eventually(lambda: not is_running(agent))
    finally:
        process.kill()
