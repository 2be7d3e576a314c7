"""Handoffs: authority moves once, on evidence, from exactly who has it; the order of refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from mesh.errors import DomainError
from mesh.models import AuditEntry, State
from mesh.tenancy import Caller
from tests.factories import Member, World
from tests.mesh.checks import MICRO, Clock, ms
from workflows import authority as authorities
from workflows import blocks, handoffs, locking
from workflows.authority import Authority
from workflows.handoffs import HandedOver
from workflows.models import (
    Handoff,
    HandoffMode,
    Receipt,
    RecoveryBarrier,
    Run,
    RunStatus,
)

from . import resolvers, rows
from .checks import events, frames_with, refused, tables_with

AGE = ms(60_000)
NORMAL, RECOVERY = HandoffMode.NORMAL, HandoffMode.RECOVERY
STEPS = [rows.step("one"), rows.step("two")]


@pytest.fixture(autouse=True)
def evidence(clock: Clock, settings: Settings) -> None:
    """Somebody who knows that every old owner has stopped."""
    settings.EVIDENCE_RESOLVERS = ["tests.workflows.resolvers.Outside"]
    resolvers.asked.clear()
    resolvers.Outside.says = staticmethod(resolvers.confirmed(host="gone"))


@pytest.fixture
def old() -> Authority:
    return rows.authority("old")


@pytest.fixture
def new() -> Authority:
    return rows.authority("new", 2)


@pytest.fixture
def run(world: World, old: Authority) -> Run:
    return rows.make_run(world, STEPS, owner=old)


def hand_over(
    world: World, run: Run, old: Authority, new: Authority, mode: HandoffMode = NORMAL
) -> HandedOver:
    return handoffs.hand_over(
        caller=world.operator, run_id=run.run_id, mode=mode, expected=old, replacement=new
    )


def current(run: Run) -> Authority | None:
    return Authority.of(Run.objects.get(pk=run.pk))


# --- What it does --------------------------------------------------------------------------------


def test_authority_moves_and_all_of_it_is_kept(
    world: World, run: Run, old: Authority, new: Authority, clock: Clock
) -> None:
    resolvers.Outside.says = staticmethod(resolvers.confirmed(ms(5), host="gone"))
    done = hand_over(world, run, old, new)
    assert (done.created, current(run)) == (True, new.without_token())
    authorities.require_current(Run.objects.get(pk=run.pk), new)
    handoff = Handoff.objects.get(run=run)
    assert (handoff.generation, handoff.mode, handoff.by) == (2, "normal", "service:ops")
    assert (handoff.at, handoff.verified_at) == (clock.at, clock.at - ms(5))
    receipt = Receipt.objects.get()
    assert handoff.receipt == receipt
    assert (receipt.resolver, receipt.saw, receipt.at) == (
        "outside",
        {"host": "gone"},
        clock.at - ms(5),
    )
    shown = {"mode": "normal", "expected": old.public(), "replacement": new.public()}
    assert receipt.transition == shown
    assert events(run) == ["handed_over"]
    noted = AuditEntry.objects.get(action="run.handed_over")
    assert noted.evidence == {**shown, "receipt_id": receipt.receipt_id}


def test_who_had_it_is_stale_from_then_on(
    world: World, run: Run, old: Authority, new: Authority
) -> None:
    hand_over(world, run, old, new)
    with refused("AUTHORITY_STALE"):
        authorities.claim(caller=world.operator, run_id=run.run_id, authority=old)
    handed = Run.objects.get(pk=run.pk)
    with refused("AUTHORITY_STALE"):
        authorities.require_current(handed, old)


def test_a_normal_one_opens_no_barrier_and_wakes_the_coordinator(
    world: World,
    run: Run,
    old: Authority,
    new: Authority,
    django_capture_on_commit_callbacks: Any,
) -> None:
    with django_capture_on_commit_callbacks() as after:
        hand_over(world, run, old, new)
    assert len(after) == 1
    assert not RecoveryBarrier.objects.exists()


def test_who_drives_the_run_stays_as_it_was(world: World, old: Authority, new: Authority) -> None:
    for kind in ("builtin", "external"):
        run = rows.make_run(world, owner=old, coordinator=kind)
        assert hand_over(world, run, old, new).run.coordinator == kind


def test_the_old_token_is_compared_where_it_is_given(
    world: World, run: Run, old: Authority, new: Authority
) -> None:
    with refused("AUTHORITY_STALE") as caught:
        hand_over(world, run, replace(old, fencing_token="other"), new)
    assert caught.value.facts == {"authority": old.public()}
    assert hand_over(world, run, old.without_token(), new).created


@pytest.mark.parametrize(
    "differing", [{"instance_id": "x"}, {"target_artifact_id": "x"}, {"generation": 2}]
)
def test_what_is_expected_must_be_current_in_all_parts(
    world: World, run: Run, old: Authority, new: Authority, differing: dict[str, Any]
) -> None:
    expected = replace(old.without_token(), **differing)
    with refused("AUTHORITY_STALE"):
        hand_over(world, run, expected, replace(new, generation=expected.generation + 1))


def test_a_run_that_nobody_has_is_not_handed_over(
    world: World, old: Authority, new: Authority
) -> None:
    run = rows.make_run(world)
    with refused("AUTHORITY_STALE"):
        hand_over(world, run, old, new)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"generation": 0}, {"generation": 1}),
        ({}, {"generation": 1}),
        ({}, {"generation": 3}),
        ({}, {"instance_id": "old"}),
    ],
)
def test_a_step_that_is_none_is_refused(
    world: World,
    run: Run,
    old: Authority,
    new: Authority,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    with refused("TRANSITION_INVALID"):
        hand_over(world, run, replace(old, **before), replace(new, **after))


def test_the_old_token_is_not_taken_over_whether_it_is_given_or_not(
    world: World, run: Run, old: Authority, new: Authority
) -> None:
    same = replace(new, fencing_token=old.fencing_token)
    for expected in (old, old.without_token()):
        with refused("TRANSITION_INVALID"):
            hand_over(world, run, expected, same)
    with refused("ADMISSION_INVALID"):
        hand_over(world, run, old, new.without_token())


def test_the_artifact_may_stay_or_change(world: World, old: Authority, new: Authority) -> None:
    for artifact in (old.target_artifact_id, "coordinator:2.0"):
        run = rows.make_run(world, owner=old)
        assert hand_over(world, run, old, replace(new, target_artifact_id=artifact)).created


def test_it_is_never_a_part_of_another_transaction(
    world: World, run: Run, old: Authority, new: Authority
) -> None:
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        hand_over(world, run, old, new)


# --- Repeats -------------------------------------------------------------------------------------


def test_a_repeat_gets_the_stored_one_also_after_many_later_ones(
    world: World, run: Run, old: Authority
) -> None:
    chain = [old, *(rows.authority(f"i{n}", n) for n in range(2, 7))]
    for before, after in pairwise(chain):
        assert hand_over(world, run, before, after).created
    asked = len(resolvers.asked)
    resolvers.Outside.says = staticmethod(resolvers.unknown)
    for before, after in pairwise(chain):
        again = hand_over(world, run, before, after)
        assert (again.created, again.handoff.generation) == (False, after.generation)
        assert Authority.of(again.run) == chain[-1].without_token()
    assert len(resolvers.asked) == asked
    assert events(run) == ["handed_over"] * 5
    Run.objects.filter(pk=run.pk).update(status=RunStatus.COMPLETED, ended_at=run.created_at)
    assert not hand_over(world, run, chain[0], chain[1]).created


@pytest.mark.parametrize(
    ("mode", "before", "after"),
    [
        (RECOVERY, {}, {}),
        (NORMAL, {"instance_id": "other"}, {}),
        (NORMAL, {"target_artifact_id": "other"}, {}),
        (NORMAL, {}, {"instance_id": "other"}),
        (NORMAL, {}, {"target_artifact_id": "other"}),
        (NORMAL, {}, {"fencing_token": "other"}),
    ],
)
def test_another_hand_over_to_the_same_generation_conflicts(
    world: World,
    run: Run,
    old: Authority,
    new: Authority,
    mode: HandoffMode,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    hand_over(world, run, old, new)
    with refused("HANDOFF_CONFLICT"):
        hand_over(world, run, replace(old, **before), replace(new, **after), mode)
    if not after.get("fencing_token"):
        hand_over(world, run, new, rows.authority("third", 3))
        with refused("HANDOFF_CONFLICT"):
            hand_over(world, run, replace(old, **before), replace(new, **after), mode)


# --- Evidence ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "code"),
    [
        (resolvers.unknown, "EVIDENCE_UNKNOWN"),
        (resolvers.other, "EVIDENCE_MISMATCH"),
        (resolvers.confirmed(AGE + MICRO), "EVIDENCE_EXPIRED"),
    ],
)
def test_without_evidence_nothing_moves(
    says: Callable[[], object],
    code: str,
    world: World,
    run: Run,
    old: Authority,
    new: Authority,
) -> None:
    resolvers.Outside.says = staticmethod(says)
    for mode in HandoffMode:
        with refused(code):
            hand_over(world, run, old, new, mode)


def test_evidence_that_grows_too_old_while_the_run_was_locked_is_expired(
    world: World,
    run: Run,
    old: Authority,
    new: Authority,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolvers.Outside.says = staticmethod(resolvers.confirmed(AGE))
    original = locking.lock_run

    def lock_late(caller: Caller, run_id: str) -> Run:
        clock.pass_(MICRO)
        return original(caller, run_id)

    monkeypatch.setattr(locking, "lock_run", lock_late)
    with refused("EVIDENCE_EXPIRED"):
        hand_over(world, run, old, new)


# --- Recovery ------------------------------------------------------------------------------------


def claimed(world: World, run: Run) -> tuple[Member, list[Any]]:
    """Both steps' work with a worker: the first one started."""
    rows.make_attempt(world, run, "one")
    rows.make_attempt(world, run, "two")
    worker = world.worker()
    claims = worker.claim(2)
    worker.start(claims[0])
    return worker, claims


