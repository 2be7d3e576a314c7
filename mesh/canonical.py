"""Identities and sameness: SHA-256 over JSON in one canonical form.

An *identity* is a hash over a JSON array in its own order (compact separators, UTF-8, non-ASCII
unescaped). *Same content* means an equal digest of the JSON with sorted keys.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

import orjson

_COMPACT: Final[dict[str, Any]] = {"ensure_ascii": False, "separators": (",", ":")}
# Made once: `json.dumps` makes an encoder for each call that asks for anything of its own.
_AS_IT_IS: Final = json.JSONEncoder(**_COMPACT).encode
_SORTED: Final = json.JSONEncoder(**_COMPACT, sort_keys=True).encode


def identity(noun: str, parts: Sequence[str]) -> str:
    """`<noun>_` and the first 24 hex digits of the hash over `parts`; equal parts, equal id."""
    return f"{noun}_{_sha256(_AS_IT_IS(list(parts)))[:24]}"


def digest(content: Any) -> str:
    """The hex digest by which two pieces of content are the same; key order does not matter."""
    return _sha256(_SORTED(content))


def size(content: Any) -> int:
    """The length in bytes of the content as compact UTF-8 JSON, as the bounds count it."""
    return len(_AS_IT_IS(content).encode())


def is_within(content: Any, bound: int) -> bool:
    """Whether its size is at most `bound`.

    What is far below it is told by a quicker writer, whose numbers may be somewhat shorter.
    """
    try:
        return 2 * len(orjson.dumps(content)) <= bound or size(content) <= bound
    except TypeError:
        return size(content) <= bound


def secret_hash(secret: str) -> str:
    """What is stored of a random secret. Secrets are long and random, so no slow hash is needed."""
    return _sha256(secret)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
