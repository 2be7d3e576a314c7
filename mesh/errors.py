"""Every refusal of the mesh and of workflows, by code. This module imports nothing of ours.

A refusal is a `DomainError`: a stable code for programs, a sentence for people, and facts. What a
code means to a caller (status, kind) is said once, in `CODES`; the edges only look it up.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Meaning(NamedTuple):
    """How a code travels: HTTP status, and the kind a caller can switch on."""

    status: int
    kind: str


_GROUPS: Final[dict[Meaning, str]] = {
    Meaning(400, "invalid"): "REQUEST_MALFORMED",
    Meaning(401, "unauthenticated"): "AUTHENTICATION_REQUIRED TOKEN_INVALID",
    Meaning(403, "denied"): (
        "PERMISSION_DENIED GRANT_INVALID GRANT_EXPIRED GRANT_REVOKED GRANT_SCOPE_DENIED"
        " GRANT_DELEGATION_INVALID WORKER_UNAUTHORIZED WORKLOAD_UNAUTHORIZED"
        " MESH_CAPABILITY_DENIED MESH_CLAIM_SCOPE_DENIED"
    ),
    Meaning(404, "not_found"): (
        "NOT_FOUND WORKER_NOT_FOUND WORKLOAD_NOT_FOUND CLAIM_NOT_FOUND GRANT_NOT_FOUND"
        " APPLICATION_NOT_FOUND POOL_NOT_FOUND PAUSE_NOT_FOUND INCIDENT_NOT_FOUND"
        " DEFINITION_NOT_FOUND RUN_NOT_FOUND ATTEMPT_NOT_FOUND COORDINATOR_NOT_FOUND"
        " ATTESTATION_NOT_FOUND"
    ),
    Meaning(405, "invalid"): "METHOD_NOT_ALLOWED",
    Meaning(406, "invalid"): "NOT_ACCEPTABLE",
    Meaning(409, "stale"): (
        "WORKLOAD_CLAIM_INVALID WORKLOAD_STALE_FENCE WORKLOAD_LEASE_EXPIRED MESH_STALE_FENCE"
    ),
    Meaning(409, "authority_conflict"): (
        "AUTHORITY_STALE EVIDENCE_UNKNOWN EVIDENCE_MISMATCH EVIDENCE_EXPIRED TRANSITION_INVALID"
        " HANDOFF_CONFLICT RUN_TERMINAL WORK_OUTSTANDING LEASES_OUTSTANDING RECOVERY_PENDING"
        " BARRIER_FOREIGN"
    ),
    Meaning(409, "capacity_unavailable"): (
        "RUN_PAUSED RUN_CANCELLING RUN_CONTROL_FAILURE RUN_RECOVERING RESOURCE_BUSY"
        " CONCURRENCY_FULL LIMIT_REACHED STEP_NOT_DUE"
    ),
    Meaning(409, "conflict"): (
        "COORDINATOR_ENDED"
        " WORKER_BUSY WORKER_DRAINED WORKER_HEARTBEAT_REJECTED WORKER_RECONCILIATION_DENIED"
        " WORKER_RECOVERY_REQUIRED WORKER_TRANSITION_DENIED WORKLOAD_CANCELLATION_REQUESTED"
        " WORKLOAD_IDEMPOTENCY_MISMATCH WORKLOAD_NOT_READY WORKLOAD_NOT_YET_ELIGIBLE"
        " WORKLOAD_RESULT_DUPLICATE WORKLOAD_TRANSITION_DENIED MESH_NO_ELIGIBLE_WORKER"
        " MESH_PLACEMENT_DENIED MESH_RUN_BLOCKED WORKER_POOL_EXISTS WORKLOAD_DEPENDENCY_OPEN"
    ),
    Meaning(413, "invalid"): "BODY_TOO_LARGE",
    Meaning(415, "invalid"): "CONTENT_TYPE_UNSUPPORTED",
    Meaning(422, "invalid"): (
        "REQUEST_INVALID CONTRACT_VERSION_UNSUPPORTED WORKER_INVALID WORKER_CLOCK_INVALID"
        " WORKLOAD_INVALID WORKLOAD_SECRET_REJECTED WORKLOAD_DEPENDENCY_INVALID"
    ),
    Meaning(422, "invalid_admission"): "ADMISSION_INVALID RESERVATION_MISMATCH OUTCOME_CONFLICT",
    Meaning(429, "unavailable"): "LIMIT_EXCEEDED",
    Meaning(503, "unavailable"): "STORAGE_BUSY",
}

CODES: Final[dict[str, Meaning]] = {
    code: meaning for meaning, codes in _GROUPS.items() for code in codes.split()
}


class DomainError(Exception):
    """A refusal: nothing was changed. `facts` are told to the caller beside code and detail.

    `keep` writes what is to be remembered of it all the same, once the change was rolled back
    (see `mesh.refusals`).
    """

    def __init__(
        self, code: str, detail: str, *, keep: Callable[[], object] | None = None, **facts: Any
    ) -> None:
        if code not in CODES:
            raise AssertionError(f"unknown error code {code}")
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.facts = facts
        self.keep = keep

    @property
    def kind(self) -> str:
        """The family of the code, for callers that do not care for the very code."""
        return CODES[self.code].kind

    @property
    def status(self) -> int:
        """The HTTP status that the code travels with."""
        return CODES[self.code].status
