"""What becomes of work whose attempt was lost."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import recovery, settlement, workloads
from mesh.models import State, Workload
from tests.factories import Held, World
from tests.mesh.checks import NOON, Clock, events, ms

LEASE = ms(30_000)


def lose(clock: Clock, held: Held) -> Workload:
    """Let the lease of a claim end and be swept; its worker keeps beating."""
    clock.to(held.attempt.expires_at)
    recovery.run("recover_expired_leases")
    held.worker.beat()
    return held.refresh()


def reclaim(clock: Clock, held: Held) -> Held:
    """The same worker claims the work anew, once it is due, before the sweeps count as out."""
    clock.to(max(clock.at, held.refresh().available_at))
    held.worker.beat()
    return Held(held.workload, held.worker, held.worker.claim(lease_ms=10_000)[0])


def test_unstarted_work_goes_back_at_once_and_costs_no_attempt(world: World, clock: Clock) -> None:
    held = world.claimed(retry_policy={"max_attempts": 1, "retry_on": []})
    work = lose(clock, held)
    assert (work.state, work.claimable, work.available_at) == (State.READY, True, clock.at)
    assert (held.attempt.status, work.unstarted_losses, work.started_attempts) == (
        "WORKER_LOST",
        1,
        0,
    )
    assert events(work)[-2:] == ["recovered", "ready"]


@pytest.mark.parametrize("state", ["running", "checkpointed"])
def test_started_work_waits_its_delay(world: World, clock: Clock, state: str) -> None:
    held: Held = getattr(world, state)()
    work = lose(clock, held)
    assert (work.state, work.claimable) == (State.READY, False)
    assert work.available_at == clock.at + ms(1_000)
    assert (held.attempt.status, held.attempt.failure["kind"]) == (  # type: ignore[index]
        "WORKER_LOST",
        "worker_failure",
    )
    assert events(work)[-2:] == ["recovered", "ready"]


@pytest.mark.parametrize(
    "retry_policy", [{"max_attempts": 1}, {"retry_on": ["timeout"]}, {"retry_on": []}]
)
def test_started_work_without_budget_or_policy_is_a_dead_letter(
    world: World, clock: Clock, retry_policy: dict[str, Any]
) -> None:
    work = lose(clock, world.running(retry_policy=retry_policy))
    assert (work.state, work.last_failure and work.last_failure["kind"]) == (
        State.DEAD_LETTER,
        "worker_failure",
    )
    assert events(work)[-2:] == ["recovered", "dead_lettered"]


def test_lost_work_that_was_to_be_cancelled_is_cancelled(world: World, clock: Clock) -> None:
    held = world.cancelling()
    work = lose(clock, held)
    assert (work.state, held.attempt.status) == (State.CANCELLED, "WORKER_LOST")
    assert held.worker.refresh().active == 0


def test_the_first_two_unstarted_losses_go_back_at_once_and_the_third_waits(
    world: World, clock: Clock
) -> None:
    held, delays = world.claimed(), []
    for _ in range(5):
        work = lose(clock, held)
        delays.append(work.available_at - clock.at)
        held = reclaim(clock, held)
    assert delays == [ms(0), ms(0), ms(1_000), ms(2_000), ms(4_000)]


def test_releases_wait_and_wear_out_like_losses(world: World, clock: Clock) -> None:
    held = world.claimed(retry_policy={"max_unstarted": 3})
    seen = []
    for _ in range(4):
        settlement.release(**held.presenting)
        work = held.refresh()
        seen.append((work.state, work.available_at - clock.at))
        if work.state == State.READY:
            held = reclaim(clock, held)
    assert [state for state, _ in seen] == ["READY", "READY", "READY", "DEAD_LETTER"]
    assert seen[2][1] == ms(1_000)
    assert work.last_failure is not None
    assert work.last_failure["kind"] == "never_started"
    assert events(work)[-3:] == ["claimed", "released", "dead_lettered"]


@pytest.mark.parametrize("bound", [1, 2])
def test_beyond_max_unstarted_work_is_never_started(world: World, clock: Clock, bound: int) -> None:
    held = world.claimed(retry_policy={"max_unstarted": bound})
    for _ in range(bound):
        assert lose(clock, held).state == State.READY
        held = reclaim(clock, held)
    work = lose(clock, held)
    assert (work.state, work.attempt_count, work.started_attempts) == ("DEAD_LETTER", bound + 1, 0)
    assert work.last_failure is not None
    assert work.last_failure["kind"] == "never_started"


def test_a_start_makes_the_losses_count_anew(world: World, clock: Clock) -> None:
    held = world.claimed(retry_policy={"max_unstarted": 1, "retry_on": ["broken"]})
    lose(clock, held)
    held = reclaim(clock, held)
    held.worker.start(held.claim)
    held.worker.fail(held.claim)
    held = reclaim(clock, held)
    assert lose(clock, held).state == State.READY


def test_a_retry_makes_the_losses_count_anew(world: World, clock: Clock) -> None:
    held = world.claimed(retry_policy={"max_unstarted": 1})
    lose(clock, held)
    work = lose(clock, reclaim(clock, held))
    assert work.state == State.DEAD_LETTER
    workloads.retry(caller=world.operator, workload_id=work.workload_id)
    held = reclaim(clock, held)
    assert lose(clock, held).state == State.READY


def test_unstarted_losses_do_not_lengthen_the_delays_of_failures(
    world: World, clock: Clock
) -> None:
    held = world.claimed(retry_policy={"retry_on": ["broken"]})
    for _ in range(3):
        lose(clock, held)
        held = reclaim(clock, held)
    held.worker.start(held.claim)
    held.worker.fail(held.claim)
    assert held.refresh().available_at == clock.at + ms(1_000)


def test_losing_never_judges_the_worker(world: World, clock: Clock) -> None:
    held = world.running(world.worker(concurrency=1))
    clock.to(NOON + LEASE)
    held.worker.beat()
    recovery.run("recover_expired_leases")
    assert (held.worker.refresh().lifecycle, held.worker.row.health) == ("READY", "HEALTHY")
