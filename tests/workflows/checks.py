"""What the rule tests of workflows share: refusals change nothing, secrets are nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import pytest
from django.apps import apps
from django.db import connection

from mesh.errors import DomainError
from workflows.models import Run, RunEvent

# What no text may hold.
PEM: Final = "-----BEGIN PRIVATE KEY-----"


def stored() -> dict[str, list[dict[str, Any]]]:
    """Every row of workflows, to be compared before and after."""
    models = apps.get_app_config("workflows").get_models()
    return {each.__name__: list(each.objects.order_by("pk").values()) for each in models}  # type: ignore[attr-defined]


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[DomainError]]:
    """What is inside is refused with this very code, and changes nothing."""
    before = stored()
    with pytest.raises(DomainError) as caught:
        yield caught
    assert caught.value.code == code
    assert stored() == before


def events(run: Run) -> list[str]:
    """The names of a run's events without their prefix, checked to be numbered 1, 2, 3 …"""
    found = list(RunEvent.objects.filter(run=run).order_by("sequence"))
    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    return [each.event.removeprefix("run.") for each in found]


def tables_with(text: str) -> list[str]:
    """The tables of the whole database in which any column of any row holds that text."""
    with connection.cursor() as cursor:
        found = []
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'select 1 from "{table}" t where strpos(t::text, %s) > 0', [text])
            if cursor.fetchone():
                found.append(table)
    return found


def frames_with(error: BaseException, text: str) -> list[str]:
    """The product's functions in the error's tracebacks whose variables show that text."""
    found = []
    seen: BaseException | None = error
    while seen is not None:
        trace: TracebackType | None = seen.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            is_ours = (
                "/tests/" not in code.co_filename and "/site-packages/" not in code.co_filename
            )
            if is_ours and text in repr(trace.tb_frame.f_locals):
                found.append(f"{code.co_filename}:{code.co_name}")
            trace = trace.tb_next
        seen = seen.__cause__ or seen.__context__
    return found
