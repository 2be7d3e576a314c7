"""Carrying out claims: one thread per slot, from `start` to the report of what happened."""

import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

from mesh.agent.client import ApiError, Backoff, UnreachableError, is_transient, retrying
from mesh.agent.delivery import Deliverer
from mesh.agent.options import AgentOptions
from mesh.agent.reconcile import Reconciler
from mesh.agent.runtimes import Runner, RunnerDiedError, RunnerError, Runners
from mesh.agent.session import DisplacedError, Session
from mesh.agent.spool import Report
from mesh.agent.state import State
from mesh.agent.works import AT_ONCE, LOST_CODES, Phase, StopReason, Work, WorkTable

log = logging.getLogger("mesh.agent")

_REFUSED_STATES = frozenset(
    {"WORKLOAD_SECRET_REJECTED", "WORKLOAD_INVALID", "REQUEST_INVALID", "BODY_TOO_LARGE"}
)
_CHECKPOINT_TRIES = 3
_RELEASE_TRIES = 4


class Slots:
    """The slots of one agent. `freed` is set whenever a claim left the table."""

    def __init__(
        self,
        options: AgentOptions,
        state: State,
        session: Session,
        table: WorkTable,
        deliverer: Deliverer,
        reconciler: Reconciler,
        runners: Runners,
        commands: frozenset[str],
        halt: threading.Event,
    ) -> None:
        self._options = options
        self._state = state
        self._session = session
        self._table = table
        self._deliverer = deliverer
        self._reconciler = reconciler
        self._runners = runners
        self._commands = commands
        self._halt = halt
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self.freed = threading.Event()

    def start_threads(self) -> None:
        for number in range(self._options.concurrency):
            threading.Thread(target=self._serve, name=f"slot-{number}", daemon=True).start()

    def take_in(self, work: Work) -> None:
        """Queue a claim for the next free slot; one that is held already is ignored."""
        if self._table.add(work):
            self._queue.put(work)

    def release_waiting(self) -> None:
        """Give back what no slot has begun with."""
        while True:
            try:
                work = self._queue.get_nowait()
            except queue.Empty:
                return
            work.request_stop(StopReason.SHUTDOWN)
            self._handle(work)

    def _serve(self) -> None:
        # Never ends before the process does: the children die with the thread that made them.
        while True:
            self._handle(self._queue.get())

    def _handle(self, work: Work) -> None:
        try:
            self._carry_out(work)
        except DisplacedError:
            pass  # the session has told the agent
        except Exception:
            log.exception("claim %s came to nothing", work.claim_id)
        finally:
            self._table.remove(work)
            self.freed.set()

    def _carry_out(self, work: Work) -> None:
        if not self._start(work):
            return
        report = self._execute(work)
        if report is None:
            log.warning("%s stopped without a report", work.workload_id)
            return
        work.outcome = report.outcome
        work.phase = Phase.FINISHED
        self._deliverer.deliver(report)

    # Before the start: nothing may happen yet

    def _start(self, work: Work) -> bool:
        backoff = Backoff(base=0.1, cap=2.0)
        while not self._halt.is_set():
            reason = work.stop_reason(time.monotonic(), None)
            if reason is not None:
                self._turn_down(work, reason)
                return False
            try:
                self._send_start(work)
                return True
            except UnreachableError as error:
                delay = backoff.next(error)
            except ApiError as error:
                if not self._may_start_later(work, error):
                    return False
                delay = backoff.next(error)
            self._halt.wait(min(delay, max(0.0, work.lease_left)))
        return False

    def _send_start(self, work: Work) -> None:
        client = self._session.client
        asked_at = time.monotonic()
        timeout = min(10.0, max(0.2, work.lease_left))
        self._session.call(lambda: client.start(work.claim_id, work.fencing_token, timeout=timeout))
        work.started_at = asked_at
        work.phase = Phase.RUNNING

    def _may_start_later(self, work: Work, error: ApiError) -> bool:
        """Whether to try again; if not, the claim has been dealt with."""
        if is_transient(error):
            return True
        if error.code == "WORKER_RECOVERY_REQUIRED":
            try:
                self._reconciler.run()
            except (ApiError, UnreachableError) as problem:
                log.warning("reconcile: %s", problem)
            return True
        if error.code == "MESH_RUN_BLOCKED":
            self._release(work)
        elif error.code == "WORKLOAD_CANCELLATION_REQUESTED":
            self._deliverer.deliver(_report(work, "cancelled", {}))
        else:
            log.warning("%s not started: %s", work.workload_id, error.code)
        return False

    def _turn_down(self, work: Work, reason: StopReason) -> None:
        log.info("%s not started: %s", work.workload_id, reason.value)
        if reason is StopReason.CANCELLED:
            self._deliverer.deliver(_report(work, "cancelled", {}))
        elif reason is StopReason.SHUTDOWN:
            self._release(work)
        elif work.is_hold:
            # A start may have been accepted and its answer lost; it was for nothing.
            body = {"kind": "worker_failure", "error": "never begun", "no_effect": True}
            self._deliverer.deliver(_report(work, "fail", body))

    def _release(self, work: Work) -> None:
        client = self._session.client
        try:
            retrying(
                lambda: self._session.call(
                    lambda: client.release(work.claim_id, work.fencing_token)
                ),
                halt=self._halt,
                tries=_RELEASE_TRIES,
            )
            log.info("%s released", work.workload_id)
        except (ApiError, UnreachableError) as error:
            log.warning("%s not released: %s", work.workload_id, error)

    # Started work

    def _execute(self, work: Work) -> Report | None:
        log.debug("%s started (%s)", work.workload_id, work.definition_id)
        workdir = self._state.make_workdir() if work.definition_id in self._commands else None
        try:
            runner = self._runners.take()
            frame, reason = self._run_job(work, runner, workdir)
        except RunnerError as error:
            log.error("no process for the work: %s", error)
            body = {"kind": "worker_failure", "error": "no process", "no_effect": True}
            return _report(work, "fail", body)
        finally:
            if workdir is not None:
                self._state.remove_workdir(workdir)
        return judge(work, frame, reason)

    def _run_job(
        self, work: Work, runner: Runner, workdir: Path | None
    ) -> tuple[dict[str, Any] | None, StopReason | None]:
        """Run one job; the answer is None when its process had to be killed."""
        frame = None
        work.attach(runner.wake)
        try:
            runner.start_job(self._job(work, workdir))
            frame, reason = self._watch(work, runner)
        except RunnerDiedError as death:
            reason = work.stop_reason(time.monotonic(), self._options.time_limit)
            return {"outcome": "fail", "kind": death.kind, "error": str(death)}, reason
        finally:
            work.attach(None)
            if frame is None:
                runner.kill()
            else:
                self._runners.give_back(runner)
        return frame, reason

    def _job(self, work: Work, workdir: Path | None) -> dict[str, Any]:
        return {
            "workload_id": work.workload_id,
            "attempt_id": work.attempt_id,
            "attempt_number": work.attempt_number,
            "definition_id": work.definition_id,
            "input": work.input,
            "checkpoint": work.checkpoint,
            "workdir": str(workdir),
            "output_limit": self._options.output_limit,
        }

    def _watch(self, work: Work, runner: Runner) -> tuple[dict[str, Any] | None, StopReason | None]:
        """Wait for the end of a job; stop it when there is a reason to."""
        limit = self._options.time_limit
        asked: StopReason | None = None
        kill_at: float | None = None
        while True:
            now = time.monotonic()
            reason = work.stop_reason(now, limit)
            if reason in AT_ONCE or self._halt.is_set():
                return None, reason or StopReason.SHUTDOWN
            if reason is not None and asked is None:
                asked = reason
                # A command gets KILL from its own process; leave that a moment to report.
                kill_at = now + self._options.stop_grace + 1.0
                runner.ask_stop(self._options.stop_grace)
            if kill_at is not None and now >= kill_at:
                return None, asked
            looks = [at for at in (kill_at, work.next_look(limit)) if at is not None and at > now]
            frame = runner.wait(min(looks) - now if looks else None)
            if frame is None:
                continue
            if frame["type"] == "done":
                return frame, asked
            if frame["type"] == "checkpoint":
                runner.answer_checkpoint(self._checkpoint(work, frame["state"]))

    def _checkpoint(self, work: Work, state: Any) -> dict[str, Any]:
        client = self._session.client
        timeout = min(5.0, max(0.2, work.lease_left))
        try:
            retrying(
                lambda: self._session.call(
                    lambda: client.checkpoint(
                        work.claim_id, work.fencing_token, state=state, timeout=timeout
                    )
                ),
                halt=self._halt,
                until=lambda: work.lease_until,
                tries=_CHECKPOINT_TRIES,
            )
        except UnreachableError:
            return {"stored": False}
        except ApiError as error:
            if error.code in _REFUSED_STATES:
                return {"refused": error.code, "detail": error.detail}
            if error.code in LOST_CODES:
                work.lose()
            return {"stored": False}
        return {"stored": True}


