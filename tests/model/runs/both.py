"""What the rules of the machine share: the real runs and the reference, asked alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from django.db import connection, transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from mesh import clock, invariants, refusals, tenancy
from mesh.errors import DomainError
from mesh.models import Role
from mesh.tenancy import Caller
from tests.factories import Member, World, name
from tests.model.rows import Refusal
from workflows.authority import Authority

from .reference import Runs
from .rows import Attempt, Owner, Run

T = TypeVar("T")
# Any number stands for some member of a list that is not empty.
some = st.integers(0, 999)
# Who acts: mostly who may.
who = st.sampled_from(["current"] * 7 + ["stale", "stale", "wrong", "nobody"])
INSTANCES = ("ant", "bee", "cat", "dog", "elk", "fox")


class Both(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._undo = ExitStack()
        outer = transaction.atomic()
        # As that of a test case: for hand-overs and what is kept of refusals it is none.
        outer._from_testcase = True  # type: ignore[attr-defined]  # no stub
        self._undo.enter_context(outer)
        self._clock = self._undo.enter_context(ExitStack())
        self.world = World()
        self.model = Runs()
        self.start = clock.now().replace(microsecond=0)
        self._set_clock()
        self.worker: Member = self.world.worker(concurrency=100)

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

    def pass_(self, ms: int) -> None:
        self.model.now += ms
        self._set_clock()

    def both(self, expected: Callable[[], Any], call: Callable[[], T]) -> tuple[Any, T | None]:
        """Ask both, a moment later; either both answer or both refuse with the same code."""
        self.pass_(1)
        wanted = _outcome(expected)
        answer = _outcome(call)
        if isinstance(answer, Refusal):
            raise answer
        if isinstance(wanted, Refusal) or isinstance(answer, DomainError):
            assert isinstance(wanted, Refusal), f"must not be refused: {answer!r} {answer}"
            assert isinstance(answer, DomainError), f"{wanted} was due: {answer!r}"
            refusals.keep(answer)
            assert answer.code == wanted.code, f"{answer.code}, {wanted.code} was due: {answer}"
            return None, None
        return wanted, answer

    # --- who asks, for what

    @cached_property
    def service(self) -> Caller:
        """Whose API token registers coordinators."""
        row, _ = tenancy.create_token(
            caller=self.world.caller(), name=name("token"), role=Role.OPERATOR
        )
        return replace(self.world.operator, token_pk=row.pk)

    def run_of(self, number: int) -> Run:
        return pick(self.model.runs, number)

    def shown(self, run: Run, by: str, *, may_be_left_out: bool = False) -> Owner | None:
        """The authority that is presented; None where an operator acts without one."""
        if by == "nobody" and may_be_left_out:
            return None
        if run.owner is None or by == "nobody":
            return Owner("coordinator:1.0", "stranger", 1, "its token")
        if by == "stale":
            later = replace(run.owner, generation=run.owner.generation + 1)
            return run.past[-1] if run.past else later
        if by == "wrong":
            return replace(run.owner, token="another one")
        return run.owner

    def owner(self, run: Run, by: str) -> Owner:
        shown = self.shown(run, by)
        assert shown is not None
        return shown

    def asked(self, run: Run) -> dict[str, Any]:
        return {"caller": self.world.operator, "run_id": run.run_id}

    def attempts(self) -> list[Attempt]:
        return [attempt for run in self.model.runs for attempt in run.attempts]

    def attempt(self, number: int) -> Attempt:
        """Mostly one that is not settled yet."""
        unsettled = [each for run in self.model.runs for each in run.unsettled]
        return pick(unsettled if unsettled and number % 5 else self.attempts(), number)


def pick(pool: Sequence[T], number: int) -> T:
    return pool[number % len(pool)]


def real(owner: Owner | None) -> Authority | None:
    return None if owner is None else whole(owner)


def whole(owner: Owner) -> Authority:
    return Authority(owner.artifact, owner.instance, owner.generation, owner.token)


def _outcome(call: Callable[[], T]) -> T | Refusal | DomainError:
    try:
        return call()
    except (Refusal, DomainError) as refusal:
        return refusal
