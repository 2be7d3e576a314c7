"""Routes under /runs: runs themselves, their attempts, and what is reserved."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from mesh import clock
from mesh.api.filters import Query
from mesh.api.paging import paginate
from mesh.api.schema import PAGING, WINDOW, operation, parameter
from mesh.api.views.base import Endpoint, answer

from ... import admission, blocks, resources, runs, settlement
from ...models import Access, CoordinatorKind, LeaseScope, RunStatus
from ...models import Run as RunRow
from .. import answers, bodies, parts, reading, shapes
from ..parts import RunEndpoint

_QUERY = (
    parameter("status", words=RunStatus.values),
    parameter("application"),
    parameter("definition_id"),
    parameter("coordinator", words=CoordinatorKind.values),
    parameter("q", said="The beginning of run ids."),
    *WINDOW,
)
_NAMES = tuple(each.name for each in _QUERY)
_RESERVED = (
    parameter("resource"),
    parameter("access", words=Access.values),
    parameter("scope", words=LeaseScope.values, said="`run` where it is left out."),
)


class Runs(Endpoint):
    noun = "RUN"

    @operation("runs_list", answers={200: shapes.RunPage}, query=(*_QUERY, *PAGING))
    def get(self, request: Request) -> Response:
        """The tenant's runs, newest first."""
        query = Query(request, _NAMES)
        wanted = {
            "status": query.word("status", RunStatus.values),
            "coordinator": query.word("coordinator", CoordinatorKind.values),
            "run_id__startswith": query.text("q"),
        }
        rows = reading.runs(self.caller).filter(
            query.window("created_at"),
            **{lookup: each for lookup, each in wanted.items() if each is not None},
        )
        if (application := query.text("application")) is not None:
            rows = rows.filter(reading.of_application(self.caller, application))
        if (definition_id := query.text("definition_id")) is not None:
            rows = rows.filter(reading.of_definition(self.caller, definition_id))
        order = ("-created_at", "-id")
        return answer(paginate(request, query, rows, order=order, render=answers.run))

    @operation(
        "runs_start",
        body=bodies.StartRun,
        answers={200: shapes.RunDetail, 201: shapes.RunDetail},
        refusals=(
            "APPLICATION_NOT_FOUND DEFINITION_NOT_FOUND ADMISSION_INVALID TRANSITION_INVALID"
            " WORKLOAD_SECRET_REJECTED"
        ),
    )
    def post(self, request: Request) -> Response:
        """Start a run. The same run id with the same content is the same run (200)."""
        said = self.body(bodies.StartRun)
        given = parts.given_authority(said)
        row, created = runs.start(caller=self.caller, **{**said, "authority": given})
        return answer(_detail(row), created=created)


class Run(RunEndpoint):
    @operation("runs_get", answers={200: shapes.RunDetail}, refusals="RUN_NOT_FOUND")
    def get(self, request: Request, run_id: str) -> Response:
        """One run: who may move it, what blocks it, its steps, attempts and leases."""
        return answer(_detail(runs.get(caller=self.caller, run_id=run_id)))


class History(RunEndpoint):
    @operation(
        "runs_history", answers={200: shapes.EventPage}, refusals="RUN_NOT_FOUND", query=PAGING
    )
    def get(self, request: Request, run_id: str) -> Response:
        """Everything that happened to the run, in order."""
        query = Query(request, ())
        rows = reading.events(runs.get(caller=self.caller, run_id=run_id))
        return answer(paginate(request, query, rows, order=("sequence",), render=answers.event))


class Admission(RunEndpoint):
    @operation("runs_admission", answers={200: shapes.Admission}, refusals="RUN_NOT_FOUND")
    def get(self, request: Request, run_id: str) -> Response:
        """Why nothing new may start. Grants nothing."""
        standing = admission.blocks(caller=self.caller, run_id=run_id)
        return answer(answers.admission(standing))


