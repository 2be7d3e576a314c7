"""Carrying out started claims: lanes, each a thread with a child process, made as they are needed.

As many lanes as the agent has slots may run at once. But where jobs are so short that a few lanes
do them faster than more could be made, as many as there are processors are enough.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mesh.agent.client import ApiError, UnreachableError, retrying
from mesh.agent.delivery import Deliverer
from mesh.agent.options import AgentOptions
from mesh.agent.outcomes import judge, not_begun, report_of
from mesh.agent.reconcile import Reconciler
from mesh.agent.reporting import Reporter
from mesh.agent.runtimes import Runner, RunnerDiedError, RunnerError, Runners
from mesh.agent.session import Session
from mesh.agent.spool import Report
from mesh.agent.starting import Starter
from mesh.agent.state import State
from mesh.agent.works import AT_ONCE, LOST_CODES, Phase, StopReason, Work, WorkTable

log = logging.getLogger("mesh.agent")

_REFUSED_STATES = frozenset(
    {"WORKLOAD_SECRET_REJECTED", "WORKLOAD_INVALID", "REQUEST_INVALID", "BODY_TOO_LARGE"}
)
_CHECKPOINT_TRIES = 3
# Seconds that a job takes at most to be called short, as its own process sees it.
_SHORT = 0.002
# Seconds that started work waits for a lane to come free before there are more lanes.
_PATIENCE = 0.005
_STUCK = 0.25
_CORES = os.cpu_count() or 1


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
        self._runners = runners
        self._commands = commands
        self._halt = halt
        self._reporter = Reporter(deliverer, self._end, self.backlog)
        self._starter = Starter(
            session,
            deliverer,
            reconciler,
            self._reporter,
            begin=self._run,
            end=self._end,
            halt=halt,
        )
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._crowded = threading.Event()
        self._lanes = 0
        self._serving = 0
        self._taken = 0
        self._typical: float | None = None
        self.freed = threading.Event()

    def start_threads(self) -> None:
        self._reporter.start_threads()
        self._add_lane()
        for target in (self._starter.run, self._grow):
            threading.Thread(target=target, daemon=True).start()

    def take_in(self, work: Work) -> None:
        """Have a claim started and carried out; one that is held already is ignored."""
        if self._table.add(work):
            self._starter.put(work)

    def backlog(self) -> int:
        """How much started work waits for its turn."""
        return self._queue.qsize()

    def release_waiting(self) -> None:
        """Give back what has not been started."""
        self._starter.release_waiting()

    def _end(self, works: Sequence[Work]) -> None:
        for work in works:
            self._table.remove(work)
        self.freed.set()

    # Lanes

    def _run(self, works: Sequence[Work]) -> None:
        for work in works:
            self._queue.put(work)
        if works and self._lanes < self._options.concurrency:
            self._crowded.set()

    def _grow(self) -> None:
        """Make lanes for started work that finds none: a few, and as many again once they serve."""
        while True:
            self._crowded.wait()
            self._crowded.clear()
            while not self._queue.empty() and self._lanes < self._options.concurrency:
                time.sleep(_PATIENCE)
                if self._serving < self._lanes or self._is_short_of_nothing():
                    continue
                room = self._options.concurrency - self._lanes
                for _ in range(min(self._queue.qsize(), room, max(self._lanes, 2 * _CORES))):
                    self._add_lane()

    def _is_short_of_nothing(self) -> bool:
        """Whether the jobs are short, there are lanes for all processors, and they get on."""
        if self._typical is None or self._typical >= _SHORT or self._lanes < _CORES:
            return False
        taken = self._taken
        return not self._halt.wait(_STUCK) and taken != self._taken

    def _note_length(self, took: float) -> None:
        # A job that lost its processor for a while is none that takes long.
        took = min(took, 4 * _SHORT)
        self._typical = took if self._typical is None else self._typical * 0.9 + took * 0.1

    def _add_lane(self) -> None:
        self._lanes += 1
        threading.Thread(target=self._serve, name=f"lane-{self._lanes}", daemon=True).start()

    def _serve(self) -> None:
        # Never ends before the process does: the children die with the thread that made them.
        runner = self._take_runner()
        self._serving += 1
        while True:
            work = self._queue.get()
            self._taken += 1
            if runner is not None and not runner.alive:
                runner.kill()
                runner = None
            runner = self._carry_out(work, runner or self._take_runner())
            # Before the next work is taken: others may have time for it meanwhile.
            runner = runner or self._take_runner()

    def _take_runner(self) -> Runner | None:
        try:
            return self._runners.take()
        except RunnerError as error:
            log.error("no process for work: %s", error)
            return None

    def _carry_out(self, work: Work, runner: Runner | None) -> Runner | None:
        """Carry out one piece of work; the runner, if it is fit for the next."""
        report = None
        try:
            reason = work.stop_reason(time.monotonic(), self._options.time_limit)
            if reason is not None:
                report = _unrun(work, reason)
            elif runner is None:
                body = {"kind": "worker_failure", "error": "no process", "no_effect": True}
                report = report_of(work, "fail", body)
            else:
                report, runner = self._execute(work, runner)
        except Exception:
            log.exception("claim %s came to nothing", work.claim_id)
            runner = None
        if report is None:
            log.warning("%s stopped without a report", work.workload_id)
            self._end([work])
        else:
            work.outcome = report.outcome
            work.phase = Phase.FINISHED
            self._reporter.put(work, report)
        return runner

    # Started work

    def _execute(self, work: Work, runner: Runner) -> tuple[Report | None, Runner | None]:
        log.debug("%s started (%s)", work.workload_id, work.definition_id)
        workdir = self._state.make_workdir() if work.definition_id in self._commands else None
        try:
            frame, reason, is_fit = self._run_job(work, runner, workdir)
        finally:
            if workdir is not None:
                self._state.remove_workdir(workdir)
        if frame is not None and "took" in frame:
            self._note_length(frame["took"])
        return judge(work, frame, reason), runner if is_fit else None

    def _run_job(
        self, work: Work, runner: Runner, workdir: Path | None
    ) -> tuple[dict[str, Any] | None, StopReason | None, bool]:
        """Run one job: its answer (None when its process was killed), and if that is still fit."""
        frame = None
        work.attach(runner.wake)
        try:
            runner.start_job(self._job(work, workdir))
            frame, reason = self._watch(work, runner)
        except RunnerDiedError as death:
            reason = work.stop_reason(time.monotonic(), self._options.time_limit)
            return {"outcome": "fail", "kind": death.kind, "error": str(death)}, reason, False
        finally:
            work.attach(None)
            if frame is None:
                runner.kill()
        return frame, reason, frame is not None

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


def _unrun(work: Work, reason: StopReason) -> Report | None:
    """Of work that was started and has to stop before it ran: it had no effect."""
    if work.is_hold and reason is not StopReason.CANCELLED:
        return not_begun(work, StopReason.FENCED)
    return judge(work, None, reason)
