"""Routes under /workers."""

from typing import Any

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from ... import liveness, reports, settlement, starts, waiting, workers
from ...models import Health, Lifecycle, Runtime
from ...models import Worker as WorkerRow
from ...registration import Registration
from .. import answers, bodies, reading, shapes
from ..authentication import CREDENTIAL_PREFIX, bearer
from ..filters import Query
from ..paging import paginate
from ..schema import ANYBODY, NOBODY, PAGING, WINDOW, WORKERS, operation, parameter
from .base import Endpoint, answer

_QUERY = (
    parameter("lifecycle", words=Lifecycle.values),
    parameter("health", words=Health.values),
    parameter("runtime", words=Runtime.values),
    parameter("application"),
    parameter("pool", said="The id of a pool in which the worker has a place."),
    parameter("label", many=True, said="`key:value`; repeat it for several, all must match."),
    parameter("q", said="The beginning of the name or of the id."),
    *WINDOW,
)
_NAMES = tuple(each.name for each in _QUERY)
_REGISTER = (
    "CONTRACT_VERSION_UNSUPPORTED GRANT_INVALID GRANT_EXPIRED GRANT_REVOKED GRANT_SCOPE_DENIED"
    " WORKER_UNAUTHORIZED WORKER_INVALID WORKER_BUSY"
)
_MOVE = "WORKER_NOT_FOUND WORKER_TRANSITION_DENIED"


class Workers(Endpoint):
    noun = "WORKER"
    body_limit = 64 * 1024
    open_methods = frozenset({"POST"})

    @operation("workers_list", answers={200: shapes.WorkerPage}, query=(*_QUERY, *PAGING))
    def get(self, request: Request) -> Response:
        """The tenant's workers, newest first."""
        query = Query(request, _NAMES, repeated="label")
        rows = reading.workers(self.caller).filter(_chosen(query), query.window("registered_at"))
        page = paginate(request, query, rows, order=("-id",), render=answers.worker)
        return answer(page)

    @operation(
        "workers_register",
        body=bodies.Register,
        answers={200: shapes.Registered, 201: shapes.Registered},
        refusals=_REGISTER,
        who=NOBODY,
    )
    def post(self, request: Request) -> Response:
        """Register a worker, anew (201) or again (200).

        The signed grant in the body is the proof. A worker that registers again sends its
        credential; one that is unknown or was replaced counts as none.
        """
        said = self.body(bodies.Register)
        secret = bearer(request)
        registered = liveness.register(
            registration=Registration(
                concurrency=said.pop("capacity")["concurrency"],
                **said,
            ),
            credential=secret if secret and secret.startswith(CREDENTIAL_PREFIX) else None,
        )
        return answer(
            {
                "worker": answers.worker(reading.whole(registered.worker)),
                "credential": registered.credential,
                "reconcile_required": registered.reconcile_required,
            },
            created=registered.created,
        )


class Worker(Endpoint):
    noun = "WORKER"

    @operation(
        "workers_get", answers={200: shapes.Worker}, refusals="WORKER_NOT_FOUND", who=ANYBODY
    )
    def get(self, request: Request, worker_id: str) -> Response:
        """One worker. A worker may read itself."""
        return answer(answers.worker(reading.worker(self.caller, worker_id)))

    @operation("workers_remove", answers={204: None}, refusals="WORKER_NOT_FOUND WORKER_BUSY")
    def delete(self, request: Request, worker_id: str) -> Response:
        """Retire a worker that holds no claims; its name is free again."""
        workers.remove(caller=self.caller, worker_id=worker_id)
        return Response(status=204)


class Heartbeat(Endpoint):
    noun = "WORKER"
    locks_its_worker = True

    @operation(
        "workers_heartbeat",
        body=bodies.Heartbeat,
        answers={200: shapes.Beat},
        refusals=(
            "WORKER_NOT_FOUND WORKER_HEARTBEAT_REJECTED WORKER_CLOCK_INVALID"
            " WORKER_RECOVERY_REQUIRED WORKER_INVALID"
        ),
        who=WORKERS,
    )
    def post(self, request: Request, worker_id: str) -> Response:
        """Be heard: renews the leases of the listed claims, and learns what to start or stop."""
        said = self.body(bodies.Heartbeat)
        capacity = said.pop("capacity", None)
        beat = liveness.heartbeat(
            caller=self.caller,
            worker_id=worker_id,
            concurrency=None if capacity is None else capacity["concurrency"],
            **said,
        )
        return answer(
            {
                "worker": answers.worker(reading.whole(beat.worker)),
                "renewed": [each._asdict() for each in beat.renewed],
                "fenced_claims": beat.fenced_claims,
                "cancel_claims": beat.cancel_claims,
                "missing_claims": beat.missing_claims,
                "assigned_claims": [answers.claim(each) for each in beat.assigned_claims],
                "grant_ends_at": beat.grant_ends_at,
            }
        )


class Claims(Endpoint):
    noun = "WORKER"
    locks_its_worker = True

    @operation(
        "workers_claim",
        body=bodies.TakeClaims,
        answers={200: shapes.Claims},
        refusals="WORKER_NOT_FOUND WORKER_RECOVERY_REQUIRED WORKLOAD_INVALID LIMIT_EXCEEDED",
        who=WORKERS,
    )
    def post(self, request: Request, worker_id: str) -> Response:
        """Take up to `max` workloads that this worker may run, the most urgent first.

        With `wait_ms`, the answer comes as soon as there is work; it is empty after that time, and
        at once where waiting is no use or the server has too many who wait.
        """
        said = self.body(bodies.TakeClaims)
        taken = waiting.claim(
            caller=self.caller,
            worker_id=worker_id,
            maximum=said["max"],
            lease_ms=said.get("lease_ms"),
            wait_ms=said.get("wait_ms", 0),
            line=self.line,
        )
        return answer(
            {"claims": [answers.claim(each) for each in taken.claims], "reason": taken.reason}
        )


