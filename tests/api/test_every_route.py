"""What holds for each route alike: who may call it, what nobody of another tenant learns."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from mesh.models import Application, Role
from tests.factories import World

from .calls import OPEN, WORKER, Call, Route
from .client import Answer, assert_refused, call
from .routes import ROUTES, served

RANK = ["viewer", "operator", "admin"]
ON_ROWS = [each for each in ROUTES if each.noun]
BAD_IDS = ["nothing", "a" * 201, "a%20b", "a%2Fb", "%00", "%0A", "..%2f..", "%ff", "é", "'"]
# Rows of the server itself, which every tenant sees; what is in them of a tenant has own tests.
SHARED = {"sweeps"}
CLOSED = [each for each in ROUTES if each.needs != OPEN]


def make_call(route: Route, made: Call, secret: str | None) -> Answer:
    return call(route.method, made.path, made.body, secret=secret)


def rows() -> dict[str, int]:
    """How many rows there are of each kind of ours."""
    tables = {
        model.__name__: connection.ops.quote_name(model._meta.db_table)
        for app in ("mesh", "workflows")
        for model in apps.get_app_config(app).get_models()
        # A refusal may be kept in the audit.
        if model.__name__ not in {"ApiToken", "AuditEntry"}
    }
    with connection.cursor() as cursor:
        counts = ", ".join(f"(select count(*) from {table})" for table in tables.values())
        cursor.execute(f"select {counts}")
        return dict(zip(tables, cursor.fetchone(), strict=True))


def test_every_route_has_a_case() -> None:
    assert {(each.method, each.pattern) for each in ROUTES} == served()


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_the_weakest_caller_that_may_is_accepted(route: Route, world: World) -> None:
    made = route.make(world)
    answer = make_call(route, made, route.secret(world, made))
    assert answer.status in {200, 201, 204}, answer.text


@pytest.mark.parametrize("route", CLOSED, ids=str)
def test_nobody_unknown_is_accepted(route: Route, world: World) -> None:
    made = route.make(world)
    before = rows()
    anonymous = make_call(route, made, None)
    assert_refused(anonymous, "AUTHENTICATION_REQUIRED")
    assert anonymous.headers["WWW-Authenticate"] == "Bearer"
    for secret in ("fpt_unknown", "fpw_unknown", "something", ""):
        assert_refused(make_call(route, made, secret), "TOKEN_INVALID")
    assert rows() == before


@pytest.mark.parametrize("route", CLOSED, ids=str)
def test_a_weaker_role_is_denied(route: Route, world: World) -> None:
    made = route.make(world)
    weaker = RANK if route.needs == WORKER else RANK[: RANK.index(route.needs)]
    secrets = [world.token(Role(role)) for role in weaker]
    before = rows()
    for secret in secrets:
        assert_refused(make_call(route, made, secret), "PERMISSION_DENIED")
    assert rows() == before


@pytest.mark.parametrize("route", CLOSED, ids=str)
def test_another_worker_is_denied_or_fenced(route: Route, world: World) -> None:
    made = route.make(world)
    stranger = world.worker()
    before = rows()
    answer = make_call(route, made, stranger.credential)
    expected = "WORKLOAD_STALE_FENCE" if route.noun == "CLAIM" else "PERMISSION_DENIED"
    if route.pattern.endswith("/validate"):
        expected = "MESH_CLAIM_SCOPE_DENIED"
    assert_refused(answer, expected)
    assert rows() == before


@pytest.mark.parametrize("route", ON_ROWS, ids=str)
def test_a_row_of_another_tenant_does_not_exist(
    route: Route, world: World, elsewhere: World
) -> None:
    made = route.make(world)
    stranger = elsewhere.worker()
    secret = stranger.credential if route.needs == WORKER else elsewhere.token(Role.ADMIN)
    before = rows()
    assert_refused(make_call(route, made, secret), f"{route.noun}_NOT_FOUND")
    assert rows() == before
    assert make_call(route, made, route.secret(world, made)).status < 300


@pytest.mark.parametrize(
    "route", [each for each in ROUTES if each.method == "GET" and not each.noun], ids=str
)
def test_a_list_shows_nothing_of_another_tenant(
    route: Route, world: World, elsewhere: World
) -> None:
    world.succeeded()
    made = route.make(world)
    secret = None if route.needs == OPEN else elsewhere.token(Role.ADMIN)
    answer = make_call(route, made, secret)
    assert answer.status == 200
    assert world.tenant.name not in answer.text
    if route.needs != OPEN and route.pattern not in SHARED:
        assert answer.json["results"] == []


def test_rows_cannot_be_made_in_another_tenant(world: World, elsewhere: World) -> None:
    Application.objects.create(tenant=elsewhere.tenant, name="theirs")
    body: dict[str, Any]
    for pattern, code in (
        ("workers", "WORKER_UNAUTHORIZED"),
        ("workloads", "APPLICATION_NOT_FOUND"),
        ("grants", "APPLICATION_NOT_FOUND"),
        ("pauses", "APPLICATION_NOT_FOUND"),
    ):
        (route,) = [r for r in ROUTES if (r.method, r.pattern) == ("POST", pattern)]
        made = route.make(world)
        body = {**(made.body or {}), "application": "theirs"}
        if pattern == "workers":
            body = {**(made.body or {}), "tenant": elsewhere.tenant.name}
        secret = world.token(Role.ADMIN)
        before = rows()
        answer = call("POST", made.path, body, secret=secret)
        assert_refused(answer, code)
        assert rows() == before


@pytest.mark.parametrize("route", ON_ROWS, ids=str)
def test_an_id_that_names_nothing_is_not_found(route: Route, world: World) -> None:
    made = route.make(world)
    secret = route.secret(world, made)
    noun, _, *rest = made.path.split("/")
    for bad in BAD_IDS:
        path = "/".join([noun, bad, *rest])
        assert_refused(
            call(route.method, path, made.body, secret=secret), f"{route.noun}_NOT_FOUND"
        )


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_other_methods_are_refused(route: Route, world: World) -> None:
    made = route.make(world)
    allowed = {method for method, pattern in served() if pattern == route.pattern}
    secret = route.secret(world, made) or world.token()
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - allowed:
        answer = call(method, made.path, secret=secret)
        assert_refused(answer, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize(
    "path", ["", "/api", "/api/", "nothing", "workers/", "workers/x/y", "Workers", "../v2/x"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_route_is_a_problem(path: str, method: str, world: World) -> None:
    answer = call(method, path, secret=world.token())
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_what_can_be_accepted_is_json(world: World) -> None:
    secret = world.token()
    assert_refused(call("GET", "workers", secret=secret, HTTP_ACCEPT="text/html"), "NOT_ACCEPTABLE")
    browser = "text/html,application/xhtml+xml,*/*;q=0.8"
    assert call("GET", "workers", secret=secret, HTTP_ACCEPT=browser).status == 200