class Resources(RunEndpoint):
    @operation("runs_resources", answers={200: shapes.Leases}, refusals="RUN_NOT_FOUND")
    def get(self, request: Request, run_id: str) -> Response:
        """What the run's unsettled attempts reserve."""
        run = runs.get(caller=self.caller, run_id=run_id)
        at = clock.now()
        return answer({"results": [answers.lease(each, at) for each in reading.leases(run)]})


class ResourceConflict(RunEndpoint):
    @operation(
        "runs_resource_conflict",
        answers={200: shapes.Conflict},
        refusals="RUN_NOT_FOUND ADMISSION_INVALID",
        query=_RESERVED,
    )
    def get(self, request: Request, run_id: str) -> Response:
        """Who would be in the way of an attempt that reserves this now. Reserves nothing."""
        query = Query(request, ("resource", "access", "scope"))
        found = resources.conflicting_resource(
            caller=self.caller,
            run_id=run_id,
            resource=query.text("resource") or "",
            access=query.word("access", Access.values) or Access.WRITE,
            scope=query.word("scope", LeaseScope.values) or LeaseScope.RUN,
        )
        if found is None:
            return answer({"conflict": None, "holder": None})
        return answer({"conflict": found.wanted.resource, "holder": found.shown()})


class Attempts(RunEndpoint):
    @operation(
        "runs_admit",
        body=bodies.Admit,
        answers={200: shapes.AdmittedAttempt, 201: shapes.AdmittedAttempt},
        refusals=(
            "RUN_NOT_FOUND ADMISSION_INVALID AUTHORITY_STALE RUN_TERMINAL RUN_PAUSED"
            " RUN_CANCELLING RUN_CONTROL_FAILURE RUN_RECOVERING STEP_NOT_DUE LIMIT_REACHED"
            " CONCURRENCY_FULL RESERVATION_MISMATCH RESOURCE_BUSY WORKLOAD_INVALID"
            " WORKLOAD_SECRET_REJECTED WORKLOAD_IDEMPOTENCY_MISMATCH APPLICATION_NOT_FOUND"
        ),
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Admit an attempt at a step: its workload is the receipt. A repeat is the same (200)."""
        said = self.body(bodies.Admit)
        admitted = admission.admit(
            caller=self.caller,
            run_id=run_id,
            authority=parts.authority(said["authority"]),
            step=said["step"],
            attempt=said["attempt"],
            resources=parts.resources(said.get("resources")),
        )
        current = admitted.authority
        shown = answers.attempt(reading.attempt(admitted.attempt.pk), run_id)
        shown["authority"] = None if current is None else current.public()
        return answer(shown, created=admitted.created)


class Settle(RunEndpoint):
    nouns = {"dispatch_identity": "ATTEMPT"}

    @operation(
        "runs_settle",
        body=bodies.Settle,
        answers={200: shapes.RunAttempt},
        refusals=(
            "RUN_NOT_FOUND ATTEMPT_NOT_FOUND AUTHORITY_STALE OUTCOME_CONFLICT WORK_OUTSTANDING"
            " ADMISSION_INVALID WORKLOAD_SECRET_REJECTED"
        ),
    )
    def post(self, request: Request, run_id: str, dispatch_identity: str) -> Response:
        """Say what the attempt came to, once its work has ended; frees what it reserved."""
        said = self.body(bodies.Settle)
        row = settlement.settle(
            caller=self.caller,
            run_id=run_id,
            authority=parts.authority(said["authority"]),
            dispatch_identity=dispatch_identity,
            outcome=parts.outcome(said["outcome"]),
        )
        return answer(answers.attempt(reading.attempt(row.pk), run_id))


def _detail(row: RunRow) -> dict[str, Any]:
    return answers.run_detail(
        row,
        standing=blocks.standing(row.pk),
        activations=reading.activations(row),
        attempts=reading.attempts(row),
        leases=reading.leases(row),
        at=clock.now(),
    )
