"""What the reference of runs keeps, and the numbers that its rules name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

REMEMBERED_MS = EVIDENCE_MS = 60_000
GRACE_MS = 5_000
UNSTARTED = 20  # attempts in a row that come to nothing before they start
ENDED_WORK = {"SUCCEEDED", "DEAD_LETTER", "CANCELLED"}
UNBEGUN = {"PENDING", "READY"}
# In the order in which an admission looks at them.
BLOCKS = {
    "pause": "RUN_PAUSED",
    "cancellation": "RUN_CANCELLING",
    "failure": "RUN_CONTROL_FAILURE",
    "barrier": "RUN_RECOVERING",
}

Public = tuple[str, str, int]
# Name, access, scope.
Resource = tuple[str, str, str]
# Mode, from whom, to whom.
Step = tuple[str, Public, Public]


@dataclass(frozen=True)
class Owner:
    """An authority."""

    artifact: str
    instance: str
    generation: int
    token: str | None

    @property
    def public(self) -> Public:
        return (self.artifact, self.instance, self.generation)


@dataclass(frozen=True)
class Plan:
    """A step of a definition."""

    step: str
    needs: tuple[str, ...]
    resources: tuple[Resource, ...]
    is_hold: bool
    tries: int
    deliveries: int
    goes_on: bool


@dataclass(frozen=True)
class Outcome:
    """What a settlement says; `output` in a tuple, or None where it is left out."""

    kind: str
    output: tuple[Any] | None = None
    is_retryable: bool = False


@dataclass(eq=False)
class Claim:
    """One delivery of work to the worker."""

    work: Work
    is_started: bool = False
    report: Any = None
    claim: Any = None


@dataclass(eq=False)
class Work:
    """A workload, as far as runs see it."""

    is_hold: bool
    budget: int
    state: str = "READY"
    claims: list[Claim] = field(default_factory=list)
    is_taken: bool = False
    started: int = 0
    is_held: bool = False
    is_sealed: bool = False
    is_cancel_asked: bool = False
    is_given_up_by_a_person: bool = False
    # Whose result is stored, and what it is.
    result: tuple[Claim | None, Any] | None = None
    workload_id: str = ""

    @property
    def current(self) -> Claim | None:
        return self.claims[-1] if self.is_taken else None

    @property
    def had_no_effect(self) -> bool:
        """What the report of the latest started claim said."""
        started = [each for each in self.claims if each.is_started]
        report = started[-1].report if started else None
        return report is not None and report[0] == "fail" and bool(report[2])


@dataclass(eq=False)
class Attempt:
    """One try at a step; settled once it has an outcome."""

    run: Run
    plan: Plan
    number: int
    work: Work
    # Of the authority that admitted it.
    generation: int
    outcome: Outcome | None = None
    identity: str = ""


@dataclass(eq=False)
class Row:
    """Where one step of a run stands."""

    plan: Plan
    state: str
    last: int = 0
    tries: int = 0
    unstarted: int = 0
    output: Any = None

    @property
    def is_done(self) -> bool:
        return self.state == "SUCCEEDED" or (self.has_failed and self.plan.goes_on)

    @property
    def has_failed(self) -> bool:
        return self.state in {"FAILED", "CANCELLED"}


@dataclass(eq=False)
class Run:
    run_id: str
    rows: dict[str, Row]
    owner: Owner | None
    concurrency: int
    executions_left: int
    deadline: int | None
    status: str = "OPEN"
    coordinator: str = "external"
    attempts: list[Attempt] = field(default_factory=list)
    # By kind: what of it is compared (the code of a failure, whose barrier it is).
    blocks: dict[str, Any] = field(default_factory=dict)
    failed_step: str = ""
    handoffs: dict[int, Step] = field(default_factory=dict)
    past: list[Owner] = field(default_factory=list)
    # By generation: when its authority got the run.
    since: dict[int, int] = field(default_factory=dict)
    # What it was asked for with.
    begun_as: dict[str, Any] = field(default_factory=dict)

    @property
    def unsettled(self) -> list[Attempt]:
        return [each for each in self.attempts if each.outcome is None]

    @property
    def has_failed(self) -> bool:
        return any(each.has_failed and not each.plan.goes_on for each in self.rows.values())


@dataclass
class Ask:
    """A writer that was refused a resource."""

    first: int
    last: int


@dataclass(eq=False)
class Coordinator:
    registered_at: int
    lease_ms: int
    ends_at: int
    has_relinquished: bool = False


@dataclass(eq=False)
class Attestation:
    run: Run
    step: Step
    people: list[str]
    completed_at: int | None = None
    attestation_id: str = ""
