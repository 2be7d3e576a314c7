"""The keys that grants are signed with, and the tokens they make.

Several keys may verify, one signs. The private key comes from a file, never from the database.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from jwt.algorithms import OKPAlgorithm

from .errors import DomainError

ISSUER: Final = "fencepost"


@dataclass(frozen=True, slots=True)
class Keys:
    """The key that signs, and every key that verifies, by key id."""

    signing_id: str
    signing: Ed25519PrivateKey
    verifying: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)


def sign(claims: Mapping[str, Any]) -> str:
    """The claims as a compact JWS, signed by the key that signs now."""
    keys = load_keys()
    whole = {**claims, "iss": ISSUER}
    return jwt.encode(whole, keys.signing, algorithm="EdDSA", headers={"kid": keys.signing_id})


def verify(token: str) -> Mapping[str, Any]:
    """The claims of a token that one of our keys signed: form, algorithm, key, signature, issuer.

    Refuses with GRANT_INVALID and says nothing more. Times are not judged.
    """
    try:
        key_id = str(jwt.get_unverified_header(token).get("kid", ""))
        key = load_keys().verifying[key_id]
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=["EdDSA"],
            issuer=ISSUER,
            options={
                "require": ["jti", "iss", "sub", "exp"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_aud": False,
                "verify_sub": False,
            },
        )
    except (jwt.PyJWTError, KeyError, ValueError, TypeError) as error:
        raise invalid() from error
    return claims


def invalid() -> DomainError:
    """The refusal of a token that proves nothing."""
    return DomainError("GRANT_INVALID", "The grant was not issued here, or was changed.")


def jwks() -> dict[str, Any]:
    """The public keys that verify grants, as a JSON Web Key Set."""
    return {
        "keys": [
            {**_jwk(key), "kid": key_id, "alg": "EdDSA", "use": "sig"}
            for key_id, key in sorted(load_keys().verifying.items())
        ]
    }


def token_digest(token: str) -> str:
    """What is remembered of an issued token."""
    return sha256(token.encode()).hexdigest()


def load_keys() -> Keys:
    """The keys from GRANT_KEY_FILE (signs and verifies) and GRANT_VERIFY_KEYS_DIR (verify only).

    Read once per process; restart after a rotation. A missing or unusable key is a configuration
    error that names the file.
    """
    directory = settings.GRANT_VERIFY_KEYS_DIR
    return _load_keys(str(settings.GRANT_KEY_FILE or ""), str(directory or ""))


def key_id_of(key: Ed25519PublicKey) -> str:
    """The key's JWK thumbprint (RFC 7638), so that a key has the same id wherever it is used."""
    canonical = json.dumps(_jwk(key), separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(sha256(canonical.encode()).digest()).rstrip(b"=").decode()


@lru_cache(maxsize=8)
def _load_keys(key_file: str, directory: str) -> Keys:
    if not key_file:
        raise ImproperlyConfigured("FENCEPOST_GRANT_KEY_FILE is not set: no key to sign grants.")
    signing = _load(load_pem_private_key, Path(key_file), password=None)
    if not isinstance(signing, Ed25519PrivateKey):
        raise ImproperlyConfigured(f"{key_file} does not hold an Ed25519 private key.")
    publics = [signing.public_key()]
    for path in sorted(Path(directory).glob("*.pem")) if directory else ():
        public = _load(load_pem_public_key, path)
        if not isinstance(public, Ed25519PublicKey):
            raise ImproperlyConfigured(f"{path} does not hold an Ed25519 public key.")
        publics.append(public)
    verifying = {key_id_of(each): each for each in publics}
    return Keys(key_id_of(signing.public_key()), signing, verifying)


def _load(read: Any, path: Path, **options: Any) -> Any:
    try:
        return read(path.read_bytes(), **options)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ImproperlyConfigured(f"The grant key {path} cannot be read: {error}") from error


def _jwk(key: Ed25519PublicKey) -> dict[str, str]:
    members = OKPAlgorithm.to_jwk(key, as_dict=True)
    return {name: str(members[name]) for name in ("crv", "kty", "x")}
