"""The mesh's rows. Rules stand in the modules beside this package, never here."""

from .enums import (
    CLAIMED_STATES,
    ENDED_STATES,
    LIVE_ATTEMPT,
    SEALED_STATES,
    STARTED_STATES,
    WORKER_MOVES,
    WORKLOAD_MOVES,
    AttemptStatus,
    Backoff,
    DrainCause,
    GrantStatus,
    Health,
    Lifecycle,
    LostPolicy,
    Role,
    Runtime,
    ScopeKind,
    State,
)
from .grants import Grant
from .history import AuditEntry, WorkerEvent, WorkloadEvent
from .sweeps import Incident, SweepRun
from .tenancy import ApiToken, Application, Membership, Tenant
from .workers import EligibleSet, Worker
from .workloads import Attempt, Checkpoint, Requirement, Result, Workload, uid_of

__all__ = [
    "CLAIMED_STATES",
    "ENDED_STATES",
    "LIVE_ATTEMPT",
    "SEALED_STATES",
    "STARTED_STATES",
    "WORKER_MOVES",
    "WORKLOAD_MOVES",
    "ApiToken",
    "Application",
    "Attempt",
    "AttemptStatus",
    "AuditEntry",
    "Backoff",
    "Checkpoint",
    "DrainCause",
    "EligibleSet",
    "Grant",
    "GrantStatus",
    "Health",
    "Incident",
    "Lifecycle",
    "LostPolicy",
    "Membership",
    "Requirement",
    "Result",
    "Role",
    "Runtime",
    "ScopeKind",
    "State",
    "SweepRun",
    "Tenant",
    "Worker",
    "WorkerEvent",
    "Workload",
    "WorkloadEvent",
    "uid_of",
]
