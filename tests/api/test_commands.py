"""The commands that scripts rely on: their answers as JSON, and their refusals."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import django
import pytest
from django.core.management import ManagementUtility, call_command
from django.core.management.base import CommandError
from django.db import connections

from mesh import clock, recovery
from mesh.models import Attempt, Role, Tenant, Worker
from tests.factories import REGISTRAR, World, name

from .client import assert_refused, get, post
from .routes import register_body


def answer(*arguments: str) -> Any:
    """What the command prints with --json: exactly one line, one object."""
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    assert out.getvalue().count("\n") == 1
    return json.loads(out.getvalue())


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code, run as from the command line.

    That would close the test's connection, and set logging up anew: on the stream of this one
    test, which is closed afterwards, and without the handlers of pytest.
    """
    monkeypatch.setattr(connections, "close_all", lambda: None)
    monkeypatch.setattr(django, "setup", lambda: None)
    try:
        ManagementUtility(["manage.py", *arguments]).execute()
    except SystemExit as end:
        return end.code
    return 0


def test_create_tenant_adds_what_is_missing(db: None) -> None:
    tenant = name("acme")
    first = answer("create_tenant", tenant, "--application", "b", "--application", "a")
    limits = {"max_live_claims": None, "max_submissions_per_minute": None}
    assert first == {
        "tenant": tenant,
        "applications": ["a", "b"],
        **limits,
        "attestations": 1,
    }
    again = answer("create_tenant", tenant, "--application", "c")
    assert again["applications"] == ["a", "b", "c"]
    assert Tenant.objects.filter(name=tenant).count() == 1


def test_create_tenant_sets_the_limits_that_are_named(db: None) -> None:
    tenant = name("acme")
    answer("create_tenant", tenant, "--max-live-claims", "5")
    said = answer("create_tenant", tenant, "--max-submissions-per-minute", "60")
    assert (said["max_live_claims"], said["max_submissions_per_minute"]) == (5, 60)
    said = answer("create_tenant", tenant, "--max-live-claims", "0")
    assert (said["max_live_claims"], said["max_submissions_per_minute"]) == (None, 60)
    row = Tenant.objects.get(name=tenant)
    assert (row.max_live_claims, row.max_submissions_per_minute) == (None, 60)
    for bad in ("-1", str(2**31)):
        with pytest.raises(CommandError, match=r"^REQUEST_INVALID: "):
            answer("create_tenant", tenant, "--max-live-claims", bad)


def test_create_tenant_sets_how_many_people_attest(db: None) -> None:
    tenant = name("acme")
    assert answer("create_tenant", tenant, "--attestations", "2")["attestations"] == 2
    assert answer("create_tenant", tenant)["attestations"] == 2
    with pytest.raises(CommandError):
        answer("create_tenant", tenant, "--attestations", "3")


def test_create_user_takes_the_password_from_stdin(
    world: World, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("correct horse battery\nnot this\n"))
    arguments = ("--tenant", world.tenant.name, "--role", "operator", "--password-stdin")
    said = answer("create_user", "ann", *arguments)
    assert said == {"user": "ann", "tenant": world.tenant.name, "role": "operator"}
    signing_in = {"username": "ann", "password": "correct horse battery"}
    assert client.post("/admin/login/", signing_in).status_code == 302
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    with pytest.raises(CommandError, match=r"^REQUEST_INVALID: "):
        answer("create_user", "ann", *arguments)


def test_tokens_are_made_and_revoked(world: World) -> None:
    tenant = ("--tenant", world.tenant.name)
    said = answer("create_token", "ops", *tenant, "--role", "viewer", "--expires-in", "60")
    assert said.keys() == {"token"}
    assert get("workers", said["token"]).status == 200
    with pytest.raises(CommandError, match=r"^REQUEST_INVALID: "):
        answer("create_token", "ops", *tenant, "--role", "viewer")
    assert answer("revoke_token", "ops", *tenant)["subject"] == "service:ops"
    assert_refused(get("workers", said["token"]), "TOKEN_INVALID")


def test_grants_are_issued_and_revoked(world: World) -> None:
    arguments = ["--tenant", world.tenant.name, "--application", world.application]
    arguments += ["--subject", REGISTRAR, "--capability", "worker:register"]
    arguments += ["--capability", "worker:capability:documents.extract"]
    arguments += ["--worker-name", "edge-1", "--expires-in", "60", "--revision", "3"]
    said = answer("issue_grant", *arguments)
    assert said.keys() == {"grant_id", "grant"}
    other = register_body(world, grant=said["grant"])
    assert_refused(post("workers", other), "GRANT_SCOPE_DENIED")
    registered = post("workers", {**other, "name": "edge-1"})
    assert registered.json["worker"]["capability_version"] == 3
    assert answer("revoke_grant", said["grant_id"])["status"] == "REVOKED"
    again = register_body(world, grant=said["grant"], name="edge-1")
    assert_refused(post("workers", again), "GRANT_REVOKED")


def test_after_restore_tells_what_it_did(world: World) -> None:
    held = world.running()
    assert answer("after_restore") == {
        "tokens_raised": 1,
        "attempts_ended": 1,
        "workers_to_reconcile": 1,
        "runs_barred": 0,
    }
    assert held.refresh().fencing_token == 1_000_001


def test_sweep_runs_one_or_all(world: World) -> None:
    held = world.claimed()
    Attempt.objects.update(expires_at=clock.now())
    one = answer("sweep", "recover_expired_leases")
    (said,) = one.values()
    assert said.keys() >= {"changed", "counts", "duration_ms"}
    assert said["changed"] == [held.workload.workload_id]
    assert answer("sweep", "all").keys() == answer("sweep").keys() == set(recovery.SWEEPS)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["create_tenant", "a b"], "REQUEST_INVALID"),
        (["create_token", "x", "--tenant", "nothing", "--role", "viewer"], "REQUEST_INVALID"),
        (["revoke_token", "x", "--tenant", "nothing"], "REQUEST_INVALID"),
        (["revoke_grant", "nothing"], "GRANT_NOT_FOUND"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_1(
    arguments: list[str],
    code: str,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*arguments, "--json", monkeypatch=monkeypatch) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{code}: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["create_tenant"],
        ["create_user", "ann", "--tenant", "t", "--role", "viewer"],
        ["create_token", "x", "--tenant", "t", "--role", "king"],
        ["create_token", "x", "--tenant", "t", "--role", "viewer", "--expires-in", "soon"],
        ["issue_grant", "--tenant", "t"],
        ["sweep", "nothing"],
        ["check_invariants", "--nothing"],
    ],
)
def test_bad_arguments_end_with_exit_code_2(
    arguments: list[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*arguments, monkeypatch=monkeypatch) == 2


def test_check_invariants_says_which_rows_break_which_rule(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = world.running()
    assert answer("check_invariants")["ok"] is True
    Worker.objects.filter(pk=held.worker.row.pk).update(active=3)
    assert run("check_invariants", "--json", monkeypatch=monkeypatch) == 1
    printed = capsys.readouterr()
    assert printed.err == "INVARIANTS_BROKEN: active_is_the_number_of_live_attempts\n"
    (row,) = json.loads(printed.out)["broken"]["active_is_the_number_of_live_attempts"]
    assert row == {"worker_id": held.worker.worker_id, "active": 3, "live_attempts": 1}


def test_commands_act_as_the_system(world: World) -> None:
    answer("create_token", "ops", "--tenant", world.tenant.name, "--role", "admin")
    token = world.tenant.tokens.get(name="ops")
    assert (token.created_by, token.role) == ("system:create_token", Role.ADMIN)
