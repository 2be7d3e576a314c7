"""One key, one requirement, many who send it at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from mesh import arrivals, claims, intake, requirements, workloads
from mesh.errors import DomainError
from mesh.intake import Accepted, Submitted
from mesh.models import Application, Requirement, Workload
from mesh.submissions import Asked
from tests.factories import Member, World

from .checks import assert_sound, events
from .steering import Actor, Gate, answers, at_once, codes


def _submit(world: World, **members: Any) -> Callable[[], Submitted]:
    return partial(intake.submit, caller=world.operator, submission=world.submission(**members))


def _ask(member: Member) -> list[str]:
    taken = claims.claim(caller=member.caller, worker_id=member.worker_id, maximum=10)
    return [each.workload_id for each in taken.claims]


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new requirement first puts the idle ones to rest."""
    monkeypatch.setattr(requirements, "MAX_IN_USE", 1)


@pytest.mark.parametrize("definition", ["extract", "new-{}"])
def test_one_submission_sent_many_times_at_once_is_one_workload(
    world: World, definition: str
) -> None:
    for number in range(4):
        submit = _submit(world, definition_id=definition.format(number))
        ended = answers(at_once(*[submit] * 8))
        assert len(ended) == 8
        assert sum(each.created for each in ended) == 1
        assert len({each.workload.workload_id for each in ended}) == 1
        assert events(ended[0].workload) == ["ready"]
    assert_sound()


def test_of_different_content_under_one_key_at_once_one_is_taken(world: World) -> None:
    for number in range(4):
        calls = [_submit(world, idempotency_key=f"k{number}", input=n) for n in range(8)]
        ended = at_once(*calls)
        assert sum(each.created for each in answers(ended)) == 1
        assert codes(ended) == ["WORKLOAD_IDEMPOTENCY_MISMATCH"] * 7
    assert Workload.objects.count() == 4


def test_new_requirements_of_many_at_once_get_their_own_numbers(world: World) -> None:
    calls = [_submit(world, definition_id=f"kind-{n % 4}") for n in range(12)]
    assert len(answers(at_once(*calls))) == 12
    numbers = sorted(Requirement.objects.values_list("number", flat=True), key=str)
    assert numbers == [1, 2, 3, 4]
    assert Application.objects.get(tenant=world.tenant).requirement_number == 4


def test_a_claim_does_not_skip_the_requirement_of_a_submit_under_way(world: World) -> None:
    """The later submit takes the higher number only once the lower one can be seen."""
    member = world.worker()
    assert _ask(member) == []
    with Gate(arrivals, "_insert", after=True) as gate:
        earlier = Actor(_submit(world, definition_id="earlier"))
        gate.wait_for_arrival()
        later = Actor(_submit(world, definition_id="later"))
        later.wait_until_blocked(by=earlier)
        # Works out the eligible set while the number is taken and not committed.
        assert _ask(member) == []
        gate.let_through()
        first = earlier.value().workload.workload_id
        gate.wait_for_arrival()
        assert _ask(member) == [first]
        gate.let_through()
        second = later.value().workload.workload_id
    assert _ask(member) == [second]


def test_a_submit_of_a_known_kind_does_not_wait_for_a_new_kind_under_way(world: World) -> None:
    world.workload(definition_id="known")
    with Gate(requirements, "_take_into_use", after=True) as gate:
        new = Actor(_submit(world, definition_id="new"))
        gate.wait_for_arrival()
        # Though the other holds the application's row, to which this one's new row points.
        assert Actor(_submit(world, definition_id="known")).value().created
        assert new.is_running
        gate.let_through()
        assert new.value().created


@pytest.mark.usefixtures("no_room")
def test_a_submit_while_its_requirement_is_put_to_rest_takes_it_back(world: World) -> None:
    world.cancelled(definition_id="idle")
    member = world.worker()
    with Gate(requirements, "_put_to_rest", after=True) as gate:
        other = Actor(_submit(world, definition_id="other"))
        gate.wait_for_arrival()
        slow = Actor(_submit(world, definition_id="idle"))
        slow.wait_until_blocked(by=other)
        gate.let_through()
        gate.let_through()
        work = other.value().workload
        # Its turn comes once the other has committed; now the other's requirement is in its way.
        assert slow.code() == "LIMIT_EXCEEDED"
    workloads.cancel(caller=world.operator, workload_id=work.workload_id)
    submitted = _submit(world, definition_id="idle")().workload
    assert _ask(member) == [submitted.workload_id]


@pytest.mark.usefixtures("no_room")
def test_a_requirement_of_work_just_inserted_is_not_put_to_rest(world: World) -> None:
    """Though its transaction is not committed, so that nobody else can see the work."""
    world.cancelled(definition_id="idle")
    member = world.worker()
    with Gate(arrivals, "_insert", after=True) as gate:
        slow = Actor(_submit(world, definition_id="idle"))
        gate.wait_for_arrival()
        assert Actor(_submit(world, definition_id="other")).code() == "LIMIT_EXCEEDED"
        gate.let_through()
        submitted = slow.value().workload
    assert Requirement.objects.get(definition_id="idle").number is not None
    assert _ask(member) == [submitted.workload_id]


@pytest.mark.usefixtures("no_room")
def test_submits_that_each_bring_a_resting_requirement_back_do_not_deadlock(
    world: World,
) -> None:
    for _ in range(4):
        world.cancelled(definition_id="idle")
        world.cancelled(definition_id="other")
        assert Requirement.objects.get(definition_id="idle").number is None
        ended = at_once(*[_submit(world, definition_id="idle") for _ in range(4)])
        works = [each.workload for each in answers(ended)]
        assert len(works) == 4
        assert Requirement.objects.get(definition_id="idle").number is not None
        for work in works:
            workloads.cancel(caller=world.operator, workload_id=work.workload_id)
    assert_sound()


@pytest.mark.usefixtures("no_room")
def test_a_retried_dead_letter_whose_requirement_rests_can_be_claimed(world: World) -> None:
    held = world.dead_letter(definition_id="idle")
    world.cancelled(definition_id="other")
    assert Requirement.objects.get(definition_id="idle").number is None
    workloads.retry(caller=world.operator, workload_id=held.workload.workload_id)
    assert _ask(held.worker) == [held.workload.workload_id]


@pytest.mark.usefixtures("no_room")
def test_a_retry_while_its_requirement_is_put_to_rest_can_be_claimed(world: World) -> None:
    held = world.dead_letter(definition_id="idle")
    with Gate(workloads, "_retry", after=True) as gate:
        retry = Actor(
            partial(workloads.retry, caller=world.operator, workload_id=held.workload.workload_id)
        )
        gate.wait_for_arrival()
        assert Actor(_submit(world, definition_id="other")).code() == "LIMIT_EXCEEDED"
        gate.let_through()
        retry.value()
    assert _ask(held.worker) == [held.workload.workload_id]


def test_calls_with_the_same_keys_in_opposite_order_do_not_deadlock(world: World) -> None:
    world.workload()
    for _ in range(3):
        works = [world.submission() for _ in range(20)]
        calls = [
            partial(
                intake.submit_many,
                caller=world.operator,
                asked=[Asked(each) for each in order],
            )
            for order in (works, works[::-1])
        ]
        first, second = answers(at_once(*calls))
        pairs = zip(_created(first), reversed(_created(second)), strict=True)
        assert all(sum(pair) == 1 for pair in pairs)
    assert_sound()


def _created(taken: Sequence[Accepted | DomainError]) -> list[bool]:
    return [isinstance(each, Accepted) and each.created for each in taken]
