"""Who is let in, how people's browsers are, and where secrets appear."""

from __future__ import annotations

import io
import logging
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from mesh import clock, tenancy
from mesh.models import Membership, Role
from tests.factories import World, name

from .client import BASE, assert_refused, call, get, post
from .routes import beat_body, issue_body, register_body, submit_body


def person(*memberships: tuple[World, Role]) -> User:
    user = User.objects.create_user(username=name("ann"), password="correct horse", is_staff=True)
    for world, role in memberships:
        Membership.objects.create(user=user, tenant=world.tenant, role=role)
    return user


def browser(user: User) -> Client:
    """Someone signed in, whose browser has the CSRF cookie and checks are made as in production."""
    client = Client(enforce_csrf_checks=True)
    client.get("/admin/login/")
    client.force_login(user)
    return client


def submit_by(client: Client, world: World, **options: Any) -> Any:
    said = {"content_type": "application/json", **options}
    return client.post(f"{BASE}/workloads", submit_body(world), **said)


def test_a_token_ends_when_it_expires_or_is_revoked(world: World) -> None:
    admin = world.caller()
    _, secret = tenancy.create_token(caller=admin, name="brief", role=Role.VIEWER, expires_in_s=60)
    assert get("workers", secret).status == 200
    with clock.set_to(clock.now() + timedelta(seconds=60)):
        assert_refused(get("workers", secret), "TOKEN_INVALID")
    assert get("workers", secret).status == 200
    tenancy.revoke_token(caller=admin, name="brief")
    assert_refused(get("workers", secret), "TOKEN_INVALID")


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer", "bearer  ", "Token fpt_x", "é"])
def test_no_bearer_is_nobody(header: str, world: World) -> None:
    answer = get("workers", HTTP_AUTHORIZATION=header)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_valid_token_works_while_others_fail(world: World) -> None:
    secret = world.token()
    for number in range(50):
        assert_refused(get("workers", f"fpt_{number}"), "TOKEN_INVALID")
    assert get("workers", secret).status == 200


def test_a_replaced_credential_is_refused(world: World) -> None:
    grant = world.grant()[1]
    first = post("workers", register_body(world, grant=grant, name="w-1"))
    again = register_body(world, grant=grant, name="w-1")
    second = post("workers", again, first.json["credential"])
    assert (first.status, second.status) == (201, 200)
    path = f"workers/{first.json['worker']['worker_id']}"
    assert_refused(get(path, first.json["credential"]), "TOKEN_INVALID")
    assert get(path, second.json["credential"]).status == 200


@pytest.mark.parametrize("secret", [None, "fpw_unknown", "fpt_unknown", "x"])
def test_an_unknown_credential_counts_as_none_at_register(secret: str | None, world: World) -> None:
    assert post("workers", register_body(world), secret).status == 201


def test_a_live_worker_is_displaced_by_its_own_credential_only(world: World) -> None:
    member = world.worker()
    body = register_body(world, name=member.row.name, grant=world.grant()[1])
    assert_refused(post("workers", body), "WORKER_UNAUTHORIZED")
    assert_refused(post("workers", body, world.worker().credential), "WORKER_UNAUTHORIZED")
    assert post("workers", body, member.credential).status == 200


def test_a_worker_reads_itself_and_the_work_of_its_claims_only(world: World) -> None:
    held, other = world.running(), world.running()
    secret = held.worker.credential
    assert get(f"workers/{held.worker.worker_id}", secret).status == 200
    assert get(f"workloads/{held.workload.workload_id}", secret).status == 200
    for path in (
        f"workers/{other.worker.worker_id}",
        f"workloads/{other.workload.workload_id}",
        f"workloads/{held.workload.workload_id}/history",
        f"workloads/{held.workload.workload_id}/attempts",
        "workers",
        "workloads",
        "grants",
    ):
        assert_refused(get(path, secret), "PERMISSION_DENIED")


def test_a_worker_may_drain_itself_but_no_other(world: World) -> None:
    member, other = world.worker(), world.worker()
    assert_refused(
        post(f"workers/{other.worker_id}/drain", {}, member.credential), "PERMISSION_DENIED"
    )
    assert post(f"workers/{member.worker_id}/drain", {}, member.credential).status == 200


def test_a_signed_in_person_reads_in_their_tenant(world: World, elsewhere: World) -> None:
    client = browser(person((world, Role.VIEWER)))
    mine, theirs = world.worker(), elsewhere.worker()
    found = client.get(f"{BASE}/workers").json()["results"]
    assert [each["worker_id"] for each in found] == [mine.worker_id]
    assert client.get(f"{BASE}/workers/{theirs.worker_id}").status_code == 404


def test_a_person_of_several_tenants_names_one(world: World, elsewhere: World) -> None:
    client = browser(person((world, Role.VIEWER), (elsewhere, Role.ADMIN)))
    theirs = elsewhere.worker()
    unnamed = client.get(f"{BASE}/workers")
    assert unnamed.json()["code"] == "REQUEST_INVALID"
    named = client.get(f"{BASE}/workers", {"tenant": elsewhere.tenant.name})
    assert [each["worker_id"] for each in named.json()["results"]] == [theirs.worker_id]
    for wrong in ("nothing", "%00", "x" * 300):
        assert client.get(f"{BASE}/workers?tenant={wrong}").status_code in {403, 422}


