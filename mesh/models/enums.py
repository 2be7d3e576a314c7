"""Words that are stored and sent, the named sets of them, and the legal moves between them."""

from typing import Final

from django.db import models


class Role(models.TextChoices):
    """What a token or a member may do: see, act, or also issue rights. Each includes the former."""

    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"


class Runtime(models.TextChoices):
    WASM = "wasm", "WebAssembly"
    PROCESS = "process", "Process"
    CONTAINER = "container", "Container"
    BROWSER = "browser", "Browser"
    REMOTE = "remote", "Remote"
    HOSTED = "hosted", "Hosted"
    EDGE = "edge", "Edge"
    CUSTOMER = "customer", "Customer-hosted"


class Lifecycle(models.TextChoices):
    REGISTERED = "REGISTERED", "Registered"
    READY = "READY", "Ready"
    BUSY = "BUSY", "Busy"
    DRAINING = "DRAINING", "Draining"
    OFFLINE = "OFFLINE", "Offline"
    RECOVERING = "RECOVERING", "Recovering"


WORKER_MOVES: Final[dict[str, frozenset[str]]] = {
    "REGISTERED": frozenset({"READY", "DRAINING", "OFFLINE"}),
    "READY": frozenset({"BUSY", "DRAINING", "OFFLINE"}),
    "BUSY": frozenset({"READY", "DRAINING", "OFFLINE"}),
    "DRAINING": frozenset({"OFFLINE", "READY", "BUSY"}),
    "OFFLINE": frozenset({"RECOVERING"}),
    "RECOVERING": frozenset({"READY", "OFFLINE"}),
}


class Health(models.TextChoices):
    HEALTHY = "HEALTHY", "Healthy"
    DEGRADED = "DEGRADED", "Degraded"
    UNHEALTHY = "UNHEALTHY", "Unhealthy"
    UNKNOWN = "UNKNOWN", "Unknown"


class State(models.TextChoices):
    """Where a workload stands. CREATED, RECOVERING, FAILED, TIMED_OUT are never at rest."""

    CREATED = "CREATED", "Created"
    READY = "READY", "Ready"
    CLAIMED = "CLAIMED", "Claimed"
    RUNNING = "RUNNING", "Running"
    CHECKPOINTED = "CHECKPOINTED", "Checkpointed"
    RECOVERING = "RECOVERING", "Recovering"
    HELD = "HELD", "Held"
    CANCELLATION_REQUESTED = "CANCELLATION_REQUESTED", "Cancellation requested"
    SUCCEEDED = "SUCCEEDED", "Succeeded"
    FAILED = "FAILED", "Failed"
    CANCELLED = "CANCELLED", "Cancelled"
    TIMED_OUT = "TIMED_OUT", "Timed out"
    DEAD_LETTER = "DEAD_LETTER", "Dead letter"


# Left by nobody, ever; the database refuses it too.
SEALED_STATES: Final = frozenset({State.SUCCEEDED, State.CANCELLED})
# Over as far as anybody waits for it; a dead letter may still be retried or cancelled.
ENDED_STATES: Final = SEALED_STATES | {State.DEAD_LETTER}
STARTED_STATES: Final = frozenset({State.RUNNING, State.CHECKPOINTED})
# A worker holds a live claim.
CLAIMED_STATES: Final = STARTED_STATES | {State.CLAIMED, State.CANCELLATION_REQUESTED}

_FROM_STARTED: Final = frozenset(
    {
        "CHECKPOINTED",
        "SUCCEEDED",
        "FAILED",
        "CANCELLATION_REQUESTED",
        "RECOVERING",
        "TIMED_OUT",
        "HELD",
    }
)
WORKLOAD_MOVES: Final[dict[str, frozenset[str]]] = {
    "CREATED": frozenset({"READY", "CANCELLED"}),
    "READY": frozenset({"CLAIMED", "CANCELLED", "TIMED_OUT", "DEAD_LETTER"}),
    "CLAIMED": frozenset({"RUNNING", "READY", "CANCELLATION_REQUESTED", "RECOVERING", "TIMED_OUT"}),
    "RUNNING": _FROM_STARTED,
    "CHECKPOINTED": _FROM_STARTED,
    "RECOVERING": frozenset({"READY", "DEAD_LETTER"}),
    "HELD": frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "READY"}),
    "CANCELLATION_REQUESTED": frozenset({"CANCELLED", "HELD", "SUCCEEDED", "FAILED"}),
    "SUCCEEDED": frozenset(),
    "FAILED": frozenset({"READY", "DEAD_LETTER", "CANCELLED"}),
    "CANCELLED": frozenset(),
    "TIMED_OUT": frozenset({"READY", "DEAD_LETTER", "HELD"}),
    "DEAD_LETTER": frozenset({"READY", "CANCELLED"}),
}


class AttemptStatus(models.TextChoices):
    CLAIMED = "CLAIMED", "Claimed"
    RUNNING = "RUNNING", "Running"
    CHECKPOINTED = "CHECKPOINTED", "Checkpointed"
    SUCCEEDED = "SUCCEEDED", "Succeeded"
    FAILED = "FAILED", "Failed"
    TIMED_OUT = "TIMED_OUT", "Timed out"
    CANCELLED = "CANCELLED", "Cancelled"
    WORKER_LOST = "WORKER_LOST", "Worker lost"
    RELEASED = "RELEASED", "Released"


LIVE_ATTEMPT: Final = frozenset(
    {AttemptStatus.CLAIMED, AttemptStatus.RUNNING, AttemptStatus.CHECKPOINTED}
)


class Backoff(models.TextChoices):
    FIXED = "fixed", "Fixed"
    EXPONENTIAL = "exponential", "Exponential"


class LostPolicy(models.TextChoices):
    """What becomes of started work whose worker is lost."""

    REQUEUE = "requeue", "Requeue"
    HOLD = "hold", "Hold for a person"


class Resolution(models.TextChoices):
    """What a person says became of work that is HELD."""

    SUCCEEDED = "succeeded", "It succeeded"
    FAILED = "failed", "It failed"
    CANCELLED = "cancelled", "It is not to be done"
    REQUEUE = "requeue", "Do it again"


class RequiredState(models.TextChoices):
    """What a dependency must come to before its dependent may run."""

    SUCCEEDED = "SUCCEEDED", "Succeeded"
    ANY_END = "ANY_END", "Any end"


class RevocationKind(models.TextChoices):
    """What one revocation takes away."""

    GRANT = "grant", "Grant"
    SUBJECT = "subject", "Subject"
    APPLICATION = "application", "Application"
    TENANT = "tenant", "Tenant"


class GrantStatus(models.TextChoices):
    """As shown. EXPIRED follows from the time and is not stored."""

    ACTIVE = "ACTIVE", "Active"
    REVOKED = "REVOKED", "Revoked"
    EXPIRED = "EXPIRED", "Expired"
    SUPERSEDED = "SUPERSEDED", "Superseded"


class ScopeKind(models.TextChoices):
    """Which resource scopes something in the mesh asks for."""

    APPLICATION = "APPLICATION", "Application"
    RESOURCE_PREFIX = "RESOURCE_PREFIX", "Resource prefix"
    WORKLOAD = "WORKLOAD", "Workload"


class DrainCause(models.TextChoices):
    """Who asked for a drain; it decides what lifts it."""

    OPERATOR = "operator", "Operator"
    WORKER = "worker", "Worker itself"
    REVOCATION = "revocation", "Revoked grant"
