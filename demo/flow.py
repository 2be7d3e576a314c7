"""Workflow runs of the demo: a document goes through six steps, a pair of runs every minute.

Both runs of a pair write the same catalogue, so one waits for the other. Now and then the agent
that publishes is killed in the middle: nobody knows whether it was published, and the run waits for
somebody to say so.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from demo.crew import APPLICATION, CATALOGUE, CHECKSUM, COUNT, PUBLISH, SUMMARIZE
from demo.patient import Patient
from mesh.agent.client import ApiClient

log = logging.getLogger("demo")

DEFINITION: Final = "documents.pipeline"
VERSION: Final = 1
_EVERY: Final = 60.0
_PAIR: Final = 2
# Of so many runs one gets stuck.
_STUCK_EVERY: Final = 8
_LOOK_EVERY: Final = 2.0
# A run that did not come to its publishing in this time is not watched any more.
_WATCHED: Final = 600.0
_DOCUMENT: Final = {
    "folder": {"$from": "run", "pointer": "/folder"},
    "file": {"$from": "run", "pointer": "/file"},
}


def steps() -> list[dict[str, Any]]:
    """The pipeline: check, count and summarize side by side, catalogue, publish, check again."""
    summary = {"$from": "summarize", "pointer": "/sentences"}
    return [
        _step("check", CHECKSUM, [], input=_DOCUMENT),
        _step("count", COUNT, ["check"], input=_DOCUMENT, on_failure="continue"),
        _step("summarize", SUMMARIZE, ["check"], input={**_DOCUMENT, "sentences": 2}),
        _step(
            "catalogue",
            CATALOGUE,
            ["count", "summarize"],
            effect="mutating",
            replay="idempotent",
            resources=[{"resource": "catalogue", "access": "write", "scope": "application"}],
            retry={"max_attempts": 3},
            input={
                "file": _DOCUMENT["file"],
                "sha256": {"$from": "check", "pointer": "/sha256"},
                "summary": summary,
            },
        ),
        _step(
            "publish",
            PUBLISH,
            ["catalogue"],
            effect="mutating",
            replay="none",
            input={
                "file": _DOCUMENT["file"],
                "summary": summary,
                "pace_ms": {"$from": "run", "pointer": "/pace_ms"},
            },
        ),
        _step("verify", CHECKSUM, ["publish"], input=_DOCUMENT),
    ]


def _step(name: str, kind: str, needs: list[str], **members: Any) -> dict[str, Any]:
    said = {"effect": "read_only", "needs": needs, **members}
    return {"step": name, "definition_id": kind, "capabilities": [kind], **said}


class Flow(Patient):
    """Starts runs, and kills who publishes for the one that is to get stuck."""

    def __init__(
        self,
        client: ApiClient,
        pick: Callable[[], dict[str, Any] | None],
        kill: Callable[[str], bool],
    ) -> None:
        """`kill` ends the agent of that name, for longer than its lease lasts."""
        super().__init__(client)
        self._pick = pick
        self._kill = kill
        self._series = secrets.token_hex(4)
        self._number = 0
        self._is_stored = False
        self._start_at = self._look_at = 0.0
        # Runs that are to get stuck, with the time until which they are watched.
        self._doomed: deque[tuple[float, str]] = deque()

    def _step(self, now: float) -> None:
        if not self._is_stored:
            self._store()
        if now >= self._start_at:
            self._start_at = now + _EVERY
            for _ in range(_PAIR):
                self._start(now)
        if self._doomed and now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._doom(now)

    def _store(self) -> None:
        body = {
            "application": APPLICATION,
            "definition_id": DEFINITION,
            "version": VERSION,
            "steps": steps(),
        }
        self._client.call("POST", "definitions", body)
        self._is_stored = True

    def _start(self, now: float) -> None:
        document = self._pick()
        if document is None:
            return
        self._number += 1
        is_doomed = self._number % _STUCK_EVERY == 0
        run_id = f"demo-{self._series}-{self._number}"
        body = {
            "application": APPLICATION,
            "environment": "demo",
            "run_id": run_id,
            "definition_id": DEFINITION,
            "version": VERSION,
            "input": {**document, "pace_ms": 30_000 if is_doomed else 300},
        }
        self._client.call("POST", "runs", body)
        if is_doomed:
            self._doomed.append((now + _WATCHED, run_id))

    def _doom(self, now: float) -> None:
        until, run_id = self._doomed[0]
        holder = self._publisher_of(run_id)
        if holder is not None and self._kill(holder):
            log.info("killed %s while it published for run %s", holder, run_id)
            self._doomed.popleft()
        elif now > until:
            self._doomed.popleft()

    def _publisher_of(self, run_id: str) -> str | None:
        """The name of the agent that is in the middle of publishing for a run."""
        run = self._client.call("GET", f"runs/{run_id}")
        works = [each["workload_id"] for each in run["attempts"] if each["step"] == "publish"]
        if not works:
            return None
        work = self._client.call("GET", f"workloads/{works[0]}")
        if work["state"] not in {"RUNNING", "CHECKPOINTED"} or not work["current_claim"]:
            return None
        worker = self._client.call("GET", f"workers/{work['current_claim']['worker_id']}")
        return str(worker["name"])
