"""Secrets do not belong in the mesh."""

from __future__ import annotations

from typing import Any

import pytest

from mesh.screening import require_no_secrets
from tests.mesh.checks import raises

PEM = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize("key", ["password", "secret", "token", "api_key", "private_key"])
@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
@pytest.mark.parametrize("depth", [0, 1, 40])
def test_a_secret_key_is_refused_at_any_depth_and_in_any_case(
    key: str, case: Any, depth: int
) -> None:
    value: Any = {case(key): None}
    for level in range(depth):
        value = [value] if level % 2 else {"inside": value}
    with raises("WORKLOAD_SECRET_REJECTED"):
        require_no_secrets(input=value)


@pytest.mark.parametrize(
    "value",
    [
        PEM,
        f"text {PEM} text",
        {"a": [f"\n{PEM}\n"]},
        {PEM: 1},
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN EC PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----",
    ],
)
def test_a_private_key_is_refused_in_any_string(value: Any) -> None:
    with raises("WORKLOAD_SECRET_REJECTED"):
        require_no_secrets(output=value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "password",
        ["token"],
        {"a": "secret"},
        {"passwords": 1, "tokens": 2, "my_token": 3, "apikey": 4},
        {"credential": "secret://vault/db"},
        "-----BEGIN PUBLIC KEY-----",
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_what_holds_no_secret_is_let_through(value: Any) -> None:
    assert require_no_secrets(input=value) is None  # type: ignore[func-returns-value]


def test_the_refusal_names_the_part_and_not_what_was_found() -> None:
    with raises("WORKLOAD_SECRET_REJECTED") as caught:
        require_no_secrets(output={"token": "hunter2"})
    assert "output" in caught.value.detail
    assert "hunter2" not in str(caught.value)
