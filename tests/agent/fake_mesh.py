"""A small mesh server in a thread: enough of the HTTP API to try an agent against.

Its rules are simpler than the real ones, but its answers have the real shapes, and it can be told
to go away, to lose replies and to refuse.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class RefusalError(Exception):
    def __init__(self, status: int, code: str, retry_after_ms: int | None = None) -> None:
        self.status = status
        self.body = {"code": code, "status": status, "detail": f"{code} it is"}
        if retry_after_ms is not None:
            self.body["retry_after_ms"] = retry_after_ms


def stamp(seconds: float = 0.0) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Workload:
    workload_id: str
    definition_id: str
    input: Any
    lost_policy: str = "requeue"
    timeouts: Json = field(default_factory=dict)
    state: str = "READY"
    token: int = 0
    attempts: int = 0
    lease_until: float = 0.0
    lease_s: float = 0.0
    worker: str | None = None
    started: bool = False
    checkpoint: Any = None
    result: Json | None = None
    failure: Json | None = None

    @property
    def claim_id(self) -> str:
        return f"claim-{self.workload_id}-{self.token}"

    @property
    def attempt_id(self) -> str:
        return f"attempt-{self.workload_id}-{self.token}"

    @property
    def is_live(self) -> bool:
        return self.state in ("CLAIMED", "RUNNING", "CANCELLATION_REQUESTED")


@dataclass
class Worker:
    name: str
    credential: str
    version: str
    incarnation: int = 1
    lifecycle: str = "REGISTERED"
    reconciled: bool = True
    concurrency: int = 1
    running_claims: list[str] = field(default_factory=list)


class FakeMesh:
    """State, rules and the switches of the tests. Everything happens under one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.workloads: dict[str, Workload] = {}
        self.workers: dict[str, Worker] = {}
        self.calls: list[tuple[str, Json, str | None]] = []
        self.is_away = False
        self.renews_leases = True
        self.empty_reason: str | None = None
        self.grants = {"good-grant"}
        self.grant_left_s = 3600 * 48.0
        self.hangs_on: tuple[str, ...] = ()
        self.goes_on = threading.Event()
        self._lost_replies: dict[str, int] = {}
        self._unstartable: dict[str, str] = {}
        self._refusals: dict[str, list[RefusalError]] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.mesh = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    # What tests say and ask

    def submit(self, definition_id: str, value: Any = None, **fields: Any) -> Workload:
        with self.lock:
            workload = Workload(f"w{len(self.workloads)}", definition_id, value, **fields)
            self.workloads[workload.workload_id] = workload
            return workload

    def lose_reply(self, operation: str, times: int = 1) -> None:
        """The call is carried out, but nobody hears of it."""
        self._lost_replies[operation] = times

    def refuse(
        self,
        operation: str,
        status: int,
        code: str,
        times: int = 1,
        retry_after_ms: int | None = None,
    ) -> None:
        refusal = RefusalError(status, code, retry_after_ms)
        self._refusals[operation] = [refusal for _ in range(times)]

    def refuse_start_of(self, workload: Workload, code: str) -> None:
        self._unstartable[workload.workload_id] = code

    def count(self, operation: str) -> int:
        with self.lock:
            return sum(path.endswith(f"/{operation}") for path, _body, _auth in self.calls)

    def bodies(self, operation: str) -> list[Json]:
        with self.lock:
            return [body for path, body, _auth in self.calls if path.endswith(f"/{operation}")]

    def expire_lease(self, workload: Workload) -> None:
        with self.lock:
            workload.lease_until = time.monotonic()

    def take_offline(self, name: str) -> None:
        with self.lock:
            self.workers[name].lifecycle = "OFFLINE"

    def cancel(self, workload: Workload) -> None:
        with self.lock:
            workload.state = "CANCELLATION_REQUESTED"

    def close(self) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()

    # The API

    def answer(self, path: str, body: Json, auth: str | None) -> Json | None:
        """None means: hang up without a word."""
        operation = path.rsplit("/", 1)[1]
        with self.lock:
            if self.is_away:
                return None
            self.calls.append((path, body, auth))
            if self._refusals.get(operation):
                raise self._refusals[operation].pop()
            parts = path.removeprefix("/api/v1/").split("/")
            if parts == ["workers"]:
                answer = self._register(body, auth)
            elif parts[0] == "workers":
                answer = getattr(self, f"_{operation}")(self._worker(parts[1], auth), body)
            else:
                answer = self._on_claim(parts[1], operation, body, auth)
            if self._lost_replies.get(operation, 0) > 0:
                self._lost_replies[operation] -= 1
                return None
            return answer

    def _worker(self, worker_id: str, auth: str | None) -> Worker:
        worker = self.workers.get(worker_id.removeprefix("worker_"))
        if worker is None or auth != f"Bearer {worker.credential}":
            raise RefusalError(401, "TOKEN_INVALID")
        return worker

    def _row(self, worker: Worker) -> Json:
        return {
            "worker_id": f"worker_{worker.name}",
            "name": worker.name,
            "capability_version": 7,
            "incarnation": worker.incarnation,
            "granted_capabilities": ["test"],
            "lifecycle": worker.lifecycle,
            "last_seen_at": stamp(),
        }

    def _register(self, body: Json, auth: str | None) -> Json:
        old = self.workers.get(body["name"])
        if body["grant"] not in self.grants:
            raise RefusalError(403, "GRANT_INVALID")
        if old is not None and old.lifecycle != "OFFLINE" and auth != f"Bearer {old.credential}":
            raise RefusalError(403, "WORKER_UNAUTHORIZED")
        incarnation = old.incarnation + 1 if old else 1
        worker = Worker(body["name"], f"fpw_{body['name']}{incarnation}", body["version"])
        worker.incarnation = incarnation
        worker.concurrency = body["capacity"]["concurrency"]
        worker.lifecycle = "OFFLINE" if old and old.lifecycle == "OFFLINE" else "REGISTERED"
        mine = [w for w in self.workloads.values() if w.is_live and w.worker == worker.name]
        worker.reconciled = not mine and worker.lifecycle != "OFFLINE"
        self.workers[worker.name] = worker
        return {
            "worker": self._row(worker),
            "credential": worker.credential,
            "reconcile_required": not worker.reconciled,
        }

    def _require_reconciled(self, worker: Worker) -> None:
        if not worker.reconciled or worker.lifecycle == "OFFLINE":
            raise RefusalError(409, "WORKER_RECOVERY_REQUIRED")

    def _heartbeat(self, worker: Worker, body: Json) -> Json:
        self._require_reconciled(worker)
        if worker.lifecycle == "REGISTERED":
            worker.lifecycle = "READY"
        listed = worker.running_claims = body["running_claims"]
        live = {w.claim_id: w for w in self.workloads.values() if self._is_current(w, worker)}
        renewed = [live[claim_id] for claim_id in listed if claim_id in live]
        for workload in renewed if self.renews_leases else []:
            workload.lease_until = time.monotonic() + workload.lease_s
        unlisted = [w for w in live.values() if w.claim_id not in listed]
        return {
            "worker": self._row(worker),
            "renewed": [
                {"claim_id": w.claim_id, "expires_at": stamp(w.lease_s)}
                for w in (renewed if self.renews_leases else [])
            ],
            "fenced_claims": [claim_id for claim_id in listed if claim_id not in live],
            "cancel_claims": [
                w.claim_id for w in live.values() if w.state == "CANCELLATION_REQUESTED"
            ],
            "missing_claims": [w.claim_id for w in unlisted if w.started],
            "assigned_claims": [self._claim(w) for w in unlisted if not w.started],
            "grant_ends_at": stamp(self.grant_left_s),
        }

    def _is_current(self, workload: Workload, worker: Worker) -> bool:
        is_mine = workload.is_live and workload.worker == worker.name
        return is_mine and time.monotonic() < workload.lease_until

    def _claims(self, worker: Worker, body: Json) -> Json:
        self._require_reconciled(worker)
        if worker.lifecycle != "READY":
            return {"claims": [], "reason": "LIFECYCLE"}
        if self.empty_reason:
            return {"claims": [], "reason": self.empty_reason}
        active = sum(w.is_live and w.worker == worker.name for w in self.workloads.values())
        fit = min(body["max"], worker.concurrency - active)
        ready = [w for w in self.workloads.values() if w.state == "READY"][: max(0, fit)]
        claims = [self.give(w, worker.name, body.get("lease_ms", 30_000)) for w in ready]
        return {"claims": claims, "reason": None}

    def give(self, workload: Workload, name: str, lease_ms: int = 30_000) -> Json:
        """Claim a workload for a worker, as a claims call or a placement does."""
        workload.state, workload.worker, workload.started = "CLAIMED", name, False
        workload.token += 1
        workload.attempts += 1
        workload.lease_s = lease_ms / 1000
        workload.lease_until = time.monotonic() + workload.lease_s
        return self._claim(workload)

    def _claim(self, workload: Workload) -> Json:
        left = workload.lease_until - time.monotonic()
        return {
            "claim_id": workload.claim_id,
            "workload_id": workload.workload_id,
            "attempt_id": workload.attempt_id,
            "worker_id": f"worker_{workload.worker}",
            "fencing_token": workload.token,
            "issued_at": stamp(left - workload.lease_s),
            "expires_at": stamp(left),
            "workload": {
                "definition_id": workload.definition_id,
                "input": workload.input,
                "attempt_number": workload.attempts,
                "timeouts": workload.timeouts,
            },
            "checkpoint": None
            if workload.checkpoint is None
            else {"sequence": 1, "state": workload.checkpoint},
            "runtime_policy": None,
            "lost_policy": workload.lost_policy,
        }

    def _drain(self, worker: Worker, body: Json) -> Json:
        live = [w for w in self.workloads.values() if w.is_live and w.worker == worker.name]
        worker.lifecycle = "DRAINING" if live else "OFFLINE"
        return self._row(worker)

    def _reconcile(self, worker: Worker, body: Json) -> Json:
        live = [w for w in self.workloads.values() if self._is_current(w, worker)]
        reported = body["completed_attempts"] + body["failed_attempts"]
        known = set(body["running_attempts"]) | set(reported)
        kept = [w for w in live if w.attempt_id in known or w.claim_id in body["known_claims"]]
        for workload in live:
            if workload not in kept:
                workload.state = "READY"
        worker.reconciled, worker.lifecycle = True, "READY"
        kept_attempts = {w.attempt_id for w in kept}
        held = {w.attempt_id for w in self.workloads.values() if w.lost_policy == "hold"}
        return {
            "authoritative_claims": [w.claim_id for w in kept],
            "fenced_claims": sorted(set(body["known_claims"]) - {w.claim_id for w in kept}),
            "cancel_attempts": [
                one for one in body["running_attempts"] if one not in kept_attempts | held
            ],
            "reports": {
                one: "accepted" if one in kept_attempts | held else "fenced" for one in reported
            },
            "worker": self._row(worker),
        }

    def _starts(self, worker: Worker, body: Json) -> Json:
        items = [{**item, "outcome": "start"} for item in body["starts"]]
        return {"starts": self._results(worker, {"results": items})["results"]}

    def _results(self, worker: Worker, body: Json) -> Json:
        answers = []
        for item in body["results"]:
            said = dict(item)
            claim_id, outcome = said.pop("claim_id"), said.pop("outcome")
            try:
                told = self._on_claim(claim_id, outcome, said, f"Bearer {worker.credential}")
                answers.append({"claim_id": claim_id, **told})
            except RefusalError as refusal:
                code, detail = refusal.body["code"], refusal.body["detail"]
                answers.append({"claim_id": claim_id, "code": code, "detail": detail})
        return {"results": answers}

    def _on_claim(self, claim_id: str, operation: str, body: Json, auth: str | None) -> Json:
        name = next((w.name for w in self.workers.values() if auth == f"Bearer {w.credential}"), "")
        if not name:
            raise RefusalError(401, "TOKEN_INVALID")
        workload = self.workloads.get(claim_id.split("-")[1])
        if workload is None:
            raise RefusalError(404, "CLAIM_NOT_FOUND")
        report = {key: value for key, value in body.items() if key != "fencing_token"}
        if operation == "complete" and workload.result == report:
            return {"status": "SUCCEEDED"}
        is_report = operation in ("complete", "fail") and workload.lost_policy == "hold"
        self._fence(workload, claim_id, name, is_report=is_report)
        if "password" in json.dumps(report):
            raise RefusalError(422, "WORKLOAD_SECRET_REJECTED")
        rule: Callable[[Workload, Json], Json] = getattr(self, f"_claim_{operation}")
        return rule(workload, report)

    def _fence(self, workload: Workload, claim_id: str, name: str, *, is_report: bool) -> None:
        if not workload.is_live and not (is_report and workload.state == "HELD"):
            raise RefusalError(409, "WORKLOAD_CLAIM_INVALID")
        if workload.claim_id != claim_id or workload.worker != name:
            raise RefusalError(409, "WORKLOAD_STALE_FENCE")
        if time.monotonic() >= workload.lease_until and not is_report:
            raise RefusalError(409, "WORKLOAD_LEASE_EXPIRED")

    def _claim_start(self, workload: Workload, body: Json) -> Json:
        if workload.state == "CANCELLATION_REQUESTED":
            raise RefusalError(409, "WORKLOAD_CANCELLATION_REQUESTED")
        if workload.workload_id in self._unstartable:
            raise RefusalError(409, self._unstartable[workload.workload_id])
        workload.state, workload.started = "RUNNING", True
        return {"status": "RUNNING"}

    def _claim_renew(self, workload: Workload, body: Json) -> Json:
        workload.lease_until = time.monotonic() + body["lease_ms"] / 1000
        return {
            "state": workload.state,
            "expires_at": stamp(workload.lease_s),
            "cancel_requested": workload.state == "CANCELLATION_REQUESTED",
            "deadline": None,
        }

    def _claim_checkpoint(self, workload: Workload, body: Json) -> Json:
        workload.checkpoint = body["state"]
        return {"status": "CHECKPOINTED"}

    def _claim_complete(self, workload: Workload, body: Json) -> Json:
        if workload.state == "CANCELLATION_REQUESTED" and workload.lost_policy != "hold":
            raise RefusalError(409, "WORKLOAD_TRANSITION_DENIED")
        workload.state, workload.result = "SUCCEEDED", body
        return {"status": "SUCCEEDED"}

    def _claim_fail(self, workload: Workload, body: Json) -> Json:
        workload.state, workload.failure = "DEAD_LETTER", body
        return {"status": "FAILED"}

    def _claim_cancelled(self, workload: Workload, body: Json) -> Json:
        if workload.state != "CANCELLATION_REQUESTED":
            raise RefusalError(409, "WORKLOAD_TRANSITION_DENIED")
        workload.state = "CANCELLED"
        return {"status": "CANCELLED"}

    def _claim_release(self, workload: Workload, body: Json) -> Json:
        workload.state = "READY"
        return {"status": "RELEASED"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    mesh: FakeMesh


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    server: _Server

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size) or b"{}")
        if self.path.rsplit("/", 1)[1] in self.server.mesh.hangs_on:
            self.server.mesh.goes_on.wait()
        try:
            answer = self.server.mesh.answer(self.path, body, self.headers.get("Authorization"))
            status, kind = 200, "application/json"
        except RefusalError as refusal:
            answer, status, kind = refusal.body, refusal.status, "application/problem+json"
        if answer is None:
            self.close_connection = True
            return
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass
