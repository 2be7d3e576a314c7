"""What a process of the coordinator does with what it is told of runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mesh.recovery import SweepReport
from tests.factories import World
from workflows import coordinator, sweeps
from workflows.coordinator import Driven
from workflows.tasks import Ears

from . import rows

_SOON = 10


class Drives:
    """Drives that last until they are let go on."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.begins = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def drive(self, run_pk: int) -> Driven:
        self.begun.append(run_pk)
        self.begins.release()
        assert self.may_end.acquire(timeout=_SOON)
        return Driven()

    def await_begin(self) -> None:
        assert self.begins.acquire(timeout=_SOON)


@pytest.fixture
def drives(monkeypatch: pytest.MonkeyPatch) -> Drives:
    made = Drives()
    monkeypatch.setattr(coordinator, "drive", made.drive)
    return made


@pytest.fixture
def ears(drives: Drives) -> Iterator[Ears]:
    made = Ears()
    yield made
    drives.may_end.release(_SOON)
    made._drivers.shutdown()


def test_a_run_that_is_told_of_while_it_is_driven_takes_no_driver_from_the_others(
    ears: Ears, drives: Drives
) -> None:
    for _ in range(10):
        ears.hear(1)
        if not drives.begun:
            drives.await_begin()
    ears.hear(2)
    drives.await_begin()
    assert drives.begun == [1, 2]


def test_it_is_driven_once_more_afterwards(ears: Ears, drives: Drives) -> None:
    ears.hear(1)
    drives.await_begin()
    ears.hear(1)
    ears.hear(1)
    drives.may_end.release(2)
    drives.await_begin()
    ears._drivers.shutdown()
    assert drives.begun == [1, 1]


@pytest.mark.django_db
def test_a_sweep_passes_over_a_run_that_its_process_is_driving() -> None:
    run = rows.make_run(World(), [rows.step("one")])
    with coordinator._under_way(run.pk):
        sweeps.advance_runs(report := SweepReport("advance_runs"), None)
    assert report.changed == []
    sweeps.advance_runs(report := SweepReport("advance_runs"), None)
    assert report.changed == [run.run_id]
