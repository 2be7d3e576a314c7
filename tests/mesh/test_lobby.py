"""Who is woken, in which order, and who may wait at all."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from mesh.lobby import Lobby, Waiter

FAR = 3_600.0


@pytest.fixture
def lobby() -> Lobby:
    """A lobby that nobody looks out for."""
    made = Lobby()
    made._thread = threading.current_thread()
    return made


def enter(lobby: Lobby, *requirements: int, application: int = 1) -> Waiter:
    waiter = lobby.enter(1, 1, time.monotonic() + FAR)
    assert waiter is not None
    waiter.learn((1, 1, application, requirements, False))
    return waiter


def rung(*waiters: Waiter) -> list[bool]:
    return [each.bell.is_set() for each in waiters]


def test_as_many_are_woken_as_there_is_work_in_the_order_of_their_coming(lobby: Lobby) -> None:
    waiters = [enter(lobby, 7) for _ in range(4)]
    assert lobby.tell(1, 7, 2)
    assert rung(*waiters) == [True, True, False, False]
    lobby.tell(1, 7, 1)
    assert rung(*waiters) == [True, True, True, False]


def test_only_those_who_may_take_the_work_are_woken(lobby: Lobby) -> None:
    other, fitting = enter(lobby, 8), enter(lobby, 7, 8)
    abroad = enter(lobby, 7, application=2)
    assert lobby.tell(1, 7, 3)
    assert rung(other, fitting, abroad) == [False, True, False]


def test_work_that_nobody_here_is_known_to_take_is_told_apart(lobby: Lobby) -> None:
    enter(lobby, 7)
    assert not lobby.tell(1, 9, 1)


def test_a_wake_that_was_not_used_goes_to_the_next(lobby: Lobby) -> None:
    first, second = enter(lobby, 7), enter(lobby, 7)
    lobby.tell(1, 7, 1)
    lobby.leave(first)
    assert rung(second) == [True]
    assert len(lobby) == 1


def test_who_was_not_woken_leaves_quietly(lobby: Lobby) -> None:
    first, second = enter(lobby, 7), enter(lobby, 7)
    lobby.leave(first)
    assert rung(second) == [False]


def test_beyond_the_bound_a_wait_is_cut_and_then_refused(lobby: Lobby, settings: Any) -> None:
    settings.WEB_WAITERS = 1
    assert enter(lobby).until > time.monotonic() + FAR / 2
    assert enter(lobby).until < time.monotonic() + 1
    for _ in range(23):
        enter(lobby)
    assert lobby.enter(1, 1, time.monotonic() + FAR) is None


def test_after_the_stop_nobody_waits(lobby: Lobby) -> None:
    waiter = enter(lobby, 7)
    lobby.stop()
    assert waiter.until < time.monotonic()
    assert rung(waiter) == [True]
    assert lobby.enter(1, 1, time.monotonic() + FAR) is None
