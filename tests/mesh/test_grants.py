"""Signed grants: issuing them, and every way in which one is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from mesh import grants, liveness, signing
from mesh.models import AuditEntry, Grant, GrantStatus, Role
from mesh.scopes import Facts, Request
from tests.factories import REGISTRAR, World
from tests.mesh.checks import MICRO, NOON, Clock, ms, raises, refused


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return jwt.get_unverified_header(token), jwt.decode(token, options={"verify_signature": False})


def encode(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def resigned(token: str, key: Any = None, algorithm: str = "EdDSA", **claims: Any) -> str:
    """The token with other claims, signed anew (by default with the very key of the server)."""
    header, body = parts(token)
    body = {name: value for name, value in {**body, **claims}.items() if value != "gone"}
    signer = key or signing.load_keys().signing
    return jwt.encode(body, signer, algorithm=algorithm, headers={"kid": header["kid"]})


def public_pem() -> bytes:
    public = signing.load_keys().signing.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def with_header(token: str, **members: Any) -> str:
    _, body, signature = token.split(".")
    return f"{encode({**parts(token)[0], **members})}.{body}.{signature}"


def with_body(token: str, **members: Any) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{encode({**parts(token)[1], **members})}.{signature}"


def hs256_with_the_public_key(token: str) -> str:
    """The classic confusion; the library will not sign with a PEM, so it is put together here."""
    header, body = parts(token)
    signed = f"{encode({**header, 'alg': 'HS256'})}.{encode(body)}"
    mac = hmac.new(public_pem(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


TAMPERED: dict[str, Any] = {
    "empty": lambda t: "",
    "not a token": lambda t: "no.grant.atall",
    "two parts": lambda t: t.rsplit(".", 1)[0],
    "four parts": lambda t: t + ".x",
    "non-ascii": lambda t: t + "ß",
    "signature cut": lambda t: t[:-4],
    "signature gone": lambda t: t.rsplit(".", 1)[0] + ".",
    "signature changed": lambda t: t[:-10] + ("A" if t[-10] != "A" else "B") + t[-9:],
    "subject changed": lambda t: with_body(t, sub="service:evil"),
    "capabilities changed": lambda t: with_body(t, capabilities=["authorization:grant"]),
    "end changed": lambda t: with_body(t, exp=9_999_999_999),
    "algorithm none": lambda t: with_header(t, alg="none").rsplit(".", 1)[0] + ".",
    "algorithm HS256": lambda t: with_header(t, alg="HS256"),
    "HS256 with the public key": hs256_with_the_public_key,
    "algorithm ES256": lambda t: with_header(t, alg="ES256"),
    "kid unknown": lambda t: with_header(t, kid="other"),
    "kid gone": lambda t: with_header(t, kid=None),
    "foreign key": lambda t: resigned(t, Ed25519PrivateKey.generate()),
    "not issued here": lambda t: resigned(t, jti="grant_0000"),
    "other issuer": lambda t: resigned(t, iss="elsewhere"),
    "no id": lambda t: resigned(t, jti="gone"),
    "no issuer": lambda t: resigned(t, iss="gone"),
    "signed by our key with other claims": lambda t: resigned(t, revision=99),
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED.keys())
def test_a_tampered_grant_is_invalid_wherever_it_is_shown(world: World, tamper: Any) -> None:
    bad = tamper(world.grant()[1])
    said = world.registration(grant=bad or "x")
    with refused("GRANT_INVALID"):
        grants.decode(bad)
    with refused("GRANT_INVALID"):
        liveness.register(registration=said, credential=None)
    with refused("GRANT_INVALID"):
        grants.verify_for_submit(bad, world.operator, world.application, NOON)


def test_an_issued_token_proves_its_grant(world: World) -> None:
    grant, token = world.grant(
        revision=3, resources=[{"kind": "APPLICATION", "uri": "flow://documents"}]
    )
    header, body = parts(token)
    assert grants.decode(token) == grant
    assert (header["alg"], header["kid"]) == ("EdDSA", signing.load_keys().signing_id)
    assert (body["jti"], body["sub"], body["tenant"], body["application"]) == (
        grant.grant_id,
        REGISTRAR,
        world.tenant.name,
        "documents",
    )
    assert (body["iat"], body["nbf"], body["exp"]) == (
        NOON.timestamp(),
        NOON.timestamp(),
        NOON.timestamp() + 3_600,
    )
    assert (body["revision"], body["contract_version"], body["parent"]) == (3, 1, None)
    assert body["capabilities"] == grant.capabilities


# --- Time and status ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "is_valid"),
    [
        (NOON + ms(1_000) - MICRO, False),
        (NOON + ms(1_000), True),
        (NOON + ms(5_000) - MICRO, True),
        (NOON + ms(5_000), False),
    ],
)
def test_a_grant_is_valid_from_its_begin_until_just_before_its_end(
    world: World, at: Any, is_valid: bool
) -> None:
    grant, _ = world.grant(not_before=NOON + ms(1_000), expires_in_ms=5_000)
    if is_valid:
        grants.require_in_time(grant, at)
        assert grant.status_at(at) == GrantStatus.ACTIVE
        return
    with raises("GRANT_EXPIRED"):
        grants.require_in_time(grant, at)


def test_an_active_grant_that_is_over_is_shown_as_expired(world: World) -> None:
    grant, _ = world.grant(expires_in_ms=5_000)
    assert grant.status_at(NOON + ms(5_000)) == GrantStatus.EXPIRED
    grant.status = GrantStatus.REVOKED
    assert grant.status_at(NOON + ms(5_000)) == GrantStatus.REVOKED


@pytest.mark.parametrize("status", ["REVOKED", "SUPERSEDED"])
def test_registering_with_a_revoked_or_superseded_grant_is_refused(
    world: World, status: str
) -> None:
    grant, token = world.grant()
    said = world.registration(grant=token)
    Grant.objects.filter(pk=grant.pk).update(status=status)
    with refused("GRANT_REVOKED"):
        liveness.register(registration=said, credential=None)


def test_time_is_told_before_revocation(world: World, clock: Clock) -> None:
    grant, token = world.grant(subject="service:ops", capabilities=["workload:create"])
    Grant.objects.filter(pk=grant.pk).update(status="REVOKED")
    with refused("GRANT_REVOKED"):
        grants.verify_for_submit(token, world.operator, "documents", NOON)
    clock.to(grant.expires_at)
    with refused("GRANT_EXPIRED"):
        grants.verify_for_submit(token, world.operator, "documents", clock.at)


def test_revocation_is_told_before_rights_and_scope(world: World) -> None:
    grant, token = world.grant(subject="service:ops", capabilities=["workload:read"])
    Grant.objects.filter(pk=grant.pk).update(status="REVOKED")
    with refused("GRANT_REVOKED"):
        grants.verify_for_submit(token, world.operator, "documents", NOON)


# --- Scope ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "uri", "asked", "is_covered"),
    [
        ("APPLICATION", "flow://documents", "flow://documents/workers", True),
        ("APPLICATION", "flow://documents", "flow://documents", True),
        ("APPLICATION", "flow://documents", "flow://documentsx/workers", False),
        ("RESOURCE_PREFIX", "flow://documents/workers", "flow://documents/workers", True),
        ("RESOURCE_PREFIX", "flow://documents/workers", "flow://documents/workers/a/b", True),
        ("RESOURCE_PREFIX", "flow://documents/workers", "flow://documents/workersx", False),
        ("RESOURCE_PREFIX", "flow://documents/workers/", "flow://documents/workers/a", True),
        ("RESOURCE_PREFIX", "flow://documents/workers", "flow://documents", False),
        ("WORKLOAD", "flow://documents/workloads", "flow://documents/workloads", True),
        ("WORKLOAD", "flow://documents/workloads", "flow://documents/workloads/a", False),
    ],
)
def test_scopes_match_their_uri_and_what_is_below(
    kind: str, uri: str, asked: str, is_covered: bool
) -> None:
    grant = Grant(capabilities=["worker:register"], resources=[{"kind": kind, "uri": uri}])
    request = Request("worker:register", asked, Facts())
    if is_covered:
        grants.require_scope(grant, request)
        return
    with raises("GRANT_SCOPE_DENIED"):
        grants.require_scope(grant, request)


@pytest.mark.parametrize("held", ["worker:*", "worker:regist", "*", "worker:register:x"])
def test_a_right_is_an_exact_string(held: str) -> None:
    with raises("GRANT_SCOPE_DENIED"):
        grants.require_scope(
            Grant(capabilities=[held]), Request("worker:register", "flow://a/workers", Facts())
        )


# --- Issue ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "members",
    [
        {"subject": "billing"},
        {"subject": "robot:billing"},
        {"subject": "service:"},
        {"subject": "service:a b"},
        {"capabilities": []},
        {"capabilities": ["worker:*"]},
        {"capabilities": ["worker:capability:"]},
        {"capabilities": ["everything"]},
        {"resources": [{"kind": "COLLECTION", "uri": "flow://documents/x"}]},
        {"resources": [{"kind": "RESOURCE", "uri": "flow://documents/x"}]},
        {"resources": [{"kind": "CONNECTION", "uri": "flow://documents/x"}]},
        {"resources": [{"kind": "ARTIFACT", "uri": "flow://documents/x"}]},
        {"resources": [{"kind": "APPLICATION", "uri": "flow://other"}]},
        {"resources": [{"kind": "APPLICATION", "uri": "flow://documentsx"}]},
        {"resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/../other"}]},
        {"resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/a?b"}]},
        {"resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/a#b"}]},
        {"resources": [{"kind": "RESOURCE_PREFIX", "uri": "http://documents/a"}]},
        {"resources": [{"uri": "flow://documents"}]},
        {"constraints": {"colours": ["red"]}},
        {"constraints": {"environments": ["pro*tion"]}},
        {"constraints": {"environments": ["*" * 2]}},
        {"constraints": {"environments": [" "]}},
        {"constraints": {"environments": "production"}},
        {"constraints": {"environments": ["a"] * 257}},
        {"constraints": {"runtimes": ["contain*"]}},
        {"constraints": {"labels": {"": "x"}}},
        {"constraints": {"labels": ["zone"]}},
        {"constraints": {"workload_id": "workload_1"}},
        {"constraints": {"workload_id": ["workload_" + "0" * 24]}},
        {"constraints": {"worker_names": ["a*b"]}},
        {"expires_in_ms": 0},
        {"expires_in_ms": 365 * 86_400_000 + 1},
        {"revision": 0},
        {"not_before": NOON + ms(3_600_000)},
    ],
)
def test_issue_refuses_what_nothing_could_ask_for(world: World, members: dict[str, Any]) -> None:
    with refused("REQUEST_INVALID"):
        world.grant(**members)


@pytest.mark.parametrize("kind", ["APPLICATION", "RESOURCE_PREFIX", "WORKLOAD"])
def test_issue_takes_the_scopes_that_something_asks_for(world: World, kind: str) -> None:
    resources = [{"kind": kind, "uri": "flow://documents/workers"}]
    assert world.grant(resources=resources)[0].resources == resources


def test_issue_needs_an_admin_and_an_application_of_the_tenant(world: World) -> None:
    said: dict[str, Any] = {"subject": REGISTRAR, "capabilities": ["worker:register"]}
    with refused("PERMISSION_DENIED"):
        grants.issue(caller=world.operator, application="documents", **said)
    with refused("APPLICATION_NOT_FOUND"):
        grants.issue(caller=world.caller(), application="nowhere", **said)


def test_issue_is_audited_and_the_token_is_not_stored(world: World) -> None:
    grant, token = world.grant()
    entry = AuditEntry.objects.get(target=grant.grant_id)
    assert (entry.action, entry.actor, entry.at) == ("grant.issued", "service:ops", NOON)
    assert token not in str(Grant.objects.filter(pk=grant.pk).values())
    assert token not in str(entry.evidence)


def test_a_grant_supersedes_one_of_the_same_subject_that_is_in_force(world: World) -> None:
    old, _ = world.grant()
    new, _ = world.grant(supersedes=old.grant_id, revision=2)
    old.refresh_from_db()
    assert (old.status, new.supersedes, new.status) == ("SUPERSEDED", old, "ACTIVE")
    with refused("GRANT_REVOKED"):
        world.grant(supersedes=old.grant_id)
    with refused("REQUEST_INVALID"):
        world.grant(supersedes=new.grant_id, subject="service:other")
    with refused("GRANT_NOT_FOUND"):
        world.grant(supersedes="grant_x")


def test_no_grant_of_another_tenant_is_superseded(world: World) -> None:
    foreign, _ = World().grant()
    with refused("GRANT_NOT_FOUND"):
        world.grant(supersedes=foreign.grant_id)


# --- Keys -----------------------------------------------------------------------------------------


def rotate(settings: Settings, folder: Path, *, keep_old: bool) -> None:
    """Sign with a new key; the old one goes on verifying, or not."""
    (folder / "public").mkdir()
    if keep_old:
        (folder / "public" / "old.pem").write_bytes(public_pem())
    fresh = Ed25519PrivateKey.generate()
    pem = fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "signing.pem").write_bytes(pem)
    settings.GRANT_KEY_FILE = folder / "signing.pem"
    settings.GRANT_VERIFY_KEYS_DIR = folder / "public"


def test_after_a_rotation_old_grants_verify_by_the_second_key(
    world: World, settings: Settings, tmp_path: Path
) -> None:
    old, token = world.grant()
    first = signing.load_keys().signing_id
    rotate(settings, tmp_path, keep_old=True)
    new, fresh = world.grant()
    assert (grants.decode(token), grants.decode(fresh)) == (old, new)
    assert parts(fresh)[0]["kid"] == signing.load_keys().signing_id != first
    assert {each["kid"] for each in signing.jwks()["keys"]} == {first, new.key_id}


def test_a_key_that_was_taken_away_verifies_no_more(
    world: World, settings: Settings, tmp_path: Path
) -> None:
    _, token = world.grant()
    rotate(settings, tmp_path, keep_old=False)
    with refused("GRANT_INVALID"):
        grants.decode(token)


def test_the_key_set_has_no_private_part() -> None:
    (key,) = signing.jwks()["keys"]
    assert set(key) == {"kty", "crv", "x", "kid", "alg", "use"}
    assert (key["kty"], key["crv"], key["alg"]) == ("OKP", "Ed25519", "EdDSA")


def test_a_missing_key_is_named(settings: Settings, tmp_path: Path) -> None:
    settings.GRANT_KEY_FILE = tmp_path / "none.pem"
    with pytest.raises(ImproperlyConfigured, match=r"none\.pem"):
        signing.load_keys()


def test_viewers_see_no_grant_of_another_tenant(world: World) -> None:
    grant, _ = world.grant()
    assert Grant.objects.visible_to(world.caller(Role.VIEWER)).filter(pk=grant.pk).exists()
    assert not Grant.objects.visible_to(World().caller()).filter(pk=grant.pk).exists()
