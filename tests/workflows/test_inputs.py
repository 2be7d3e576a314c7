"""References in a step's input, and what they find (RFC 6901)."""

from __future__ import annotations

from typing import Any

import pytest

from workflows import inputs
from workflows.inputs import Reference, TooLong, Unresolved

# The document and the pointers of RFC 6901, section 5.
DOCUMENT = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
    "~1": 9,
}


def at(pointer: str, source: str = "run") -> dict[str, str]:
    return {"$from": source, "pointer": pointer}


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/foo/1", "baz"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/~01", 9),
    ],
)
def test_a_pointer_finds_what_the_rfc_says(pointer: str, found: Any) -> None:
    assert inputs.resolve(at(pointer), DOCUMENT, {}) == found


@pytest.mark.parametrize(
    "pointer",
    [
        "/nothing",
        "/foo/2",
        "/foo/-",
        "/foo/-1",
        "/foo/01",
        "/foo/+1",
        "/foo/١",
        "/foo/" + "9" * 5_000,
        "/foo/bar",
        "/foo/",
        "/foo/0/0",
        "/c%d/0",
        "//",
    ],
)
def test_a_pointer_to_what_is_not_there_is_unresolved(pointer: str) -> None:
    with pytest.raises(Unresolved) as missing:
        inputs.resolve({"deep": [at(pointer)]}, DOCUMENT, {})
    assert (missing.value.source, missing.value.pointer) == ("run", pointer)


@pytest.mark.parametrize("nothing", [None, False, 0, "", [], {}])
def test_whatever_is_there_is_found_also_if_it_is_nothing(nothing: Any) -> None:
    assert inputs.resolve(at("/a"), {"a": nothing}, {}) == nothing
    assert inputs.resolve({"$from": "one"}, {}, {"one": nothing}) == nothing


def test_references_stand_at_any_depth_and_all_else_stays_as_it_is() -> None:
    said = {"a": [1.5, at("/x"), {"b": at("/y", "one")}], "c": None, "pointer": "/x"}
    found = inputs.resolve(said, {"x": True}, {"one": {"y": [2]}})
    assert found == {"a": [1.5, True, {"b": [2]}], "c": None, "pointer": "/x"}


def test_a_step_that_has_not_ended_is_unresolved() -> None:
    with pytest.raises(Unresolved):
        inputs.resolve(at("", "one"), {}, {"two": 1})


def test_nothing_is_found_within_an_output_that_is_null() -> None:
    assert inputs.resolve(at("", "one"), {}, {"one": None}) is None
    with pytest.raises(Unresolved):
        inputs.resolve(at("/a", "one"), {}, {"one": None})


def test_a_long_value_is_not_put_in_more_often_than_there_is_room() -> None:
    said, sent = [at("/a"), {"b": at("/a", "one")}], {"a": "123"}
    outputs = {"one": {"a": "456"}}
    assert inputs.resolve(said, sent, outputs, at_most=10) == ["123", {"b": "456"}]
    with pytest.raises(TooLong):
        inputs.resolve(said, sent, outputs, at_most=9)


def test_an_input_of_many_references_to_a_long_value_is_never_made() -> None:
    with pytest.raises(TooLong):
        inputs.resolve([at("/a")] * 50_000, {"a": "x" * 600_000}, {})


def test_references_in_what_was_found_are_plain_values() -> None:
    sent = {"document": at("/secret", "one")}
    found = inputs.resolve({"got": at("/document")}, sent, {"one": {"secret": "s"}})
    assert found == {"got": at("/secret", "one")}


def test_run_is_the_run_whatever_a_step_is_called() -> None:
    assert inputs.resolve(at(""), "of the run", {"run": "of the step"}) == "of the run"


def test_all_references_of_an_input_are_known() -> None:
    said = [at("/a"), {"b": [at("", "one"), {"$from": "two"}]}, "$from", 1]
    assert set(inputs.references(said)) == {
        Reference("run", "/a"),
        Reference("one", ""),
        Reference("two", ""),
    }


@pytest.mark.parametrize(
    "said",
    [
        {"$from": 1},
        {"$from": None, "pointer": ""},
        {"$from": "run", "pointer": None},
        {"$from": "run", "pointer": "a"},
        {"$from": "run", "pointer": "/~"},
        {"$from": "run", "pointer": "/~2"},
        {"$from": "run", "ponter": "/a"},
        {"$from": "run", "pointer": "/a", "default": 1},
    ],
)
def test_what_is_made_like_a_reference_and_is_none_is_an_error(said: Any) -> None:
    with pytest.raises(ValueError, match=r"\$from"):
        list(inputs.references([said]))
