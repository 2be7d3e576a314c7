"""The routes of grants, and the public keys."""

from __future__ import annotations

from typing import Any

import jwt
import pytest
from jwt import PyJWKSet

from mesh.models import Role
from tests.factories import REGISTRAR, World

from .client import assert_refused, get, post
from .routes import delegate_body, issue_body, register_body


@pytest.fixture
def secret(world: World) -> str:
    return world.token(Role.ADMIN)


def test_a_grant_is_verified_by_the_public_keys(world: World, secret: str) -> None:
    issued = post("grants", issue_body(world), secret)
    assert issued.status == 201
    answer = get("/.well-known/jwks.json")
    assert "no-store" not in answer.headers["Cache-Control"]
    key_id = jwt.get_unverified_header(issued.json["token"])["kid"]
    key = PyJWKSet.from_dict(answer.json)[key_id]
    claims = jwt.decode(issued.json["token"], key.key, algorithms=["EdDSA"])
    assert claims["jti"] == issued.json["grant"]["grant_id"]
    assert {"d", "p", "q"} & answer.json["keys"][0].keys() == set()


def test_a_grant_is_shown_without_its_token(world: World, secret: str) -> None:
    issued = post("grants", issue_body(world), secret).json
    found = get(f"grants/{issued['grant']['grant_id']}", secret)
    assert found.json == issued["grant"]
    assert issued["token"] not in found.text
    assert found.json["constraints"] == {"worker_names": ["edge-*"]}
    assert found.json["status"] == "ACTIVE"


def test_issue_refuses_what_nothing_asks_for(world: World, secret: str) -> None:
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"resources": [{"kind": "COLLECTION", "uri": "flow://documents"}]}, "REQUEST_INVALID"),
        ({"resources": [{"kind": "APPLICATION", "uri": "flow://other"}]}, "REQUEST_INVALID"),
        ({"resources": [{"kind": "APPLICATION"}]}, "REQUEST_INVALID"),
        ({"constraints": {"colours": ["x"]}}, "REQUEST_INVALID"),
        ({"constraints": {"runtimes": ["engine"]}}, "REQUEST_INVALID"),
        ({"constraints": {"labels": {"zone": 1}}}, "REQUEST_INVALID"),
        ({"constraints": {"worker_names": ["a b"]}}, "REQUEST_INVALID"),
        ({"subject": "nobody"}, "REQUEST_INVALID"),
        ({"capabilities": []}, "REQUEST_INVALID"),
        ({"capabilities": ["worker:*"]}, "REQUEST_INVALID"),
        ({"capabilities": ["worker:register"] * 257}, "REQUEST_INVALID"),
        ({"expires_in_ms": 999}, "REQUEST_INVALID"),
        ({"expires_in_ms": 365 * 86_400_000 + 1}, "REQUEST_INVALID"),
        ({"revision": 0}, "REQUEST_INVALID"),
        ({"not_before": "2999-01-01T00:00:00Z"}, "REQUEST_INVALID"),
        ({"supersedes": "nothing"}, "GRANT_NOT_FOUND"),
        ({"application": "nothing"}, "APPLICATION_NOT_FOUND"),
    ]
    for members, code in bodies:
        assert_refused(post("grants", issue_body(world, **members), secret), code)


def test_a_superseding_grant_ends_registering_with_the_old(world: World, secret: str) -> None:
    old = post("grants", issue_body(world, constraints={}), secret).json
    new = issue_body(world, supersedes=old["grant"]["grant_id"])
    assert post("grants", new, secret).json["grant"]["supersedes"] == old["grant"]["grant_id"]
    assert_refused(post("workers", register_body(world, grant=old["token"])), "GRANT_REVOKED")
    found = get(f"grants/{old['grant']['grant_id']}", secret)
    assert found.json["status"] == "SUPERSEDED"


def test_revoke_ends_a_grant_at_once(world: World, secret: str) -> None:
    grant, token = world.grant()
    answer = post(f"grants/{grant.grant_id}/revoke", {"reason": "leaked"}, secret)
    assert (answer.json["status"], answer.json["revoke_reason"]) == ("REVOKED", "leaked")
    assert_refused(post("workers", register_body(world, grant=token)), "GRANT_REVOKED")
    assert post(f"grants/{grant.grant_id}/revoke", None, secret).json["status"] == "REVOKED"


def test_a_grant_is_derived_from_another(world: World, secret: str) -> None:
    parent, _ = world.grant()
    made = post(f"grants/{parent.grant_id}/delegate", delegate_body(), secret)
    assert made.status == 201
    told = made.json["grant"]
    assert (told["parent"], told["depth"], told["subject"]) == (parent.grant_id, 2, "service:edge")
    assert get(f"grants/{told['grant_id']}", secret).json == told
    body = register_body(
        world, grant=made.json["token"], registered_by="service:edge", name="edge-1"
    )
    assert post("workers", body).status == 201
    wider = delegate_body(constraints={})
    answer = post(f"grants/{told['grant_id']}/delegate", wider, secret)
    assert_refused(answer, "GRANT_DELEGATION_INVALID")
    assert {"constraints.worker_names", "constraints.labels"} < set(answer.json["parts"])


def test_a_revocation_ends_all_grants_of_a_subject(world: World, secret: str) -> None:
    grant, token = world.grant()
    world.delegated(grant, subject="service:edge")
    body = {"kind": "subject", "id": REGISTRAR, "reason": "leaked"}
    answer = post("revocations", body, secret)
    assert answer.status == 201
    told = {name: answer.json[name] for name in ("kind", "id", "reason", "grants")}
    assert told == {**body, "grants": 2}
    assert get(f"grants/{grant.grant_id}", secret).json["status"] == "REVOKED"
    assert_refused(post("workers", register_body(world, grant=token)), "GRANT_REVOKED")
    assert post("workers", register_body(world)).status == 201


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"kind": "planet"}, "REQUEST_INVALID"),
        ({"kind": "tenant", "id": "elsewhere"}, "REQUEST_INVALID"),
        ({"kind": "application", "id": "nowhere"}, "APPLICATION_NOT_FOUND"),
        ({"kind": "grant", "id": "grant_0"}, "GRANT_NOT_FOUND"),
        ({"id": ""}, "REQUEST_INVALID"),
    ],
)
def test_a_revocation_of_nothing_is_refused(
    world: World, secret: str, members: dict[str, str], code: str
) -> None:
    said = {"kind": "subject", "id": REGISTRAR, "reason": "r"}
    assert_refused(post("revocations", {**said, **members}, secret), code)
