"""Real transactions in threads, steered without luck.

Each `Actor` runs one call in a thread on its own connection. A race is put into the order that a
test wants in one of two ways: by rows that the test holds (`hold`), where PostgreSQL itself says
who waits for whom (`wait_until_blocked`), or by a `Gate` before a named function. Whatever is
waited for has a time limit; nothing here sleeps and hopes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any, Final, Generic, TypeVar, cast

from django.db import DatabaseError, connection, transaction
from django.db.models import Model

from mesh import locking
from mesh.errors import DomainError

T = TypeVar("T")
LIMIT_S: Final = 20.0
# Long enough for a slow machine: that a waiter gives up is what other tests ask for by name.
PATIENCE_MS: Final = 15_000
_STEP_S: Final = 0.002


def eventually(is_so: Callable[[], bool], what: str) -> None:
    """Wait until it is so; fail after the time limit."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(_STEP_S)


class Actor(Generic[T]):
    """One call in a thread with its own connection; starts at once."""

    def __init__(
        self,
        call: Callable[[], T],
        *,
        after: threading.Barrier | None = None,
        lock_timeout_ms: int = PATIENCE_MS,
    ) -> None:
        self._call = call
        self._barrier = after
        self._lock_timeout_ms = lock_timeout_ms
        self._answer: T | DomainError | None = None
        self._trouble: BaseException | None = None
        self._connected = threading.Event()
        self.pid = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> T | DomainError:
        """The answer, or the refusal as an edge would tell it; anything else raises here."""
        self.wait()
        assert not self._thread.is_alive(), "the call never came to its end"
        if self._trouble is not None:
            raise self._trouble
        return cast("T | DomainError", self._answer)

    def wait(self) -> None:
        """Wait for the end, whatever it is, or for the time limit."""
        self._thread.join(LIMIT_S)

    def value(self) -> T:
        """The answer of a call that must not be refused."""
        answer = self.end()
        if isinstance(answer, DomainError):
            raise answer
        return answer

    def code(self) -> str:
        """The code of a call that must be refused."""
        answer = self.end()
        assert isinstance(answer, DomainError), f"was not refused: {answer!r}"
        return answer.code

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait_until_blocked(self, by: Actor[Any] | None = None) -> None:
        """Wait until PostgreSQL says that this call waits for a lock (of that other actor)."""
        self._connected.wait(LIMIT_S)
        eventually(
            lambda: bool(self._blockers() if by is None else by.pid in self._blockers()),
            "the call waits for a lock",
        )

    def is_blocked_by(self, other: Actor[Any]) -> bool:
        return other.pid in self._blockers()

    def _blockers(self) -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute("select pg_blocking_pids(%s)", [self.pid])
            blockers: list[int] = cursor.fetchone()[0]
        return blockers

    def _run(self) -> None:
        try:
            self.pid = _open_session(self._lock_timeout_ms)
            self._connected.set()
            if self._barrier is not None:
                self._barrier.wait(LIMIT_S)
            self._answer = self._call()
        except DomainError as refusal:
            self._answer = refusal
        except DatabaseError as error:
            self._answer = locking.busy_error(error)
            self._trouble = error if self._answer is None else None
        except BaseException as error:
            self._trouble = error
        finally:
            self._connected.set()
            connection.close()


def at_once(*calls: Callable[[], T]) -> list[T | DomainError]:
    """Let all the calls go in the same moment; their answers, in the order of the calls."""
    barrier = threading.Barrier(len(calls))
    actors = [Actor(call, after=barrier) for call in calls]
    for each in actors:
        each.wait()
    return [each.end() for each in actors]


def answers(ended: Sequence[T | DomainError]) -> list[T]:
    """Those that were not refused."""
    return [each for each in ended if not isinstance(each, DomainError)]


def codes(ended: Sequence[Any]) -> list[str]:
    """The codes of those that were refused."""
    return [each.code for each in ended if isinstance(each, DomainError)]


@contextmanager
def hold(*rows: Model) -> Iterator[None]:
    """Hold the lock on these rows, as another call would, until the block ends."""
    with transaction.atomic():
        for row in rows:
            locked = type(row)._default_manager.select_for_update(of=("self",), no_key=True)
            assert locked.filter(pk=row.pk).exists()
        yield


def is_free(row: Model) -> bool:
    """Whether nobody holds the lock on a row at this moment."""
    with transaction.atomic():
        free = type(row)._default_manager.select_for_update(
            of=("self",), no_key=True, skip_locked=True
        )
        return free.filter(pk=row.pk).first() is not None


class Gate:
    """A point before (or after) a function where calls of actors stop until they are let through.

    Only calls in other threads than the one that made the gate stop, each time they come by.
    """

    def __init__(self, owner: ModuleType | type, name: str, *, after: bool = False) -> None:
        self._owner = owner
        self._name = name
        self._after = after
        self._arrivals = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._is_open = False
        self._original: Callable[..., Any] = getattr(owner, name)
        self._home = threading.get_ident()

    def __enter__(self) -> Gate:
        # A function, not a method of this gate: that of a class must get its own `self`.
        setattr(self._owner, self._name, lambda *args, **kwargs: self._stop(*args, **kwargs))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        setattr(self._owner, self._name, self._original)
        self._is_open = True
        self._passes.release(100)

    def wait_for_arrival(self) -> None:
        assert self._arrivals.acquire(timeout=LIMIT_S), f"nobody came to {self._name}"

    def let_through(self) -> None:
        self._passes.release()

    def _stop(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_open or threading.get_ident() == self._home:
            return self._original(*args, **kwargs)
        if not self._after:
            self._wait()
        answer = self._original(*args, **kwargs)
        if self._after:
            self._wait()
        return answer

    def _wait(self) -> None:
        self._arrivals.release()
        assert self._passes.acquire(timeout=LIMIT_S), f"never let through {self._name}"


def _open_session(lock_timeout_ms: int) -> int:
    """Open this thread's connection with patient time limits; its backend's process id."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select set_config('lock_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', '60s', false),"
            " set_config('statement_timeout', '30s', false), pg_backend_pid()",
            [f"{lock_timeout_ms}ms"],
        )
        pid: int = cursor.fetchone()[3]
    return pid