def _report(work: Work, outcome: str, body: dict[str, Any]) -> Report:
    if not work.is_hold:
        # Says something only of work whose effects must not be repeated.
        body.pop("no_effect", None)
    return Report(
        outcome=outcome,
        claim_id=work.claim_id,
        workload_id=work.workload_id,
        attempt_id=work.attempt_id,
        fencing_token=work.fencing_token,
        is_hold=work.is_hold,
        body=body,
    )


def judge(work: Work, frame: dict[str, Any] | None, reason: StopReason | None) -> Report | None:
    """What to report of work that ended as `frame` says (None: killed), stopped for `reason`.

    Of `hold` work the truth counts, whatever was asked meanwhile; other work that was told to
    stop is reported as stopped.
    """
    outcome = frame["outcome"] if frame is not None else "killed"
    if frame is not None and outcome != "cancelled" and frame.get("kind") != "stopped":
        finished = outcome == "complete" and reason is StopReason.SHUTDOWN
        if reason is None or work.is_hold or finished or reason in AT_ONCE:
            return _finished(work, frame)
    if reason is StopReason.CANCELLED:
        return _report(work, "cancelled", {})
    if reason is StopReason.TIMEOUT:
        return _report(work, "fail", {"kind": "timeout", "error": "the time limit passed"})
    if reason is StopReason.SHUTDOWN and not work.is_hold:
        body = {"kind": "worker_failure", "error": "the agent was stopped"}
        return _report(work, "fail", body)
    if reason is None:
        body = {"kind": "exception", "error": "the handler gave up without being asked to"}
        return _report(work, "fail", body)
    return None


def _finished(work: Work, frame: dict[str, Any]) -> Report:
    usage = {"cpu_ms": frame.get("cpu_ms", 0)}
    if work.started_at is not None:
        usage["duration_ms"] = round((time.monotonic() - work.started_at) * 1000)
    if frame["outcome"] == "complete":
        body = {
            "result_id": f"result_{work.attempt_id}",
            "output": frame["output"],
            "resource_usage": usage,
        }
        if frame.get("logs"):
            body["logs"] = frame["logs"]
        return _report(work, "complete", body)
    body = {"kind": frame["kind"], "error": frame["error"]}
    if frame.get("details"):
        body["details"] = frame["details"]
    if frame.get("no_effect"):
        body["no_effect"] = True
    return _report(work, "fail", body)
