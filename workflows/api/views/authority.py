"""Routes by which authority over a run is taken, handed over and attested."""

from rest_framework.request import Request
from rest_framework.response import Response

from mesh.api.filters import Query
from mesh.api.paging import paginate
from mesh.api.schema import PAGING, operation
from mesh.api.views.base import Endpoint, answer

from ... import attestations, coordinator, handoffs, runs
from ... import authority as authorities
from ...models import HandoffMode
from .. import answers, bodies, parts, reading, shapes
from ..parts import RunEndpoint

_HAND_OVER = (
    "RUN_NOT_FOUND ADMISSION_INVALID TRANSITION_INVALID HANDOFF_CONFLICT EVIDENCE_UNKNOWN"
    " EVIDENCE_MISMATCH EVIDENCE_EXPIRED AUTHORITY_STALE RUN_TERMINAL WORK_OUTSTANDING"
    " LEASES_OUTSTANDING RECOVERY_PENDING BARRIER_FOREIGN"
)


class Claim(RunEndpoint):
    @operation(
        "runs_claim_authority",
        body=bodies.UnderAuthority,
        answers={200: shapes.Run},
        refusals=(
            "RUN_NOT_FOUND ADMISSION_INVALID TRANSITION_INVALID AUTHORITY_STALE RUN_TERMINAL"
        ),
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Take a run that nobody has, with generation 1. The same authority again is fine."""
        said = self.body(bodies.UnderAuthority)
        given = parts.authority(said["authority"])
        row = authorities.claim(caller=self.caller, run_id=run_id, authority=given)
        return answer(answers.run(reading.runs(self.caller).get(pk=row.pk)))


class Adopt(RunEndpoint):
    @operation(
        "runs_adopt",
        body=bodies.Adopt,
        answers={200: shapes.Run},
        refusals=f"{_HAND_OVER} WORKLOAD_SECRET_REJECTED",
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Turn the run over to the built-in coordinator; an owned one needs evidence."""
        said = self.body(bodies.Adopt)
        row = coordinator.adopt(caller=self.caller, run_id=run_id, **said)
        return answer(answers.run(reading.runs(self.caller).get(pk=row.pk)))


class Handoffs(RunEndpoint):
    @operation(
        "runs_handoffs", answers={200: shapes.HandoffPage}, refusals="RUN_NOT_FOUND", query=PAGING
    )
    def get(self, request: Request, run_id: str) -> Response:
        """How authority moved, the latest first, each with its receipt."""
        query = Query(request, ())
        rows = reading.handoffs(runs.get(caller=self.caller, run_id=run_id))
        return answer(
            paginate(request, query, rows, order=("-generation",), render=answers.handoff)
        )

    @operation(
        "runs_hand_over",
        body=bodies.HandOver,
        answers={200: shapes.HandedOver, 201: shapes.HandedOver},
        refusals=_HAND_OVER,
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Move authority to the next coordinator, on the server's own evidence."""
        said = self.body(bodies.HandOver)
        done = handoffs.hand_over(
            caller=self.caller,
            run_id=run_id,
            mode=HandoffMode(said["mode"]),
            expected=parts.authority(said["expected"]),
            replacement=parts.authority(said["replacement"]),
        )
        row = reading.handoffs(done.run).get(pk=done.handoff.pk)
        shown = {"handoff": answers.handoff(row), "authority": answers.authority(done.run)}
        return answer(shown, created=done.created)


class Attestations(RunEndpoint):
    @operation(
        "runs_attest",
        body=bodies.Attest,
        answers={200: shapes.Attestation},
        refusals="RUN_NOT_FOUND ADMISSION_INVALID TRANSITION_INVALID WORKLOAD_SECRET_REJECTED",
    )
    def post(self, request: Request, run_id: str) -> Response:
        """State that the old owner has stopped. Some tenants need a second person."""
        said = self.body(bodies.Attest)
        row = attestations.attest(
            caller=self.caller,
            run_id=run_id,
            transition=parts.transition(said["transition"]),
            statement=said["statement"],
        )
        return answer(answers.attestation(row))


class Confirm(Endpoint):
    noun = "ATTESTATION"

    @operation(
        "attestations_confirm",
        body=bodies.Confirm,
        answers={200: shapes.Attestation},
        refusals="ATTESTATION_NOT_FOUND ADMISSION_INVALID WORKLOAD_SECRET_REJECTED",
    )
    def post(self, request: Request, attestation_id: str) -> Response:
        """State it as the second person."""
        said = self.body(bodies.Confirm)
        row = attestations.confirm(
            caller=self.caller, attestation_id=attestation_id, statement=said["statement"]
        )
        return answer(answers.attestation(row))
