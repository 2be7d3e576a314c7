"""Reads request bodies: bounded, and JSON in the strict sense.

Accepted is what every JSON implementation understands alike: UTF-8, unique keys, finite numbers,
integers of signed 64 bits, strings without NUL and lone surrogates, containers at most 64 deep.
Refusals: BODY_TOO_LARGE, CONTENT_TYPE_UNSUPPORTED, REQUEST_MALFORMED where the body is no JSON at
all, REQUEST_INVALID where it is JSON that is not accepted.
"""

import json
import math
import re
from contextlib import suppress
from typing import IO, Any, Final

from django.http import HttpRequest
from gunicorn.http.errors import ParseException
from rest_framework.parsers import BaseParser

from ..errors import DomainError

MAX_BODY: Final = 2 * 1024 * 1024
# So much of a body that is too large is read all the same, to keep the connection.
_MAX_DISCARDED: Final = 16 * 1024 * 1024
_CHUNK: Final = 64 * 1024
_MAX_DEPTH: Final = 64
_MAX_INTEGER: Final = 2**63
_CONTAINERS: Final = frozenset({dict, list})
_INTEGER_DIGITS: Final = 20
# Escapes by which a NUL or half of a pair could come in; raw UTF-8 cannot hold the latter.
_SUSPECT: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_UNWANTED: Final = re.compile("[\x00\ud800-\udfff]")


class StrictJSONParser(BaseParser):
    """What the API accepts as a body. The bound is the view's `body_limit`."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Any = None
    ) -> Any:
        limit = getattr((parser_context or {}).get("view"), "body_limit", MAX_BODY)
        return loads(_bounded(stream, limit))


def read(request: HttpRequest, limit: int) -> bytes:
    """The whole body, also where the client sent it in chunks and named no length.

    A part of a body is refused: where all members may be left out, none of it would look like an
    empty one, and something would be done that nobody asked for.
    """
    declared = request.META.get("CONTENT_LENGTH") or ""
    if declared.isascii() and declared.isdigit():
        length = int(declared[:20])
        if length > limit:
            _discard(request, length)
            raise _too_large(limit)
        body = _bounded(request, limit)
        if len(body) < int(declared):
            raise _incomplete()
        return body
    if request.META.get("wsgi.input_terminated"):
        return _bounded(request.META["wsgi.input"], limit)
    return b""


def loads(body: bytes) -> Any:
    """The value that the JSON text stands for, or a refusal."""
    try:
        text, is_unicode = body.decode(), True
    except UnicodeDecodeError:
        text, is_unicode = body.decode(errors="replace"), False
    try:
        value: Any = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise DomainError(
            "REQUEST_MALFORMED", f"The body is not JSON: {error.msg} at character {error.pos}."
        ) from error
    except RecursionError as error:
        raise _too_deep() from error
    if not is_unicode:
        raise DomainError("REQUEST_INVALID", "The body is not UTF-8.")
    if text.count("{") + text.count("[") > _MAX_DEPTH:
        _require_flat(value)
    if _SUSPECT.search(text):
        _require_clean(value)
    return value


def _bounded(stream: IO[Any] | HttpRequest, limit: int) -> bytes:
    try:
        body: bytes = stream.read(limit + 1)
    except (OSError, ParseException) as error:
        # The connection ended, or the chunks are not as they must be.
        raise _incomplete() from error
    if len(body) > limit:
        _discard(stream, _MAX_DISCARDED)
        raise _too_large(limit)
    return body


def _discard(stream: IO[Any] | HttpRequest, length: int) -> None:
    """Read the rest of a body that is refused, if it is not very long.

    What is left unread ends the connection after the answer, which the client may find out only
    with its next call.
    """
    left = length if length <= _MAX_DISCARDED else 0
    with suppress(OSError, ParseException):
        while left > 0 and (part := stream.read(min(left, _CHUNK))):
            left -= len(part)


def _require_flat(value: Any) -> None:
    """Refuse what is nested too deep. Only containers are looked at: a call may bring thousands."""
    level, depth = [value], 0
    while level := [each for each in level if type(each) in _CONTAINERS]:
        depth += 1
        if depth > _MAX_DEPTH:
            raise _too_deep()
        level = [
            inner for each in level for inner in (each.values() if type(each) is dict else each)
        ]


def _require_clean(value: Any) -> None:
    """Refuse strings that PostgreSQL or UTF-8 cannot hold; of what is not nested too deep."""
    level = [value]
    while level:
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.keys())
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            elif isinstance(each, str) and _UNWANTED.search(each):
                raise DomainError("REQUEST_INVALID", "A string holds NUL or a lone surrogate.")
        level = below


def _integer(digits: str) -> int:
    # The length first: turning a very long number into an integer takes very long.
    if len(digits) <= _INTEGER_DIGITS:
        number = int(digits)
        if -_MAX_INTEGER <= number < _MAX_INTEGER:
            return number
    raise DomainError("REQUEST_INVALID", "An integer does not fit signed 64 bits.")


def _number(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise DomainError("REQUEST_INVALID", "A number is too large.")
    return number


def _constant(word: str) -> float:
    raise DomainError("REQUEST_INVALID", f"{word} is not a number that JSON knows.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DomainError("REQUEST_INVALID", "An object has the same key twice.")
    return found


_DECODER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_number, parse_constant=_constant, object_pairs_hook=_object
)


def _too_large(limit: int) -> DomainError:
    return DomainError("BODY_TOO_LARGE", f"The body is larger than {limit} bytes.")


def _incomplete() -> DomainError:
    return DomainError("REQUEST_MALFORMED", "The body ended too early, or cannot be read.")


def _too_deep() -> DomainError:
    return DomainError("REQUEST_INVALID", f"The body is nested deeper than {_MAX_DEPTH} levels.")
