"""Waiting for work: a claims call that is answered as soon as there is work for its worker.

Guarantees: a caller that waits holds no transaction, no lock and no connection to the database;
what it gets at last is an ordinary claim (`mesh.claims`), judged when it is made. Work that comes
while a worker waits is claimed within milliseconds where notifications arrive, and within about two
seconds where they do not. A worker whose credential is replaced meanwhile gets TOKEN_INVALID.

Not guaranteed: that the caller still listens. Whether it does is looked at before each claim; one
that ends in the very moment of the claim finds it in the next heartbeat (`assigned_claims`) or
loses it with the lease, like any other lost answer.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from django.db import connection

from . import claims, lobby, locking, statements
from .claims import Claims
from .errors import DomainError
from .lobby import LOOK, Lobby, Waiter
from .tenancy import Caller

MAX_WAIT_MS: Final = 20_000
# These pass by themselves: a slot comes free, a beat says HEALTHY. The others need somebody to act.
_PASSING: Final = frozenset({None, "CAPACITY", "HEALTH"})


class Line:
    """The way to the caller, as its edge knows it."""

    def is_gone(self) -> bool:
        """Whether nobody listens there any more."""
        return False

    def step_aside(self) -> None:
        """Keep nothing from other calls while waiting. Safe to repeat, as is the other."""

    def step_up(self) -> None:
        """Take it back; refuses with STORAGE_BUSY where that cannot be had in time."""


def claim(
    *,
    caller: Caller,
    worker_id: str,
    maximum: int,
    lease_ms: int | None = None,
    wait_ms: int = 0,
    line: Line | None = None,
) -> Claims:
    """Claim as `mesh.claims.claim` does, but wait up to `wait_ms` for work if there is none.

    The answer is empty when the time is over, and at once where waiting is no use: the worker may
    not take work, for a reason that does not pass by itself (all but CAPACITY and HEALTH), or the
    server is full of waiting workers or ends. While it waits, a busy store is no answer. After a
    lost answer a repeat waits anew. The worker's `last_poll_at` tells when it began to wait.

    Refuses with REQUEST_INVALID (`wait_ms` beyond 0 to 20 000) and as `mesh.claims.claim` does;
    also with TOKEN_INVALID when the credential is replaced while it waits.
    """
    if not 0 <= wait_ms <= MAX_WAIT_MS:
        raise DomainError("REQUEST_INVALID", f"A wait is from 0 to {MAX_WAIT_MS} ms.")
    ask = partial(
        claims.claim, caller=caller, worker_id=worker_id, maximum=maximum, lease_ms=lease_ms
    )
    until = time.monotonic() + wait_ms / 1000
    taken = ask()
    if not wait_ms or not _may_wait(taken):
        return taken
    here = lobby.present()
    waiter = here.enter(caller.worker_pk or 0, caller.incarnation, until)
    if waiter is None:
        return taken
    try:
        # What came between that claim and this moment rang no bell.
        if _is_worth_asking(waiter):
            waiter.bell.set()
        return _wait(here, waiter, ask, maximum, line or Line())
    finally:
        here.leave(waiter)


def _wait(
    here: Lobby, waiter: Waiter, ask: Callable[[], Claims], maximum: int, line: Line
) -> Claims:
    taken = Claims([], None)
    while True:
        _let_go()
        line.step_aside()
        is_time = here.wait(waiter)
        if time.monotonic() >= waiter.until or line.is_gone():
            return taken
        if not is_time:
            continue
        woken_by = here.answer(waiter)
        taken = _ask_again(ask, line)
        if taken.reason or len(taken.claims) >= maximum:
            here.pass_on(waiter, woken_by)
        if not _may_wait(taken):
            return taken


def _may_wait(taken: Claims) -> bool:
    return not taken.claims and taken.reason in _PASSING


def _is_worth_asking(waiter: Waiter) -> bool:
    row = statements.first(LOOK, {"workers": [waiter.worker_pk]})
    return row is None or waiter.learn(row)


def _ask_again(ask: Callable[[], Claims], line: Line) -> Claims:
    """Claim; a busy store is as good as no work."""
    try:
        line.step_up()
        return ask()
    except Exception as exc:
        if not locking.is_busy(exc):
            raise
        return Claims([], None)


def _let_go() -> None:
    """Give the database connection back; within a transaction there is none to give."""
    if not connection.in_atomic_block:
        connection.close()
