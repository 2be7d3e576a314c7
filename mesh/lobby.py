"""Who waits for work in this process, and the one thread that looks out for them.

Guarantees: who waits holds neither a thread of the database's nor a transaction; there is one
connection for all of them. They are woken in the order of their coming, as many as there is new
work that they may take. A wake is a hint: the claim decides, and one that was woken for nothing
waits on.

The thread listens for notifications (`mesh.models.waking`) and asks `waiting.sql` every one to two
seconds, for all at once. That question is the truth: a notification may be lost, a pause may be
lifted, a pool may come free. While the thread has no connection, `is_watched` is False and those
who wait ask for themselves. It starts with the first who comes and ends after a minute of nobody.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import connection

from . import statements
from .models.waking import CHANNEL

LOOK: Final = statements.load("waiting")
_LOOK_S: Final = (1.0, 2.0)
# Of a requirement that nobody here is known to take: it may be new. Look, but not all the time.
_HURRY_S: Final = 0.1
_IDLE_S: Final = 60.0
# So long the thread may take to see that the process ends.
_STOP_S: Final = 0.5
_KEEPALIVE: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
# Beyond the bound some may still wait, for a moment.
_BRIEF: Final = 24
_BRIEF_S: Final = (0.25, 0.75)
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Waiter:
    """One call that waits. `woken_by` is what it was woken for, until it has asked."""

    worker_pk: int
    incarnation: int | None
    until: float
    application_pk: int | None = None
    requirement_ids: frozenset[int] | None = None
    woken_by: tuple[int, int] | None = None
    bell: threading.Event = field(default_factory=threading.Event)

    def learn(self, row: Sequence[Any]) -> bool:
        """Take over a row of `waiting.sql`; whether it says that asking is worth it."""
        _, incarnation, self.application_pk, requirement_ids, is_worth_asking = row
        self.requirement_ids = frozenset(requirement_ids)
        return bool(is_worth_asking) or incarnation != self.incarnation

    def may_take(self, application_pk: int, requirement_id: int) -> bool:
        """Whether that work may be for it; what is not known yet may be."""
        if self.application_pk not in {None, application_pk}:
            return False
        return self.requirement_ids is None or requirement_id in self.requirement_ids


class Lobby:
    """The waiters of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[Waiter, None] = {}
        self._thread: threading.Thread | None = None
        self._looked_at = 0.0
        self._busy_at = 0.0
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks out for those who wait."""
        return time.monotonic() - self._looked_at < 2 * _LOOK_S[1]

    def enter(self, worker_pk: int, incarnation: int | None, until: float) -> Waiter | None:
        """Wait here; None where there is no room or the process ends.

        Above the bound a wait is cut to a moment, for each of them takes a thread.
        """
        with self._lock:
            others = len(self._waiters)
            if self._is_stopping or others >= settings.WEB_WAITERS + _BRIEF:
                return None
            if others >= settings.WEB_WAITERS:
                until = min(until, time.monotonic() + _between(_BRIEF_S))
            waiter = Waiter(worker_pk, incarnation, until)
            self._waiters[waiter] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="lobby", daemon=True)
                self._thread.start()
            return waiter

    def leave(self, waiter: Waiter) -> None:
        """Go; a wake that was not used goes to the next."""
        with self._lock:
            self._waiters.pop(waiter, None)
        self.pass_on(waiter)

    def wait(self, waiter: Waiter) -> bool:
        """Wait for a while; whether it is time to ask."""
        left = min(waiter.until - time.monotonic(), _between(_LOOK_S))
        return waiter.bell.wait(max(left, 0.0)) or not self.is_watched

    def answer(self, waiter: Waiter) -> tuple[int, int] | None:
        """What it was woken for; it asks now, and may be woken again."""
        with self._lock:
            waiter.bell.clear()
            woken_by, waiter.woken_by = waiter.woken_by, None
            return woken_by

    def pass_on(self, waiter: Waiter, woken_by: tuple[int, int] | None = None) -> None:
        """Wake one more for the same work: this one could not take it, or not all of it."""
        told = woken_by or waiter.woken_by
        if told is not None:
            self.tell(*told, 1, but=waiter)

    def tell(
        self, application_pk: int, requirement_id: int, number: int, *, but: Waiter | None = None
    ) -> bool:
        """Wake as many as there is new work, first come first; False if nobody here may take it."""
        is_known = False
        with self._lock:
            for waiter in self._waiters:
                if number <= 0:
                    break
                if waiter is but or not waiter.may_take(application_pk, requirement_id):
                    continue
                is_known = True
                if not waiter.bell.is_set():
                    waiter.woken_by = (application_pk, requirement_id)
                    waiter.bell.set()
                    number -= 1
        return is_known

    def stop(self) -> None:
        """The process ends: answer all who wait, and let nobody wait any more."""
        self._is_stopping = True
        with self._lock:
            for waiter in self._waiters:
                waiter.until = 0.0
                waiter.bell.set()

    def join(self) -> None:
        """Wait until nobody looks out any more, after `stop`."""
        if self._thread is not None:
            self._thread.join()

    # The thread

    def _watch(self) -> None:
        while self._has_work():
            try:
                with open_session() as session:
                    self._listen(session)
            except psycopg.Error as error:
                _log.warning("nobody looks out for waiting workers: %s", _first_line(error))
                time.sleep(_between(_BRIEF_S))
            except Exception:
                _log.exception("looking out for waiting workers broke; it starts again")
                time.sleep(_between(_LOOK_S))

    def _has_work(self) -> bool:
        with self._lock:
            if self._waiters:
                self._busy_at = time.monotonic()
            elif time.monotonic() - self._busy_at > _IDLE_S:
                self._thread = None
            return self._thread is not None and not self._is_stopping

    def _listen(self, session: psycopg.Connection[Any]) -> None:
        session.execute(f"listen {CHANNEL}")
        while self._has_work():
            self._look(session)
            next_look = time.monotonic() + _between(_LOOK_S)
            hurried = time.monotonic() + _HURRY_S
            while not self._is_stopping and (left := next_look - time.monotonic()) > 0:
                for told in session.notifies(timeout=min(left, _STOP_S), stop_after=1):
                    if not self._heed(told.payload):
                        next_look = min(next_look, max(hurried, time.monotonic()))

    def _heed(self, payload: str) -> bool:
        application_pk, requirement_id, number = map(int, payload.split())
        return not self._waiters or self.tell(application_pk, requirement_id, number)

    def _look(self, session: psycopg.Connection[Any]) -> None:
        """Ask for all at once who should ask again, and wake them."""
        with self._lock:
            waiting = list(self._waiters)
        if waiting:
            pks = sorted({each.worker_pk for each in waiting})
            rows = session.execute(LOOK, {"workers": pks}).fetchall()
            self._learn(waiting, {row[0]: row for row in rows})
        self._looked_at = time.monotonic()

    def _learn(self, waiting: Iterable[Waiter], rows: dict[int, tuple[Any, ...]]) -> None:
        with self._lock:
            for waiter in waiting:
                row = rows.get(waiter.worker_pk)
                if row is None or waiter.learn(row):
                    waiter.bell.set()


def open_session() -> psycopg.Connection[Any]:
    """A connection to listen on, beside Django's: those are given back, this one is not."""
    given = connection.get_connection_params()
    return psycopg.connect(**{**_KEEPALIVE, **given, "autocommit": True})


def _between(bounds: tuple[float, float]) -> float:
    """Jitter, so that those who came together do not ask together for ever."""
    return random.uniform(*bounds)  # noqa: S311


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


_present = Lobby()


def present() -> Lobby:
    """The lobby of this process."""
    return _present


def empty() -> None:
    """Answer all who wait here, and begin anew. For tests."""
    left = present()
    left.stop()
    left.join()
    _start_anew()


def _start_anew() -> None:
    """A child of a fork has neither the threads nor the callers of its parent."""
    global _present
    _present = Lobby()


os.register_at_fork(after_in_child=_start_anew)
