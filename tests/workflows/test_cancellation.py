"""Cancellation: a run is to end; the first request stays, and nothing is claimed undone."""

from __future__ import annotations

from typing import Any

import pytest

from mesh.models import AuditEntry, Role, State
from tests.factories import World
from workflows import cancellation, settlement
from workflows.models import CancellationRequest

from .acting import NOT_STARTED, SUCCEEDED, Case, refused, unchanged

pytestmark = pytest.mark.django_db


def test_a_request_says_since_when_by_whom_and_why() -> None:
    case = Case()
    run = cancellation.request(**case.asked, reason="wrong input")
    row = CancellationRequest.objects.get(run=run)
    assert (row.by, row.reason, row.ended_at) == ("service:ops", "wrong input", None)
    assert case.events() == ["cancellation_requested"]
    assert AuditEntry.objects.get(action="run.cancellation_requested").target == run.run_id
    assert run.is_open


def test_the_first_request_stays() -> None:
    case = Case()
    cancellation.request(**case.asked, reason="first")
    with unchanged():
        cancellation.request(**case.owned, reason="second")
    assert CancellationRequest.objects.get().reason == "first"


def test_no_reason_is_needed_and_an_authority_is_checked_where_it_is_given() -> None:
    case = Case()
    with refused("AUTHORITY_STALE"):
        cancellation.request(**case.asked, authority=case.other())
    cancellation.request(**case.owned)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"caller": Role.VIEWER, "reason": "x" * 4_001}, "PERMISSION_DENIED"),
        ({"reason": "x" * 4_001, "run_id": "no-such-run"}, "ADMISSION_INVALID"),
        ({"run_id": "no-such-run", "authority": None}, "RUN_NOT_FOUND"),
    ],
)
def test_of_two_faults_the_earlier_is_told(said: dict[str, Any], code: str) -> None:
    case = Case()
    asked = {**case.asked, **said}
    if isinstance(asked["caller"], Role):
        asked["caller"] = case.world.caller(asked["caller"])
    with refused(code):
        cancellation.request(**asked)


def test_a_stale_authority_is_told_before_the_end_and_the_end_also_to_a_repeat() -> None:
    case = Case()
    cancellation.request(**case.owned)
    case.terminalize()
    with refused("AUTHORITY_STALE"):
        cancellation.request(**case.asked, authority=case.other())
    with refused("RUN_TERMINAL"):
        cancellation.request(**case.owned)


def test_another_tenant_has_no_such_run() -> None:
    case = Case()
    with refused("RUN_NOT_FOUND"):
        cancellation.request(caller=World().operator, run_id=case.row.run_id)


def test_what_was_not_claimed_never_started() -> None:
    case = Case()
    attempt = case.admit()
    cancellation.request(**case.asked)
    assert case.worker.claim() == []
    assert settlement.outcome_of(attempt) == NOT_STARTED
    case.settle(attempt, NOT_STARTED)
    assert case.work(attempt).state == State.CANCELLED
    assert case.terminalize().status == "CANCELLED"


def test_what_runs_goes_on_and_may_succeed_and_the_run_is_cancelled_all_the_same() -> None:
    case = Case()
    attempt = case.admit()
    claim = case.start()
    cancellation.request(**case.asked)
    case.worker.complete(claim)
    assert case.settle(attempt, SUCCEEDED).outcome == "succeeded"
    assert case.terminalize().status == "CANCELLED"
    assert case.states() == {"one": "SUCCEEDED"}
