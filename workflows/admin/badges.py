"""States of runs, steps, attempts and coordinators as the console shows them."""

from typing import Final

from django.utils.safestring import SafeString

from mesh.admin.display import badge
from mesh.models import State

from ..models import OutcomeKind, Run, RunAttempt, RunStatus, StepState

# A step that is READY waits for its turn; one that is ACTIVE is under way.
_STEPS: Final = {StepState.READY: "QUEUED", StepState.ACTIVE: "RUNNING"}
_OUTCOMES: Final = {
    OutcomeKind.SUCCEEDED: "SUCCEEDED",
    OutcomeKind.FAILED: "FAILED",
    OutcomeKind.CANCELLED: "CANCELLED",
    OutcomeKind.NOT_STARTED: "NOT STARTED",
    OutcomeKind.ABANDONED: "ABANDONED",
}


def run_badge(run: Run) -> SafeString:
    return badge("RUNNING", "OPEN") if run.status == RunStatus.OPEN else badge(run.status)


def step_badge(state: str) -> SafeString:
    return badge(_STEPS.get(StepState(state), state), state)


def is_ambiguous(attempt: RunAttempt) -> bool:
    """Whether it waits for a person to say what it did."""
    return attempt.outcome is None and attempt.workload.state == State.HELD


def outcome_badge(attempt: RunAttempt) -> SafeString:
    """What it came to; unsettled ones tell whether they are ambiguous."""
    if attempt.outcome is None:
        return badge("AMBIGUOUS" if is_ambiguous(attempt) else "UNSETTLED")
    return badge(_OUTCOMES[OutcomeKind(attempt.outcome)])
