"""Routes under /sweeps and /incidents: do the sweeps run, and does the brake hold?"""

from rest_framework.request import Request
from rest_framework.response import Response

from ... import brake, clock
from .. import answers, bodies, reading, shapes
from ..filters import Query
from ..paging import paginate
from ..schema import PAGING, operation
from .base import Endpoint, answer


class Sweeps(Endpoint):
    @operation("sweeps_list", answers={200: shapes.Sweeps})
    def get(self, request: Request) -> Response:
        """Every sweep with its last run, also one that never ran.

        `lag_ms` is the time since its last finished pass, null if it never finished one;
        `incident` is the newest open incident of the caller's tenant that holds it, or null.
        """
        at = clock.now()
        found = reading.sweeps(self.caller)
        return answer({"results": [answers.sweep(run, held, at) for run, held in found]})


class Incidents(Endpoint):
    noun = "INCIDENT"

    @operation("incidents_list", answers={200: shapes.IncidentPage}, query=PAGING)
    def get(self, request: Request) -> Response:
        """Times when the brake held workers of the tenant, newest first."""
        rows = reading.incidents(self.caller)
        query = Query(request, ())
        return answer(paginate(request, query, rows, order=("-id",), render=answers.incident))


class Resume(Endpoint):
    noun = "INCIDENT"

    @operation(
        "incidents_resume",
        body=bodies.Resume,
        answers={200: shapes.Incident},
        refusals="INCIDENT_NOT_FOUND",
    )
    def post(self, request: Request, incident_id: str) -> Response:
        """End the hold: workers of its list that are still silent go OFFLINE now."""
        said = self.body(bodies.Resume)
        row = brake.resume(caller=self.caller, incident_id=incident_id, **said)
        return answer(answers.incident(reading.incidents(self.caller).get(pk=row.pk)))
