"""The end of a recovery: once nothing from before is open, and by the barrier's owner alone."""

from __future__ import annotations

import pytest

from mesh.models import Role
from workflows import blocks, recovery
from workflows.models import RecoveryBarrier

from . import rows
from .acting import NOT_STARTED, SUCCEEDED, Case, refused, unchanged

pytestmark = pytest.mark.django_db


def barred(case: Case, **owner: object) -> RecoveryBarrier:
    run = case.run
    barrier = blocks.open_barrier(run, owner=case.owner, by="system:test", reason="")
    RecoveryBarrier.objects.filter(pk=barrier.pk).update(**owner)
    return barrier


def test_recovery_is_finished_once_all_is_settled() -> None:
    case = Case([rows.step("one"), rows.step("two")])
    running = case.admit("one")
    claim = case.start()
    ready = case.admit("two")
    barrier = barred(case)
    with refused("WORK_OUTSTANDING"):
        case.finish()
    case.settle(ready, NOT_STARTED)
    case.worker.complete(claim)
    with refused("WORK_OUTSTANDING"):
        case.finish()
    case.settle(running, SUCCEEDED)
    case.finish()
    barrier.refresh_from_db()
    assert (barrier.ended_by, barrier.ended_at is not None) == ("service:ops", True)
    assert case.events()[-1] == "recovery_finished"
    again = case.admit("two")
    assert case.claim().workload_id == again.workload.workload_id


def test_finishing_again_or_without_a_barrier_changes_nothing() -> None:
    case = Case()
    with unchanged():
        case.finish()
    barred(case)
    case.finish()
    with unchanged():
        case.finish()


def test_without_a_barrier_it_is_finished_although_work_is_under_way() -> None:
    case = Case()
    case.admit()
    with unchanged():
        case.finish()


@pytest.mark.parametrize(
    "owner",
    [
        {"instance_id": "another"},
        {"generation": 7},
        {"target_artifact_id": "another:1"},
        {"instance_id": None, "target_artifact_id": None, "generation": None},
    ],
)
def test_a_barrier_of_somebody_else_is_told_before_what_is_outstanding(
    owner: dict[str, object],
) -> None:
    case = Case()
    case.admit()
    barred(case, **owner)
    with refused("BARRIER_FOREIGN"):
        case.finish()


def test_of_two_faults_the_earlier_is_told() -> None:
    case = Case()
    barred(case, instance_id="another")
    viewer = {"caller": case.world.caller(Role.VIEWER)}
    with refused("PERMISSION_DENIED"):
        recovery.finish(**{**case.owned, **viewer, "run_id": "no-such-run"})
    with refused("RUN_NOT_FOUND"):
        recovery.finish(**{**case.owned, "run_id": "x", "authority": case.other()})
    with refused("AUTHORITY_STALE"):
        recovery.finish(**case.asked, authority=case.other())


def test_only_the_token_of_the_authority_counts() -> None:
    case = Case()
    barred(case)
    forged = rows.authority(
        case.owner.instance_id, target_artifact_id=case.owner.target_artifact_id
    )
    with refused("AUTHORITY_STALE"):
        recovery.finish(**case.asked, authority=forged)
