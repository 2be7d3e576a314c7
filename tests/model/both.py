"""What the rules of the machine share: the mesh and the reference, asked alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import connection, transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from mesh import (
    clock,
    invariants,
    leases,
    refusals,
    settlement,
)
from mesh.errors import DomainError
from mesh.models import SweepRun
from mesh.tenancy import Caller
from tests.factories import World

from .reference import Mesh
from .rows import Man, Refusal, Try, Work

T = TypeVar("T")
# Any number stands for some member of a list that is not empty.
some = st.integers(0, 999)


@dataclass
class Process:
    """A process that registered as a worker; it may have been displaced since."""

    man: Man
    caller: Caller
    credential: str
    incarnation: int

    @property
    def is_displaced(self) -> bool:
        return self.incarnation != self.man.incarnation


class Both(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._undo = ExitStack()
        self._undo.enter_context(transaction.atomic())
        self._clock = self._undo.enter_context(ExitStack())
        SweepRun.objects.all().delete()
        self.world = World()
        self.model = Mesh()
        self.start = clock.now().replace(microsecond=0)
        self._set_clock()
        self.processes: list[Process] = []
        self.tries: list[Try] = []

    def teardown(self) -> None:
        try:
            connection.check_constraints()
            assert invariants.broken() == {}
        finally:
            transaction.set_rollback(True)
            self._undo.close()

    # --- both worlds

    def at(self, ms: int) -> datetime:
        return self.start + timedelta(milliseconds=ms)

    def _set_clock(self) -> None:
        self._clock.close()
        self._clock.enter_context(clock.set_to(self.at(self.model.now)))

    def both(self, expected: Callable[[], Any], call: Callable[[], T]) -> tuple[Any, T | None]:
        """Ask both; either both answer or both refuse with the same code (and reasons)."""
        wanted = _outcome(expected)
        answer = _outcome(call)
        if isinstance(answer, Refusal):
            raise answer
        if isinstance(wanted, Refusal) or isinstance(answer, DomainError):
            assert isinstance(wanted, Refusal), f"must not be refused: {answer}"
            assert isinstance(answer, DomainError), f"{wanted} was due: {answer!r}"
            # As the edge of an operation does, which stands in no transaction of others.
            refusals.keep(answer)
            told = tuple(answer.facts.get("reasons", ()))
            assert (answer.code, told) == (wanted.code, wanted.reasons)
            return None, None
        return wanted, answer

    def as_process(self, process: Process, expected: Callable[[], Any]) -> Callable[[], Any]:
        """What a process that may have been displaced must be told."""

        def judged() -> Any:
            if process.is_displaced:
                raise Refusal("TOKEN_INVALID")
            return expected()

        return judged

    def process(self, number: int) -> Process:
        """Mostly one that is not displaced."""
        own = [each for each in self.processes if not each.is_displaced]
        pool = self.processes if number % 8 == 0 else own  # never with an odd number
        return pool[number % len(pool)]

    def work(self, number: int) -> Work:
        return self.model.works[number % len(self.model.works)]

    def shown(self, number: int) -> tuple[Process, Try]:
        """A process and the claim that it presents: mostly its own, mostly a live one."""
        live = [each for each in self.tries if each.is_live]
        pool = live if live and number % 4 else self.tries
        shown = pool[number % len(pool)]
        own = [each for each in self.processes if each.man is shown.worker]
        if number % 11 == 0:
            own = self.processes
        return (own[-1] if number % 5 else own[number % len(own)]), shown

    def say(self, what: str, process: Process, shown: Try, token: int, **body: Any) -> None:
        """Present a claim with a token to both."""
        expected: Callable[..., Any] = getattr(self.model, what)
        call = getattr(leases if what in {"start", "renew", "checkpoint"} else settlement, what)
        told = {**body, "error": "x"} if what == "fail" else body
        self.both(
            self.as_process(process, lambda: expected(shown, process.man, token, **body)),
            lambda: call(
                caller=process.caller, claim_id=shown.claim_id, fencing_token=token, **told
            ),
        )


def _outcome(call: Callable[[], T]) -> T | Refusal | DomainError:
    try:
        return call()
    except (Refusal, DomainError) as refusal:
        return refusal
