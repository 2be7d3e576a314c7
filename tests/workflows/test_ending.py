"""Ending: a run ends once, when nothing is under way, and as what happened says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mesh import clock
from mesh.models import Role
from workflows import blocks, cancellation, ending, steering
from workflows.models import LeaseScope, RefusedWriter, UserPause

from . import checks, rows
from .acting import FAILED, NOT_STARTED, Case, refused, unchanged

pytestmark = pytest.mark.django_db

CHAIN = [rows.step("one"), rows.step("two", needs=["one"])]


def bar(case: Case) -> None:
    run = case.run
    blocks.open_barrier(run, owner=case.owner, by="system:test", reason="")


def fail_step(case: Case) -> None:
    attempt = case.admit()
    case.worker.fail(case.start())
    case.settle(attempt, FAILED)


def cancel(case: Case) -> None:
    cancellation.request(**case.asked)


def break_(case: Case) -> None:
    case.fail()


def finish_steps(case: Case) -> None:
    case.succeed("one")
    case.succeed("two")


@pytest.mark.parametrize(
    ("acts", "status", "states"),
    [
        ([finish_steps], "COMPLETED", ["SUCCEEDED", "SUCCEEDED"]),
        ([fail_step], "FAILED", ["FAILED", "SKIPPED"]),
        ([break_], "FAILED", ["SKIPPED", "SKIPPED"]),
        ([finish_steps, break_], "FAILED", ["SUCCEEDED", "SUCCEEDED"]),
        ([cancel], "CANCELLED", ["CANCELLED", "CANCELLED"]),
        ([break_, cancel], "CANCELLED", ["CANCELLED", "CANCELLED"]),
        ([fail_step, cancel], "CANCELLED", ["FAILED", "SKIPPED"]),
        ([finish_steps, cancel], "CANCELLED", ["SUCCEEDED", "SUCCEEDED"]),
    ],
)
def test_a_run_ends_as_what_happened_says(
    acts: list[Callable[[Case], None]], status: str, states: list[str]
) -> None:
    case = Case(CHAIN)
    for act in acts:
        act(case)
    run = case.terminalize()
    assert (run.status, run.ended_at is not None) == (status, True)
    assert list(case.states().values()) == states
    assert case.events()[-1] == status.lower()
    with unchanged():
        assert case.terminalize().status == status


def test_a_run_goes_on_without_a_step_that_may_fail() -> None:
    case = Case([rows.step("one", on_failure="continue"), rows.step("two", needs=["one"])])
    fail_step(case)
    case.succeed("two")
    assert case.terminalize().status == "COMPLETED"


@pytest.mark.parametrize("begin", [[], [cancel], [break_]])
def test_nothing_ends_while_an_attempt_is_not_settled(begin: list[Callable[[Case], None]]) -> None:
    case = Case()
    attempt = case.admit()
    for act in begin:
        act(case)
    with refused("WORK_OUTSTANDING"):
        case.terminalize()
    case.settle(attempt, NOT_STARTED)
    if begin:
        case.terminalize()


def test_of_two_faults_the_earlier_is_told() -> None:
    case = Case(CHAIN)
    bar(case)
    viewer = {"caller": case.world.caller(Role.VIEWER)}
    with refused("PERMISSION_DENIED"):
        ending.terminalize(**{**case.owned, **viewer, "run_id": "no-such-run"})
    with refused("RUN_NOT_FOUND"):
        ending.terminalize(**{**case.owned, "run_id": "x", "authority": case.other()})
    with refused("AUTHORITY_STALE"):
        ending.terminalize(**case.asked, authority=case.other())
    # Steps are left, and a barrier stands.
    with refused("WORK_OUTSTANDING"):
        case.terminalize()
    break_(case)
    with refused("RECOVERY_PENDING"):
        case.terminalize()
    case.finish()
    assert case.terminalize().status == "FAILED"


def test_a_stale_authority_is_not_answered_after_the_end() -> None:
    case = Case()
    case.succeed()
    case.terminalize()
    with refused("AUTHORITY_STALE"):
        ending.terminalize(**case.asked, authority=case.other())


def test_a_run_without_an_authority_is_ended_by_nobody() -> None:
    case = Case()
    run = rows.make_run(case.world)
    with refused("AUTHORITY_STALE"):
        ending.terminalize(caller=case.world.operator, run_id=run.run_id, authority=case.owner)


def test_a_pause_and_what_a_refused_writer_asked_end_with_the_run() -> None:
    case = Case()
    case.succeed()
    steering.pause(**case.asked, reason="wait")
    at = clock.now()
    RefusedWriter.objects.create(
        run=case.row,
        application=case.row.application,
        resource="a",
        scope=LeaseScope.RUN,
        dispatch_identity="0" * 64,
        first_asked_at=at,
        asked_at=at,
    )
    case.terminalize()
    assert UserPause.objects.get().end_reason == "the run ended"
    assert not RefusedWriter.objects.exists()


def test_no_table_holds_the_token_of_an_authority_that_did_all_it_can() -> None:
    """Hazard: anyone who reads a run can act as its coordinator."""
    case = Case()
    attempt = case.admit()
    steering.pause(**case.owned, reason="wait")
    steering.resume(**case.owned, reason="go on")
    case.fail(message="broken")
    steering.clear(**case.owned, reason="mended")
    blocks.open_barrier(case.run, owner=case.owner, by="system:test", reason="")
    cancellation.request(**case.owned)
    case.settle(attempt, NOT_STARTED)
    case.finish()
    case.terminalize()
    assert checks.tables_with(str(case.owner.fencing_token)) == []


def test_a_failure_and_a_cancellation_stay_as_the_reason_of_the_end() -> None:
    case = Case()
    break_(case)
    cancel(case)
    case.terminalize()
    standing = blocks.standing(case.row.pk)
    assert standing.cancelled is not None
    assert standing.control_failure is not None
