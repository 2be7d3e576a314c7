"""Secrets do not belong in the mesh: what workers and clients send is looked through.

Refused is an object whose key is one of `SECRET_KEYS` (any depth, any case) and a PEM private key
inside any string. A reference such as `secret://vault/name` under another key is fine.
"""

import re
from typing import Any, Final

from .errors import DomainError

SECRET_KEYS: Final = frozenset({"password", "secret", "token", "api_key", "private_key"})
_LISTED: Final = ", ".join(sorted(SECRET_KEYS))
_PEM_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")


def require_no_secrets(**parts: Any) -> None:
    """Refuse with WORKLOAD_SECRET_REJECTED if any of the named parts holds a secret.

    The refusal names the part and never what was found in it.
    """
    for name, part in parts.items():
        if _has_secret(part):
            raise DomainError(
                "WORKLOAD_SECRET_REJECTED",
                f"The {name} holds a private key, or a member that is called as secrets are"
                f" ({_LISTED}). Send a reference under another name, such as secret://…",
            )


def _has_secret(value: Any) -> bool:
    if isinstance(value, str):
        return _PEM_PRIVATE_KEY.search(value) is not None
    if isinstance(value, dict):
        return any(
            key.lower() in SECRET_KEYS or _has_secret(key) or _has_secret(each)
            for key, each in value.items()
        )
    return isinstance(value, (list, tuple)) and any(map(_has_secret, value))
