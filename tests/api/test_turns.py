"""Calls of one worker take turns before they take what all share; gone callers are seen."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from mesh.api.turns import AT_ONCE, RequestLine, Turns, is_closed
from mesh.errors import DomainError
from tests.agent.conftest import eventually


@pytest.fixture
def turns() -> Turns:
    return Turns()


def in_thread(call: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        # Who still waits when the test is over is told that the store is busy.
        with suppress(DomainError):
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_call_waits_for_its_turn_and_others_do_not(turns: Turns) -> None:
    for _ in range(AT_ONCE):
        turns.take("one")
    waiting = in_thread(partial(turns.take, "one"))
    eventually(lambda: turns._in_line, "it waits")
    turns.take("other")
    assert waiting.is_alive()
    turns.give("one")
    waiting.join(10)
    assert not waiting.is_alive()
    assert turns._in_line == {}


def test_a_turn_that_does_not_come_is_a_busy_store(turns: Turns, settings: Any) -> None:
    settings.LOCK_TIMEOUT_MS = 20
    for _ in range(AT_ONCE):
        turns.take("one")
    with pytest.raises(DomainError, match="in time") as refusal:
        turns.take("one")
    assert refusal.value.code == "STORAGE_BUSY"


def test_a_long_line_is_not_made_longer(turns: Turns) -> None:
    for _ in range(AT_ONCE):
        turns.take("one")
    for number in range(8):
        in_thread(partial(turns.take, "one"))
        eventually(lambda: turns._in_line["one"] == number + 1, "it waits")  # noqa: B023
    with pytest.raises(DomainError):
        turns.take("one")


def test_a_call_that_steps_aside_lets_the_next_one_in_and_leaves_nothing(turns: Turns) -> None:
    first, second = RequestLine(turns, "one", {}), RequestLine(turns, "one", {})
    for each in (first, second, first):
        each.step_up()
    first.step_aside()
    first.step_aside()
    RequestLine(turns, "one", {}).step_up()
    assert turns._at_work == {"one": 2}


def test_who_is_no_worker_needs_no_turn(turns: Turns) -> None:
    for _ in range(AT_ONCE + 1):
        RequestLine(turns, None, {}).step_up()
    assert turns._at_work == {}


def test_a_closed_connection_is_seen_and_an_open_one_is_not_touched() -> None:
    here, there = socket.socketpair()
    with here:
        assert not is_closed(here)
        there.send(b"next request")
        assert not is_closed(here)
        assert here.recv(100) == b"next request"
        there.close()
        assert is_closed(here)


def test_a_caller_of_whom_nothing_is_known_is_there() -> None:
    assert not RequestLine(Turns(), None, {}).is_gone()