class Starts(Endpoint):
    noun = "WORKER"
    locks_its_worker = True

    @operation(
        "workers_starts",
        body=bodies.Starts,
        answers={200: shapes.Started},
        refusals="WORKER_NOT_FOUND",
        who=WORKERS,
    )
    def post(self, request: Request, worker_id: str) -> Response:
        """Begin with up to 1 000 claims in one call; each is answered by itself, in order.

        No effect of a claim may happen before its own start was accepted.
        """
        said = [
            starts.Start(each["claim_id"], each["fencing_token"])
            for each in self.body(bodies.Starts)["starts"]
        ]
        started = starts.start(caller=self.caller, worker_id=worker_id, said=said)
        return answer({"starts": [answers.judged(each) for each in started]})


class Results(Endpoint):
    noun = "WORKER"
    locks_its_worker = True

    @operation(
        "workers_results",
        body=bodies.Results,
        answers={200: shapes.Settled},
        refusals="WORKER_NOT_FOUND",
        who=WORKERS,
    )
    def post(self, request: Request, worker_id: str) -> Response:
        """Settle up to 100 claims in one call; each report is answered by itself, in order."""
        said = [_report(each) for each in self.body(bodies.Results)["results"]]
        settled = settlement.settle(caller=self.caller, worker_id=worker_id, said=said)
        return answer({"results": [answers.judged(each) for each in settled]})


class Reconcile(Endpoint):
    noun = "WORKER"

    @operation(
        "workers_reconcile",
        body=bodies.Reconcile,
        answers={200: shapes.Reconciled},
        refusals=(
            "WORKER_NOT_FOUND WORKER_RECONCILIATION_DENIED WORKER_DRAINED WORKER_CLOCK_INVALID"
            " WORKER_TRANSITION_DENIED"
        ),
        who=WORKERS,
    )
    def post(self, request: Request, worker_id: str) -> Response:
        """Agree on which claims are still this worker's; afterwards it may take work again."""
        said = self.body(bodies.Reconcile)
        agreed = liveness.reconcile(caller=self.caller, worker_id=worker_id, **said)
        return answer(
            {
                "authoritative_claims": agreed.authoritative_claims,
                "fenced_claims": agreed.fenced_claims,
                "cancel_attempts": agreed.cancel_attempts,
                "reports": agreed.reports,
                "worker": answers.worker(reading.whole(agreed.worker)),
            }
        )


class Drain(Endpoint):
    noun = "WORKER"

    @operation(
        "workers_drain",
        body=bodies.Drain,
        answers={200: shapes.Worker},
        refusals=f"{_MOVE} WORKER_INVALID",
        who=ANYBODY,
    )
    def post(self, request: Request, worker_id: str) -> Response:
        """Give the worker no new claims. An operator may ask, or the worker itself."""
        said = self.body(bodies.Drain)
        return _shown(workers.drain(**_named(self, worker_id, said)))


class Undrain(Endpoint):
    noun = "WORKER"

    @operation(
        "workers_undrain", body=bodies.Reasoned, answers={200: shapes.Worker}, refusals=_MOVE
    )
    def post(self, request: Request, worker_id: str) -> Response:
        """Let a draining worker take work again."""
        said = self.body(bodies.Reasoned)
        return _shown(workers.undrain(**_named(self, worker_id, said)))


class Recover(Endpoint):
    noun = "WORKER"

    @operation(
        "workers_recover", body=bodies.Reasoned, answers={200: shapes.Worker}, refusals=_MOVE
    )
    def post(self, request: Request, worker_id: str) -> Response:
        """Ask an offline worker back; it must reconcile before it takes work."""
        said = self.body(bodies.Reasoned)
        return _shown(workers.recover(**_named(self, worker_id, said)))


def _named(view: Endpoint, worker_id: str, said: dict[str, Any]) -> dict[str, Any]:
    return {"caller": view.caller, "worker_id": worker_id, **said}


def _shown(row: WorkerRow) -> Response:
    return answer(answers.worker(reading.whole(row)))


def _chosen(query: Query) -> Q:
    chosen = Q()
    words = {"lifecycle": Lifecycle.values, "health": Health.values, "runtime": Runtime.values}
    for name, choices in words.items():
        if (word := query.word(name, choices)) is not None:
            chosen &= Q(**{name: word})
    if (application := query.text("application")) is not None:
        chosen &= Q(application__name=application)
    if (pool := query.text("pool")) is not None:
        # An id of this tenant's, for workers are members of pools of their own application.
        chosen &= Q(memberships__pool__pool_id=pool)
    if labels := query.pairs("label"):
        chosen &= Q(labels__contains=labels)
    if (beginning := query.text("q")) is not None:
        chosen &= Q(name__startswith=beginning) | Q(worker_id__startswith=beginning)
    return chosen


def _report(item: dict[str, Any]) -> reports.Report:
    said = dict(item)
    make = reports.MAKERS[said.pop("outcome")]
    return make(said.pop("claim_id"), said.pop("fencing_token"), **said)
