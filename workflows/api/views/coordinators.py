"""Routes by which services that drive runs say that they live."""

from rest_framework.request import Request
from rest_framework.response import Response

from mesh import clock
from mesh.api.schema import operation
from mesh.api.views.base import Endpoint, answer

from ... import coordinators
from .. import answers, bodies, shapes


class Coordinators(Endpoint):
    noun = "COORDINATOR"

    @operation(
        "coordinators_register",
        body=bodies.RegisterCoordinator,
        answers={200: shapes.Coordinator, 201: shapes.Coordinator},
        refusals="ADMISSION_INVALID COORDINATOR_ENDED",
    )
    def post(self, request: Request) -> Response:
        """Register a coordinator that lives for its lease. The same again while it lives: 200."""
        said = self.body(bodies.RegisterCoordinator)
        row, created = coordinators.register(caller=self.caller, **said)
        return answer(answers.coordinator(row, clock.now()), created=created)


class Heartbeat(Endpoint):
    noun = "COORDINATOR"

    @operation(
        "coordinators_heartbeat",
        body=bodies.BeatCoordinator,
        answers={200: shapes.Coordinator},
        refusals="COORDINATOR_NOT_FOUND COORDINATOR_ENDED",
    )
    def post(self, request: Request, instance_id: str) -> Response:
        """Live on for a lease from now; an ended one never revives."""
        said = self.body(bodies.BeatCoordinator)
        row = coordinators.heartbeat(caller=self.caller, instance_id=instance_id, **said)
        return answer(answers.coordinator(row, clock.now()))


class Relinquish(Endpoint):
    noun = "COORDINATOR"

    @operation(
        "coordinators_relinquish",
        body=bodies.Nothing,
        answers={200: shapes.Coordinator},
        refusals="COORDINATOR_NOT_FOUND COORDINATOR_ENDED",
    )
    def post(self, request: Request, instance_id: str) -> Response:
        """Say that it drives no run any more: others may take its runs over at once."""
        self.body(bodies.Nothing)
        row = coordinators.relinquish(caller=self.caller, instance_id=instance_id)
        return answer(answers.coordinator(row, clock.now()))
