"""Routes under /workloads."""

from typing import Any

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from ... import intake, placing, resolutions, workloads
from ...errors import DomainError
from ...intake import Accepted
from ...models import Application, Attempt, Checkpoint, State, WorkloadEvent
from ...models import Workload as WorkloadRow
from ...submissions import Asked, Submission
from ...tenancy import Caller
from .. import answers, bodies, reading, shapes
from ..filters import Query
from ..paging import paginate
from ..schema import ANYBODY, PAGING, WINDOW, operation, parameter
from .base import Endpoint, answer

_QUERY = (
    parameter("state", words=State.values),
    parameter("definition_id"),
    parameter("application"),
    parameter("worker", said="The id of the worker that holds the work now."),
    parameter("q", said="The beginning of the id, or an idempotency key in full."),
    *WINDOW,
)
_NAMES = tuple(each.name for each in _QUERY)
_SUBMIT = (
    "APPLICATION_NOT_FOUND WORKLOAD_SECRET_REJECTED WORKLOAD_INVALID LIMIT_EXCEEDED"
    " WORKLOAD_IDEMPOTENCY_MISMATCH WORKLOAD_UNAUTHORIZED GRANT_INVALID GRANT_EXPIRED"
    " GRANT_REVOKED GRANT_SCOPE_DENIED WORKLOAD_DEPENDENCY_INVALID"
)
_MOVE = "WORKLOAD_NOT_FOUND WORKLOAD_TRANSITION_DENIED"
_PLACE = (
    "WORKLOAD_NOT_FOUND WORKER_NOT_FOUND WORKLOAD_NOT_READY WORKLOAD_NOT_YET_ELIGIBLE"
    " WORKLOAD_TRANSITION_DENIED WORKLOAD_DEPENDENCY_OPEN WORKLOAD_INVALID LIMIT_EXCEEDED"
    " MESH_RUN_BLOCKED MESH_PLACEMENT_DENIED MESH_NO_ELIGIBLE_WORKER"
)


class Workloads(Endpoint):
    noun = "WORKLOAD"

    @operation("workloads_list", answers={200: shapes.WorkloadPage}, query=(*_QUERY, *PAGING))
    def get(self, request: Request) -> Response:
        """The tenant's workloads, newest first. A page ends early where it would be too heavy."""
        query = Query(request, _NAMES)
        rows = reading.workloads(self.caller).filter(
            _chosen(query, self.caller), query.window("created_at")
        )
        page = paginate(
            request,
            query,
            rows,
            order=("-created_at", "-id"),
            render=_listed,
            trim=reading.with_inputs,
        )
        return answer(page)

    @operation(
        "workloads_submit",
        body=bodies.Submit,
        answers={200: shapes.Submitted, 201: shapes.Submitted},
        refusals=_SUBMIT,
    )
    def post(self, request: Request) -> Response:
        """Submit work (201). The same key with the same content is the same work (200)."""
        said = self.body(bodies.Submit)
        grant = said.pop("grant", None)
        submission = Submission(**said)
        submitted = intake.submit(caller=self.caller, submission=submission, grant=grant)
        row = submitted.workload
        shown = answers.workload(row, reading.live_attempt(row), submission.waits_for())
        return answer({"workload": shown, "created": submitted.created}, created=submitted.created)


class Batch(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_submit_many",
        body=bodies.SubmitMany,
        answers={200: shapes.SubmittedMany},
        refusals="LIMIT_EXCEEDED",
    )
    def post(self, request: Request) -> Response:
        """Submit up to 1 000, each answered by itself; one may depend on those before it."""
        asked = [
            Asked(grant=each.pop("grant", None), submission=Submission(**each))
            for each in self.body(bodies.SubmitMany)["workloads"]
        ]
        taken = intake.submit_many(caller=self.caller, asked=asked)
        return answer({"results": [_taken(each) for each in taken]})


class Workload(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_get",
        answers={200: shapes.WorkloadDetail},
        refusals="WORKLOAD_NOT_FOUND",
        who=ANYBODY,
    )
    def get(self, request: Request, workload_id: str) -> Response:
        """One workload with attempts, latest checkpoint and result. A worker may read its own."""
        row = reading.workload(self.caller, workload_id)
        attempts = reading.latest_attempts(row.pk)
        live = next((each for each in attempts if each.is_live), None)
        latest = reading.latest_checkpoint(row.pk)
        result = getattr(row, "result", None)
        return answer(
            {
                **answers.workload(row, live, row.waits_for),  # type: ignore[attr-defined]  # in `reading`
                "attempts": [answers.attempt(each, each.worker.worker_id) for each in attempts],
                "checkpoint": None if latest is None else answers.checkpoint(latest),
                "result": None if result is None else answers.result(result),
            }
        )


class History(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_history",
        answers={200: shapes.EventPage},
        refusals="WORKLOAD_NOT_FOUND",
        query=PAGING,
    )
    def get(self, request: Request, workload_id: str) -> Response:
        """All that happened to the workload, in order."""
        query = Query(request, ())
        pk = reading.workload_pk(self.caller, workload_id)
        rows = WorkloadEvent.objects.filter(workload_id=pk)
        return answer(paginate(request, query, rows, order=("sequence",), render=answers.event))


