"""Replacing the key that signs grants, step by step as the runbook has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from pytest_django import Settings

from mesh import grants, liveness, signing
from tests.factories import World
from tests.mesh.checks import refused


def new_key(path: Path) -> None:
    """`openssl genpkey -algorithm ed25519 -out PATH`"""
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    path.write_bytes(pem)


def public_part(private: Path, path: Path) -> None:
    """`openssl pkey -in PRIVATE -pubout -out PATH`"""
    key = load_pem_private_key(private.read_bytes(), password=None)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(public)


def restart() -> None:
    """A process reads its keys once; a new one reads them anew."""
    signing._load_keys.cache_clear()


def key_ids() -> set[str]:
    return {each["kid"] for each in signing.jwks()["keys"]}


@pytest.fixture
def key(settings: Settings, tmp_path: Path) -> Path:
    """A system whose key file and folder of verifying keys stay where they are."""
    settings.GRANT_KEY_FILE = tmp_path / "grant_key.pem"
    settings.GRANT_VERIFY_KEYS_DIR = tmp_path / "verify"
    (tmp_path / "verify").mkdir()
    new_key(tmp_path / "grant_key.pem")
    restart()
    return tmp_path / "grant_key.pem"


def test_a_key_is_replaced_without_a_grant_or_worker_noticing(world: World, key: Path) -> None:
    kept = key.parent / "verify" / "old.pem"
    old, old_token = world.grant()
    worker = world.worker(grant=old_token)
    first = key_ids()

    public_part(key, kept)  # 1. the old key goes on verifying
    new_key(key)  # 2. a new one signs
    restart()  # 3.
    assert key_ids() > first
    new, new_token = world.grant(revision=2)
    assert new.key_id not in first
    assert (grants.decode(old_token), grants.decode(new_token)) == (old, new)
    child, child_token = world.delegated(old)
    assert (child.key_id, grants.decode(child_token)) == (new.key_id, child)
    liveness.register(registration=world.registration(grant=old_token), credential=None)
    said = world.registration(name=worker.row.name, grant=new_token)
    assert liveness.register(registration=said, credential=worker.credential).worker.grant == new

    kept.unlink()  # 4. when the last old grant has ended
    restart()
    assert key_ids() == {new.key_id}
    with refused("GRANT_INVALID"):
        liveness.register(registration=world.registration(grant=old_token), credential=None)
    assert grants.decode(new_token) == new


def test_a_key_that_got_out_is_not_kept(world: World, key: Path) -> None:
    _, token = world.grant()
    held = world.running(world.worker(grant=token))
    new_key(key)
    restart()
    with refused("GRANT_INVALID"):
        liveness.register(registration=world.registration(grant=token), credential=None)
    # A worker that is in rests on the grant's row until that ends or is revoked.
    assert len(held.worker.beat(held.claim.claim_id).renewed) == 1
