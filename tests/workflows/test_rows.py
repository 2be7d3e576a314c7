"""The surroundings that other tests of workflows build on."""

import pytest

from tests.factories import World
from workflows.models import StepState

from . import rows

pytestmark = pytest.mark.django_db


def test_an_attempt_is_made_with_its_one_workload_and_counted() -> None:
    world = World()
    owner = rows.authority()
    run = rows.make_run(world, [rows.step("one"), rows.step("two", needs=["one"])], owner=owner)
    attempt = rows.make_attempt(world, run)
    run.refresh_from_db()
    assert run.active_attempts == 1
    assert attempt.workload.idempotency_key == f"run:{attempt.dispatch_identity}"
    states = dict(run.activations.values_list("step", "state"))
    assert states == {"one": StepState.ACTIVE, "two": StepState.PENDING}