def test_a_person_without_a_tenant_or_an_account_is_denied(world: World) -> None:
    nobody = person()
    client = browser(nobody)
    assert client.get(f"{BASE}/workers").json()["code"] == "PERMISSION_DENIED"
    nobody.is_active = False
    nobody.save()
    assert client.get(f"{BASE}/workers").json()["code"] == "AUTHENTICATION_REQUIRED"


def test_a_write_from_a_session_needs_the_csrf_token_in_its_header(world: World) -> None:
    client = browser(person((world, Role.OPERATOR)))
    assert submit_by(client, world).json()["code"] == "PERMISSION_DENIED"
    token = client.cookies["csrftoken"].value
    assert submit_by(client, world, HTTP_X_CSRFTOKEN="x" * 64).status_code == 403
    assert submit_by(client, world, HTTP_X_CSRFTOKEN=token).status_code == 201
    form = "application/x-www-form-urlencoded"
    answer = client.post(f"{BASE}/workloads", f"csrfmiddlewaretoken={token}", content_type=form)
    assert answer.json()["code"] == "CONTENT_TYPE_UNSUPPORTED"


def test_a_session_that_may_only_read_does_not_write(world: World) -> None:
    client = browser(person((world, Role.VIEWER)))
    token = client.cookies["csrftoken"].value
    answer = submit_by(client, world, HTTP_X_CSRFTOKEN=token)
    assert answer.json()["code"] == "PERMISSION_DENIED"


def test_a_call_with_a_token_does_not_look_for_the_session_of_a_cookie(world: World) -> None:
    client = browser(person((world, Role.ADMIN)))
    headers = {"Authorization": f"Bearer {world.token(Role.VIEWER)}"}
    with CaptureQueriesContext(connection) as queries:
        assert client.get(f"{BASE}/workers", headers=headers).status_code == 200
    assert not [each for each in queries if "django_session" in each["sql"]]
    # Any other scheme is none of ours: the session counts.
    told = client.get(f"{BASE}/workers", headers={"Authorization": "Basic eDp5"})
    assert told.status_code == 200


def test_a_bearer_is_asked_before_the_session(world: World, elsewhere: World) -> None:
    client = browser(person((world, Role.ADMIN)))
    headers = {"Authorization": f"Bearer {elsewhere.token(Role.VIEWER)}"}
    world.worker()
    assert client.get(f"{BASE}/workers", headers=headers).json()["results"] == []


def test_answers_are_never_stored(world: World) -> None:
    secret = world.token(Role.ADMIN)
    for answer in (
        post("workers", register_body(world)),
        post("grants", issue_body(world), secret),
        get("workers", secret),
        get("workers"),
    ):
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the product's own handler writes during the test."""
    stream = io.StringIO()
    (handler,) = (each for each in logging.getLogger().handlers if each.name == "stderr")
    monkeypatch.setattr(handler, "stream", stream)
    return stream


def test_secrets_are_in_the_answer_that_made_them_and_nowhere_else(
    world: World,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    logged: io.StringIO,
) -> None:
    caplog.set_level(logging.DEBUG)
    admin = world.token(Role.ADMIN)
    issued = post("grants", issue_body(world, constraints={}), admin).json
    registered = post("workers", register_body(world)).json
    secrets = [admin, issued["token"], registered["credential"]]
    submitted = post("workloads", submit_body(world, grant=issued["token"]), admin)
    seen = [submitted.text]
    for path in ("workers", "workloads", "grants", f"grants/{issued['grant']['grant_id']}"):
        seen += [get(path, admin).text, get(f"{path}?x={issued['token']}", admin).text]
    seen.append(call("POST", "workers", {"grant": issued["token"]}).text)
    printed = capfd.readouterr()
    assert [each for each in secrets if any(each in text for text in seen)] == []
    said = logged.getvalue()
    assert "POST /api/v1/workers" in said
    assert [each for each in secrets if each in printed.err + printed.out + said] == []


def test_a_credential_that_was_heard_before_is_refused_once_it_is_replaced(world: World) -> None:
    held = world.running()
    member, claim = held.worker, held.claim
    beat = beat_body(member)
    complete = {"fencing_token": claim.fencing_token, "result_id": "r", "output": None}
    result = {"claim_id": claim.claim_id, "outcome": "complete", **complete}
    begin = {"claim_id": claim.claim_id, "fencing_token": claim.fencing_token}
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        (f"workers/{member.worker_id}/heartbeat", beat),
        (f"workers/{member.worker_id}/claims", {"max": 1}),
        (f"workers/{member.worker_id}/starts", {"starts": [begin]}),
        (f"workers/{member.worker_id}/results", {"results": [result]}),
        (f"claims/{claim.claim_id}/start", {"fencing_token": claim.fencing_token}),
        (f"claims/{claim.claim_id}/complete", complete),
    )
    assert post(*calls[0], member.credential).status == 200
    post("workers", register_body(world, name=member.row.name), member.credential)
    for path, body in calls:
        assert_refused(post(path, body, member.credential), "TOKEN_INVALID")


def test_a_credential_that_was_heard_before_is_refused_once_its_worker_is_removed(
    world: World,
) -> None:
    member = world.worker()
    path = f"workers/{member.worker_id}/claims"
    assert post(path, {"max": 1}, member.credential).status == 200
    call("DELETE", f"workers/{member.worker_id}", secret=world.token(Role.ADMIN))
    assert_refused(post(path, {"max": 1}, member.credential), "TOKEN_INVALID")
