"""Routes under /claims: what the worker that holds a claim does with it."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from ... import leases, settlement, validation
from ...models import Attempt
from .. import answers, bodies, shapes
from ..fields import Body
from ..schema import ANYBODY, WORKERS, operation
from .base import Endpoint, answer

_FENCE = (
    "CLAIM_NOT_FOUND WORKLOAD_CLAIM_INVALID WORKLOAD_STALE_FENCE WORKLOAD_LEASE_EXPIRED"
    " WORKLOAD_TRANSITION_DENIED"
)
_REPORT = f"{_FENCE} WORKLOAD_SECRET_REJECTED WORKLOAD_INVALID"


class ClaimEndpoint(Endpoint):
    noun = "CLAIM"

    def said(self, claim_id: str, shape: type[Body]) -> dict[str, Any]:
        """The arguments of the call: the claim, and what was sent with it."""
        return {"caller": self.caller, "claim_id": claim_id, **self.body(shape)}

    def attempt(self, row: Attempt) -> Response:
        # Only the claim's own worker gets here, so its id is known without asking.
        return answer(answers.attempt(row, self.caller.subject.removeprefix("worker:")))


class Start(ClaimEndpoint):
    locks_its_worker = True

    @operation(
        "claims_start",
        body=bodies.Fenced,
        answers={200: shapes.Attempt},
        refusals=f"{_FENCE} WORKER_RECOVERY_REQUIRED WORKLOAD_CANCELLATION_REQUESTED"
        " MESH_RUN_BLOCKED",
        who=WORKERS,
    )
    def post(self, request: Request, claim_id: str) -> Response:
        """Begin. No effect may happen before this was accepted."""
        return self.attempt(leases.start(**self.said(claim_id, bodies.Fenced)))


class Renew(ClaimEndpoint):
    @operation(
        "claims_renew",
        body=bodies.Renew,
        answers={200: shapes.Renewal},
        refusals=f"{_FENCE} GRANT_REVOKED WORKER_DRAINED WORKLOAD_INVALID",
        who=WORKERS,
    )
    def post(self, request: Request, claim_id: str) -> Response:
        """Hold the claim for longer; a lease never gets shorter."""
        renewal = leases.renew(**self.said(claim_id, bodies.Renew))
        return answer(
            {
                "state": renewal.state,
                "expires_at": renewal.expires_at,
                "cancel_requested": renewal.cancel_requested,
                "deadline": renewal.deadline,
            }
        )


class Checkpoint(ClaimEndpoint):
    @operation(
        "claims_checkpoint",
        body=bodies.SaveCheckpoint,
        answers={200: shapes.Attempt},
        refusals=_REPORT,
        who=WORKERS,
    )
    def post(self, request: Request, claim_id: str) -> Response:
        """Save progress; whoever claims the work next gets the latest."""
        return self.attempt(leases.checkpoint(**self.said(claim_id, bodies.SaveCheckpoint)))


class Complete(ClaimEndpoint):
    locks_its_worker = True

    @operation(
        "claims_complete",
        body=bodies.Complete,
        answers={200: shapes.Attempt},
        refusals=f"{_REPORT} WORKLOAD_RESULT_DUPLICATE",
        who=WORKERS,
    )
    def post(self, request: Request, claim_id: str) -> Response:
        """Report success with its result. An exact repeat is answered alike."""
        return self.attempt(settlement.complete(**self.said(claim_id, bodies.Complete)))


class Fail(ClaimEndpoint):
    locks_its_worker = True

    @operation(
        "claims_fail",
        body=bodies.Fail,
        answers={200: shapes.Attempt},
        refusals=_REPORT,
        who=WORKERS,
    )
    def post(self, request: Request, claim_id: str) -> Response:
        """Report failure; the workload's retry policy decides what follows."""
        return self.attempt(settlement.fail(**self.said(claim_id, bodies.Fail)))


class Cancelled(ClaimEndpoint):
    @operation(
        "claims_cancelled",
        body=bodies.Fenced,
        answers={200: shapes.Attempt},
        refusals=_FENCE,
        who=WORKERS,
    )
    def post(self, request: Request, claim_id: str) -> Response:
        """Confirm that the work was stopped, as asked."""
        return self.attempt(settlement.cancelled(**self.said(claim_id, bodies.Fenced)))


class Release(ClaimEndpoint):
    @operation(
        "claims_release",
        body=bodies.Fenced,
        answers={200: shapes.Attempt},
        refusals=_FENCE,
        who=WORKERS,
    )
    def post(self, request: Request, claim_id: str) -> Response:
        """Give back work that was not started."""
        return self.attempt(settlement.release(**self.said(claim_id, bodies.Fenced)))


class Validate(ClaimEndpoint):
    @operation(
        "claims_validate",
        body=bodies.Validate,
        answers={200: shapes.Valid},
        refusals=(
            "CLAIM_NOT_FOUND MESH_CLAIM_SCOPE_DENIED MESH_STALE_FENCE WORKLOAD_TRANSITION_DENIED"
            " MESH_CAPABILITY_DENIED"
        ),
        who=ANYBODY,
    )
    def post(self, request: Request, claim_id: str) -> Response:
        """Ask whether a claim holds, before something is done under it. Changes nothing."""
        expires_at = validation.validate(**self.said(claim_id, bodies.Validate))
        return answer({"valid": True, "expires_at": expires_at})
