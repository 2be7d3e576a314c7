"""How PostgreSQL would run the statements that a piece of the product sends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

_STATEMENT = re.compile(r"\s*(--|select|with|update|insert|delete)", re.IGNORECASE)


@contextmanager
def explained(*, each: int | None = None) -> Iterator[list[str]]:
    """The plan of each statement that runs inside; with `each` of its first so many runs."""
    plans: list[str] = []
    runs: Counter[str] = Counter()

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        runs[sql] += 1
        if _STATEMENT.match(sql) and (each is None or runs[sql] <= each):
            execute("explain " + sql, params, many, context)
            plans.append("\n".join(row[0] for row in context["cursor"].fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield plans


def whole_reads(
    plans: list[str], tables: Collection[str], *, unless_cut_short: bool = False
) -> list[str]:
    """The plans that read one of these tables from end to end.

    With `unless_cut_short` those are left out that PostgreSQL expects to end early, at a limit: it
    prices the whole plan below the reading of the table.
    """
    whole = re.compile(rf"Seq Scan on ({'|'.join(tables)})\b.*?\.\.([0-9.]+) rows")
    found = []
    for plan in plans:
        costs = [float(each[2]) for each in whole.finditer(plan)]
        if costs and not (unless_cut_short and cost(plan) < max(costs)):
            found.append(plan)
    return found


def cost(plan: str) -> float:
    """What PostgreSQL prices the whole plan at, in its own units."""
    return float(plan.split("..", 1)[1].split(" ", 1)[0])
