"""Paths that chance seldom takes to their end, asked of the mesh and of the reference alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .machine import MeshMachine
from .rows import Try, Work
from .work_rules import POLICY


class Path(MeshMachine):
    """Steps of one worker with one workload; both sides are compared after each."""

    def set_up(self, **limits: int) -> None:
        self.register("ant", "a", 2, abandon=False, as_itself=True)
        self.everybody_beats()
        self.submit(0, 0, None, POLICY, limits)

    def agree(self) -> None:
        self.workers_agree()
        self.work_agrees()
        self.attempts_agree()

    def take(self) -> Try:
        """Claim the work as soon as it is due; up to the moment before nobody gets it."""
        [work] = self.model.works
        if (left := work.available_at - self.model.now) > 0:
            self.wait(left - 1, True)
            self.claim(1, 1, None)
            self.wait(1, True)
        self.claim(1, 1, None)
        self.agree()
        return self.tries[-1]

    def tell(self, what: str, shown: Try, **body: Any) -> None:
        self.say(what, self.processes[-1], shown, shown.token, **body)
        self.agree()

    def take_and_bury(self) -> None:
        """Claim what there is and let it fail for good."""
        self.claim(1, 1, None)
        self.tell("start", self.tries[-1])
        self.tell("fail", self.tries[-1], kind="broken", no_effect=False)

    def retry_of(self, work: Work, *, dependents: bool) -> None:
        """Retry exactly this one."""
        self._retry(work, 1, dependents)
        self.agree()

    def place_of(self, work: Work) -> None:
        self._place(work, None)
        self.agree()


@pytest.fixture
def path(db: None) -> Iterator[Path]:
    machine = Path()
    yield machine
    machine.teardown()


def test_losses_before_start_wait_from_the_third_on_until_a_start(path: Path) -> None:
    path.set_up()
    for _ in range(3):
        path.tell("release", path.take())
    started = path.take()
    path.tell("start", started)
    assert path.model.works[0].unstarted == 0
    path.tell("fail", started, kind="timeout", no_effect=False)
    for _ in range(5):
        path.tell("release", path.take())
    assert path.model.works[0].state == "DEAD_LETTER"


def test_an_operators_retry_begins_the_delays_anew(path: Path) -> None:
    path.set_up()
    for _ in range(2):
        shown = path.take()
        path.tell("start", shown)
        path.tell("fail", shown, kind="timeout", no_effect=False)
    assert path.model.works[0].state == "DEAD_LETTER"
    path.retry(0, 2, False)
    for _ in range(2):
        shown = path.take()
        path.tell("start", shown)
        path.tell("fail", shown, kind="timeout", no_effect=False)
    assert path.model.works[0].state == "DEAD_LETTER"


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_drain_ends_with_a_reconcile_that_forgets_the_last_claim(
    path: Path, by_itself: bool
) -> None:
    path.set_up()
    path.take()
    path._drain(path.processes[-1], by_itself, None)
    if not by_itself:
        path.register("ant", "a", 2, abandon=False, as_itself=True)
    path._reconcile(path.processes[-1], [], [])
    path.agree()
    assert path.model.workers["ant"].lifecycle == "OFFLINE"
    path.claim(1, 1, None)


def test_each_timeout_ends_the_work_at_its_very_moment(path: Path) -> None:
    path.set_up(claim_ms=2_000, execution_ms=5_000, heartbeat_ms=3_000, queue_ms=9_000)
    path.take()
    for _ in range(2):
        path.wait(999, False)
        path.sweep_all()
        path.agree()
    path.wait(2, False)
    path.sweep_all()
    path.agree()
    shown = path.take()
    path.tell("start", shown)
    for early in (2_999, 1_999):
        path.wait(early, False)
        path.sweep_all()
        path.tell("renew", shown, lease_ms=None)
    path.wait(2, False)
    path.sweep_all()
    path.agree()
    path.wait(path.model.works[0].available_at - path.model.now, True)
    path.wait(9_000, True)
    path.sweep_all()
    path.agree()
    states = ["CLAIMED", "TIMED_OUT", "READY", "CLAIMED", "RUNNING", "TIMED_OUT", "READY"]
    assert path.model.works[0].path == ["READY", *states, "TIMED_OUT", "DEAD_LETTER"]


def test_held_work_is_settled_late_or_sent_back_and_its_old_claim_is_stale(path: Path) -> None:
    path.register("ant", "a", 2, abandon=False, as_itself=True)
    path.everybody_beats()
    path.submit(0, 0, None, POLICY, {"execution_ms": 1_000}, True)
    old = path.take()
    path.tell("start", old)
    path.wait(1_000, True)
    path.sweep_all()
    assert path.model.works[0].path[-2:] == ["TIMED_OUT", "HELD"]
    path.speak(0, "requeue")
    new = path.take()
    path.tell("complete", old, result_id="r", output=1)
    path.tell("start", new)
    path.speak(0, "reclaim")
    path.tell("complete", old, result_id="r", output=1)
    path.tell("complete", new, result_id="r", output=1)
    assert path.model.works[0].state == "SUCCEEDED"
    assert len(path.model.late) == 1


@pytest.mark.parametrize("kind", ["grant", "parent", "subject"])
def test_revoked_rights_end_renewals_at_once_and_a_good_grant_brings_the_worker_back(
    path: Path, kind: str
) -> None:
    path.issue(0)
    for _ in range(2):
        path.derive(1, None)
    path.set_up()
    shown = path.take()
    man = path.model.workers["ant"]
    man_right = man.right
    path.revoke(len(path.model.workers), kind)
    assert man_right.is_revoked
    assert (man.lifecycle, man.drain_cause) == ("DRAINING", "revocation")
    path.tell("renew", shown, lease_ms=None)
    path.claim(1, 1, None)
    path.tell("start", shown)
    path.tell("complete", shown, result_id="r", output=1)
    assert man.lifecycle == "OFFLINE"
    path.restart(1, None, 0)
    path.agree()
    assert (man.lifecycle, man.drain_cause) == ("READY", "")


def test_waiting_counts_anew_after_a_pause_and_not_while_held(path: Path) -> None:
    path.set_up(queue_ms=2_000)
    path.pause(0, None, 3_000)
    for early in (2_999, 1, 1_999):
        path.wait(early, True)
        path.sweep_all()
        path.agree()
    path.hold(0)
    path.wait(5_000, True)
    path.sweep_all()
    assert path.model.works[0].state == "READY"
    path.hold(1)
    for state, late in (("READY", 1_999), ("DEAD_LETTER", 1)):
        path.wait(late, True)
        path.sweep_all()
        path.agree()
        assert path.model.works[0].state == state


def line_up(path: Path, *required: str) -> None:
    """Work, what waits for it, what waits for that, and so on."""
    path.set_up()
    for each in required:
        path.submit(0, 0, None, POLICY, {}, waits=[(-1, each)])
    path.agree()


def test_a_dead_letter_buries_the_next_and_the_sweep_the_others_and_they_come_back_together(
    path: Path,
) -> None:
    line_up(path, "SUCCEEDED", "SUCCEEDED", "ANY_END")
    first, second, third, last = path.model.works
    path.take_and_bury()
    assert [each.state for each in path.model.works] == ["DEAD_LETTER"] * 2 + ["READY"] * 2
    path.sweep("release_dependents")
    path.agree()
    assert (third.state, last.state, last.is_blocked) == ("DEAD_LETTER", "READY", False)
    path.retry_of(second, dependents=True)
    assert second.state == "DEAD_LETTER"
    path.retry_of(first, dependents=True)
    assert [each.waits_for for each in path.model.works] == [0, 1, 1, 0]


def test_blocked_work_is_given_to_nobody_and_does_not_wait_in_the_queue(path: Path) -> None:
    path.set_up()
    path.submit(0, 0, None, POLICY, {"queue_ms": 2_000}, waits=[(0, "SUCCEEDED")])
    first, second = path.model.works
    path.claim(1, 1, None)
    path.place_of(second)
    path.claim(1, 1, None)
    path.tell("start", path.tries[-1])
    path.wait(5_000, True)
    path.sweep_all()
    path.tell("complete", path.tries[-1], result_id="r", output=1)
    assert (first.state, second.is_blocked, len(path.tries)) == ("SUCCEEDED", False, 1)
    for state, late in (("READY", 1_999), ("DEAD_LETTER", 1)):
        path.wait(late, True)
        path.sweep_all()
        path.agree()
        assert second.state == state
