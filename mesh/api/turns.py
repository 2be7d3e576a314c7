"""Calls of one worker take turns in this process, and a caller that waits steps aside.

Each call of a worker locks its row, so that they wait for each other anyhow. Here they wait before
they have taken one of the few database connections: a row that somebody keeps locked holds up its
own worker's calls and not everybody else's.
"""

import select
import threading
import time
from socket import MSG_PEEK, socket
from ssl import SSLSocket
from typing import Any, Final

from django.conf import settings

from ..locking import busy
from ..waiting import Line

# One at its work, the next one at the row.
AT_ONCE: Final = 2
# Beyond these nobody waits for a turn: each takes a thread.
_IN_LINE: Final = 8


class Turns:
    """Who is at work for which key, and how many wait for that."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._at_work: dict[str, int] = {}
        self._in_line: dict[str, int] = {}

    def take(self, key: str) -> None:
        """Wait for a turn; STORAGE_BUSY when there is none in time or too many wait."""
        with self._change:
            if self._at_work.get(key, 0) >= AT_ONCE:
                self._wait(key)
            self._at_work[key] = self._at_work.get(key, 0) + 1

    def give(self, key: str) -> None:
        """The turn is over."""
        with self._change:
            _count_down(self._at_work, key)
            if key in self._in_line:
                self._change.notify_all()

    def _wait(self, key: str) -> None:
        if self._in_line.get(key, 0) >= _IN_LINE:
            raise busy()
        self._in_line[key] = self._in_line.get(key, 0) + 1
        until = time.monotonic() + settings.LOCK_TIMEOUT_MS / 1000
        try:
            while self._at_work.get(key, 0) >= AT_ONCE:
                left = until - time.monotonic()
                if left <= 0 or not self._change.wait(left):
                    raise busy()
        finally:
            _count_down(self._in_line, key)


class RequestLine(Line):
    """The way to the caller of one HTTP request."""

    def __init__(self, turns: Turns, key: str | None, environ: dict[str, Any]) -> None:
        self._turns = turns
        self._key = key
        self._socket = environ.get("gunicorn.socket")
        self._has_turn = False

    def step_up(self) -> None:
        if self._key is not None and not self._has_turn:
            self._turns.take(self._key)
            self._has_turn = True

    def step_aside(self) -> None:
        if self._key is not None and self._has_turn:
            self._has_turn = False
            self._turns.give(self._key)

    def is_gone(self) -> bool:
        """Whether the caller closed its connection; unknown counts as no.

        Behind a proxy this is the proxy's connection, which most close with their client's.
        """
        return isinstance(self._socket, socket) and is_closed(self._socket)


def is_closed(connection: socket) -> bool:
    """Whether the other side of a socket, which has sent all it had to, closed it."""
    # What comes in encrypted cannot be looked at without taking it.
    if isinstance(connection, SSLSocket):
        return False
    try:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0)) and not connection.recv(1, MSG_PEEK)
    except (OSError, ValueError):
        return True


def _count_down(counts: dict[str, int], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
