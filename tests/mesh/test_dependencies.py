"""Work that waits for other work: what it waits for, what frees it, what buries it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mesh import dependencies, intake, recovery, settlement, workloads
from mesh.canonical import identity
from mesh.dependencies import AT_ONCE
from mesh.models import Dependency, State, Workload
from mesh.submissions import Asked
from tests.factories import Held, Member, World, expire, make_tenant

from .checks import Clock, counted, events, ms, refused, unchanged

RELEASE = "release_dependents"
FAILED = "dependency_failed"


def wait_for(*others: Workload, state: str | None = None) -> list[dict[str, str]]:
    required = {} if state is None else {"required_state": state}
    return [{"workload_id": each.workload_id, **required} for each in others]


def waiting(world: World, *others: Workload, state: str | None = None, **members: Any) -> Workload:
    return world.workload(dependencies=wait_for(*others, state=state), **members)


def many(world: World, other: Workload, number: int) -> list[Workload]:
    """So many dependents of one workload, in one call."""
    asked = [Asked(world.submission(dependencies=wait_for(other))) for _ in range(number)]
    answers = intake.submit_many(caller=world.operator, asked=asked)
    return [each.workload for each in answers]  # type: ignore[union-attr,misc]


def now(workload: Workload) -> Workload:
    workload.refresh_from_db()
    return workload


def states(works: Sequence[Workload]) -> dict[str, int]:
    """How many of them are free, blocked or a dead letter."""
    found = Workload.objects.filter(pk__in=[each.pk for each in works])
    told = [
        each.state if each.state != "READY" else "free" if each.claimable else "blocked"
        for each in found
    ]
    return {word: told.count(word) for word in sorted(set(told))}


def kind(workload: Workload) -> str | None:
    failure = now(workload).last_failure
    return failure and failure["kind"]


def claim_all(member: Member) -> list[str]:
    return [each.workload_id for each in member.claim(100)]


def start_one(world: World, **members: Any) -> Held:
    return world.running(**members)


def test_blocked_work_is_not_claimed_before_what_it_waits_for_succeeded(world: World) -> None:
    held = world.running()
    dependent = waiting(world, held.workload)
    assert (dependent.state, dependent.claimable, dependent.open_dependencies) == (
        State.READY,
        False,
        1,
    )
    recovery.run("promote_due")
    assert claim_all(held.worker) == []
    held.worker.complete(held.claim)
    assert (now(dependent).claimable, dependent.open_dependencies) == (True, 0)
    assert claim_all(held.worker) == [dependent.workload_id]
    assert events(dependent) == ["ready", "claimed"]


def test_it_waits_for_the_last_of_several(world: World) -> None:
    first, second = world.running(), world.running()
    dependent = waiting(world, first.workload, second.workload)
    first.worker.complete(first.claim)
    assert (now(dependent).claimable, dependent.open_dependencies) == (False, 1)
    second.worker.complete(second.claim)
    assert (now(dependent).claimable, dependent.open_dependencies) == (True, 0)


def test_a_dependency_that_succeeded_before_is_met_at_once(world: World) -> None:
    dependent = waiting(world, world.succeeded().workload)
    assert (dependent.claimable, dependent.open_dependencies) == (True, 0)
    assert not Dependency.objects.get(workload=dependent).is_open


@pytest.mark.parametrize("ended", ["dead_letter", "cancelled"])
def test_a_dependency_that_ended_otherwise_before_is_accepted_and_buries(
    world: World, ended: str
) -> None:
    made = getattr(world, ended)()
    other = made.workload if isinstance(made, Held) else made
    dependent = waiting(world, other)
    assert (dependent.state, dependent.open_dependencies) == (State.DEAD_LETTER, 0)
    assert now(dependent).ended_at is not None
    assert dependent.last_failure == dependencies.failure(other.workload_id)
    assert events(dependent) == ["ready", "dead_lettered"]


@pytest.mark.parametrize("ended", ["succeeded", "dead_letter", "cancelled"])
def test_any_end_is_met_by_every_end_before_it_came(world: World, ended: str) -> None:
    made = getattr(world, ended)()
    other = made.workload if isinstance(made, Held) else made
    assert waiting(world, other, state="ANY_END").claimable


def _complete(world: World, held: Held) -> None:
    held.worker.complete(held.claim)


def _fail(world: World, held: Held) -> None:
    held.worker.fail(held.claim)


def _confirm_cancel(world: World, held: Held) -> None:
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    settlement.cancelled(**held.presenting)


def _lose(world: World, held: Held) -> None:
    expire(held)
    recovery.run("recover_expired_leases")


def _time_out(world: World, held: Held) -> None:
    from mesh import deadlines

    Workload.objects.filter(pk=held.workload.pk).update(
        timeouts={**held.workload.timeouts, "overall_ms": 0}
    )
    deadlines.enforce(workload_pk=held.workload.pk, actor="system:test")


ENDINGS: dict[str, tuple[Callable[[World, Held], None], str]] = {
    "completed": (_complete, State.SUCCEEDED),
    "failed": (_fail, State.DEAD_LETTER),
    "lost": (_lose, State.DEAD_LETTER),
    "timed out": (_time_out, State.DEAD_LETTER),
    "cancelled": (_confirm_cancel, State.CANCELLED),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_way_to_end_wakes_what_waits(world: World, ending: str) -> None:
    end, state = ENDINGS[ending]
    held = world.running(retry_policy={"max_attempts": 1})
    strict = waiting(world, held.workload)
    lax = waiting(world, held.workload, state="ANY_END")
    end(world, held)
    assert now(held.workload).state == state
    assert not held.workload.dependents_pending
    assert now(lax).claimable
    assert now(strict).state == ("READY" if state == State.SUCCEEDED else State.DEAD_LETTER)
    assert kind(strict) == (None if state == State.SUCCEEDED else FAILED)
    assert kind(lax) is None


def test_unclaimed_work_that_is_cancelled_buries_what_waits(world: World) -> None:
    other = world.workload()
    dependent = waiting(world, other)
    workloads.cancel(caller=world.operator, workload_id=other.workload_id)
    assert (now(dependent).state, kind(dependent)) == (State.DEAD_LETTER, FAILED)
    assert events(dependent) == ["ready", "dead_lettered"]


def test_a_retry_by_itself_wakes_nobody(world: World) -> None:
    held = world.running()
    dependent = waiting(world, held.workload)
    held.worker.fail(held.claim, kind="timeout")
    assert now(held.workload).state == State.READY
    assert (now(dependent).state, dependent.open_dependencies) == (State.READY, 1)


@pytest.mark.parametrize(
    "named",
    ["workload_000000000000000000000000", "", "x" * 300],
)
def test_an_unknown_dependency_is_refused(world: World, named: str) -> None:
    with refused("WORKLOAD_DEPENDENCY_INVALID"):
        world.workload(dependencies=[{"workload_id": named}])


def test_work_of_another_application_or_tenant_is_as_good_as_unknown(world: World) -> None:
    own = World(make_tenant(applications=["documents", "images"]))
    elsewhere = World(own.tenant, "images").workload()
    for other in (world.workload(), elsewhere):
        with refused("WORKLOAD_DEPENDENCY_INVALID"):
            waiting(own, other)


def test_work_cannot_wait_for_itself(world: World) -> None:
    said = world.submission()
    made = World(world.tenant).workload(idempotency_key=said.idempotency_key)
    again = world.submission(idempotency_key="another", dependencies=wait_for(made))
    intake.submit(caller=world.operator, submission=again)
    own = identity("workload", [world.tenant.name, world.application, "mine"])
    with refused("WORKLOAD_DEPENDENCY_INVALID"):
        world.workload(idempotency_key="mine", dependencies=[{"workload_id": own}])


def test_a_dependency_named_twice_is_one_but_not_with_two_states(world: World) -> None:
    other = world.workload()
    dependent = waiting(world, other, other)
    assert dependent.open_dependencies == 1
    with refused("WORKLOAD_DEPENDENCY_INVALID"):
        world.workload(dependencies=[*wait_for(other), *wait_for(other, state="ANY_END")])


def test_at_most_256_dependencies(world: World) -> None:
    others = many(world, world.workload(), 257)
    with refused("WORKLOAD_INVALID"):
        waiting(world, *others)
    assert waiting(world, *others[1:]).open_dependencies == 256


def test_dependencies_are_content_whatever_their_order(world: World) -> None:
    first, second = world.workload(), world.workload()
    made = waiting(world, first, second, idempotency_key="one")
    with unchanged():
        again = waiting(world, second, first, state="SUCCEEDED", idempotency_key="one")
    assert again.pk == made.pk
    with refused("WORKLOAD_IDEMPOTENCY_MISMATCH"):
        waiting(world, first, idempotency_key="one")


def test_queue_time_counts_from_the_moment_it_was_unblocked(world: World, clock: Clock) -> None:
    """Blocked for longer than it may wait in the queue, it is still READY."""
    held = world.running()
    dependent = waiting(world, held.workload, timeouts={"queue_ms": 1_000})
    clock.pass_(ms(5_000))
    recovery.run("enforce_deadlines")
    assert now(dependent).state == State.READY
    held.worker.complete(held.claim)
    clock.pass_(ms(999))
    recovery.run("enforce_deadlines")
    assert now(dependent).state == State.READY
    clock.pass_(ms(1))
    recovery.run("enforce_deadlines")
    assert now(dependent).state == State.DEAD_LETTER


def test_work_that_is_not_due_yet_is_unblocked_and_promoted_later(
    world: World, clock: Clock
) -> None:
    held = world.running()
    dependent = waiting(world, held.workload, not_before=clock.at + ms(5_000))
    held.worker.complete(held.claim)
    assert (now(dependent).claimable, dependent.open_dependencies) == (False, 0)
    clock.pass_(ms(5_000))
    recovery.run("promote_due")
    assert now(dependent).claimable


def test_100_dependents_are_woken_by_the_ending_and_the_rest_by_the_sweep(world: World) -> None:
    held = world.running()
    works = many(world, held.workload, 250)
    held.worker.complete(held.claim)
    assert states(works) == {"blocked": 150, "free": 100}
    assert now(held.workload).dependents_pending
    report = recovery.run(RELEASE)
    assert states(works) == {"free": 250}
    assert (report.counts["unblocked"], len(report.changed)) == (150, 150)
    assert not now(held.workload).dependents_pending
    assert not recovery.run(RELEASE).changed


def test_a_failure_buries_one_level_per_transaction(world: World) -> None:
    held = world.running(retry_policy={"max_attempts": 1})
    first = waiting(world, held.workload)
    second = waiting(world, first)
    third = waiting(world, second, state="SUCCEEDED")
    after = waiting(world, second, state="ANY_END")
    held.worker.fail(held.claim)
    assert [now(each).state for each in (first, second, third)] == ["DEAD_LETTER", "READY", "READY"]
    recovery.run(RELEASE)
    recovery.run(RELEASE)
    assert [kind(each) for each in (first, second, third)] == [FAILED] * 3
    assert now(after).claimable


def chain(world: World, first: Workload, number: int) -> list[Workload]:
    """So many workloads, each of which waits for the one before."""
    works = [first]
    for _ in range(number):
        works.append(waiting(world, works[-1]))
    return works[1:]


def test_one_pass_of_the_sweep_buries_a_whole_chain(world: World) -> None:
    held = failed(world)
    works = chain(world, held.workload, 8)
    held.worker.fail(held.claim)
    assert states(works) == {"DEAD_LETTER": 1, "blocked": 7}
    report = recovery.run(RELEASE)
    assert {kind(each) for each in works} == {FAILED}
    assert (report.counts["buried"], len(report.changed)) == (7, 7)


def test_a_chain_deeper_than_a_pass_goes_is_left_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MAX_LEVELS", 3)
    held = failed(world)
    works = chain(world, held.workload, 6)
    held.worker.fail(held.claim)
    recovery.run(RELEASE)
    assert states(works) == {"DEAD_LETTER": 4, "blocked": 2}
    recovery.run(RELEASE)
    assert states(works) == {"DEAD_LETTER": 6}


def test_the_sweep_finds_what_was_missed(world: World) -> None:
    held = world.running()
    dependent = waiting(world, held.workload)
    Workload.objects.filter(pk=held.workload.pk).update(state=State.READY)
    Workload.objects.filter(pk=held.workload.pk).update(
        state=State.CANCELLED, ended_at=dependent.created_at
    )
    recovery.run(RELEASE)
    assert kind(dependent) == FAILED


def test_work_without_dependents_ends_in_as_many_statements_as_ever(world: World) -> None:
    alone, other = world.running(), world.running()
    works = many(world, other.workload, 150)
    with counted() as lonely:
        alone.worker.complete(alone.claim)
    with counted() as waited_for:
        other.worker.complete(other.claim)
    # One more, however many there are.
    assert len(waited_for) == len(lonely) + 1
    assert states(works)["free"] == AT_ONCE


def test_a_dead_dependent_stays_dead_when_its_other_dependency_ends(world: World) -> None:
    held, other = world.running(), world.workload()
    dependent = waiting(world, held.workload, other)
    workloads.cancel(caller=world.operator, workload_id=other.workload_id)
    assert now(dependent).open_dependencies == 1
    held.worker.complete(held.claim)
    assert (now(dependent).state, dependent.open_dependencies) == (State.DEAD_LETTER, 0)
    assert events(dependent) == ["ready", "dead_lettered"]


# --- retry


def retry(world: World, workload: Workload, **options: Any) -> Workload:
    return workloads.retry(caller=world.operator, workload_id=workload.workload_id, **options)


def failed(world: World) -> Held:
    return world.running(retry_policy={"max_attempts": 1})


def test_a_retry_with_dependents_brings_back_all_that_its_end_buried(world: World) -> None:
    held = failed(world)
    first = waiting(world, held.workload)
    second = waiting(world, first)
    held.worker.fail(held.claim)
    recovery.run(RELEASE)
    assert kind(second) == FAILED
    retry(world, held.workload, dependents=True, reason="fixed")
    assert [now(each).state for each in (held.workload, first, second)] == [State.READY] * 3
    assert (now(first).open_dependencies, now(second).open_dependencies) == (1, 1)
    assert events(first) == ["ready", "dead_lettered", "retried"]
    held.worker.beat()
    claim = held.worker.claim(10)
    assert [each.workload_id for each in claim] == [held.workload.workload_id]
    held.worker.start(claim[0])
    held.worker.complete(claim[0])
    assert (now(first).claimable, now(second).claimable) == (True, False)


def test_a_retry_without_dependents_leaves_them_dead(world: World) -> None:
    held = failed(world)
    dependent = waiting(world, held.workload)
    held.worker.fail(held.claim)
    retry(world, held.workload)
    assert now(dependent).state == State.DEAD_LETTER
    # By itself it waits again for what is under way again.
    retry(world, dependent)
    assert (now(dependent).state, dependent.open_dependencies) == (State.READY, 1)
    assert not dependent.claimable


def test_a_retry_is_refused_while_a_dependency_has_ended_otherwise(world: World) -> None:
    held = failed(world)
    dependent = waiting(world, held.workload)
    held.worker.fail(held.claim)
    with refused("WORKLOAD_DEPENDENCY_OPEN") as caught:
        retry(world, dependent)
    assert caught.value.facts["dependencies"] == [held.workload.workload_id]


def test_a_dependency_that_was_met_stays_met(world: World) -> None:
    other = failed(world)
    held = world.running(retry_policy={"max_attempts": 1}, dependencies=[])
    lax = waiting(world, other.workload, state="ANY_END", retry_policy={"max_attempts": 1})
    other.worker.fail(other.claim)
    retry(world, other.workload)
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    claim = next(each for each in other.worker.claim(10) if each.workload_id == lax.workload_id)
    other.worker.start(claim)
    other.worker.fail(claim)
    retry(world, lax)
    assert (now(lax).claimable, lax.open_dependencies) == (True, 0)


def test_a_dependent_of_another_failure_is_left_out(world: World) -> None:
    held, other = failed(world), failed(world)
    dependent = waiting(world, held.workload, other.workload)
    held.worker.fail(held.claim)
    other.worker.fail(other.claim)
    retry(world, held.workload, dependents=True)
    assert now(dependent).state == State.DEAD_LETTER
    retry(world, other.workload, dependents=True)
    assert (now(dependent).state, dependent.open_dependencies) == (State.READY, 2)


def test_sealed_work_is_not_retried_nor_with_others(world: World) -> None:
    held = failed(world)
    dependent = waiting(world, held.workload)
    held.worker.fail(held.claim)
    workloads.seal([dependent.pk])
    retry(world, held.workload, dependents=True)
    assert now(dependent).state == State.DEAD_LETTER
    with refused("WORKLOAD_TRANSITION_DENIED"):
        retry(world, dependent)


def test_a_retry_of_too_many_dependents_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "MAX_RETRIED", 2)
    held = failed(world)
    works = many(world, held.workload, 3)
    held.worker.fail(held.claim)
    with refused("REQUEST_INVALID"):
        retry(world, held.workload, dependents=True)
    monkeypatch.setattr(dependencies, "MAX_RETRIED", 3)
    retry(world, held.workload, dependents=True)
    assert states(works) == {"blocked": 3}


def test_the_end_of_work_that_was_retried_meanwhile_buries_no_more(world: World) -> None:
    """The sweep had not come to all of its dependents when it was retried."""
    held = failed(world)
    works = many(world, held.workload, 150)
    held.worker.fail(held.claim)
    assert states(works) == {"DEAD_LETTER": 100, "blocked": 50}
    retry(world, held.workload, dependents=True)
    recovery.run(RELEASE)
    assert states(works) == {"blocked": 150}
