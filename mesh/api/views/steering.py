"""Routes under /pauses, and those that say why work does not run."""

from rest_framework.request import Request
from rest_framework.response import Response

from ... import explain, pauses
from ...models import Decision
from .. import bodies, reading, steering
from ..filters import Query
from ..paging import paginate
from ..schema import PAGING, operation, parameter
from .base import Endpoint, answer


class Pauses(Endpoint):
    noun = "PAUSE"

    @operation(
        "pauses_list",
        answers={200: steering.PausePage},
        query=(parameter("application"), *PAGING),
    )
    def get(self, request: Request) -> Response:
        """The tenant's pauses that stand, newest first."""
        query = Query(request, ("application",))
        rows = reading.pauses(self.caller)
        if (application := query.text("application")) is not None:
            rows = rows.filter(application__name=application)
        return answer(paginate(request, query, rows, order=("-id",), render=steering.pause))

    @operation(
        "pauses_create",
        body=bodies.CreatePause,
        answers={201: steering.Pause},
        refusals="APPLICATION_NOT_FOUND LIMIT_EXCEEDED",
    )
    def post(self, request: Request) -> Response:
        """Hold back work of an application, or of one definition, until it is lifted or over."""
        said = self.body(bodies.CreatePause)
        row = pauses.create(caller=self.caller, **said)
        return answer(steering.pause(row), created=True)


class Pause(Endpoint):
    noun = "PAUSE"

    @operation("pauses_lift", answers={204: None}, refusals="PAUSE_NOT_FOUND")
    def delete(self, request: Request, pause_id: str) -> Response:
        """Let the work go at once."""
        pauses.lift(caller=self.caller, pause_id=pause_id)
        return Response(status=204)


class Placement(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_placement",
        answers={200: steering.Placement},
        refusals="WORKLOAD_NOT_FOUND",
    )
    def get(self, request: Request, workload_id: str) -> Response:
        """Why the work is not running, as of now."""
        found = explain.explain(caller=self.caller, workload_id=workload_id)
        return answer(steering.placement(found))


class Decisions(Endpoint):
    noun = "WORKLOAD"

    @operation(
        "workloads_decisions",
        answers={200: steering.DecisionPage},
        refusals="WORKLOAD_NOT_FOUND",
        query=PAGING,
    )
    def get(self, request: Request, workload_id: str) -> Response:
        """Placements that were asked for, refused ones too, the latest first."""
        query = Query(request, ())
        pk = reading.workload_pk(self.caller, workload_id)
        rows = Decision.objects.filter(workload_id=pk).select_related("chosen")
        return answer(paginate(request, query, rows, order=("-id",), render=steering.decision))
