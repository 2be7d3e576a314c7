"""Identities and sameness."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from mesh.canonical import digest, identity, is_within, size


def test_an_identity_hashes_compact_json_with_its_order_and_letters() -> None:
    expected = sha256('["ä","b c","日本"]'.encode()).hexdigest()[:24]
    assert identity("worker", ["ä", "b c", "日本"]) == f"worker_{expected}"
    assert identity("worker", ["b c", "ä", "日本"]) != f"worker_{expected}"


def test_parts_do_not_run_together() -> None:
    assert identity("x", ["a", "bc"]) != identity("x", ["ab", "c"])


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, True),
        ([1, 2], [2, 1], False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {}, False),
        (1, 1.0, False),
    ],
)
def test_same_content_has_the_same_digest(one: Any, other: Any, is_same: bool) -> None:
    assert (digest(one) == digest(other)) is is_same


@pytest.mark.parametrize(("value", "bytes_"), [("", 2), ("ß", 4), ({"a": [1, 2]}, 11), (None, 4)])
def test_size_counts_bytes_of_compact_json(value: Any, bytes_: int) -> None:
    assert size(value) == bytes_


@pytest.mark.parametrize("value", ["ß" * 50, [1e16] * 50, {"a": None}, 2**70])
def test_content_is_within_its_size_and_no_byte_less(value: Any) -> None:
    """So it is told as well where the bound is far away."""
    assert is_within(value, size(value))
    assert is_within(value, 10 * size(value))
    assert not is_within(value, size(value) - 1)
