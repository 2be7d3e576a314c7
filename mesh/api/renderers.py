"""Writes answers: JSON, fast, times in UTC with milliseconds."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATETIME
_MAX_INTEGER: Final = 2**63


class FastJSONRenderer(BaseRenderer):
    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None
    ) -> bytes:
        return b"" if data is None else dumps(data)


class Negotiation(DefaultContentNegotiation):
    """REST framework's, but for what nearly all callers say, which needs no weighing."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> Any:
        first, *others = renderers
        said = request.META.get("HTTP_ACCEPT", "*/*")
        if not others and said in {"*/*", first.media_type}:
            return first, first.media_type
        return super().select_renderer(request, [first, *others], format_suffix)


def dumps(data: Any) -> bytes:
    """The value as compact JSON."""
    try:
        return orjson.dumps(data, default=_other, option=_OPTIONS)
    except TypeError:
        return orjson.dumps(_as_sent(data), default=_other, option=_OPTIONS)


def at(moment: datetime) -> str:
    """A time as it is sent: RFC 3339 in UTC, with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _other(value: Any) -> Any:
    if isinstance(value, datetime):
        return at(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot stand in an answer")


def _as_sent(value: Any) -> Any:
    """Numbers like 1e300 come out of a `jsonb` column as long integers: floats again."""
    if isinstance(value, dict):
        return {key: _as_sent(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_sent(each) for each in value]
    if isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
        return float(value)
    return value
