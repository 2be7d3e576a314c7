"""Coordinators are killed in the middle of whatever they do; the runs come to their ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from mesh import invariants
from mesh.models import Workload
from tests.factories import Member, World
from tests.workflows import rows
from workflows.models import Handoff, OutcomeKind, Run, RunStatus

RUNS = 50
KILLS = 8
STEPS = [
    rows.step("read"),
    rows.step("change", needs=["read"], effect="mutating"),
    rows.step("check", needs=["change"]),
]


class Coordinators:
    """Two processes that drive runs; one that is killed is started again."""

    def __init__(self) -> None:
        self.living = [self._start() for _ in range(2)]

    def _start(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "FENCEPOST_COORDINATOR_LEASE_MS": "3000",
            "FENCEPOST_COORDINATOR_GRACE_MS": "100",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tests.races.coordinating", _database()],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_up(self) -> None:
        for each in self.living:
            assert each.stdout is not None
            assert each.stdout.readline() == "up\n"

    def kill_one(self, place: int) -> None:
        self.living[place].send_signal(signal.SIGKILL)
        self.living[place].communicate()
        self.living[place] = self._start()

    def stop(self) -> None:
        for each in self.living:
            each.kill()
            each.communicate()


@contextmanager
def coordinators() -> Iterator[Coordinators]:
    made = Coordinators()
    try:
        made.wait_until_up()
        yield made
    finally:
        made.stop()


def _database() -> str:
    return str(connection.settings_dict["NAME"])


def _work(worker: Member, done: Counter[str]) -> None:
    """Start and finish whatever there is; each mutating step is counted by its run."""
    for claim in worker.claim(20):
        attempt = Workload.objects.get(workload_id=claim.workload_id).run_attempt
        worker.start(claim)
        if attempt.activation.step == "change":
            done[attempt.run.run_id] += 1
        worker.complete(claim)


@pytest.mark.timeout(240)
def test_fifty_runs_end_and_no_mutating_step_runs_twice_however_coordinators_die(
    world: World,
) -> None:
    chance = random.Random(20)
    definition = rows.make_definition(world, STEPS)
    runs = [rows.make_run(world, definition=definition) for _ in range(RUNS)]
    worker = world.worker(concurrency=60)
    changed: Counter[str] = Counter()
    kills = 0
    with coordinators() as crew:
        while Run.objects.open().exists():
            worker.beat()
            _work(worker, changed)
            ended = RUNS - Run.objects.open().count()
            # Spread over the work that there is, not over time: a slow machine gets as many.
            if kills < KILLS and chance.random() < 0.3 and ended >= kills * RUNS // (KILLS + 2):
                crew.kill_one(kills % 2)
                kills += 1
    assert kills >= KILLS // 2
    assert set(Run.objects.values_list("status", flat=True)) == {RunStatus.COMPLETED}
    assert changed == Counter({each.run_id: 1 for each in runs})
    assert Handoff.objects.filter(mode="recovery").exists()
    assert invariants.broken() == {}
    twice = [
        each.run_id
        for each in runs
        if each.attempts.filter(activation__step="change", outcome=OutcomeKind.SUCCEEDED).count()
        != 1
    ]
    assert twice == []
