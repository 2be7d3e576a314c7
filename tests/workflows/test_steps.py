"""Steps of a definition: what is sound, what is refused and how it is told, what is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import DomainError
from mesh.submissions import RETRY_DEFAULTS, TIMEOUT_DEFAULTS
from workflows import steps
from workflows.steps import Resource, Steps

Draft = Mapping[str, Any]


def draft(step: str = "one", **members: Any) -> dict[str, Any]:
    return {"step": step, "definition_id": "extract", **members}


def refused(*drafts: Any) -> DomainError:
    with pytest.raises(DomainError) as refusal:
        steps.parse(drafts)
    assert refusal.value.code == "ADMISSION_INVALID"
    return refusal.value


def read_back(parsed: Steps) -> Steps:
    return Steps.read(json.loads(json.dumps(parsed.stored())))


# defaults


def test_all_defaults_are_written_out() -> None:
    assert steps.parse([draft()]).stored() == [
        {
            "step": "one",
            "definition_id": "extract",
            "needs": [],
            "capabilities": [],
            "resources": [],
            "effect": "mutating",
            "replay": "none",
            "retry": {"max_attempts": 1},
            "delivery": {**RETRY_DEFAULTS, "max_attempts": 3},
            "on_failure": "fail",
            "timeouts": dict(TIMEOUT_DEFAULTS),
            "policy": {"required_labels": {}, "affinity": {}, "anti_affinity": {}},
            "input": None,
        }
    ]


def test_what_is_said_stays_and_the_rest_is_filled_in() -> None:
    said = draft(
        capabilities=["b", "a", "b"],
        resources=[{"resource": "file", "access": "read"}],
        retry={"max_attempts": 7},
        delivery={"initial_delay_ms": 5},
        timeouts={"execution_ms": 9, "queue_ms": None},
        policy={"pool_id": "gpu", "affinity": {"zone": "a"}, "resources": {"gpu_count": 1}},
        on_failure="continue",
        effect="read_only",
        replay="idempotent",
        input={"fixed": [1.0, 1e300]},
    )
    step = steps.parse([said])["one"]
    assert step.capabilities == ("a", "b")
    assert step.resources == (Resource("file", "read", "run"),)
    assert (step.max_attempts, step.on_failure, step.effect) == (7, "continue", "read_only")
    assert step.delivery == {**RETRY_DEFAULTS, "initial_delay_ms": 5}
    assert step.timeouts == {**TIMEOUT_DEFAULTS, "execution_ms": 9}
    assert step.policy == {
        "required_labels": {},
        "affinity": {"zone": "a"},
        "anti_affinity": {},
        "pool_id": "gpu",
        "resources": {"gpu_count": 1},
    }
    assert step.input == {"fixed": [1.0, 1e300]}


def test_a_step_is_held_when_lost_unless_it_says_that_it_may_be_repeated() -> None:
    held = {
        (effect, replay): steps.parse([draft(effect=effect, replay=replay)])["one"]
        for effect in ("read_only", "mutating")
        for replay in ("none", "idempotent")
    }
    assert [key for key, step in held.items() if step.is_held_when_lost] == [("mutating", "none")]
    assert steps.parse([draft()])["one"].is_held_when_lost


def test_a_resource_stands_once_in_its_scope_as_a_write_if_it_is_written() -> None:
    asked = [
        Resource("b", "read", "run"),
        Resource("a", "read", "run"),
        Resource("a", "write", "run"),
        Resource("a", "read", "run"),
        Resource("a", "read", "application"),
    ]
    assert steps.normalized(asked) == (
        Resource("a", "read", "application"),
        Resource("a", "write", "run"),
        Resource("b", "read", "run"),
    )
    parsed = steps.parse([draft(resources=[asdict(each) for each in asked])])
    assert parsed["one"].resources == steps.normalized(asked)


def test_exits_are_the_steps_that_no_other_needs() -> None:
    parsed = steps.parse([draft("a"), draft("b", needs=["a"]), draft("c", needs=["a"]), draft("d")])
    assert [each.step for each in parsed.exits()] == ["b", "c", "d"]
    assert [each.step for each in parsed.dependents("a")] == ["b", "c"]


# one step's own bounds

_LONG_PAIRS = {f"k{n}": "v" for n in range(65)}


@pytest.mark.parametrize(
    ("members", "part"),
    [
        ({"step": "a b"}, "step"),
        ({"step": ""}, "step"),
        ({"step": "s" * 201}, "step"),
        ({"definition_id": "a/b"}, "definition_id"),
        ({"effect": "harmless"}, "effect"),
        ({"replay": "twice"}, "replay"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"),
        ({"retry": {"max_attempts": 1_001}}, "retry.max_attempts"),
        ({"capabilities": [" a"]}, "capabilities"),
        ({"capabilities": [f"c{n}" for n in range(257)]}, "capabilities"),
        ({"delivery": {"max_attempts": 0}}, "delivery.max_attempts"),
        ({"delivery": {"backoff": "random"}}, "delivery.backoff"),
        ({"delivery": {"jitter": 1.5}}, "delivery.jitter"),
        ({"delivery": {"jitter": float("nan")}}, "delivery.jitter"),
        ({"delivery": {"max_delay_ms": 2**60}}, "delivery.max_delay_ms"),
        ({"timeouts": {"execution_ms": 0}}, "timeouts.execution_ms"),
        ({"timeouts": {"overall_ms": 2**60}}, "timeouts.overall_ms"),
        ({"policy": {"required_labels": _LONG_PAIRS}}, "policy.required_labels"),
        ({"policy": {"pool_id": " "}}, "policy.pool_id"),
        ({"policy": {"resources": {"horses": 1}}}, "policy.resources"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_the_name_of_its_part(
    members: Draft, part: str
) -> None:
    refusal = refused(draft("fine"), {**draft(), **members})
    assert refusal.facts["reason"] == f"out of bounds: {part}"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"needs": "one"}, "needs has another form"),
        ({"needs": [1]}, "needs has another form"),
        ({"capabilities": None}, "capabilities has another form"),
        ({"resources": ["file"]}, "resources has another form"),
        ({"resources": [{"resource": "a", "access": "read", "mode": 1}]}, "resources has another"),
        ({"retry": {"max_attempts": True}}, "retry has another form"),
        ({"retry": {"attempts": 1}}, "retry has another form"),
        ({"delivery": {"retry_on": "timeout"}}, "delivery has another form"),
        ({"timeouts": {"execution_ms": 1.5}}, "timeouts has another form"),
        ({"timeouts": {"cancel_grace_ms": None}}, "timeouts has another form"),
        ({"policy": {"affinity": {"a": 1}}}, "policy has another form"),
        ({"effect": 1}, "effect has another form"),
        ({"surprise": 1}, "there is no member surprise"),
        ({"resources": [{"access": "read"}]}, "a resource has a name"),
        ({"resources": [{"resource": " a", "access": "read"}]}, "a resource has a name"),
        ({"resources": [{"resource": "ä" * 257, "access": "read"}]}, "a resource has a name"),
        ({"resources": [{"resource": "a"}]}, "a resource has access"),
        ({"resources": [{"resource": "a", "access": "own"}]}, "a resource has access"),
        ({"resources": [{"resource": "a", "access": "read", "scope": "all"}]}, "a resource has ac"),
    ],
)
def test_a_step_of_another_form_is_refused_by_name_and_reason(members: Draft, reason: str) -> None:
    refusal = refused(draft("fine"), {**draft(), **members})
    assert refusal.facts["step"] == "one"
    assert refusal.facts["reason"].startswith(reason)
    assert refusal.detail.startswith(f"The step one: {reason}")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"definition_id": "extract"}, "number 2"),
        ({"step": 5, "definition_id": "extract"}, "number 2"),
        ({"step": "x" * 5_000, "definition_id": "extract"}, "number 2"),
        ("text", "number 2"),
        (None, "number 2"),
        ({"step": "two"}, "two"),
    ],
)
def test_a_step_without_a_name_is_told_by_its_place(said: Any, shown: str) -> None:
    assert refused(draft("one"), said).facts["step"] == shown


def test_the_largest_values_within_bounds_are_taken() -> None:
    keys = [{"resource": f"r{n}", "access": "write"} for n in range(1_000)]
    said = draft(
        "s" * 200,
        resources=[*keys, *keys],
        retry={"max_attempts": 1_000},
        capabilities=[f"c{n}" for n in range(256)],
    )
    assert len(steps.parse([said])["s" * 200].resources) == 1_000


def test_more_than_a_thousand_resources_of_a_step_are_refused() -> None:
    keys = [{"resource": f"r{n}", "access": "read"} for n in range(1_001)]
    refusal = refused(draft(resources=keys))
    assert refusal.facts == {"step": "one", "reason": "it has more than 1000 resources"}


# how steps belong together


def test_a_definition_has_at_least_one_step() -> None:
    assert refused().facts == {"step": "", "reason": "a definition has 1 to 1000 steps"}


def test_a_definition_has_at_most_a_thousand_steps() -> None:
    many = [draft(f"s{n}", needs=[f"s{n - 1}"] if n else []) for n in range(1_001)]
    assert len(steps.parse(many[:-1])) == 1_000
    assert refused(*many).facts["reason"] == "a definition has 1 to 1000 steps"


def test_a_definition_is_at_most_a_mebibyte() -> None:
    rest = len(json.dumps([draft(input="")], separators=(",", ":")))
    assert steps.parse([draft(input="x" * (1024 * 1024 - rest))])
    refusal = refused(draft(input="x" * (1024 * 1024 - rest + 1)))
    assert refusal.facts["reason"] == "the steps are at most 1048576 bytes of JSON"


@pytest.mark.parametrize(
    ("drafts", "step", "reason"),
    [
        ([draft("a"), draft("b"), draft("a")], "a", "its name comes twice"),
        ([draft("a"), draft("b", needs=["c"])], "b", "it needs c, which is no step"),
        ([draft("a"), draft("b", needs=["a", "a"])], "b", "it needs another step twice"),
        ([draft("a", needs=["a"])], "a", "it needs itself: a → a"),
    ],
)
def test_steps_that_do_not_belong_together_are_refused(
    drafts: Sequence[Draft], step: str, reason: str
) -> None:
    assert refused(*drafts).facts == {"step": step, "reason": reason}


def test_a_circle_is_told_as_it_is_written() -> None:
    refusal = refused(draft("a", needs=["b"]), draft("b", needs=["c"]), draft("c", needs=["a"]))
    assert refusal.facts["reason"] in {
        f"it needs itself: {circle}"
        for circle in ("a → b → c → a", "b → c → a → b", "c → a → b → c")
    }


def test_an_input_may_refer_to_the_run_and_to_all_that_its_step_needs() -> None:
    said = {"a": {"$from": "run", "pointer": "/x"}, "b": [{"$from": "a"}, {"$from": "b"}]}
    chain = [draft("c", needs=["b"], input=said), draft("a"), draft("b", needs=["a"])]
    assert steps.parse(chain)["c"].input == said


@pytest.mark.parametrize("source", ["own", "later", "beside", "nothing"])
def test_an_input_refers_to_nothing_that_its_step_does_not_need(source: str) -> None:
    refusal = refused(
        draft("first"),
        draft("own", needs=["first"], input=[{"$from": source, "pointer": ""}]),
        draft("later", needs=["own"]),
        draft("beside"),
    )
    assert refusal.facts == {
        "step": "own",
        "reason": f"its input refers to {source}, which it does not need",
    }


def test_a_reference_that_is_made_wrongly_is_refused() -> None:
    refusal = refused(draft(input={"$from": "run", "pointer": "x"}))
    assert refusal.facts["step"] == "one"
    assert "no JSON Pointer" in refusal.facts["reason"]


def test_many_steps_that_need_all_before_them_are_judged() -> None:
    names = [str(number) for number in range(400)]
    wide = [draft(name, needs=names[:place]) for place, name in enumerate(names)]
    wide[-1]["input"] = [{"$from": name} for name in names[:-1]]
    assert len(steps.parse(wide)) == 400


# by chance

_NAMES = st.sampled_from("abcdef")
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
_resources = st.lists(
    st.fixed_dictionaries(
        {"resource": st.sampled_from("xy"), "access": st.sampled_from(["read", "write"])},
        optional={"scope": st.sampled_from(["run", "application"])},
    ),
    max_size=4,
)
_drafts = st.lists(
    st.fixed_dictionaries(
        {"step": _NAMES, "definition_id": st.just("extract")},
        optional={
            "needs": st.lists(_NAMES, max_size=2, unique=True),
            "capabilities": st.lists(_NAMES, max_size=3),
            "resources": _resources,
            "retry": st.fixed_dictionaries({"max_attempts": st.integers(1, 3)}),
            "delivery": st.fixed_dictionaries(
                {},
                optional={"jitter": st.sampled_from([0, 0.5, 1]), "retry_on": st.just(["b", "a"])},
            ),
            "timeouts": st.fixed_dictionaries({}, optional={"queue_ms": st.none() | st.just(5)}),
            "policy": st.fixed_dictionaries(
                {}, optional={"pool_id": st.none() | st.just("p"), "affinity": st.just({"k": "v"})}
            ),
            "input": _json,
        },
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: str(each["step"]),
)


def in_a_circle(drafts: Sequence[Draft]) -> set[str]:
    """The names of steps that need themselves: by going on from need to need until nothing is new.

    The reference: quite unlike the product, which sorts.
    """
    needs = {each["step"]: set(each.get("needs", ())) for each in drafts}
    for _ in needs:
        needs = {
            name: found.union(*(needs.get(each, set()) for each in found))
            for name, found in needs.items()
        }
    return {name for name, found in needs.items() if name in found}


def forward(drafts: Sequence[Draft]) -> list[Draft]:
    """The same, but each step needs only those before it."""
    names = [each["step"] for each in drafts]
    return [
        {**each, "needs": [n for n in each.get("needs", ()) if n in names[:place]]}
        for place, each in enumerate(drafts)
    ]


def closed(drafts: Sequence[Draft]) -> list[Draft]:
    """The same, but all needs are steps: if anything is wrong then, it is a circle."""
    names = {each["step"] for each in drafts}
    return [{**each, "needs": [n for n in each.get("needs", ()) if n in names]} for each in drafts]


def code(drafts: Any) -> str | None:
    try:
        steps.parse(drafts)
    except DomainError as refusal:
        return refusal.code
    return None


@settings(max_examples=40, deadline=None)
@given(_drafts.map(forward))
def test_what_is_parsed_is_read_back_and_parsed_the_same(drafts: list[Draft]) -> None:
    parsed = steps.parse(drafts)
    # Compared as text, for what is no number is unlike itself.
    stored = json.dumps(parsed.stored())
    assert json.dumps(steps.parse(parsed.stored()).stored()) == stored
    assert json.dumps(read_back(parsed).stored()) == stored


@settings(max_examples=60, deadline=None)
@given(_drafts.map(closed))
def test_circles_are_always_found_and_nothing_else_is_called_one(drafts: list[Draft]) -> None:
    circle = in_a_circle(drafts)
    if circle:
        assert refused(*drafts).facts["step"] in circle
    else:
        assert len(steps.parse(drafts)) == len(drafts)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(sorted(draft(needs=1, input=1))), _json) | _json))
def test_whatever_is_sent_is_parsed_or_refused(drafts: list[Any]) -> None:
    assert code(drafts) in {None, "ADMISSION_INVALID"}
