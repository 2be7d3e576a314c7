"""Paths that chance seldom takes to their end, asked of real runs and of the reference alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .machine import RunMachine
from .rows import Attempt, Outcome, Owner, Resource, Run

ANT = Owner("coordinator:1.0", "ant", 1, "ant 1")
SHARED_READ: Resource = ("x", "read", "application")
SHARED_WRITE: Resource = ("x", "write", "application")


class Path(RunMachine):
    """Steps of few runs; both sides are compared after each."""

    def flow(
        self, *resources: Resource, needs: bool = False, **members: object
    ) -> dict[str, object]:
        said = {"is_hold": False, "tries": 1, "deliveries": 1, "goes_on": False}
        return {"is_needed": needs, "resources": list(resources), **said, **members}

    def run(self, *flow: dict[str, object], concurrency: int = 8) -> Run:
        self.begin(list(flow), ANT, concurrency, 100, None)
        self.agree()
        return self.model.runs[-1]

    def tried(self, run: Run, step: str = "one") -> Attempt | None:
        """The next attempt at the step, if it is admitted."""
        before = len(run.attempts)
        assert run.owner is not None
        self._admit(run, run.owner, step, run.rows[step].last + 1, None)
        self.agree()
        return run.attempts[-1] if len(run.attempts) > before else None

    def admitted(self, run: Run, step: str = "one") -> Attempt:
        made = self.tried(run, step)
        assert made is not None
        return made

    def started(self, run: Run, step: str = "one") -> Attempt:
        made = self.admitted(run, step)
        self.deliver(made)
        return made

    def deliver(self, attempt: Attempt) -> None:
        self._place(attempt.work)
        self._start(attempt.work.claims[-1])
        self.agree()

    def settled(self, attempt: Attempt, kind: str, *, is_retryable: bool = False) -> bool:
        """Whether the attempt has this outcome by now."""
        run = attempt.run
        assert run.owner is not None
        said = Outcome(kind, None, is_retryable)
        self._settle(run, run.owner, attempt, said)
        self.agree()
        return attempt.outcome == said

    def succeed(self, attempt: Attempt) -> None:
        self._complete(attempt.work.claims[-1], {"pages": 2})
        assert self.settled(attempt, "succeeded")

    def held(self, run: Run) -> Attempt:
        """Started work that nobody knows the end of."""
        made = self.started(run)
        self._steer_work(made.work, "reclaim")
        self.agree()
        assert made.work.state == "HELD"
        return made

    def move(self, run: Run, mode: str, instance: str) -> None:
        """Hand the run over on the word of a person."""
        before, after = self.transition(run, instance, "none")
        self._attest(run, mode, before, after, "human:ann")
        self._hand_over(run, mode, before, after)
        self.agree()

    def finish(self, run: Run) -> bool:
        self.finish_recovery(self.model.runs.index(run), "current")
        self.agree()
        return "barrier" not in run.blocks

    def end(self, run: Run) -> str:
        assert run.owner is not None
        self._terminalize(run, run.owner)
        self.agree()
        return run.status


@pytest.fixture
def path(db: None) -> Iterator[Path]:
    machine = Path()
    yield machine
    machine.teardown()


@pytest.mark.parametrize(
    ("resolution", "outcome", "state"),
    [
        ("succeeded", "succeeded", "SUCCEEDED"),
        ("failed", "failed", "FAILED"),
        ("cancelled", "abandoned", "READY"),
        ("requeue", "succeeded", "SUCCEEDED"),
    ],
)
def test_an_ambiguous_attempt_keeps_its_leases_until_a_person_resolves_it(
    path: Path, resolution: str, outcome: str, state: str
) -> None:
    first = path.run(path.flow(SHARED_WRITE, is_hold=True, tries=2))
    second = path.run(path.flow(SHARED_READ))
    made = path.held(first)
    assert not any(path.settled(made, kind) for kind in ("succeeded", "abandoned", "cancelled"))
    assert path.tried(second) is None
    path._resolve(made.work, resolution, None)
    if resolution == "requeue":
        path.deliver(made)
        path._complete(made.work.claims[0], 1)
        path._complete(made.work.claims[-1], 1)
    if outcome == "failed":
        assert not path.settled(made, outcome, is_retryable=True)
    assert path.settled(made, outcome)
    assert first.rows["one"].state == state
    path.admitted(second)


def test_held_work_is_tried_again_only_after_a_report_of_no_effect(path: Path) -> None:
    run = path.run(path.flow(is_hold=True, tries=3))
    made = path.started(run)
    path._fail(made.work.claims[-1], "broken", no_effect=True)
    assert path.settled(made, "failed", is_retryable=True)
    again = path.started(run)
    path._fail(again.work.claims[-1], "broken", no_effect=False)
    assert not path.settled(again, "failed", is_retryable=True)
    assert path.settled(again, "failed")
    assert path.end(run) == "FAILED"


def test_readers_wait_behind_a_refused_writer_until_a_minute_after_its_last_ask(
    path: Path,
) -> None:
    reading, writing, late = (
        path.run(path.flow(resource)) for resource in (SHARED_READ, SHARED_WRITE, SHARED_READ)
    )
    holder = path.started(reading)
    for pause in (0, 59_990):
        path.wait(pause)
        assert path.tried(writing) is None
        assert path.tried(late) is None
    path.succeed(holder)
    path.wait(59_995)
    assert path.tried(late) is None
    path.wait(10)
    other = path.admitted(late)
    assert path.tried(writing) is None
    assert path.settled(other, "not_started")
    written = path.admitted(writing)
    assert path.settled(written, "not_started")
    path.admitted(late)


def test_what_never_starts_twenty_one_times_in_a_row_fails_until_cleared(path: Path) -> None:
    run = path.run(path.flow())
    for number in range(21):
        assert "failure" not in run.blocks, number
        assert path.settled(path.admitted(run), "not_started")
    assert run.blocks == {"failure": "never_started"}
    assert path.tried(run) is None
    path._steer(run, None, "clear")
    path.succeed(path.started(run))
    assert path.end(run) == "COMPLETED"


def test_after_a_recovery_nothing_starts_until_all_is_explained_and_the_old_owner_is_stale(
    path: Path,
) -> None:
    run = path.run(path.flow(), path.flow(), path.flow(needs=True))
    working, waiting = path.started(run), path.admitted(run, "two")
    path.move(run, "normal", "bee")
    assert run.owner == ANT
    # Until then somebody's word stands for another transition.
    path.move(run, "recovery", "bee")
    assert run.owner == ANT
    path.wait(60_000)
    path.move(run, "recovery", "bee")
    path.move(run, "recovery", "cat")
    assert run.blocks == {"barrier": ("coordinator:1.0", "cat", 3)}
    path._place(waiting.work)
    assert waiting.work.state == "READY"
    assert not path.finish(run)
    path._settle(run, ANT, waiting, Outcome("not_started"))
    assert waiting.outcome is None
    assert path.settled(waiting, "not_started")
    path.succeed(working)
    assert path.tried(run, "two") is None
    path.move(run, "normal", "dog")
    assert path.finish(run)
    path.move(run, "normal", "dog")
    for step in ("two", "three"):
        path.succeed(path.started(run, step))
    assert path.end(run) == "COMPLETED"
    path.move(run, "normal", "elk")
    assert run.owner.instance == "dog"


def test_the_word_of_a_person_is_good_for_a_minute(path: Path) -> None:
    run = path.run(path.flow())
    before, after = path.transition(run, "bee", "none")
    path._attest(run, "normal", before, after, "human:ann")
    for wait, owner in ((60_001, "ant"), (0, "ant")):
        path.wait(wait)
        path._hand_over(run, "normal", before, after)
        assert run.owner is not None
        assert run.owner.instance == owner
    path._attest(run, "normal", before, after, "human:ann")
    path.wait(59_998)
    path._hand_over(run, "normal", before, after)
    path.agree()
    assert run.owner == after


def test_cancellation_ends_what_waits_and_records_what_really_happened(path: Path) -> None:
    run = path.run(path.flow(), path.flow(), path.flow(needs=True))
    working, claimed = path.started(run), path.admitted(run, "two")
    path._place(claimed.work)
    path._steer(run, None, "cancel")
    path._start(claimed.work.claims[-1])
    assert claimed.work.state == "CLAIMED"
    path._steer_work(claimed.work, "cancel_work")
    path._give_back(claimed.work.claims[-1], "cancelled")
    assert path.settled(claimed, "not_started")
    assert path.end(run) == "OPEN"
    path.succeed(working)
    assert path.end(run) == "CANCELLED"
    assert [row.state for row in run.rows.values()] == ["SUCCEEDED", "CANCELLED", "CANCELLED"]


def test_an_owner_is_gone_once_its_lease_and_the_grace_are_over(path: Path) -> None:
    path._register("ant", 1_000)
    path._register("bee", 600_000)
    run = path.run(path.flow())
    before, after = path.transition(run, "bee", "none")
    end = path.model.coordinators["ant"].ends_at
    for late, owner in ((0, "ant"), (4_999, "ant"), (5_000, "bee")):
        # The call itself comes a moment after the wait.
        path.wait(end + late - path.model.now - 1)
        path._hand_over(run, "recovery", before, after)
        path.agree()
        assert run.owner is not None
        assert run.owner.instance == owner
