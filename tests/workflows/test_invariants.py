"""The invariants of runs hold for what the domain makes, and each is seen to break."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from mesh import clock, workloads
from mesh import invariants as mesh_invariants
from mesh.models import Attempt, Workload
from workflows import cancellation, invariants, steering
from workflows.models import (
    Access,
    Activation,
    Handoff,
    LeaseScope,
    RecoveryBarrier,
    ResourceLease,
    Run,
    RunAttempt,
    RunEvent,
    StepState,
    UserPause,
)

from . import rows
from .acting import FAILED, HOLD, NOT_STARTED, Case

pytestmark = pytest.mark.django_db


@pytest.fixture
def case() -> Case:
    """A run in the middle of things: settled, running, ready and failed steps."""
    steps = [rows.step("one"), rows.step("two"), rows.step("three", **HOLD), rows.step("four")]
    made = Case(steps)
    made.succeed("one")
    made.settle(made.admit("two"), NOT_STARTED)
    made.admit("three")
    made.start()
    made.admit("four")
    return made


@pytest.fixture
def unguarded(case: Case) -> Case:
    """The same in a database that lets rows be changed which it would protect."""
    with connection.cursor() as cursor:
        cursor.execute("set local session_replication_role = replica")
    return case


def test_nothing_is_broken_while_a_run_goes_its_way(case: Case) -> None:
    assert mesh_invariants.broken() == {}
    steering.pause(**case.asked, reason="wait")
    assert mesh_invariants.broken() == {}
    steering.resume(**case.asked, reason="go on")
    case.settle(case.row.attempts.get(activation__step="four"), NOT_STARTED)
    held = case.row.attempts.get(activation__step="three")
    case.lose(held)
    case.resolve(held, "requeue")
    case.worker.fail(case.start())
    case.settle(held, FAILED)
    assert mesh_invariants.broken() == {}
    cancellation.request(**case.asked)
    case.terminalize()
    assert mesh_invariants.broken() == {}


def test_a_claim_before_a_block_and_after_its_end_is_none_under_it() -> None:
    case = Case([rows.step("one"), rows.step("two")])
    case.admit("one")
    case.start()
    steering.pause(**case.asked, reason="wait")
    steering.resume(**case.asked, reason="go on")
    case.admit("two")
    case.start()
    assert mesh_invariants.broken() == {}


def _unsettled(case: Case) -> RunAttempt:
    return case.row.attempts.get(activation__step="three")


def _settled(case: Case) -> RunAttempt:
    return case.row.attempts.get(activation__step="one")


def _miscounted(case: Case) -> None:
    Run.objects.filter(pk=case.row.pk).update(active_attempts=1)


def _lease_of_a_settled_attempt(case: Case) -> None:
    ResourceLease.objects.create(
        run=case.row,
        attempt=_settled(case),
        application=case.row.application,
        resource="invoices",
        access=Access.READ,
        scope=LeaseScope.RUN,
        generation=1,
        acquired_at=clock.now(),
    )


def _work_of_another_key(case: Case) -> None:
    other = case.world.cancelled()
    Workload.objects.filter(pk=other.pk).update(sealed=True)
    RunAttempt.objects.filter(pk=_settled(case).pk).update(workload=other)


def _unsealed(case: Case) -> None:
    Workload.objects.filter(pk=_settled(case).workload_id).update(sealed=False)


def _let_go(case: Case) -> None:
    steering.pause(**case.asked, reason="wait")
    workloads.unhold([_unsettled(case).workload_id])


def _claim_under_a_block(case: Case) -> None:
    steering.pause(**case.asked, reason="wait")
    since = UserPause.objects.get().since
    attempts = Attempt.objects.filter(workload_id=_unsettled(case).workload_id)
    attempts.update(claimed_at=since + timedelta(microseconds=1))


def _started_twice(case: Case) -> None:
    work = case.work(_unsettled(case))
    case.lose(_unsettled(case))
    Attempt.objects.filter(workload=work).update(failure=None)
    case.resolve(_unsettled(case), "requeue")
    case.start()
    Workload.objects.filter(pk=work.pk).update(extra_attempts=0)


def _settled_twice(case: Case) -> None:
    event = case.row.events.filter(event="run.attempt_settled").latest("sequence")
    run = case.run
    RunEvent.objects.create(
        run=run,
        sequence=run.event_sequence + 1,
        event=event.event,
        actor="service:eve",
        at=event.at,
        evidence=event.evidence,
    )
    Run.objects.filter(pk=run.pk).update(event_sequence=run.event_sequence + 1)


def _skipped_generation(case: Case) -> None:
    Run.objects.filter(pk=case.row.pk).update(generation=2)


def _admitted_by_a_stale_one(case: Case) -> None:
    RunAttempt.objects.filter(pk=_unsettled(case).pk).update(generation=2)


def _settled_by_a_stale_one(case: Case) -> None:
    event = case.row.events.filter(event="run.attempt_settled").earliest("sequence")
    authority = {**event.evidence["authority"], "generation": 2}
    RunEvent.objects.filter(pk=event.pk).update(evidence={**event.evidence, "authority": authority})


def _foreign_barrier(case: Case) -> None:
    RecoveryBarrier.objects.create(
        run=case.row, since=clock.now(), by="x", instance_id="another", generation=1
    )
    workloads.hold(list(case.row.attempts.unsettled().values_list("workload_id", flat=True)))


def _step_left_behind(case: Case) -> None:
    ended = Case()
    ended.succeed()
    ended.terminalize()
    Activation.objects.filter(run=ended.row).update(state=StepState.READY)


def _gap(case: Case) -> None:
    RunEvent.objects.filter(run=case.row, sequence=1).delete()


BREAKS: dict[str, Callable[[Case], None]] = {
    "active_attempts_are_those_without_outcome": _miscounted,
    "leases_belong_to_unsettled_attempts": _lease_of_a_settled_attempt,
    "an_attempt_has_the_workload_of_its_key": _work_of_another_key,
    "settled_attempts_are_over_and_sealed": _unsealed,
    "unsettled_work_is_held_exactly_while_its_run_is_blocked": _let_go,
    "no_claim_is_issued_under_a_block": _claim_under_a_block,
    "held_work_starts_once_unless_that_was_harmless_or_a_person_asked": _started_twice,
    "a_dispatch_is_settled_at_most_once": _settled_twice,
    "generations_rise_by_one_with_each_handoff": _skipped_generation,
    "a_stale_authority_admits_nothing": _admitted_by_a_stale_one,
    "a_stale_authority_settles_nothing": _settled_by_a_stale_one,
    "a_barrier_belongs_to_the_authority": _foreign_barrier,
    "nothing_is_left_of_an_ended_run": _step_left_behind,
    "run_history_has_no_gap": _gap,
}


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert BREAKS.keys() == invariants.RULES.keys()
    assert BREAKS.keys() <= dict(mesh_invariants.every()).keys()


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_alone_is_named_with_its_rows(rule: str, unguarded: Case) -> None:
    BREAKS[rule](unguarded)
    found = mesh_invariants.broken()
    assert list(found) == [rule]
    (row, *_) = found[rule]
    assert row["run_id"].startswith("run-")


def test_a_handoff_that_is_missing_or_out_of_its_turn_is_seen(unguarded: Case) -> None:
    rule = "generations_rise_by_one_with_each_handoff"
    unguarded.hand_over()
    assert list(mesh_invariants.broken()) == [rule]
    handoff = Handoff(
        run=unguarded.row, generation=3, mode="normal", receipt_id=0, by="x", at=clock.now()
    )
    handoff.verified_at = handoff.at
    handoff.save()
    assert list(mesh_invariants.broken()) == [rule]
    Handoff.objects.update(generation=2)
    assert mesh_invariants.broken() == {}


def test_the_command_tells_them_and_fails(unguarded: Case) -> None:
    def ask() -> dict[str, object]:
        out = StringIO()
        with suppress(SystemExit, CommandError):
            call_command("check_invariants", "--json", stdout=out)
        answer: dict[str, object] = json.loads(out.getvalue())
        return answer

    assert ask()["ok"] is True
    _miscounted(unguarded)
    said = ask()
    assert (said["ok"], said["checked"]) == (False, len(list(mesh_invariants.every())))
    rule = "active_attempts_are_those_without_outcome"
    assert said["broken"] == {
        rule: [{"run_id": unguarded.row.run_id, "active_attempts": 1, "unsettled": 2}]
    }
    with pytest.raises((SystemExit, CommandError)):
        call_command("check_invariants", "--json", stdout=StringIO())
