"""Routes under /runs that stop a run, let it go on, or end it."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from mesh.api.schema import operation
from mesh.api.views.base import answer

from ... import cancellation, ending, recovery, steering
from .. import answers, bodies, parts, reading, shapes
from ..parts import RunEndpoint

_ALWAYS = "RUN_NOT_FOUND AUTHORITY_STALE"
# Of those that are given a reason or a message.
_TOLD = f"{_ALWAYS} ADMISSION_INVALID WORKLOAD_SECRET_REJECTED RUN_TERMINAL"


class _Steering(RunEndpoint):
    def steered(self, operation: Any, run_id: str, said: dict[str, Any]) -> Response:
        """The run, as the operation left it; an authority is checked where one was sent."""
        given = parts.given_authority(said)
        row = operation(caller=self.caller, run_id=run_id, **{**said, "authority": given})
        return answer(answers.run(reading.runs(self.caller).get(pk=row.pk)))


class Pause(_Steering):
    @operation(
        "runs_pause",
        body=bodies.Steer,
        answers={200: shapes.Run},
        refusals=_TOLD,
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Start nothing new. Unclaimed work waits; what runs goes on. Twice is fine."""
        return self.steered(steering.pause, run_id, self.body(bodies.Steer))


class Resume(_Steering):
    @operation(
        "runs_resume",
        body=bodies.Steer,
        answers={200: shapes.Run},
        refusals=_TOLD,
    )
    def post(self, request: Request, run_id: str) -> Response:
        """End the pause; lifts neither a cancellation nor a control failure."""
        return self.steered(steering.resume, run_id, self.body(bodies.Steer))


class Cancel(_Steering):
    @operation(
        "runs_cancel",
        body=bodies.CancelRun,
        answers={200: shapes.Run},
        refusals=_TOLD,
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Ask that the run ends. What really happened is still recorded; the first stays."""
        return self.steered(cancellation.request, run_id, self.body(bodies.CancelRun))


class Fail(_Steering):
    @operation(
        "runs_control_failure",
        body=bodies.FailRun,
        answers={200: shapes.Run},
        refusals=_TOLD,
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Say that the run cannot go on by itself; the first one stays."""
        return self.steered(steering.fail, run_id, self.body(bodies.FailRun))


class Clear(_Steering):
    @operation(
        "runs_control_failure_clear",
        body=bodies.Steer,
        answers={200: shapes.Run},
        refusals=_TOLD,
    )
    def post(self, request: Request, run_id: str) -> Response:
        """End the control failure: the run goes on."""
        return self.steered(steering.clear, run_id, self.body(bodies.Steer))


class FinishRecovery(_Steering):
    @operation(
        "runs_recovery_finish",
        body=bodies.UnderAuthority,
        answers={200: shapes.Run},
        refusals=f"{_ALWAYS} BARRIER_FOREIGN WORK_OUTSTANDING",
    )
    def post(self, request: Request, run_id: str) -> Response:
        """End the recovery barrier, once everything from before it is explained."""
        return self.steered(recovery.finish, run_id, self.body(bodies.UnderAuthority))


class Terminalize(_Steering):
    @operation(
        "runs_terminalize",
        body=bodies.UnderAuthority,
        answers={200: shapes.Run},
        refusals=f"{_ALWAYS} WORK_OUTSTANDING RECOVERY_PENDING",
    )
    def post(self, request: Request, run_id: str) -> Response:
        """End the run: CANCELLED, FAILED or COMPLETED, whichever is true. A repeat is the same."""
        return self.steered(ending.terminalize, run_id, self.body(bodies.UnderAuthority))
