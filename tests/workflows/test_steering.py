"""Pauses and control failures, and the flag that each block sets on the run's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mesh import settlement as reports
from mesh.models import AuditEntry, Role, State, Workload
from tests.mesh import checks
from workflows import blocks, cancellation, steering
from workflows.models import ControlFailure, UserPause

from . import rows
from .acting import Case, refused, unchanged

pytestmark = pytest.mark.django_db

Act = Callable[..., Any]


def _pause(case: Case) -> None:
    steering.pause(**case.asked, reason="wait")


def _resume(case: Case) -> None:
    steering.resume(**case.asked, reason="go on")


def _fail(case: Case) -> None:
    case.fail(message="it is broken")


def _clear(case: Case) -> None:
    steering.clear(**case.asked, reason="mended")


def _cancel(case: Case) -> None:
    cancellation.request(**case.asked)


def _bar(case: Case) -> None:
    run = case.run
    blocks.open_barrier(run, owner=case.owner, by="system:test", reason="")


def _finish(case: Case) -> None:
    """As the end of the recovery does, with work that is not settled."""
    run = case.run
    barrier = run.recoverybarrier_rows.get()
    blocks.end(barrier, by="system:test", at=blocks.moment(run))
    blocks.obey(run)


BLOCKS: dict[str, tuple[Callable[[Case], None], Callable[[Case], None] | None]] = {
    "pause": (_pause, _resume),
    "control failure": (_fail, _clear),
    "barrier": (_bar, _finish),
    "cancellation": (_cancel, None),
}


# --- What a block does to the work ----------------------------------------------------------------


@pytest.mark.parametrize("kind", BLOCKS)
def test_work_that_was_claimed_before_a_block_does_not_start_under_it(kind: str) -> None:
    """Hazard: claim, block, start."""
    begin, end = BLOCKS[kind]
    case = Case([rows.step(f"s{n}") for n in range(2)])
    case.admit("s0")
    claim = case.claim()
    case.admit("s1")
    begin(case)
    with checks.refused("MESH_RUN_BLOCKED"):
        case.worker.start(claim)
    assert case.worker.claim() == []
    reports.release(**case.worker.presenting(claim))
    assert case.worker.claim() == []
    if end is not None:
        end(case)
        assert len(case.worker.claim(5)) == 2


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_holds_all_unsettled_work_whatever_its_state_and_its_end_lets_go(
    kind: str,
) -> None:
    begin, end = BLOCKS[kind]
    hold = rows.step("held", effect="mutating")
    case = Case([rows.step(each) for each in ("dead", "running", "ready")] + [hold])
    bystander = case.world.workload(definition_id="other", capability_snapshot=["other"])
    attempts = [case.admit("dead")]
    case.worker.fail(case.start())
    attempts.append(case.admit("held"))
    case.start()
    case.lose(attempts[-1])
    attempts.append(case.admit("running"))
    case.start()
    attempts.append(case.admit("ready"))
    works = Workload.objects.filter(pk__in=[each.workload_id for each in attempts])
    assert {each.state for each in works} == {"DEAD_LETTER", "HELD", "RUNNING", "READY"}
    begin(case)
    assert all(each.held for each in works.all())
    assert not Workload.objects.get(pk=bystander.pk).held
    if end is not None:
        end(case)
        assert not any(each.held for each in works.all())
        assert works.get(state=State.READY).claimable


def test_work_is_let_go_when_the_last_block_ends() -> None:
    case = Case()
    attempt = case.admit()
    for begin in (_pause, _fail, _bar):
        begin(case)
    for end in (_resume, _clear):
        end(case)
        assert case.work(attempt).held
    _finish(case)
    assert case.claim().workload_id == attempt.workload.workload_id


def test_resuming_lifts_neither_cancellation_nor_failure() -> None:
    case = Case()
    for begin in (_pause, _fail, _cancel):
        begin(case)
    _resume(case)
    standing = blocks.standing(case.row.pk)
    assert (standing.user_paused, standing.recovery) == (None, None)
    assert standing.cancelled is not None
    assert standing.control_failure is not None


@pytest.mark.parametrize("act", [_pause, _fail, _cancel])
def test_a_block_takes_as_many_statements_for_much_work_as_for_little(
    act: Callable[[Case], None],
) -> None:
    counts = []
    for size in (1, 6):
        case = Case([rows.step(f"s{n}") for n in range(size)])
        for n in range(size):
            case.admit(f"s{n}")
        with checks.counted() as queries:
            act(case)
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 25


# --- Each by itself -------------------------------------------------------------------------------


def test_a_pause_and_its_end_are_kept_with_their_reasons() -> None:
    case = Case()
    _pause(case)
    _resume(case)
    row = UserPause.objects.get()
    assert (row.reason, row.end_reason, row.ended_by) == ("wait", "go on", "service:ops")
    assert row.ended_at is not None
    assert case.events() == ["paused", "resumed"]
    actions = AuditEntry.objects.filter(target=case.row.run_id).order_by("pk")
    assert [each.action for each in actions] == ["run.paused", "run.resumed"]


@pytest.mark.parametrize("acts", [(_pause, _pause), (_fail, _fail), (_resume,), (_clear,)])
def test_what_stands_or_ended_already_is_not_changed(
    acts: tuple[Callable[[Case], None], ...],
) -> None:
    case = Case()
    case.admit()
    for act in acts[:-1]:
        act(case)
    with unchanged():
        acts[-1](case)


def test_a_run_is_paused_anew_after_it_was_resumed() -> None:
    case = Case()
    for act in (_pause, _resume, _pause):
        act(case)
    assert UserPause.objects.count() == 2
    assert blocks.standing(case.row.pk).user_paused is not None


def test_the_first_failure_stays_until_it_is_cleared() -> None:
    case = Case()
    case.fail("first", "the disk is full", "one")
    with unchanged():
        case.fail("second", "something else")
    failure = ControlFailure.objects.get()
    assert (failure.code, failure.reason, failure.step) == ("first", "the disk is full", "one")
    _clear(case)
    case.fail("second")
    assert [each.code for each in ControlFailure.objects.order_by("pk")] == ["first", "second"]
    assert case.events() == [
        "control_failure_set",
        "control_failure_cleared",
        "control_failure_set",
    ]


def test_a_rule_sets_a_failure_once() -> None:
    case = Case()
    said: dict[str, Any] = {
        "code": steering.DEADLINE_ELAPSED,
        "message": "",
        "step": "",
        "by": "system:test",
    }
    assert steering.set_failure(case.run, **said)
    assert not steering.set_failure(case.run, **said)
    assert ControlFailure.objects.get().by == "system:test"


FAIL: dict[str, Any] = {"code": "broken", "message": ""}


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (steering.pause, {"reason": "r"}),
        (steering.resume, {"reason": "r"}),
        (steering.clear, {"reason": "r"}),
        (steering.fail, FAIL),
    ],
)
def test_of_two_faults_the_earlier_is_told(act: Act, said: dict[str, Any]) -> None:
    """Each row has a fault more than the next."""
    case = Case()
    case.succeed()
    case.terminalize()
    wrong = {"reason": " "} if "reason" in said else {"code": "no code!"}
    viewer = {"caller": case.world.caller(Role.VIEWER)}
    stale = {"authority": case.other()}
    unknown = {"run_id": "no-such-run"}
    asked = {**case.owned, **said}
    with refused("PERMISSION_DENIED"):
        act(**{**asked, **stale, **unknown, **wrong, **viewer})
    with refused("ADMISSION_INVALID"):
        act(**{**asked, **stale, **unknown, **wrong})
    with refused("RUN_NOT_FOUND"):
        act(**{**asked, **stale, **unknown})
    with refused("AUTHORITY_STALE"):
        act(**{**asked, **stale})
    with refused("RUN_TERMINAL"):
        act(**asked)


def test_a_failure_names_a_step_of_the_run() -> None:
    case = Case()
    with refused("ADMISSION_INVALID"):
        case.fail(step="no-such-step")


@pytest.mark.parametrize("text", ["-----BEGIN PRIVATE KEY-----\nabc", "x" * 4_001])
def test_a_reason_holds_no_secret_and_is_bounded(text: str) -> None:
    case = Case()
    code = "ADMISSION_INVALID" if len(text) > 4_000 else "WORKLOAD_SECRET_REJECTED"
    with refused(code):
        steering.pause(**case.asked, reason=text)
    with refused(code):
        case.fail(message=text)
