"""Words that are stored and sent, and the named sets of them."""

from typing import Final

from django.db import models


class RunStatus(models.TextChoices):
    OPEN = "OPEN", "Open"
    COMPLETED = "COMPLETED", "Completed"
    FAILED = "FAILED", "Failed"
    CANCELLED = "CANCELLED", "Cancelled"


class CoordinatorKind(models.TextChoices):
    """Who drives a run: the server's own coordinator, or a service through the API."""

    BUILTIN = "builtin", "Built in"
    EXTERNAL = "external", "External"


class StepState(models.TextChoices):
    PENDING = "PENDING", "Pending"
    READY = "READY", "Ready"
    ACTIVE = "ACTIVE", "Active"
    SUCCEEDED = "SUCCEEDED", "Succeeded"
    FAILED = "FAILED", "Failed"
    SKIPPED = "SKIPPED", "Skipped"
    CANCELLED = "CANCELLED", "Cancelled"


# Steps that come to nothing more.
ENDED_STEPS: Final = frozenset(
    {StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED}
)
# Steps that nothing was started of yet, or that wait for another attempt.
WAITING_STEPS: Final = frozenset({StepState.PENDING, StepState.READY})
# Steps that something may still come of.
LEFT_STEPS: Final = WAITING_STEPS | {StepState.ACTIVE}


class Effect(models.TextChoices):
    """What a step does to the world."""

    READ_ONLY = "read_only", "Reads only"
    MUTATING = "mutating", "Changes something"


class Replay(models.TextChoices):
    """Whether a step may simply be done twice."""

    NONE = "none", "Must not be repeated"
    IDEMPOTENT = "idempotent", "May be repeated"


class OnFailure(models.TextChoices):
    """What the failure of a step does to its run."""

    FAIL = "fail", "Fails the run"
    CONTINUE = "continue", "The run goes on"


class OutcomeKind(models.TextChoices):
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    NOT_STARTED = "not_started", "Never started"
    ABANDONED = "abandoned", "Abandoned by a person"


class OutcomeSource(models.TextChoices):
    """What an outcome rests on."""

    WORKER = "worker", "A worker's report"
    NEVER_CLAIMED = "never_claimed", "Nobody ever claimed it"
    OPERATOR = "operator", "A person's word"


class Access(models.TextChoices):
    READ = "read", "Read"
    WRITE = "write", "Write"


class LeaseScope(models.TextChoices):
    """Within what a resource is reserved."""

    RUN = "run", "Run"
    APPLICATION = "application", "Application"


class HandoffMode(models.TextChoices):
    NORMAL = "normal", "Normal"
    RECOVERY = "recovery", "Recovery"


class Verdict(models.TextChoices):
    """What a resolver knows about a transition of authority."""

    CONFIRMED = "confirmed", "Confirmed"
    OTHER = "other", "Another transition"
    UNKNOWN = "unknown", "Not known"
