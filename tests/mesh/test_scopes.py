"""When one grant is within another: every request that it allows, the other allows too."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import scopes
from mesh.models import Application, Grant
from mesh.scopes import Facts
from tests.mesh.checks import MICRO, NOON

# What the grants are written with; requests also use a letter that none of them has.
_LETTERS: Final = "ab"
_ASKED: Final = "abz"
_PARTS: Final = ("x", "y")


def grant(**members: Any) -> Grant:
    said: dict[str, Any] = {
        "capabilities": ["worker:register"],
        "not_before": NOON,
        "expires_at": NOON + timedelta(hours=1),
    }
    return Grant(application=Application(name="app"), **{**said, **members})


def words(letters: str, longest: int) -> list[str]:
    return [
        "".join(each)
        for length in range(longest + 1)
        for each in itertools.product(letters, repeat=length)
    ]


NAMES: Final = words(_ASKED, 4)[1:]
URIS: Final = [
    "/".join(["flow://app", *parts])
    for depth in range(4)
    for parts in itertools.product([*_PARTS, "z"], repeat=depth)
]
patterns = st.lists(
    st.one_of(
        st.text(_LETTERS, min_size=1, max_size=3),
        st.text(_LETTERS, max_size=2).map(lambda stem: f"{stem}*"),
    ),
    max_size=3,
)
pairs = st.dictionaries(st.sampled_from("kl"), st.sampled_from("vw"), max_size=2)
constraints = st.fixed_dictionaries(
    {},
    optional={
        "worker_names": patterns,
        "environments": patterns,
        "runtimes": st.lists(st.sampled_from(["wasm", "process"]), max_size=2),
        "labels": pairs,
        "workload_id": st.sampled_from("mn"),
    },
)
resources = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["APPLICATION", "RESOURCE_PREFIX", "WORKLOAD"]),
            "uri": st.builds(
                lambda parts, end: "/".join(["flow://app", *parts]) + end,
                st.lists(st.sampled_from(_PARTS), max_size=2),
                st.sampled_from(["", "", "/"]),
            ),
        }
    ),
    max_size=3,
)


def every_fact(name: str) -> Iterable[Facts]:
    """All that a request could be as far as this constraint is concerned, the unknown too."""
    yield Facts()
    if name in {"worker_names", "environments"}:
        is_worker = name == "worker_names"
        yield from (
            Facts(worker_name=each) if is_worker else Facts(environment=each) for each in NAMES
        )
    elif name == "runtimes":
        yield from (Facts(runtime=each) for each in ("wasm", "process", "edge"))
    elif name == "labels":
        for k, v in itertools.product((None, "v", "w", "u"), repeat=2):
            yield Facts(labels={key: each for key, each in (("k", k), ("l", v)) if each})
    else:
        yield from (Facts(workload_id=each) for each in "mno")


def allowed(said: dict[str, Any], name: str) -> list[bool]:
    """For each fact whether the one constraint, or none, is met."""
    only = {name: said[name]} if name in said else {}
    return [not scopes.unmet(only, each) for each in every_fact(name)]


@given(child=constraints, parent=constraints)
def test_constraints_are_within_if_all_that_meets_them_meets_the_parents(
    child: dict[str, Any], parent: dict[str, Any]
) -> None:
    found = scopes.excess(grant(constraints=child), grant(constraints=parent))
    for name in ("worker_names", "environments", "runtimes", "labels", "workload_id"):
        is_within = all(
            outer or not inner
            for inner, outer in zip(allowed(child, name), allowed(parent, name), strict=True)
        )
        is_judged_within = f"constraints.{name}" not in found
        # Without a rule in the child, even what is not known passes it: only no rule allows that.
        assert is_judged_within == is_within, (name, child, parent)


@given(child=resources, parent=resources)
def test_resources_are_within_if_every_uri_they_reach_is_one_that_the_parent_reaches(
    child: list[dict[str, str]], parent: list[dict[str, str]]
) -> None:
    inner, outer = grant(resources=child), grant(resources=parent)
    reached = [each for each in URIS if scopes.covers(inner, each)]
    is_within = all(scopes.covers(outer, each) for each in reached)
    assert ("resources" not in scopes.excess(inner, outer)) == is_within, (child, parent)


@given(
    child=st.sets(st.sampled_from(["worker:register", "worker:read", "workload:create"])),
    parent=st.sets(st.sampled_from(["worker:register", "worker:read", "workload:create"])),
)
def test_capabilities_are_within_if_the_parent_has_each(child: set[str], parent: set[str]) -> None:
    found = scopes.excess(grant(capabilities=list(child)), grant(capabilities=list(parent)))
    assert ("capabilities" in found) is bool(child - parent)


@pytest.mark.parametrize(
    ("times", "parts"),
    [
        ({}, []),
        ({"not_before": NOON + MICRO}, []),
        ({"not_before": NOON - MICRO}, ["not_before"]),
        ({"expires_at": NOON + timedelta(hours=1) - MICRO}, []),
        ({"expires_at": NOON + timedelta(hours=1) + MICRO}, ["expires_at"]),
    ],
)
def test_a_time_is_within_up_to_the_boundary(times: dict[str, Any], parts: list[str]) -> None:
    assert scopes.excess(grant(**times), grant()) == parts


@pytest.mark.parametrize(
    ("constraint", "met", "not_met"),
    [
        ({"worker_names": ["edge-*"]}, Facts(worker_name="edge-1"), Facts(worker_name="edg-1")),
        ({"environments": ["prod"]}, Facts(environment="prod"), Facts(environment="production")),
        ({"runtimes": ["wasm"]}, Facts(runtime="wasm"), Facts(runtime="process")),
        ({"labels": {"a": "1"}}, Facts(labels={"a": "1", "b": "2"}), Facts(labels={"a": "2"})),
        ({"workload_id": "w"}, Facts(workload_id="w"), Facts(workload_id="v")),
    ],
)
def test_a_constraint_is_met_by_its_own_fact_alone(
    constraint: dict[str, Any], met: Facts, not_met: Facts
) -> None:
    assert scopes.unmet(constraint, met) == []
    assert scopes.unmet(constraint, not_met) == list(constraint)
    assert scopes.unmet(constraint, Facts()) == list(constraint)
