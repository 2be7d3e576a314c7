"""Held work ends once, whoever speaks first; a locked workload holds up no other report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mesh import recovery, reports, resolutions, settlement, starts
from mesh.dockets import Judged
from mesh.models import LateReport, Result, State
from mesh.reports import Report
from mesh.starts import Start
from tests.factories import Held, Member, World, expire

from .checks import assert_sound, events
from .steering import Actor, answers, at_once, codes, hold


def _done(held: Held, result_id: str = "r") -> Report:
    claim = held.claim
    return reports.complete(claim.claim_id, claim.fencing_token, result_id=result_id, output=1)


def _settle(worker: Member, *said: Report) -> Callable[[], list[Judged]]:
    return partial(settlement.settle, caller=worker.caller, worker_id=worker.worker_id, said=said)


def _told(settled: list[Judged]) -> list[str]:
    return [each.refusal.code if each.refusal else "" for each in settled]


def _complete(held: Held) -> Callable[[], Any]:
    return partial(settlement.complete, **held.presenting, result_id="r", output=1)


def _resolve(world: World, held: Held, resolution: str) -> Callable[[], Any]:
    return partial(
        resolutions.resolve,
        caller=world.operator,
        workload_id=held.workload.workload_id,
        resolution=resolution,
        reason="I looked",
    )


def test_one_locked_workload_is_busy_and_the_nine_others_are_settled(world: World) -> None:
    worker = world.worker(concurrency=10)
    works = [world.running(worker) for _ in range(10)]
    with hold(works[4].workload):
        settled = Actor(_settle(worker, *map(_done, works))).value()
        assert _told(settled) == ["STORAGE_BUSY" if n == 4 else "" for n in range(10)]
    assert worker.refresh().active == 1
    assert _told(Actor(_settle(worker, *map(_done, works))).value()) == [""] * 10
    assert worker.refresh().active == 0
    assert_sound()


def test_one_locked_workload_is_busy_and_the_nine_others_are_started(world: World) -> None:
    worker = world.worker(concurrency=10)
    works = [world.claimed(worker) for _ in range(10)]
    said = [Start(each.claim.claim_id, each.claim.fencing_token) for each in works]
    begin = partial(starts.start, caller=worker.caller, worker_id=worker.worker_id, said=said)
    with hold(works[4].workload):
        assert _told(Actor(begin).value()) == ["STORAGE_BUSY" if n == 4 else "" for n in range(10)]
    assert [each.refresh().state for each in works].count(State.RUNNING) == 9
    assert _told(Actor(begin).value()) == [""] * 10
    assert_sound()


def test_a_single_report_waits_for_the_workload_instead(world: World) -> None:
    held = world.running()
    with hold(held.workload):
        report = Actor(_complete(held))
        report.wait_until_blocked()
    assert report.value().status == "SUCCEEDED"


def test_two_reports_of_one_claim_in_a_batch_while_it_is_locked_are_both_busy(
    world: World,
) -> None:
    held = world.running()
    with hold(held.workload):
        settled = Actor(_settle(held.worker, _done(held), _done(held, "other"))).value()
    assert _told(settled) == ["STORAGE_BUSY"] * 2
    assert held.refresh().state == State.RUNNING


def test_two_batches_on_overlapping_claims_settle_each_once(world: World) -> None:
    worker = world.worker(concurrency=12)
    works = [world.running(worker) for _ in range(12)]
    one = [_done(each, "one") for each in works[:8]]
    two = [_done(each, "two") for each in reversed(works[4:])]
    first, second = at_once(_settle(worker, *one), _settle(worker, *two))
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert sorted(_told(first) + _told(second)) == [""] * 12 + ["WORKLOAD_CLAIM_INVALID"] * 4
    assert Result.objects.count() == 12
    assert worker.refresh().active == 0
    assert_sound()


def test_the_same_batch_sent_twice_at_once_is_one(world: World) -> None:
    worker = world.worker(concurrency=5)
    said = [_done(world.running(worker)) for _ in range(5)]
    ended = at_once(_settle(worker, *said), _settle(worker, *said))
    assert [_told(each) for each in answers(ended)] == [[""] * 5] * 2
    assert Result.objects.count() == 5
    assert_sound()


@pytest.mark.parametrize("resolution", ["succeeded", "failed", "cancelled", "requeue"])
@pytest.mark.parametrize("late_first", [True, False])
def test_a_late_report_against_a_person_exactly_one_wins(
    world: World, resolution: str, late_first: bool
) -> None:
    held = world.held()
    calls = [_complete(held), _resolve(world, held, resolution)]
    with hold(held.worker.row):
        first: Actor[Any] = Actor(calls[0 if late_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if late_first else 0])
        second.wait_until_blocked(by=first)
    first.value()
    late = "WORKLOAD_CLAIM_INVALID"
    assert second.code() == ("WORKLOAD_TRANSITION_DENIED" if late_first else late)
    assert LateReport.objects.count() == (0 if late_first else 1)
    ends = {"succeeded": "SUCCEEDED", "failed": "DEAD_LETTER", "cancelled": "CANCELLED"}
    expected = "SUCCEEDED" if late_first else ends.get(resolution, "READY")
    assert held.refresh().state == expected
    assert held.worker.refresh().active == 0
    assert_sound()


def test_many_people_resolve_one_work_once(world: World) -> None:
    held = world.held()
    ended = at_once(*[_resolve(world, held, "succeeded")] * 4, _complete(held))
    assert len(answers(ended)) == 1
    assert Result.objects.count() == 1
    assert_sound()


@pytest.mark.parametrize("sweep_first", [True, False])
def test_the_sweep_against_a_late_report_settles_it_either_way(
    world: World, sweep_first: bool
) -> None:
    held = world.running(lost_policy="hold")
    expire(held)
    sweep: Callable[[], Any] = partial(recovery.run, "recover_expired_leases")
    calls = [sweep, _complete(held)]
    with hold(held.worker.row):
        first: Actor[Any] = Actor(calls[0 if sweep_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if sweep_first else 0])
        second.wait_until_blocked(by=first)
    first.value()
    second.value()
    assert held.refresh().state == State.SUCCEEDED
    assert events(held.workload)[-2:] == [
        "held" if sweep_first else "started",
        "completed",
    ]
    assert held.worker.refresh().active == 0
    assert_sound()


def test_a_report_kept_as_evidence_survives_its_refusal_and_is_kept_once(world: World) -> None:
    old = world.held()
    _resolve(world, old, "requeue")()
    world.worker().claim()
    ended = at_once(*[_complete(old)] * 4)
    assert codes(ended) == ["WORKLOAD_STALE_FENCE"] * 4
    assert LateReport.objects.count() == 1
    _settle(old.worker, _done(old), _done(old, "other"))()
    assert LateReport.objects.count() == 2


@pytest.mark.parametrize("reclaim_first", [True, False])
def test_reclaim_against_a_report_ends_the_claim_once(world: World, reclaim_first: bool) -> None:
    held = world.running()
    reclaim: Callable[[], Any] = partial(
        resolutions.reclaim,
        caller=world.operator,
        workload_id=held.workload.workload_id,
        reason="it hangs",
    )
    calls = [reclaim, _complete(held)]
    with hold(held.worker.row):
        first: Actor[Any] = Actor(calls[0 if reclaim_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if reclaim_first else 0])
        second.wait_until_blocked(by=first)
    first.value()
    expected = "WORKLOAD_CLAIM_INVALID" if reclaim_first else "WORKLOAD_TRANSITION_DENIED"
    assert second.code() == expected
    assert held.worker.refresh().active == 0
    assert_sound()
