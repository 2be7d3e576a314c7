"""Many submissions in one call: each answered by itself, by few statements, within the limits."""

from __future__ import annotations

from typing import Any

import pytest

from mesh import intake, requirements
from mesh.errors import DomainError
from mesh.intake import Accepted
from mesh.models import Dependency, Requirement, Role, State, Tenant, Workload
from mesh.submissions import Asked, Submission
from mesh.tenancy import Caller
from tests.factories import World, name

from .checks import Clock, counted, events, ms, raises, refused, unchanged


def many(
    world: World, *submissions: Submission, grant: str | None = None, caller: Caller | None = None
) -> list[Accepted | DomainError]:
    asked = [Asked(each, grant) for each in submissions]
    return intake.submit_many(caller=caller or world.operator, asked=asked)


def told(answers: list[Accepted | DomainError]) -> list[str]:
    return [
        each.code if isinstance(each, DomainError) else "new" if each.created else "known"
        for each in answers
    ]


def named(world: World, key: str, *others: str, **members: Any) -> Submission:
    """A submission with that key that waits for those with the other keys."""
    ids = [world.submission(idempotency_key=each).workload_id(world.tenant.name) for each in others]
    waits_for = [{"workload_id": each} for each in ids]
    return world.submission(idempotency_key=key, dependencies=waits_for, **members)


def test_each_is_answered_by_itself_in_order(world: World) -> None:
    known = world.submission()
    intake.submit(caller=world.operator, submission=known)
    answers = many(
        world,
        world.submission(),
        known,
        world.submission(idempotency_key=known.idempotency_key, priority=9),
        world.submission(input={"password": "x"}),
        world.submission(idempotency_key=" "),
        world.submission(application="unknown"),
        world.submission(dependencies=[{"workload_id": "workload_0"}]),
        world.submission(priority=2),
    )
    assert told(answers) == [
        "new",
        "known",
        "WORKLOAD_IDEMPOTENCY_MISMATCH",
        "WORKLOAD_SECRET_REJECTED",
        "WORKLOAD_INVALID",
        "APPLICATION_NOT_FOUND",
        "WORKLOAD_DEPENDENCY_INVALID",
        "new",
    ]
    assert Workload.objects.count() == 3


def test_what_comes_in_is_what_a_single_submit_makes(world: World, clock: Clock) -> None:
    members: dict[str, Any] = {"priority": 3, "not_before": clock.at + ms(1_000), "input": [1e300]}
    alone = world.workload(**members)
    (answer,) = many(world, world.submission(**members))
    assert isinstance(answer, Accepted)
    made = Workload.objects.get(workload_id=answer.workload_id)
    own = {"id", "workload_id", "idempotency_key", "content_digest"}
    rows = [dict(Workload.objects.filter(pk=each.pk).values()[0]) for each in (alone, made)]
    for row in rows:
        for key in own:
            del row[key]
    assert rows[0] == rows[1]
    assert events(made) == events(alone) == ["ready"]


def test_a_key_twice_in_one_call_is_judged_by_the_first(world: World) -> None:
    key = name("key")
    first = world.submission(idempotency_key=key)
    answers = many(world, first, first, world.submission(idempotency_key=key, priority=1))
    assert told(answers) == ["new", "known", "WORKLOAD_IDEMPOTENCY_MISMATCH"]
    refused_first = world.submission(idempotency_key=name("key"), priority=2**40)
    second = world.submission(idempotency_key=refused_first.idempotency_key)
    assert told(many(world, refused_first, second)) == ["WORKLOAD_INVALID", "new"]


def test_a_dependency_may_be_an_earlier_one_of_the_call_but_no_later_one(world: World) -> None:
    answers = many(
        world,
        named(world, "b", "c"),
        named(world, "a"),
        named(world, "c", "a"),
        named(world, "d", "d"),
        named(world, "e", "c", "a"),
    )
    invalid = "WORKLOAD_DEPENDENCY_INVALID"
    assert told(answers) == [invalid, "new", "new", invalid, "new"]
    last = Workload.objects.get(idempotency_key="e")
    assert (last.open_dependencies, last.claimable) == (2, False)
    assert Dependency.objects.count() == 3


def test_what_depends_on_a_refused_one_is_refused(world: World) -> None:
    answers = many(world, named(world, "a", priority=2**40), named(world, "b", "a"))
    assert told(answers) == ["WORKLOAD_INVALID", "WORKLOAD_DEPENDENCY_INVALID"]


