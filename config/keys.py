"""Keys of a development data folder, made once and readable by their owner alone."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519


def make_development_keys(data_dir: Path) -> None:
    """The key for sessions and the one that signs grants; those that exist are kept."""
    _write_once(data_dir / "secret_key", secrets.token_urlsafe(48).encode())
    _write_once(data_dir / "grant_key.pem", new_grant_key())


def new_grant_key() -> bytes:
    return ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def grant_key_problem(path: str) -> str | None:
    """Why the file cannot sign grants, in a few words; None if it can."""
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, TypeError):
        return "not a private key in PEM without a password"
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else "not an Ed25519 key"


def _write_once(path: Path, content: bytes) -> None:
    """Written beside and linked into place, so that nobody ever reads half a key."""
    if path.exists():
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
