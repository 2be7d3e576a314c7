"""Guessing tokens is slowed; whoever has a valid one never notices."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory
from pytest_django import Settings

from mesh import throttling
from mesh.models import ApiToken, Role
from tests.factories import World

from .client import assert_refused, get, post
from .routes import beat_body


@pytest.fixture(autouse=True)
def three_a_minute(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TOKEN_FAILURES_PER_MINUTE = 3
    # Within one minute, whatever the machine's clock says.
    monkeypatch.setattr("mesh.throttling.time.time", lambda: 6_000_000_015.0)


@pytest.mark.parametrize("secret", ["fpt_wrong", "fpw_wrong", "other"])
def test_too_many_failures_from_one_address_are_told_to_wait(world: World, secret: str) -> None:
    for _ in range(3):
        assert_refused(get("workers", secret), "TOKEN_INVALID")
    answer = get("workers", secret)
    assert_refused(answer, "LIMIT_EXCEEDED")
    assert answer.json["retry_after_ms"] == 45_000
    assert answer.headers["Retry-After"] == "45"


def test_a_valid_token_works_during_a_storm_of_failures(world: World) -> None:
    secret, member = world.token(Role.VIEWER), world.worker()
    for _ in range(10):
        get("workers", "fpt_wrong")
    assert_refused(get("workers", "fpt_wrong"), "LIMIT_EXCEEDED")
    for _ in range(5):
        assert get("workers", secret).status == 200
        beat = post(f"workers/{member.worker_id}/heartbeat", beat_body(member), member.credential)
        assert beat.status == 200


def test_failures_of_one_address_do_not_count_for_another(world: World) -> None:
    for _ in range(4):
        get("workers", "fpt_wrong", REMOTE_ADDR="192.0.2.1")
    assert_refused(get("workers", "fpt_wrong", REMOTE_ADDR="192.0.2.1"), "LIMIT_EXCEEDED")
    assert_refused(get("workers", "fpt_wrong", REMOTE_ADDR="192.0.2.2"), "TOKEN_INVALID")


def test_the_next_minute_counts_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        get("workers", "fpt_wrong")
    monkeypatch.setattr("mesh.throttling.time.time", lambda: 6_000_000_060.0)
    assert_refused(get("workers", "fpt_wrong"), "TOKEN_INVALID")


@pytest.mark.parametrize(("behind_proxy", "address"), [(False, "10.0.0.1"), (True, "192.0.2.9")])
def test_only_the_proxys_own_word_on_the_address_is_believed(
    settings: Settings, behind_proxy: bool, address: str
) -> None:
    settings.BEHIND_TLS_PROXY = behind_proxy
    said: dict[str, Any] = {
        "HTTP_X_FORWARDED_FOR": "203.0.113.1, 192.0.2.9",
        "REMOTE_ADDR": "10.0.0.1",
    }
    assert throttling.address_of(RequestFactory().get("/", **said)) == address


def test_the_use_of_a_token_is_noted_and_never_waited_for(world: World) -> None:
    secret = world.token()
    token = ApiToken.objects.latest("pk")
    assert token.last_used_at is None
    get("workers", secret)
    token.refresh_from_db()
    assert token.last_used_at is not None
