"""After a restore: nothing new starts in an open run before what was under way is explained."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import invariants
from mesh import restore as mesh_restore
from mesh.models import State
from tests.factories import World
from workflows import authority, blocks, ending, restore
from workflows.models import RecoveryBarrier

from . import rows
from .acting import NOT_STARTED, Case, refused

pytestmark = pytest.mark.django_db


def after_restore() -> dict[str, Any]:
    done = mesh_restore.after_restore(actor="system:after_restore").shown()
    assert invariants.broken() == {}
    return done


def test_a_barrier_of_its_authority_stands_on_every_open_run() -> None:
    case = Case()
    ended = Case(world=case.world)
    ended.succeed()
    ended.terminalize()
    assert after_restore()["runs_barred"] == 1
    barrier = RecoveryBarrier.objects.get()
    assert (barrier.run_id, barrier.instance_id) == (case.row.pk, case.owner.instance_id)
    assert (barrier.by, barrier.reason) == ("system:after_restore", "the database was restored")
    assert case.events() == ["barrier_opened"]
    case.finish()
    assert blocks.standing(case.row.pk).recovery is None


def test_the_barrier_of_an_ownerless_run_belongs_to_the_first_that_claims_it() -> None:
    world = World()
    run = rows.make_run(world)
    after_restore()
    assert RecoveryBarrier.objects.get().instance_id is None
    owner = rows.authority()
    authority.claim(caller=world.operator, run_id=run.run_id, authority=owner)
    assert RecoveryBarrier.objects.get().instance_id == owner.instance_id
    assert invariants.broken() == {}


def test_lost_work_is_held_before_it_is_offered_again() -> None:
    case = Case([rows.step("one", delivery={"max_attempts": 3, "initial_delay_ms": 0})])
    attempt = case.admit()
    case.start()
    after_restore()
    work = case.work(attempt)
    assert (work.state, work.held, work.claimable) == (State.READY, True, False)
    with refused("WORK_OUTSTANDING"):
        case.finish()


def test_a_repeat_leaves_barriers_as_they_are_and_ended_ones_are_opened_anew() -> None:
    case = Case()
    after_restore()
    before = RecoveryBarrier.objects.values().get()
    assert after_restore()["runs_barred"] == 1
    assert RecoveryBarrier.objects.values().get() == before
    case.finish()
    after_restore()
    assert RecoveryBarrier.objects.count() == 2


def test_pages_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "PAGE", 2)
    world = World()
    for _ in range(5):
        rows.make_run(world)
    assert restore.bar_open_runs("system:test") == 5
    assert RecoveryBarrier.objects.count() == 5


def test_a_barred_run_does_not_end_before_its_recovery_is_finished() -> None:
    case = Case()
    attempt = case.admit()
    after_restore()
    case.settle(attempt, NOT_STARTED)
    case.fail()
    with refused("RECOVERY_PENDING"):
        ending.terminalize(**case.owned)
    case.finish()
    assert case.terminalize().status == "FAILED"
