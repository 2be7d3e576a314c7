"""Cursor paging: `{next, previous, results}`, by the values that the list is ordered by.

A page costs the same wherever it stands and rows that come or go never shift it. Cursors are
signed, so a made-up one is refused. There is no total: it would count the whole table.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from django.core import signing
from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from .fields import parse_time
from .filters import CURSOR, PAGE_SIZE, Query, refused

DEFAULT_SIZE: Final = 50
MAX_SIZE: Final = 200
Row = TypeVar("Row", bound=Model)


def paginate(
    request: Request,
    query: Query,
    rows: "QuerySet[Row]",
    *,
    order: Sequence[str],
    render: Callable[[Row], dict[str, Any]],
    trim: "Callable[[list[Row]], list[Row]] | None" = None,
) -> dict[str, Any]:
    """One page of `rows` in `order`, whose last column is unique.

    `trim` may shorten a page that would be too heavy, by leaving off rows at its end.
    """
    size = query.integer(PAGE_SIZE, 1, MAX_SIZE, DEFAULT_SIZE)
    salt = f"cursor:{rows.model._meta.label}:{','.join(order)}"
    is_backward, position = _position(query, order, salt)
    columns = _reversed(order) if is_backward else list(order)
    if position is not None:
        rows = rows.filter(_beyond(columns, position))
    found = list(rows.order_by(*columns)[: size + 1])
    has_more, found = len(found) > size, found[:size]
    kept = found if trim is None else trim(found)
    has_more = has_more or len(kept) < len(found)
    if is_backward:
        kept.reverse()

    def link(row: Row, *, backward: bool) -> str:
        cursor = signing.dumps([backward, _values(row, order)], salt=salt)
        return replace_query_param(request.build_absolute_uri(), CURSOR, cursor)

    has_next = bool(kept) and (is_backward or has_more)
    has_previous = bool(kept) and (has_more if is_backward else position is not None)
    return {
        "next": link(kept[-1], backward=False) if has_next else None,
        "previous": link(kept[0], backward=True) if has_previous else None,
        "results": [render(each) for each in kept],
    }


def _position(query: Query, order: Sequence[str], salt: str) -> tuple[bool, list[Any] | None]:
    cursor = query.text(CURSOR)
    if cursor is None:
        return False, None
    try:
        is_backward, values = signing.loads(cursor, salt=salt)
    except (signing.BadSignature, ValueError) as error:
        raise refused(CURSOR, "Not a cursor of this list.") from error
    return is_backward, [parse_time(each) if isinstance(each, str) else each for each in values]


def _values(row: Model, order: Sequence[str]) -> list[Any]:
    found = (getattr(row, column.lstrip("-")) for column in order)
    return [each.isoformat() if isinstance(each, datetime) else each for each in found]


def _reversed(order: Sequence[str]) -> list[str]:
    return [column[1:] if column.startswith("-") else f"-{column}" for column in order]


def _beyond(columns: Sequence[str], position: Sequence[Any]) -> Q:
    """Rows after `position`, compared column by column."""
    beyond, equal = Q(), Q()
    for column, value in zip(columns, position, strict=True):
        name = column.lstrip("-")
        side = "lt" if column.startswith("-") else "gt"
        beyond |= equal & Q(**{f"{name}__{side}": value})
        equal &= Q(**{name: value})
    first, value = columns[0], position[0]
    # Says again what follows from the rest, so that the index range begins at the position.
    side = "lte" if first.startswith("-") else "gte"
    return Q(**{f"{first.lstrip('-')}__{side}": value}) & beyond
