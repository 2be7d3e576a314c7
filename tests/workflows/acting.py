"""A run under way, and everybody who acts on it: its coordinator, an operator, a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from mesh import resolutions, workloads
from mesh.errors import DomainError
from mesh.giving import Claim
from mesh.models import Workload
from tests.factories import Member, World
from tests.mesh import checks as mesh_checks
from workflows import admission, ending, recovery, settlement, steering
from workflows.authority import COLUMNS, Authority, install
from workflows.models import Activation, Run, RunAttempt
from workflows.settlement import Outcome

from . import checks, rows

SUCCEEDED = Outcome("succeeded")
FAILED = Outcome("failed", message="it broke")
CANCELLED = Outcome("cancelled")
NOT_STARTED = Outcome("not_started")
ABANDONED = Outcome("abandoned", reason="nobody knows")
HOLD = {"effect": "mutating"}


class Case:
    """An open run that an external coordinator owns."""

    def __init__(
        self, steps: Sequence[Mapping[str, Any]] | None = None, *, world: World | None = None
    ) -> None:
        self.world = world or World()
        self.owner = rows.authority()
        self.row = rows.make_run(self.world, steps, owner=self.owner)
        self._worker: Member | None = None

    @property
    def run(self) -> Run:
        """As it is now."""
        return Run.objects.select_related("definition").get(pk=self.row.pk)

    @property
    def asked(self) -> dict[str, Any]:
        """How an operator asks for something."""
        return {"caller": self.world.operator, "run_id": self.row.run_id}

    @property
    def owned(self) -> dict[str, Any]:
        """How the coordinator asks for something."""
        return {**self.asked, "authority": self.owner}

    @property
    def worker(self) -> Member:
        if self._worker is None:
            self._worker = self.world.worker(concurrency=100)
        return self._worker

    def step(self, name: str = "one") -> Activation:
        return self.row.activations.get(step=name)

    def states(self) -> dict[str, str]:
        return dict(self.row.activations.values_list("step", "state"))

    def events(self) -> list[str]:
        return [each.event.removeprefix("run.") for each in self.row.events.all()]

    def admit(self, name: str = "one") -> RunAttempt:
        number = self.step(name).last_number + 1
        return admission.admit(**self.owned, step=name, attempt=number).attempt

    def work(self, attempt: RunAttempt) -> Workload:
        return Workload.objects.get(pk=attempt.workload_id)

    # What a worker does.

    def claim(self) -> Claim:
        """The only claimable work there is."""
        (claim,) = self.worker.claim()
        return claim

    def start(self) -> Claim:
        claim = self.claim()
        self.worker.start(claim)
        return claim

    def lose(self, attempt: RunAttempt) -> None:
        """Take started work from its worker; of the kind that is held it is HELD."""
        resolutions.reclaim(
            caller=self.world.operator,
            workload_id=self.work(attempt).workload_id,
            reason="it hangs",
        )

    def resolve(self, attempt: RunAttempt, resolution: str) -> None:
        resolutions.resolve(
            caller=self.world.operator,
            workload_id=self.work(attempt).workload_id,
            resolution=resolution,
            reason="nobody knows",
        )

    def cancel(self, attempt: RunAttempt) -> None:
        workloads.cancel(caller=self.world.operator, workload_id=self.work(attempt).workload_id)

    # What the coordinator does.

    def settle(self, attempt: RunAttempt, outcome: Outcome, **members: Any) -> RunAttempt:
        said = {**self.owned, "dispatch_identity": attempt.dispatch_identity, **members}
        return settlement.settle(outcome=outcome, **said)

    def succeed(self, name: str = "one", output: Any = None) -> RunAttempt:
        """Admit a step, do its work and settle it."""
        attempt = self.admit(name)
        self.worker.complete(self.start(), output=output)
        return self.settle(attempt, SUCCEEDED)

    def finish(self) -> Run:
        return recovery.finish(**self.owned)

    def terminalize(self) -> Run:
        return ending.terminalize(**self.owned)

    def fail(self, code: str = "broken", message: str = "", step: str = "") -> Run:
        return steering.fail(code=code, message=message, step=step, **self.owned)

    def hand_over(self) -> None:
        """Make somebody else the authority, as a hand-over does."""
        run = self.run
        self.owner = rows.authority(generation=(run.generation or 0) + 1)
        install(run, self.owner)
        run.save(update_fields=COLUMNS)

    def other(self, generation: int = 1) -> Authority:
        """Somebody who is not the authority of the run."""
        return rows.authority(generation=generation)


def everything() -> list[Any]:
    """All that the rules of runs and of the mesh write, to be compared before and after."""
    return [checks.stored(), mesh_checks.rows()]


@contextmanager
def unchanged() -> Iterator[None]:
    """Nothing is written inside."""
    before = everything()
    yield
    assert everything() == before


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[DomainError]]:
    """What is inside is refused with this very code, and changes nothing."""
    before = everything()
    with pytest.raises(DomainError) as caught:
        yield caught
    assert caught.value.code == code
    assert everything() == before
