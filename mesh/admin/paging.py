"""Counting that stops: a list says "10 000+" rather than counting a big table."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.core.paginator import Paginator
from django.db.models import QuerySet

if TYPE_CHECKING:
    _Pages = Paginator[Any]
else:
    _Pages = Paginator  # generic for the type checker only

CAP: Final = 10_000


def capped_count(rows: QuerySet[Any], cap: int = CAP) -> int:
    """How many rows there are, reading at most `cap` + 1 of them; `cap` + 1 stands for more."""
    return rows.order_by()[: cap + 1].count()


def capped_text(count: int, cap: int = CAP) -> str:
    return f"{cap:,}+".replace(",", " ") if count > cap else f"{count:,}".replace(",", " ")


class CappedPaginator(_Pages):
    """Pages over the first 10 000 rows; whoever looks for more narrows the filters."""

    @cached_property
    def count(self) -> int:
        return min(self._seen, CAP)

    @property
    def is_capped(self) -> bool:
        return self._seen > CAP

    @property
    def count_text(self) -> str:
        return capped_text(self._seen)

    @cached_property
    def _seen(self) -> int:
        return capped_count(self.object_list)  # type: ignore[arg-type]  # the admin gives querysets