def test_a_dead_letter_from_the_start_buries_those_after_it(world: World) -> None:
    world.cancelled(idempotency_key="gone")
    many(world, named(world, "a", "gone"), named(world, "b", "a"), named(world, "c", "b"))
    made = Workload.objects.exclude(idempotency_key="gone")
    assert {each.state for each in made} == {State.DEAD_LETTER}


def test_equal_work_is_claimed_in_the_order_of_the_call(world: World) -> None:
    member = world.worker(concurrency=10)
    keys = ["c", "a", "b"]
    answers = many(world, *(named(world, key) for key in keys))
    claimed = [each.workload_id for each in member.claim(10)]
    assert claimed == [each.workload_id for each in answers if isinstance(each, Accepted)]


def test_a_thousand_take_as_many_statements_as_one(world: World) -> None:
    world.workload()
    with counted() as one:
        many(world, world.submission())
    other = world.workload()
    with counted() as single:
        world.workload()
    works = [world.submission(definition_id="extract") for _ in range(999)]
    with counted() as thousand:
        answers = many(
            world, *works, world.submission(dependencies=[{"workload_id": other.workload_id}])
        )
    assert told(answers) == ["new"] * 1_000
    assert len(one) == len(single)
    # A dependency is locked, and the time is read anew.
    assert len(thousand) <= len(one) + 2
    with raises("REQUEST_INVALID"):
        many(world, *works, *works[:2])


def test_new_kinds_of_work_come_in_together_or_are_refused_by_themselves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "MAX_IN_USE", 2)
    answers = many(world, *(world.submission(definition_id=each) for each in ("a", "b", "c", "a")))
    assert told(answers) == ["new", "new", "LIMIT_EXCEEDED", "new"]
    assert Requirement.objects.filter(number__isnull=False).count() == 2


def test_a_grant_stands_for_those_that_bring_it(world: World) -> None:
    viewer = world.caller(Role.VIEWER, "service:reader")
    _, token = world.grant(subject="service:reader", capabilities=["workload:create"])
    asked = [
        Asked(world.submission(), token),
        Asked(world.submission()),
        Asked(world.submission(), "x"),
    ]
    answers = intake.submit_many(caller=viewer, asked=asked)
    assert told(answers) == ["new", "PERMISSION_DENIED", "GRANT_INVALID"]
    with refused("PERMISSION_DENIED"):
        many(world, world.submission(), caller=viewer)
    worker = world.worker().caller
    with refused("PERMISSION_DENIED"):
        many(world, world.submission(), caller=worker)


def test_a_grant_is_read_once_however_often_it_comes(world: World) -> None:
    viewer = world.caller(Role.VIEWER, "service:reader")
    _, token = world.grant(subject="service:reader", capabilities=["workload:create"])
    world.workload()
    with counted() as one:
        many(world, world.submission(), caller=viewer, grant=token)
    with counted() as ten:
        many(world, *(world.submission() for _ in range(10)), caller=viewer, grant=token)
    assert len(ten) == len(one)


@pytest.fixture
def limited(world: World) -> World:
    Tenant.objects.filter(pk=world.tenant.pk).update(max_submissions_per_minute=2)
    return world


def test_a_tenant_submits_so_many_a_minute(limited: World, clock: Clock) -> None:
    limited.workload()
    clock.pass_(ms(1_000))
    last = limited.submission()
    intake.submit(caller=limited.operator, submission=last)
    clock.pass_(ms(58_999))
    with refused("LIMIT_EXCEEDED") as caught:
        limited.workload()
    assert caught.value.facts["retry_after_ms"] == 1
    with unchanged():
        assert not intake.submit(caller=limited.operator, submission=last).created
    clock.pass_(ms(1))
    limited.workload()
    with refused("LIMIT_EXCEEDED"):
        limited.workload()


def test_the_limit_refuses_a_call_as_a_whole_which_may_overshoot_it(
    limited: World, clock: Clock
) -> None:
    answers = many(limited, *(limited.submission() for _ in range(5)))
    assert told(answers) == ["new"] * 5
    with refused("LIMIT_EXCEEDED"):
        many(limited, limited.submission(), limited.submission(priority=2**40))
    World().workload()
    clock.pass_(ms(60_000))
    assert told(many(limited, limited.submission())) == ["new"]


def test_a_tenant_without_a_limit_pays_nothing_for_it(world: World) -> None:
    world.workload()
    with counted() as free:
        world.workload()
    Tenant.objects.filter(pk=world.tenant.pk).update(max_submissions_per_minute=1_000)
    with counted() as limited:
        world.workload()
    assert len(limited) == len(free) + 1