def test_recovery_stops_what_did_not_start_and_lets_the_rest_report(
    world: World, run: Run, old: Authority, new: Authority
) -> None:
    worker, (started, waiting) = claimed(world, run)
    lost = rows.make_run(world, owner=old)
    ready = rows.make_attempt(world, lost).workload
    for each in (run, lost):
        hand_over(world, each, old, new, RECOVERY)
    with pytest.raises(DomainError, match="MESH_RUN_BLOCKED"):
        worker.start(waiting)
    assert worker.beat(started.claim_id, waiting.claim_id).fenced_claims == []
    worker.complete(started)
    assert run.attempts.filter(workload__state=State.SUCCEEDED).count() == 1
    assert worker.claim() == []
    ready.refresh_from_db()
    assert (ready.held, ready.claimable, ready.state) == (True, False, State.READY)


def test_recovery_opens_a_barrier_of_the_new_owner(
    world: World, run: Run, old: Authority, new: Authority, clock: Clock
) -> None:
    rows.make_attempt(world, run)
    hand_over(world, run, old, new, RECOVERY)
    barrier = RecoveryBarrier.objects.get(run=run)
    assert (barrier.instance_id, barrier.target_artifact_id, barrier.generation) == (
        "new",
        new.target_artifact_id,
        2,
    )
    assert (barrier.since, barrier.by, barrier.ended_at) == (clock.at, "service:ops", None)
    assert barrier.reason == "handed over from old"


