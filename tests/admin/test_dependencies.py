"""What work waits for and what waits for it, as its page tells it; and bringing both back."""

from __future__ import annotations

import pytest
from django.test import Client

from mesh.dependencies import FAILED, failure
from mesh.models import Application, Dependency, State, Tenant, Workload

from . import rows
from .test_access import change_url
from .test_acts import do, url
from .test_pages import text_of


@pytest.fixture
def application(tenant: Tenant) -> Application:
    return rows.application(tenant)


def tied(application: Application, state: State) -> tuple[Workload, Workload]:
    """Work in that state, and what waits for it or was buried by its end."""
    other = rows.workload(application, state)
    is_open = state == State.READY
    waiting = rows.workload(
        application,
        State.READY if is_open else State.DEAD_LETTER,
        open_dependencies=int(is_open),
        claimable=False,
        last_failure=None if is_open else failure(other.workload_id),
    )
    Dependency.objects.create(workload=waiting, depends_on=other, is_open=is_open)
    return other, waiting


def test_the_page_names_what_it_waits_for_and_what_waits_for_it(
    operator: Client, application: Application
) -> None:
    other, waiting = tied(application, State.READY)
    before, after = text_of(operator, waiting), text_of(operator, other)
    assert "Waits for 1 other piece of work to end" in before
    assert change_url(other) in before
    assert "Waited for by" in after
    assert change_url(waiting) in after
    assert "Waited for by" not in before


def test_a_retry_offers_to_bring_back_what_its_end_buried(
    operator: Client, application: Application
) -> None:
    other, waiting = tied(application, State.DEAD_LETTER)
    form = operator.get(url("workload", "retry"), {"id": other.pk})
    assert "What waited for it too" in form.content.decode()
    do(operator, "retry", other, extra_attempts=1, dependents="on")
    waiting.refresh_from_db()
    assert (waiting.state, waiting.open_dependencies) == (State.READY, 1)


def test_a_retry_leaves_them_if_that_is_not_asked_for(
    operator: Client, application: Application
) -> None:
    other, waiting = tied(application, State.DEAD_LETTER)
    do(operator, "retry", other, extra_attempts=1)
    waiting.refresh_from_db()
    assert (waiting.last_failure or {})["kind"] == FAILED
