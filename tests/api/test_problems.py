"""What a caller sees when something goes wrong that no rule foresaw."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import OperationalError
from django.test import Client
from psycopg import errors as pg

from mesh import claims, tenancy
from tests.factories import World

from .client import BASE, assert_refused, get, post


def raising(error: Exception) -> Callable[..., Any]:
    def act(*args: Any, **kwargs: Any) -> Any:
        raise error

    return act


def wrapped(cause: Exception) -> OperationalError:
    error = OperationalError(str(cause))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "cause",
    [
        pg.LockNotAvailable("l"),
        pg.DeadlockDetected("d"),
        pg.QueryCanceled("q"),
        pg.TooManyConnections("t"),
        psycopg.OperationalError("server closed the connection unexpectedly"),
    ],
)
def test_a_busy_store_says_when_to_try_again(
    cause: Exception, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = world.worker()
    monkeypatch.setattr(claims, "claim", raising(wrapped(cause)))
    answer = post(f"workers/{member.worker_id}/claims", {"max": 1}, member.credential)
    assert_refused(answer, "STORAGE_BUSY")
    assert answer.json["retry_after_ms"] > 0
    assert int(answer.headers["Retry-After"]) >= 1


def test_why_the_store_is_busy_is_for_the_log_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member = world.worker()
    monkeypatch.setattr(claims, "claim", raising(wrapped(pg.DiskFull("no space\nHINT: more"))))
    answer = post(f"workers/{member.worker_id}/claims", {"max": 1}, member.credential)
    assert_refused(answer, "STORAGE_BUSY")
    assert "no space" not in answer.text
    assert [each for each in caplog.messages if "no space" in each] == [
        "the store is busy: no space"
    ]


def test_a_busy_store_is_told_before_the_caller_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenancy, "authenticate", raising(wrapped(pg.QueryCanceled("q"))))
    assert_refused(get("workers", "fpt_x"), "STORAGE_BUSY")


def test_an_unforeseen_error_is_logged_and_says_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member = world.worker()
    monkeypatch.setattr(claims, "claim", raising(RuntimeError("the inside")))
    with caplog.at_level(logging.ERROR):
        answer = post(f"workers/{member.worker_id}/claims", {"max": 1}, member.credential)
    assert (answer.status, answer.code) == (500, "INTERNAL_ERROR")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "the inside" not in answer.text
    assert any(record.exc_info for record in caplog.records)


def test_an_error_outside_of_views_is_a_problem_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.contrib.sessions.middleware import SessionMiddleware

    client = Client(raise_request_exception=False)
    monkeypatch.setattr(SessionMiddleware, "process_request", raising(RuntimeError("inside")))
    answer = client.get(f"{BASE}/workers")
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL_ERROR")
    busy = wrapped(pg.TooManyConnections("t"))
    monkeypatch.setattr(SessionMiddleware, "process_request", raising(busy))
    answer = client.get(f"{BASE}/workers")
    assert (answer.status_code, answer.json()["code"]) == (503, "STORAGE_BUSY")
    assert answer.headers["Retry-After"]


def test_a_host_that_is_not_ours_is_a_problem(world: World, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["fencepost.example"]
    answer = Client().get(f"{BASE}/workers", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (400, "REQUEST_MALFORMED")
