"""Time limits of work: each by its own cause, to the microsecond, in their order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mesh import deadlines, leases, pauses, recovery, settlement, workloads
from mesh.deadlines import Enforced
from mesh.models import AttemptStatus, State, Workload, WorkloadEvent
from tests.factories import Held, World
from tests.mesh.checks import MICRO, NOON, Clock, events, ms, unchanged


def enforce(work: Workload) -> str | None:
    ended: Enforced | None = deadlines.enforce(workload_pk=work.pk, actor="system:test")
    return ended.cause if ended else None


def waiting(world: World, **members: Any) -> tuple[Workload, Held | None]:
    return world.workload(**members), None


def claimed(world: World, **members: Any) -> tuple[Workload, Held | None]:
    held = world.claimed(**members)
    return held.workload, held


def running(world: World, **members: Any) -> tuple[Workload, Held | None]:
    held = world.running(**members)
    return held.workload, held


def checkpointed(world: World, **members: Any) -> tuple[Workload, Held | None]:
    held = world.checkpointed(**members)
    return held.workload, held


def cancelling(world: World, **members: Any) -> tuple[Workload, Held | None]:
    held = world.cancelling(**members)
    return held.workload, held


Make = Callable[..., tuple[Workload, Held | None]]
CASES: list[tuple[str, Make, str, str]] = [
    ("queue_ms", waiting, "DEAD_LETTER", "timed_out dead_lettered"),
    ("overall_ms", waiting, "DEAD_LETTER", "timed_out dead_lettered"),
    ("overall_ms", claimed, "DEAD_LETTER", "timed_out dead_lettered"),
    ("overall_ms", running, "DEAD_LETTER", "timed_out dead_lettered"),
    ("overall_ms", checkpointed, "DEAD_LETTER", "timed_out dead_lettered"),
    ("overall_ms", cancelling, "CANCELLED", "cancelled"),
    ("claim_ms", claimed, "READY", "timed_out ready"),
    ("execution_ms", running, "READY", "timed_out ready"),
    ("execution_ms", checkpointed, "READY", "timed_out ready"),
    ("heartbeat_ms", running, "READY", "timed_out ready"),
    ("heartbeat_ms", checkpointed, "READY", "timed_out ready"),
]


@pytest.mark.parametrize(("timeout", "make", "after", "told"), CASES)
def test_a_timeout_passes_at_its_very_moment(
    world: World, clock: Clock, timeout: str, make: Make, after: str, told: str
) -> None:
    work, held = make(world, timeouts={timeout: 5_000})
    clock.to(NOON + ms(5_000) - MICRO)
    assert enforce(work) is None
    clock.to(NOON + ms(5_000))
    assert recovery.run("enforce_deadlines").changed == [work.workload_id]
    work.refresh_from_db()
    assert (work.state, events(work)[-len(told.split()) :]) == (after, told.split())
    if held is not None:
        cancelled = after == "CANCELLED"
        assert held.attempt.status == ("CANCELLED" if cancelled else "TIMED_OUT")
        assert (held.attempt.ended_at, held.worker.refresh().active) == (clock.at, 0)


@pytest.mark.parametrize(
    ("timeout", "make"), [each[:2] for each in CASES if each[1] is not cancelling]
)
def test_a_timeout_records_its_one_cause(
    world: World, clock: Clock, timeout: str, make: Make
) -> None:
    work, _ = make(world, timeouts={timeout: 5_000}, retry_policy={"retry_on": []})
    clock.to(NOON + ms(5_000))
    assert enforce(work) == timeout.removesuffix("_ms")
    event = WorkloadEvent.objects.get(workload=work, event="workload.timed_out")
    assert event.evidence["cause"] == timeout.removesuffix("_ms")


ORDER = ["overall", "execution", "heartbeat"]


@pytest.mark.parametrize(
    ("passed", "cause"),
    [
        (["overall", "execution", "heartbeat"], "overall"),
        (["execution", "heartbeat"], "execution"),
        (["heartbeat"], "heartbeat"),
    ],
)
def test_causes_of_running_work_are_tested_in_order(
    world: World, clock: Clock, passed: list[str], cause: str
) -> None:
    work, _ = running(world, timeouts={f"{each}_ms": 5_000 for each in passed})
    clock.to(NOON + ms(5_000))
    assert enforce(work) == cause


@pytest.mark.parametrize(
    ("make", "timeouts", "cause"),
    [
        (waiting, {"overall_ms": 5_000, "queue_ms": 5_000}, "overall"),
        (claimed, {"overall_ms": 5_000, "claim_ms": 5_000}, "overall"),
        # What does not count in the state does not pass.
        (claimed, {"queue_ms": 1, "execution_ms": 1, "heartbeat_ms": 1}, None),
        (running, {"queue_ms": 1, "claim_ms": 1}, None),
        (waiting, {"claim_ms": 1, "execution_ms": 1, "heartbeat_ms": 1}, None),
        (cancelling, {"queue_ms": 1, "claim_ms": 1, "execution_ms": 1, "heartbeat_ms": 1}, None),
    ],
)
def test_only_what_counts_in_a_state_passes(
    world: World, clock: Clock, make: Make, timeouts: dict[str, int], cause: str | None
) -> None:
    work, _ = make(world, timeouts=timeouts)
    clock.to(NOON + ms(5_000))
    assert enforce(work) == cause


@pytest.mark.parametrize("name", ["succeeded", "dead_letter"])
def test_nothing_passes_for_ended_work(world: World, clock: Clock, name: str) -> None:
    held: Held = getattr(world, name)(timeouts={"overall_ms": 5_000, "execution_ms": 5_000})
    assert held.refresh().deadline_at is None
    clock.to(NOON + timedelta(days=1))
    assert enforce(held.workload) is None
    assert recovery.run("enforce_deadlines").changed == []


def test_enforcing_again_changes_nothing(world: World, clock: Clock) -> None:
    work, _ = running(world, timeouts={"execution_ms": 5_000})
    clock.to(NOON + ms(5_000))
    enforce(work)
    with unchanged():
        assert enforce(work) is None


# --- From where they count ------------------------------------------------------------------------


def test_execution_counts_from_start(world: World, clock: Clock) -> None:
    held = world.claimed(timeouts={"execution_ms": 5_000})
    clock.pass_(ms(2_000))
    held.worker.start(held.claim)
    clock.to(NOON + ms(7_000) - MICRO)
    assert enforce(held.workload) is None
    clock.to(NOON + ms(7_000))
    assert enforce(held.workload) == "execution"


def renew(held: Held) -> Any:
    return leases.renew(**held.presenting)


def beat(held: Held) -> Any:
    return held.worker.beat(held.claim.claim_id)


def keep(held: Held) -> Any:
    return leases.checkpoint(**held.presenting, state=1)


@pytest.mark.parametrize("hear", [renew, beat, keep])
def test_heartbeat_counts_from_the_last_renewal_or_checkpoint(
    world: World, clock: Clock, hear: Callable[[Held], Any]
) -> None:
    held = world.running(timeouts={"heartbeat_ms": 5_000})
    clock.pass_(ms(4_000))
    hear(held)
    clock.to(NOON + ms(9_000) - MICRO)
    assert enforce(held.workload) is None
    clock.to(NOON + ms(9_000))
    assert enforce(held.workload) == "heartbeat"


@pytest.mark.parametrize("hear", [renew, beat, keep])
def test_being_heard_puts_off_no_execution_limit(
    world: World, clock: Clock, hear: Callable[[Held], Any]
) -> None:
    held = world.running(timeouts={"execution_ms": 5_000, "heartbeat_ms": 4_000})
    clock.pass_(ms(3_000))
    hear(held)
    clock.to(NOON + ms(5_000))
    assert recovery.run("enforce_deadlines").counts["execution"] == 1


def test_a_renewal_puts_off_no_claim_limit(world: World, clock: Clock) -> None:
    held = world.claimed(timeouts={"claim_ms": 5_000})
    clock.pass_(ms(4_000))
    renew(held)
    clock.to(NOON + ms(5_000))
    assert enforce(held.workload) == "claim"


def test_queue_counts_from_when_the_work_is_due(world: World, clock: Clock) -> None:
    work = world.workload(not_before=NOON + ms(60_000), timeouts={"queue_ms": 5_000})
    assert work.deadline_at == NOON + ms(65_000)
    clock.to(NOON + ms(65_000) - MICRO)
    assert enforce(work) is None
    clock.to(NOON + ms(65_000))
    assert enforce(work) == "queue"


def test_queue_does_not_run_while_the_work_is_paused(world: World, clock: Clock) -> None:
    work = world.workload(timeouts={"queue_ms": 5_000})
    clock.to(NOON + ms(4_000))
    world.pause(definition_id="extract")
    for passed in (5_000, 10_000, 60_000):
        clock.to(NOON + ms(passed))
        assert recovery.run("enforce_deadlines").changed == []
        work.refresh_from_db()
        # Put off as a whole, so that a sweep does not look at all paused work in each pass.
        assert (work.state, work.deadline_at) == (State.READY, clock.at + ms(5_000))


@pytest.mark.parametrize("by_itself", [True, False])
def test_queue_counts_anew_from_the_end_of_the_pause(
    world: World, clock: Clock, by_itself: bool
) -> None:
    work = world.workload(timeouts={"queue_ms": 5_000})
    made = world.pause(until=NOON + ms(8_000) if by_itself else None)
    clock.to(NOON + ms(8_000))
    if not by_itself:
        pauses.lift(caller=world.operator, pause_id=made.pause_id)
    clock.to(NOON + ms(13_000) - MICRO)
    assert enforce(work) is None
    clock.to(NOON + ms(13_000))
    assert recovery.run("enforce_deadlines").counts["queue"] == 1


def test_queue_runs_on_while_other_work_is_paused(world: World, clock: Clock) -> None:
    work = world.workload(timeouts={"queue_ms": 5_000})
    world.pause(definition_id="other")
    clock.to(NOON + ms(5_000))
    assert enforce(work) == "queue"


def test_a_pause_that_ended_before_the_work_was_ready_counts_for_nothing(
    world: World, clock: Clock
) -> None:
    world.pause(until=NOON + ms(1_000))
    clock.to(NOON + ms(2_000))
    work = world.workload(timeouts={"queue_ms": 5_000})
    clock.to(NOON + ms(7_000))
    assert enforce(work) == "queue"


def test_a_pause_stops_no_other_limit(world: World, clock: Clock) -> None:
    work = world.workload(timeouts={"queue_ms": 4_000, "overall_ms": 5_000})
    world.pause()
    clock.to(NOON + ms(4_000))
    assert enforce(work) is None
    clock.to(NOON + ms(5_000))
    assert recovery.run("enforce_deadlines").counts["overall"] == 1


def test_queue_does_not_run_while_work_is_held_or_waits_for_other_work(
    world: World, clock: Clock
) -> None:
    held, blocked = (world.workload(timeouts={"queue_ms": 5_000}) for _ in range(2))
    Workload.objects.filter(pk=held.pk).update(held=True, claimable=False)
    Workload.objects.filter(pk=blocked.pk).update(open_dependencies=1, claimable=False)
    clock.to(NOON + ms(60_000))
    assert recovery.run("enforce_deadlines").changed == []
    for each in (held, blocked):
        each.refresh_from_db()
        assert (each.state, each.deadline_at) == (State.READY, None)


def test_queue_counts_anew_when_work_is_ready_again(world: World, clock: Clock) -> None:
    held = world.claimed(timeouts={"queue_ms": 5_000})
    clock.pass_(ms(3_000))
    settlement.release(**held.presenting)
    assert held.refresh().deadline_at == NOON + ms(8_000)


def test_overall_counts_from_creation_through_every_attempt(world: World, clock: Clock) -> None:
    held = world.running(
        timeouts={"overall_ms": 10_000}, retry_policy={"retry_on": ["broken"], "backoff": "fixed"}
    )
    clock.pass_(ms(3_000))
    held.worker.fail(held.claim)
    assert held.refresh().deadline_at == NOON + ms(10_000)
    clock.to(NOON + ms(10_000))
    assert enforce(held.workload) == "overall"


# --- What follows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry_policy", "after"),
    [
        ({}, "READY"),
        ({"retry_on": ["worker_failure"]}, "DEAD_LETTER"),
        ({"max_attempts": 1}, "DEAD_LETTER"),
    ],
)
@pytest.mark.parametrize("timeout", ["execution_ms", "heartbeat_ms"])
def test_execution_and_heartbeat_follow_the_retry_rule_for_timeout(
    world: World, clock: Clock, timeout: str, retry_policy: dict[str, Any], after: str
) -> None:
    work, _ = running(world, timeouts={timeout: 5_000}, retry_policy=retry_policy)
    clock.to(NOON + ms(5_000))
    enforce(work)
    work.refresh_from_db()
    assert (work.state, work.last_failure and work.last_failure["kind"]) == (after, "timeout")
    if after == "READY":
        assert work.available_at == clock.at + ms(1_000)


@pytest.mark.parametrize(("timeout", "make"), [("overall_ms", running), ("queue_ms", waiting)])
def test_overall_and_queue_bury_whatever_is_left(
    world: World, clock: Clock, timeout: str, make: Make
) -> None:
    work, _ = make(world, timeouts={timeout: 5_000}, retry_policy={"max_attempts": 99})
    clock.to(NOON + ms(5_000))
    enforce(work)
    work.refresh_from_db()
    assert (work.state, work.ended_at) == (State.DEAD_LETTER, clock.at)


def test_claim_is_a_loss_before_start_and_costs_no_attempt(world: World, clock: Clock) -> None:
    work, _ = claimed(world, timeouts={"claim_ms": 5_000}, retry_policy={"max_attempts": 1})
    clock.to(NOON + ms(5_000))
    enforce(work)
    work.refresh_from_db()
    assert (work.state, work.claimable, work.started_attempts) == (State.READY, True, 0)
    assert (work.unstarted_losses, work.attempts.get().status) == (1, AttemptStatus.TIMED_OUT)


@pytest.mark.parametrize(("overall", "after"), [(2_000, "DEAD_LETTER"), (2_001, "READY")])
def test_a_retry_that_could_only_start_after_the_overall_deadline_is_a_dead_letter(
    world: World, clock: Clock, overall: int, after: str
) -> None:
    held = world.running(timeouts={"overall_ms": overall}, retry_policy={"retry_on": ["broken"]})
    clock.pass_(ms(1_000))
    held.worker.fail(held.claim)
    assert held.refresh().state == after


def test_a_deadline_that_was_put_off_leaves_the_present_one_behind(
    world: World, clock: Clock
) -> None:
    work = world.workload(timeouts={"overall_ms": 60_000})
    Workload.objects.filter(pk=work.pk).update(deadline_at=NOON)
    assert recovery.run("enforce_deadlines").changed == []
    work.refresh_from_db()
    assert work.deadline_at == NOON + ms(60_000)


def test_cancel_grace_passes_before_the_overall_limit(world: World, clock: Clock) -> None:
    held = world.running(timeouts={"overall_ms": 60_000, "cancel_grace_ms": 5_000})
    clock.pass_(ms(1_000))
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    clock.pass_(ms(5_000))
    assert enforce(held.workload) == "cancel_grace"
    assert held.refresh().state == State.CANCELLED


def test_late_work_that_was_buried_meanwhile_is_let_be_with_what_waits_for_it(
    world: World, clock: Clock
) -> None:
    line = [world.workload(timeouts={"overall_ms": 5_000})]
    for _ in range(2):
        needed = [{"workload_id": line[-1].workload_id}]
        line.append(world.workload(timeouts={"overall_ms": 9_000}, dependencies=needed))
    clock.to(NOON + ms(5_000))
    assert enforce(line[0]) == "overall"
    assert enforce(line[1]) is None
    for each in line:
        each.refresh_from_db()
    assert [each.state for each in line] == [State.DEAD_LETTER, State.DEAD_LETTER, State.READY]
    assert line[1].dependents_pending