class Attempts(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_attempts",
        answers={200: shapes.AttemptPage},
        refusals="WORKLOAD_NOT_FOUND",
        query=PAGING,
    )
    def get(self, request: Request, workload_id: str) -> Response:
        """Every try at the workload, in order."""
        query = Query(request, ())
        rows = reading.attempts(reading.workload_pk(self.caller, workload_id))
        return answer(paginate(request, query, rows, order=("number",), render=_attempt))


class Checkpoints(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_checkpoints",
        answers={200: shapes.CheckpointPage},
        refusals="WORKLOAD_NOT_FOUND",
        query=PAGING,
    )
    def get(self, request: Request, workload_id: str) -> Response:
        """The checkpoints that are kept, the latest first."""
        query = Query(request, ())
        pk = reading.workload_pk(self.caller, workload_id)
        rows = Checkpoint.objects.filter(workload_id=pk)
        page = paginate(request, query, rows, order=("-sequence",), render=answers.checkpoint)
        return answer(page)


class Place(Endpoint):
    noun = "WORKLOAD"

    @operation("workloads_place", body=bodies.Place, answers={200: shapes.Claim}, refusals=_PLACE)
    def post(self, request: Request, workload_id: str) -> Response:
        """Give the work to the best worker that may run it, or to the one that is named."""
        said = self.body(bodies.Place)
        return answer(
            answers.claim(placing.place(caller=self.caller, workload_id=workload_id, **said))
        )


class Cancel(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_cancel", body=bodies.Reasoned, answers={200: shapes.Workload}, refusals=_MOVE
    )
    def post(self, request: Request, workload_id: str) -> Response:
        """Stop the work: at once where nobody holds it, else its worker is told."""
        said = self.body(bodies.Reasoned)
        row = workloads.cancel(caller=self.caller, workload_id=workload_id, **said)
        return answer(_shown(row))


class Retry(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_retry",
        body=bodies.Retry,
        answers={200: shapes.Workload},
        refusals=f"{_MOVE} WORKLOAD_DEPENDENCY_OPEN",
    )
    def post(self, request: Request, workload_id: str) -> Response:
        """Make a dead letter ready again, with more attempts, and what its end buried if asked."""
        said = self.body(bodies.Retry)
        row = workloads.retry(caller=self.caller, workload_id=workload_id, **said)
        return answer(_shown(row))


class Resolve(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_resolve",
        body=bodies.Resolve,
        answers={200: shapes.Workload},
        refusals=f"{_MOVE} WORKLOAD_SECRET_REJECTED WORKLOAD_INVALID",
    )
    def post(self, request: Request, workload_id: str) -> Response:
        """Say what became of work that is HELD, or have it done again."""
        said = self.body(bodies.Resolve)
        row = resolutions.resolve(caller=self.caller, workload_id=workload_id, **said)
        return answer(_shown(row))


class Reclaim(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_reclaim",
        body=bodies.Reclaim,
        answers={200: shapes.Workload},
        refusals=f"{_MOVE} WORKLOAD_SECRET_REJECTED WORKLOAD_INVALID",
    )
    def post(self, request: Request, workload_id: str) -> Response:
        """Take the work from its worker at once, as lost, without waiting for the lease."""
        said = self.body(bodies.Reclaim)
        row = resolutions.reclaim(caller=self.caller, workload_id=workload_id, **said)
        return answer(_shown(row))


def _taken(each: Accepted | DomainError) -> dict[str, Any]:
    if isinstance(each, DomainError):
        return {"code": each.code, "detail": each.detail}
    return {"workload_id": each.workload_id, "created": each.created}


def _shown(row: WorkloadRow) -> dict[str, Any]:
    return answers.workload(row, reading.live_attempt(row), reading.waits_for(row.pk))


def _listed(row: WorkloadRow) -> dict[str, Any]:
    live: list[Attempt] = row.live_attempts  # type: ignore[attr-defined]  # set in `reading`
    waits_for: list[dict[str, str]] = row.waits_for  # type: ignore[attr-defined]
    return answers.workload(row, live[0] if live else None, waits_for)


def _attempt(row: Attempt) -> dict[str, Any]:
    return answers.attempt(row, row.worker.worker_id)


def _chosen(query: Query, caller: Caller) -> Q:
    chosen = Q()
    if (state := query.word("state", State.values)) is not None:
        chosen &= Q(state=state)
    if (definition_id := query.text("definition_id")) is not None:
        chosen &= Q(definition_id=definition_id)
    if (application := query.text("application")) is not None:
        chosen &= Q(application__name=application)
    if (worker_id := query.text("worker")) is not None:
        held = Attempt.objects.live().filter(
            worker__tenant_id=caller.tenant_id, worker__worker_id=worker_id
        )
        chosen &= Q(pk__in=held.values("workload_id"))
    if (wanted := query.text("q")) is not None:
        # Naming the applications lets the key be looked up in its index.
        own = Application.objects.filter(tenant_id=caller.tenant_id)
        by_key = Q(application__in=own.values("pk"), idempotency_key=wanted)
        chosen &= by_key | Q(workload_id__startswith=wanted)
    return chosen
