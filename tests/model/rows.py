"""What the reference keeps of work, attempts and workers, and how it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUTAGE_MS = BRAKE_HOLD_MS = 30_000
PATIENCE = 2  # losses before start in a row that cost no delay
STARTED = {"RUNNING", "CHECKPOINTED"}
LIVE = {"CLAIMED", *STARTED}
ENDED = {"SUCCEEDED", "CANCELLED", "DEAD_LETTER"}
PLACEABLE = {"READY", "BUSY"}
REASONS = (
    "LIFECYCLE",
    "HEALTH",
    "CAPACITY",
    "LABEL",
    "POOL",
    "POOL_CAPACITY",
    "RESOURCES",
    "GRANT",
    "PAUSED",
)
DEPTH = 8  # how many grants may stand in a line
MEMORY = 100  # what each worker declares
RETRIED = {"execution", "heartbeat"}  # causes that the retry rule looks at


class Refusal(Exception):  # noqa: N818 - it is no error of the reference
    def __init__(self, code: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(code)
        self.code = code
        self.reasons = reasons


@dataclass(eq=False)
class Right:
    """A grant: whose it is, what it was derived from, and until when it is good."""

    parent: Right | None
    subject: str
    ends_at: int
    row: Any
    token: str
    is_revoked: bool = False

    @property
    def pk(self) -> int:
        return int(self.row.pk)

    @property
    def above(self) -> list[Right]:
        return [] if self.parent is None else [self.parent, *self.parent.above]

    def is_good(self, now: int) -> bool:
        return not self.is_revoked and now < self.ends_at


@dataclass(eq=False)
class Stop:
    """A pause: of one definition or of all, until then or until it is lifted."""

    definition: str | None
    end: int | None
    pause_id: str

    def stands(self, now: int) -> bool:
        return self.end is None or now < self.end


@dataclass(eq=False)
class Try:
    """An attempt, and the claim that it is while it lives."""

    work: Work
    worker: Man
    token: int
    lease_ms: int
    claimed_at: int
    expires_at: int
    is_placed: bool
    serial: int
    status: str = "CLAIMED"
    started_at: int | None = None
    heard_at: int = 0
    report: Any = None
    claim_id: str = ""

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def attempt_id(self) -> str:
        return self.claim_id.replace("claim_", "attempt_")


@dataclass(eq=False)
class Tie:
    """Work that waits, or waited, for other work to end so."""

    work: Work
    on: Work
    required: str
    is_open: bool = True

    @property
    def has_failed(self) -> bool:
        """The other one ended otherwise."""
        return self.required == "SUCCEEDED" and self.on.state in {"CANCELLED", "DEAD_LETTER"}


@dataclass(eq=False)
class Work:
    number: int
    priority: int
    created_at: int
    available_at: int
    zone: str | None
    policy: dict[str, Any]
    timeouts: dict[str, int]
    workload_id: str = ""
    is_hold: bool = False
    in_pool: bool = False
    memory: int = 0
    definition: str = ""
    pk: int = 0
    is_held_back: bool = False
    state: str = "READY"
    path: list[str] = field(default_factory=lambda: ["READY"])
    ready_at: int = 0
    tries: list[Try] = field(default_factory=list)
    started: int = 0
    extra: int = 0
    retries: int = 0
    unstarted: int = 0
    overall_from: int = 0
    cancel_at: int = 0
    is_cancel_asked: bool = False
    checkpoint: tuple[Try, int, Any] | None = None
    result: tuple[str, Try, Any] | None = None
    ties: list[Tie] = field(default_factory=list)
    # A dead letter of what it waited for; and ended work whose dependents are left to the sweep.
    is_buried: bool = False
    is_pending: bool = False

    @property
    def waits_for(self) -> int:
        return sum(each.is_open for each in self.ties)

    @property
    def is_blocked(self) -> bool:
        return self.waits_for > 0

    @property
    def current(self) -> Try | None:
        return next((each for each in self.tries if each.is_live), None)

    @property
    def overall_at(self) -> int | None:
        limit = self.timeouts.get("overall_ms")
        return None if limit is None else self.overall_from + limit

    def go(self, *states: str) -> None:
        self.path += states
        self.state = states[-1]

    def is_claimable(self, now: int) -> bool:
        is_free = not self.is_held_back and not self.is_blocked
        return self.state == "READY" and self.available_at <= now and is_free


@dataclass(eq=False)
class Man:
    """A worker."""

    name: str
    zone: str
    concurrency: int
    last_seen: int
    right: Right
    worker_id: str = ""
    lifecycle: str = "REGISTERED"
    health: str = "UNKNOWN"
    incarnation: int = 1
    is_unreconciled: bool = False
    drain_cause: str = ""
    drain_deadline: int | None = None
    is_drain_told: bool = False
    recovering_since: int = 0
    timeout_ms: int = 30_000
    interval_ms: int = 10_000

    def silent_at(self) -> int:
        since = self.recovering_since if self.lifecycle == "RECOVERING" else 0
        return max(self.last_seen, since) + self.timeout_ms

    def undrain(self) -> None:
        self.drain_cause, self.drain_deadline, self.is_drain_told = "", None, False


@dataclass(eq=False)
class Incident:
    opened_at: int
    workers: list[Man]
    is_open: bool = True
