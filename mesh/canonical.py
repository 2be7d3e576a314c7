"""Identities and sameness: SHA-256 over JSON in one canonical form.

An *identity* is a hash over a JSON array in its own order (compact separators, UTF-8, non-ASCII
unescaped). *Same content* means an equal digest of the JSON with sorted keys.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def identity(noun: str, parts: Sequence[str]) -> str:
    """`<noun>_` and the first 24 hex digits of the hash over `parts`; equal parts, equal id."""
    return f"{noun}_{_sha256(_compact(list(parts), sort_keys=False))[:24]}"


def digest(content: Any) -> str:
    """The hex digest by which two pieces of content are the same; key order does not matter."""
    return _sha256(_compact(content, sort_keys=True))


def size(content: Any) -> int:
    """The length in bytes of the content as compact UTF-8 JSON, as the bounds count it."""
    return len(_compact(content, sort_keys=False).encode())


def secret_hash(secret: str) -> str:
    """What is stored of a random secret. Secrets are long and random, so no slow hash is needed."""
    return _sha256(secret)


def _compact(content: Any, *, sort_keys: bool) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
