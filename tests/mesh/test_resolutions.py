"""What a person says about work that nobody else can speak for."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import resolutions, settlement, workloads
from mesh.models import Lifecycle, Result, Role, State, Workload, WorkloadEvent
from tests.factories import Held, World, in_state
from tests.mesh.checks import AT_REST, NOON, Clock, events, ms, raises, refused

PEM = "-----BEGIN PRIVATE KEY-----"


def resolve(world: World, work: Workload, resolution: str, **members: Any) -> Workload:
    said = {"caller": world.operator, "reason": "I looked", **members}
    return resolutions.resolve(workload_id=work.workload_id, resolution=resolution, **said)


def reclaim(world: World, work: Workload, **members: Any) -> Workload:
    said = {"caller": world.operator, "reason": "it hangs", **members}
    return resolutions.reclaim(workload_id=work.workload_id, **said)


def last(work: Workload) -> WorkloadEvent:
    return WorkloadEvent.objects.filter(workload=work).latest("sequence")


# --- Resolve --------------------------------------------------------------------------------------


def test_succeeded_stores_the_result_of_the_person(world: World) -> None:
    held = world.held()
    caller = world.caller(Role.OPERATOR, "human:ann")
    work = resolve(world, held.workload, "succeeded", output={"sent": True}, caller=caller)
    stored = Result.objects.get(workload=work)
    assert (work.state, work.ended_at, held.attempt.status) == ("SUCCEEDED", NOON, "SUCCEEDED")
    assert (stored.output, stored.author) == ({"sent": True}, "human:ann")
    assert stored.result_id == f"resolution_{held.attempt.uid.hex}"
    event = last(work)
    assert (event.event, event.actor) == ("workload.resolved", "human:ann")
    assert event.evidence["reason"] == "I looked"
    assert held.attempt.failure is None


def test_failed_is_a_dead_letter_with_the_reason_as_its_message(world: World) -> None:
    held = world.held(retry_policy={"retry_on": ["resolved_failed"]})
    work = resolve(world, held.workload, "failed", reason="the letter came back")
    assert (work.state, events(work)[-2:]) == ("DEAD_LETTER", ["failed", "dead_lettered"])
    assert work.last_failure == {"kind": "resolved_failed", "error": "the letter came back"}
    assert held.attempt.status == "WORKER_LOST"


def test_cancelled_ends_it(world: World) -> None:
    work = resolve(world, world.held().workload, "cancelled")
    assert (work.state, events(work)[-1]) == ("CANCELLED", "cancelled")
    assert last(work).evidence == {"resolution": "cancelled", "reason": "I looked"}


def test_requeue_sends_it_back_with_one_attempt_more(world: World, clock: Clock) -> None:
    held = world.held(retry_policy={"max_attempts": 1}, timeouts={"overall_ms": 60_000})
    clock.pass_(ms(3_600_000))
    work = resolve(world, held.workload, "requeue")
    assert (work.state, work.claimable, events(work)[-1]) == ("READY", True, "resolved")
    assert (work.extra_attempts, work.overall_from) == (1, clock.at)
    assert work.deadline_at == clock.at + ms(60_000)
    assert work.has_budget


def test_work_that_was_to_be_cancelled_and_is_sent_back_is_not_cancelled_later(
    world: World, clock: Clock
) -> None:
    held = world.running(lost_policy="hold")
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    reclaim(world, held.workload)
    work = resolve(world, held.workload, "requeue")
    assert (work.state, work.cancel_requested_at) == ("READY", None)
    held.worker.beat()
    [claim] = held.worker.claim()
    held.worker.start(claim)
    held.worker.fail(claim)
    assert held.refresh().state == State.DEAD_LETTER


@pytest.mark.parametrize("resolution", ["succeeded", "failed", "cancelled", "requeue"])
@pytest.mark.parametrize("state", sorted(set(AT_REST) - {"HELD"}))
def test_only_held_work_is_resolved(world: World, state: str, resolution: str) -> None:
    work = in_state(world, state)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        resolve(world, work, resolution)


@pytest.mark.parametrize("resolution", ["succeeded", "failed", "cancelled", "requeue"])
def test_sealed_work_is_not_resolved(world: World, resolution: str) -> None:
    work = world.held().workload
    Workload.objects.filter(pk=work.pk).update(sealed=True)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        resolve(world, work, resolution)


def test_a_repeat_is_refused(world: World) -> None:
    work = world.held().workload
    resolve(world, work, "failed")
    with refused("WORKLOAD_TRANSITION_DENIED"):
        resolve(world, work, "failed")


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"output": {"token": "x"}}, "WORKLOAD_SECRET_REJECTED"),
        ({"reason": PEM}, "WORKLOAD_SECRET_REJECTED"),
        ({"reason": " "}, "WORKLOAD_INVALID"),
        ({"reason": "x" * 4_001}, "WORKLOAD_INVALID"),
        ({"output": "x" * 1024 * 1024}, "WORKLOAD_INVALID"),
        ({"resolution": "failed", "output": 1}, "REQUEST_INVALID"),
        ({"resolution": "other"}, "REQUEST_INVALID"),
    ],
)
def test_resolve_refuses_what_does_not_fit(
    world: World, members: dict[str, Any], code: str
) -> None:
    work = world.held().workload
    said = {"resolution": "succeeded", **members}
    with refused(code):
        resolve(world, work, **said)


def test_resolving_needs_an_operator_and_work_of_the_tenant(world: World) -> None:
    work = world.held().workload
    with raises("PERMISSION_DENIED"):
        resolve(world, work, "failed", caller=world.caller(Role.VIEWER))
    with raises("WORKLOAD_NOT_FOUND"):
        resolve(world, work, "failed", caller=World().operator)


# --- Reclaim --------------------------------------------------------------------------------------


def test_reclaim_ends_the_claim_at_once_as_lost_work(world: World) -> None:
    held = world.running()
    work = reclaim(world, held.workload)
    assert (work.state, held.attempt.status) == ("READY", "WORKER_LOST")
    assert events(work)[-2:] == ["recovered", "ready"]
    event = WorkloadEvent.objects.get(workload=work, event="workload.recovered")
    assert (event.evidence["cause"], event.evidence["reason"]) == ("reclaimed", "it hangs")
    assert event.actor == "service:ops"
    assert (held.worker.refresh().active, held.worker.row.lifecycle) == (0, Lifecycle.READY)
    with refused("WORKLOAD_CLAIM_INVALID"):
        settlement.complete(**held.presenting, result_id="r", output=1)


@pytest.mark.parametrize(
    ("maker", "members", "state"),
    [
        ("claimed", {"lost_policy": "hold"}, State.READY),
        ("running", {"lost_policy": "hold"}, State.HELD),
        ("running", {"retry_policy": {"max_attempts": 1}}, State.DEAD_LETTER),
        ("cancelling", {}, State.CANCELLED),
        ("cancelling", {"lost_policy": "hold"}, State.HELD),
    ],
)
def test_reclaimed_work_goes_where_lost_work_goes(
    world: World, maker: str, members: dict[str, Any], state: State
) -> None:
    held: Held = getattr(world, maker)(**members)
    assert reclaim(world, held.workload).state == state


def test_a_draining_worker_goes_offline_when_its_last_claim_is_reclaimed(world: World) -> None:
    from mesh import workers

    held = world.running()
    workers.drain(caller=world.operator, worker_id=held.worker.worker_id)
    reclaim(world, held.workload)
    assert held.worker.refresh().lifecycle == Lifecycle.OFFLINE


@pytest.mark.parametrize("state", ["READY", "HELD", "SUCCEEDED", "CANCELLED", "DEAD_LETTER"])
def test_work_that_nobody_has_is_not_reclaimed(world: World, state: str) -> None:
    work = in_state(world, state)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        reclaim(world, work)


@pytest.mark.parametrize(
    ("reason", "code"), [("", "WORKLOAD_INVALID"), (PEM, "WORKLOAD_SECRET_REJECTED")]
)
def test_reclaim_says_why(world: World, reason: str, code: str) -> None:
    held = world.running()
    with refused(code):
        reclaim(world, held.workload, reason=reason)


def test_reclaiming_needs_an_operator(world: World) -> None:
    held = world.running()
    for caller in (world.caller(Role.VIEWER), held.worker.caller):
        with raises("PERMISSION_DENIED"):
            reclaim(world, held.workload, caller=caller)
