"""Workflow runs in a few hundred lines of plain Python: what each call must answer and change.

Written from the rules, not from the code. Times are whole milliseconds. A refused call raises
`Refusal` and changes nothing but what is remembered of refused writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.model.rows import Refusal

from .moving import Moving
from .rows import (
    BLOCKS,
    ENDED_WORK,
    REMEMBERED_MS,
    UNBEGUN,
    UNSTARTED,
    Ask,
    Attempt,
    Outcome,
    Owner,
    Plan,
    Resource,
    Row,
    Run,
    Work,
)

# Of which attempt, at what.
Key = tuple[Run, str, int]


class Runs(Moving):
    """The whole state; each method is one call."""

    def __init__(self) -> None:
        super().__init__()
        self.asks: dict[tuple[Key, Resource], Ask] = {}

    def begin(self, run: Run, said: Mapping[str, Any]) -> None:
        if run not in self.runs:
            self.runs.append(run)
            if run.owner is not None:
                run.since[1] = self.now
        elif run.begun_as != said:
            raise Refusal("ADMISSION_INVALID")

    # --- admissions

    def admit(
        self, run: Run, shown: Owner, step: str, number: int, asked: Sequence[Resource] | None
    ) -> Attempt:
        row = run.rows.get(step)
        if row is None or number < 1:
            raise Refusal("ADMISSION_INVALID")
        plan = row.plan
        is_agreed = asked is None or set(asked) == set(plan.resources)
        there = [each for each in run.attempts if (each.plan, each.number) == (plan, number)]
        if there and is_agreed:
            return there[0]
        self.judge(run, shown)
        for kind, code in BLOCKS.items():
            if kind in run.blocks:
                raise Refusal(code)
        if there:
            raise Refusal("RESERVATION_MISMATCH")
        self._require_room(run, row, number)
        if not is_agreed:
            raise Refusal("RESERVATION_MISMATCH")
        key = (run, step, number)
        self._require_free(key, plan)
        self._forget(lambda one: one == key)
        work = Work(plan.is_hold, plan.deliveries)
        made = Attempt(run, plan, number, work, shown.generation)
        run.attempts.append(made)
        row.state, row.last = "ACTIVE", number
        row.tries += 1
        run.executions_left -= 1
        return made

    def _require_room(self, run: Run, row: Row, number: int) -> None:
        if row.state != "READY":
            raise Refusal("STEP_NOT_DUE")
        is_late = run.deadline is not None and self.now >= run.deadline
        is_spent = row.tries >= row.plan.tries or run.executions_left <= 0
        if is_late or is_spent or number != row.last + 1:
            raise Refusal("LIMIT_REACHED")
        if len(run.unsettled) >= run.concurrency:
            raise Refusal("CONCURRENCY_FULL")

    # --- resources

    def is_in_the_way(self, run: Run, wanted: Resource, key: Key | None = None) -> bool:
        return self._is_reserved(run, wanted) or self._waits_behind_a_writer(run, wanted, key)

    def _is_reserved(self, run: Run, wanted: Resource) -> bool:
        name, access, scope = wanted
        return any(
            its_name == name
            and "write" in {access, its_access}
            and _is_one_scope(run, scope, other, its_scope)
            for other in self.runs
            for each in other.unsettled
            for its_name, its_access, its_scope in each.plan.resources
        )

    def _waits_behind_a_writer(self, run: Run, wanted: Resource, key: Key | None) -> bool:
        """A reader waits behind writers; one that writes too, only behind those before it."""
        name, access, scope = wanted
        asks = {at: ask for at, ask in self.asks.items() if self.now - ask.last < REMEMBERED_MS}
        mine = [ask.first for (its_key, _), ask in asks.items() if its_key == key]
        return access == "read" and any(
            its_name == name
            and its_key != key
            and _is_one_scope(run, scope, its_key[0], its_scope)
            and (not mine or ask.first < min(mine))
            for (its_key, (its_name, _, its_scope)), ask in asks.items()
        )

    def _require_free(self, key: Key, plan: Plan) -> None:
        busy = [each for each in plan.resources if self.is_in_the_way(key[0], each, key)]
        if not busy:
            return
        if any(access == "write" for _, access, _ in plan.resources):
            self._remember(key, [each for each in busy if each[1] == "write"])
        raise Refusal("RESOURCE_BUSY")

    def _remember(self, key: Key, busy: Iterable[Resource]) -> None:
        for (its_key, resource), ask in list(self.asks.items()):
            if its_key == key and self.now - ask.last >= REMEMBERED_MS:
                del self.asks[its_key, resource]
            elif its_key == key:
                ask.last = self.now
        for resource in busy:
            self.asks.setdefault((key, resource), Ask(self.now, self.now))

    def _forget(self, is_over: Callable[[Key], bool]) -> None:
        self.asks = {at: ask for at, ask in self.asks.items() if not is_over(at[0])}

    # --- settlements

    def settle(self, run: Run, shown: Owner, attempt: Attempt | None, said: Outcome) -> None:
        self.require_current(run, shown)
        if attempt is None or attempt.run is not run:
            raise Refusal("ATTEMPT_NOT_FOUND")
        work = attempt.work
        if attempt.outcome is not None:
            if _whole(said, work) != _whole(attempt.outcome, work):
                raise Refusal("OUTCOME_CONFLICT")
            return
        if work.state not in {"READY", *ENDED_WORK}:
            raise Refusal("WORK_OUTSTANDING")
        if not _agrees(said, work):
            raise Refusal("OUTCOME_CONFLICT")
        # Withdrawn by a take-over alone: the run is to go on.
        is_interrupted = (
            (said.kind, work.state) == ("cancelled", "READY")
            and "barrier" in run.blocks
            and not {"cancellation", "failure"} & set(run.blocks)
            and (not work.is_hold or work.had_no_effect)
        )
        if work.state == "READY":
            work.state = "CANCELLED"
        work.is_sealed = True
        attempt.outcome = said
        self._advance(run, attempt, said, is_interrupted=is_interrupted)

    def _advance(self, run: Run, attempt: Attempt, said: Outcome, *, is_interrupted: bool) -> None:
        row = run.rows[attempt.plan.step]
        row.tries -= is_interrupted
        if said.kind == "not_started":
            row.unstarted += 1
            row.tries -= 1
            run.executions_left += 1
        else:
            row.unstarted = 0
        is_again = said.kind == "not_started" or (
            row.tries < row.plan.tries and (said.kind == "abandoned" or said.is_retryable)
        )
        if said.kind == "succeeded":
            assert attempt.work.result is not None
            row.state, row.output = "SUCCEEDED", attempt.work.result[1]
        elif said.kind == "cancelled":
            row.state = "READY" if is_interrupted else "CANCELLED"
        else:
            row.state = "READY" if is_again else "FAILED"
        self._make_due(run)
        if row.unstarted > UNSTARTED and "failure" not in run.blocks:
            run.failed_step = row.plan.step
            self.block(run, "failure", "never_started")

    def _make_due(self, run: Run) -> None:
        for row in run.rows.values():
            if run.has_failed and row.state in UNBEGUN:
                row.state = "SKIPPED"
            elif row.state == "PENDING" and all(run.rows[n].is_done for n in row.plan.needs):
                row.state = "READY"

    # --- steering and ending

    def pause(self, run: Run, shown: Owner | None) -> None:
        self.judge(run, shown)
        self.block(run, "pause", True)

    def resume(self, run: Run, shown: Owner | None) -> None:
        self.judge(run, shown)
        self.unblock(run, "pause")

    def cancel(self, run: Run, shown: Owner | None) -> None:
        self.judge(run, shown)
        self.block(run, "cancellation", True)

    def fail_run(self, run: Run, shown: Owner, code: str) -> None:
        self.judge(run, shown)
        if "failure" not in run.blocks:
            run.failed_step = ""
            self.block(run, "failure", code)

    def clear(self, run: Run, shown: Owner | None) -> None:
        self.judge(run, shown)
        if run.blocks.get("failure") == "never_started":
            run.rows[run.failed_step].unstarted = 0
        self.unblock(run, "failure")

    def finish(self, run: Run, shown: Owner) -> None:
        self.require_current(run, shown)
        if "barrier" not in run.blocks:
            return
        if run.unsettled:
            raise Refusal("WORK_OUTSTANDING")
        self.unblock(run, "barrier")

    def terminalize(self, run: Run, shown: Owner) -> None:
        self.require_current(run, shown)
        if run.status != "OPEN":
            return
        is_failed = "failure" in run.blocks or run.has_failed
        is_over = not any(each.state in UNBEGUN for each in run.rows.values())
        if run.unsettled or not (is_over or is_failed or "cancellation" in run.blocks):
            raise Refusal("WORK_OUTSTANDING")
        if "barrier" in run.blocks:
            raise Refusal("RECOVERY_PENDING")
        run.status = "FAILED" if is_failed else "COMPLETED"
        if "cancellation" in run.blocks:
            run.status = "CANCELLED"
        for row in run.rows.values():
            if row.state in UNBEGUN:
                row.state = "CANCELLED" if run.status == "CANCELLED" else "SKIPPED"
        self.unblock(run, "pause")
        self._forget(lambda key: key[0] is run)


def _is_one_scope(run: Run, scope: str, other: Run, its_scope: str) -> bool:
    return run is other or (scope, its_scope) == ("application", "application")


def _whole(said: Outcome, work: Work) -> Outcome:
    """An output that is left out is that of the stored result."""
    if said.kind != "succeeded" or said.output is not None or work.result is None:
        return said
    return Outcome(said.kind, (work.result[1],), said.is_retryable)


def _agrees(said: Outcome, work: Work) -> bool:
    if work.state == "SUCCEEDED":
        assert work.result is not None
        return said.kind == "succeeded" and said.output in (None, (work.result[1],))
    if work.state == "DEAD_LETTER":
        may_be_repeated = not work.is_hold or work.had_no_effect
        return said.kind == "failed" and (may_be_repeated or not said.is_retryable)
    kinds = {
        "cancelled": True,
        "not_started": work.started == 0,
        "abandoned": work.is_given_up_by_a_person,
    }
    return kinds.get(said.kind, False)
