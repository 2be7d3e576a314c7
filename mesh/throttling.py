"""Failed attempts to get in, counted per client address, so that guessing is slow.

Guarantees: only refusals are counted and only refusals are slowed, after the secret was looked at;
a valid one is never refused for what others did. Counts stand in the cache of this process and go
with it; a restart, or another process, counts anew.
"""

import time
from hashlib import sha256
from typing import Final

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest

from .errors import DomainError

_WINDOW_S: Final = 60


def address_of(request: HttpRequest) -> str:
    """The client's address: behind our proxy the one that it saw, else the one that connected."""
    direct = str(request.META.get("REMOTE_ADDR") or "")
    if not settings.BEHIND_TLS_PROXY:
        return direct
    # The last one was put there by the proxy; those before it are what the client says.
    told = str(request.META.get("HTTP_X_FORWARDED_FOR") or "").rpartition(",")[2].strip()
    return told or direct


def count_failure(address: str) -> DomainError | None:
    """Count one more refusal; LIMIT_EXCEEDED if the address has had too many in this minute."""
    now = time.time()
    window = int(now // _WINDOW_S)
    key = f"failures.{window}.{sha256(address.encode()).hexdigest()}"
    cache.add(key, 0, 2 * _WINDOW_S)
    try:
        failures = cache.incr(key)
    except ValueError:
        # Forgotten in this very moment, for want of room.
        return None
    if failures <= settings.TOKEN_FAILURES_PER_MINUTE:
        return None
    return DomainError(
        "LIMIT_EXCEEDED",
        "Too many calls with a token that is not valid. A valid one is always let in.",
        retry_after_ms=round(((window + 1) * _WINDOW_S - now) * 1_000) or 1,
    )
