"""Runs do what a small reference in plain Python says, whatever is asked in whatever order.

FENCEPOST_MODEL_EXAMPLES=2000 looks further than an everyday run, and elsewhere each time.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import RunMachine

EXAMPLES = os.environ.get("FENCEPOST_MODEL_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 12),
    stateful_step_count=40,
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    print_blob=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.django_db
@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_runs_agree_with_the_reference() -> None:
    run_state_machine_as_test(RunMachine, settings=SETTINGS)