def test_a_second_recovery_moves_the_barrier_and_keeps_since_when(
    world: World, run: Run, old: Authority, new: Authority, clock: Clock
) -> None:
    attempt = rows.make_attempt(world, run)
    hand_over(world, run, old, new, RECOVERY)
    opened = RecoveryBarrier.objects.get(run=run)
    clock.pass_(ms(5))
    hand_over(world, run, new, rows.authority("third", 3), RECOVERY)
    barrier = RecoveryBarrier.objects.get(run=run)
    assert (barrier.pk, barrier.since, barrier.reason) == (opened.pk, opened.since, opened.reason)
    assert (barrier.instance_id, barrier.generation) == ("third", 3)
    attempt.workload.refresh_from_db()
    assert attempt.workload.held


@pytest.mark.parametrize(
    "owner",
    [
        None,
        rows.authority("other"),
        rows.authority("old", 2),
        rows.authority("old", target_artifact_id="other"),
    ],
)
def test_a_barrier_of_anybody_else_stops_a_recovery(
    owner: Authority | None,
    world: World,
    run: Run,
    old: Authority,
    new: Authority,
    clock: Clock,
) -> None:
    blocks.open_barrier(run, owner=owner, by="x", reason="")
    with refused("BARRIER_FOREIGN"):
        hand_over(world, run, old, new, RECOVERY)


def test_a_barrier_that_stands_stays_with_its_owner_when_nobody_takes_it(
    run: Run, old: Authority, clock: Clock
) -> None:
    blocks.open_barrier(run, owner=old, by="x", reason="first")
    again = blocks.open_barrier(run, owner=None, by="y", reason="restored")
    assert (again.instance_id, again.reason) == ("old", "first")


# --- Secrets -------------------------------------------------------------------------------------


def test_no_token_is_anywhere_after_any_of_it(
    world: World, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = [f"s3cret-{n}-token" for n in range(4)]
    chain = [rows.authority(f"i{n}", n + 1, fencing_token=secrets[n]) for n in range(4)]
    run = rows.make_run(world, STEPS)
    with CaptureQueriesContext(connection) as queries:
        authorities.claim(caller=world.operator, run_id=run.run_id, authority=chain[0])
        told: list[object] = []
        rows.make_attempt(world, Run.objects.get(pk=run.pk), "one")
        for before, after in pairwise(chain):
            for _ in range(2):
                done = hand_over(world, run, before, after, RECOVERY)
                told += [done, vars(done.handoff), vars(done.run), vars(done.handoff.receipt)]
        for bad in (replace(chain[1], instance_id="x"), replace(chain[2], generation=9)):
            with pytest.raises(DomainError) as caught:
                hand_over(world, run, chain[0], bad, NORMAL)
            told += [caught.value, caught.value.facts]
            assert not any(frames_with(caught.value, each) for each in secrets)
    sent = " ".join(each["sql"] for each in queries.captured_queries)
    for secret in secrets:
        assert secret not in repr(told) + caplog.text + sent
        assert tables_with(secret) == []
