"""The query of a list call. Unknown, repeated and ill-typed parameters are REQUEST_INVALID."""

import re
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from django.db.models import Q
from rest_framework.request import Request

from ..errors import DomainError
from .fields import parse_time

PAGE_SIZE: Final = "page_size"
CURSOR: Final = "cursor"
CREATED_AFTER: Final = "created_after"
CREATED_BEFORE: Final = "created_before"
_TENANT: Final = "tenant"
_MAX_TEXT: Final = 255
_MAX_PAIRS: Final = 64
_UNWANTED: Final = re.compile("[\x00\ud800-\udfff]")


def refused(name: str, detail: str) -> DomainError:
    return DomainError(
        "REQUEST_INVALID",
        f"The parameter {name[:_MAX_TEXT]!r} is not as it should be.",
        errors=[{"field": name[:_MAX_TEXT], "detail": detail}],
    )


def text(value: str, name: str) -> str:
    """The value, if a column could hold it."""
    if len(value) > _MAX_TEXT or _UNWANTED.search(value):
        raise refused(name, f"At most {_MAX_TEXT} characters, without NUL.")
    return value


class Query:
    """The parameters of one call. A parameter that was not sent is None."""

    def __init__(self, request: Request, known: Collection[str], *, repeated: str = "") -> None:
        self._values = request.query_params
        allowed = {*known, PAGE_SIZE, CURSOR}
        if request._request.user.is_authenticated:
            allowed.add(_TENANT)
        for name, values in self._values.lists():
            if name not in allowed:
                raise refused(name, "Unknown parameter.")
            if len(values) > 1 and name != repeated:
                raise refused(name, "More than one value.")

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return None if value is None else text(value, name)

    def word(self, name: str, choices: Collection[str]) -> str | None:
        value = self._values.get(name)
        if value is not None and value not in choices:
            raise refused(name, f"One of: {', '.join(choices)}.")
        return value

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        is_number = value.isascii() and value.isdigit() and len(value) <= len(str(high))
        if not is_number or not low <= int(value) <= high:
            raise refused(name, f"A number from {low} to {high}.")
        return int(value)

    def time(self, name: str) -> datetime | None:
        value = self._values.get(name)
        if value is None:
            return None
        moment = parse_time(value)
        if moment is None:
            raise refused(name, "A time with an offset, like 2030-01-31T12:00:00Z.")
        return moment

    def pairs(self, name: str) -> dict[str, str]:
        """`name=key:value`, repeated for several; the first colon parts them."""
        values = self._values.getlist(name)
        if len(values) > _MAX_PAIRS:
            raise refused(name, f"At most {_MAX_PAIRS} of them.")
        found: dict[str, str] = {}
        for each in values:
            key, colon, value = text(each, name).partition(":")
            if not colon or found.setdefault(key, value) != value:
                raise refused(name, "key:value, each key once.")
        return found

    def window(self, column: str) -> Q:
        """Rows made after and before the given times, both exclusive."""
        bounds: dict[str, Any] = {
            f"{column}__gt": self.time(CREATED_AFTER),
            f"{column}__lt": self.time(CREATED_BEFORE),
        }
        return Q(**{lookup: each for lookup, each in bounds.items() if each is not None})
