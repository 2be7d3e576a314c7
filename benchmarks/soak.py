"""`python -m benchmarks.soak --minutes N`: kill everything all the time; nothing may break.

Two sweepers, a web server and four real agents run real work (requeue and hold, some that fails,
some that waits for other work) on a PostgreSQL of their own, while they are killed and started
again, work is cancelled and reclaimed and workers are drained. At the end the chaos stops, the work
comes to rest, and this is asked:

* do the invariants hold over the whole database?
* did any attempt start twice? (each start writes `workload attempt` to a file)
* did `hold` work start a second time by itself?
* is a result that was accepted the one of the attempt that held the work?

Work that is held at the end is resolved, as a person would. Prints what happened and ends with exit
code 1 if any answer is wrong. Cleans up after itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from .stage import ROOT, Stage, raised

AGENTS: Final = 4
SWEEPERS: Final = 2
SLOTS: Final = 3
# Enough for the agents to be busy, little enough to be done with soon after the end.
MOST_QUEUED: Final = 40
QUIET_S: Final = 180
_OPEN: Final = "('READY', 'CLAIMED', 'RUNNING', 'CHECKPOINTED', 'CANCELLATION_REQUESTED', 'HELD')"
_STATES: Final = "select state, count(*) from mesh_workload group by state"
_LOST: Final = "select count(*) from mesh_attempt where status = 'WORKER_LOST'"
_FOREIGN_RESULTS: Final = """
    select w.workload_id from mesh_result r
    join mesh_attempt a on a.id = r.attempt_id join mesh_workload w on w.id = r.workload_id
    where (r.output ->> 'attempt')::integer <> a.number
"""


class Child:
    """A process in a group of its own, started again whenever it is gone."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path):
        self.name = name
        self._command = command
        self._environment = environment
        self._log = log.open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, env=self._environment, stdout=self._log, stderr=self._log,
            process_group=0,
        )  # fmt: skip

    def end(self, how: signal.Signals) -> None:
        """Signal the whole group; after a kill nothing of it is left."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def close(self) -> None:
        self.end(signal.SIGKILL)
        self._log.close()


class Soak:
    """The processes, and what is done to them and to the work."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        # No secret; the same seed makes the same choices, though not the same run.
        self.random = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.effects = stage.base / "effects"
        self.effects.touch()
        stage.manage("create_tenant", "soak", "--application", "jobs")
        token = json.loads(
            stage.manage("create_token", "ops", "--tenant", "soak", "--role", "operator", "--json")
        )["token"]
        self.api = httpx.Client(
            base_url=f"http://127.0.0.1:{stage.port}/api/v1/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=5,
        )
        self.children = [self._web(), *map(self._sweeper, range(SWEEPERS)), *self._agents()]
        self.workloads: list[str] = []

    def _child(self, name: str, *command: str, **environment: str) -> Child:
        python = [sys.executable, "-m", *command]
        return Child(
            name, python, {**self.stage.environment, **environment}, self.stage.base / f"{name}.log"
        )

    def _web(self) -> Child:
        listen = ("--no-control-socket", "--bind", f"127.0.0.1:{self.stage.port}")
        options = ("--workers", "2", "--log-level", "error")
        config = ("gunicorn", "config.wsgi", "-c", "python:config.gunicorn")
        return self._child("web", *config, *listen, *options, WEB_PROCESSES="2")

    def _sweeper(self, number: int) -> Child:
        return self._child(f"sweeper-{number}", "benchmarks.soak", "--sweep")

    def _agents(self) -> list[Child]:
        grant = json.loads(
            self.stage.manage(
                "issue_grant", "--tenant", "soak", "--application", "jobs",
                "--subject", "service:registrar", "--capability", "worker:register", "--json",
            )
        )["grant"]  # fmt: skip
        return [self._agent(f"agent-{number}", grant) for number in range(AGENTS)]

    def _agent(self, name: str, grant: str) -> Child:
        return self._child(
            name, "mesh.agent", "--url", f"http://127.0.0.1:{self.stage.port}", "--tenant", "soak",
            "--application", "jobs", "--name", name, "--concurrency", str(SLOTS),
            "--handlers", "benchmarks.soak_handlers", "--lease-ms", "4000",
            "--heartbeat-interval-ms", "1000", "--heartbeat-timeout-ms", "4000",
            "--state-dir", str(self.stage.base / name), "--quiet", FENCEPOST_GRANT=grant,
        )  # fmt: skip

    # --- while it lasts ---------------------------------------------------------------------------

    def rage(self, seconds: float) -> None:
        """Submit, kill, cancel, drain and start again until the time is over."""
        for each in self.children:
            each.start()
        self._wait_until_working()
        end = time.monotonic() + seconds
        submitting = threading.Thread(target=self._submit_until, args=(end,))
        submitting.start()
        acts: list[tuple[Callable[[], None], int]] = [
            (self._kill, 5), (self._cancel, 4), (self._drain, 1), (self._bring_back, 3),
            (self._reclaim, 3), (self._start_all, 12),
        ]  # fmt: skip
        weights = [weight for _, weight in acts]
        while time.monotonic() < end:
            self.random.choices([act for act, _ in acts], weights)[0]()
            time.sleep(self.random.uniform(0.05, 0.5))
        submitting.join()

    def _wait_until_working(self) -> None:
        end = time.monotonic() + 120
        while sum(each["lifecycle"] == "READY" for each in self._workers()) < AGENTS:
            if time.monotonic() > end:
                raise RuntimeError((self.stage.base / "web.log").read_text()[-2_000:])
            time.sleep(0.2)
        self.did.clear()

    def _start_all(self) -> None:
        for each in self.children:
            each.start()

    def _kill(self) -> None:
        victim = self.random.choice(self.children)
        if victim.name == "web" and self._call("", "GET", "sweeps") is None:
            return  # it is only just starting; something is to happen in between
        is_rude = self.random.random() < 0.8
        victim.end(signal.SIGKILL if is_rude else signal.SIGTERM)
        self.did[f"{'killed' if is_rude else 'stopped'} {victim.name.split('-')[0]}"] += 1

    def _cancel(self) -> None:
        if self.workloads:
            chosen = self.random.choice(self.workloads[-30:])
            self._call("cancelled", "POST", f"workloads/{chosen}/cancel")

    def _reclaim(self) -> None:
        running = self._call("", "GET", "workloads?state=RUNNING&page_size=20")
        if rows := (running or {}).get("results"):
            chosen = self.random.choice(rows)["workload_id"]
            self._call("reclaimed", "POST", f"workloads/{chosen}/reclaim", {"reason": "soak"})

    def _resolve(self) -> None:
        """What a person does about held work, which other work may wait for."""
        for row in (self._call("", "GET", "workloads?state=HELD") or {}).get("results", []):
            body = {"resolution": "failed", "reason": "soak"}
            self._call("resolved", "POST", f"workloads/{row['workload_id']}/resolve", body)

    def _workers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (self._call("", "GET", "workers") or {}).get("results", [])
        return rows

    def _drain(self) -> None:
        if rows := self._workers():
            chosen = self.random.choice(rows)["worker_id"]
            body = {"deadline_ms": self.random.choice([500, 5_000])}
            self._call("drained", "POST", f"workers/{chosen}/drain", body)

    def _bring_back(self) -> None:
        for row in self._workers():
            act = {"DRAINING": "undrain", "OFFLINE": "recover"}.get(row["lifecycle"])
            if act:
                self._call(f"{act}ed", "POST", f"workers/{row['worker_id']}/{act}")

    def _submit_until(self, end: float) -> None:
        number = 0
        chance = random.Random(number)
        while time.monotonic() < end:
            if self._queued() < MOST_QUEUED:
                number += 1
                body = self._body(number, chance)
                # As a client does: the same key until there is an answer.
                while (said := self._call("submitted", "POST", "workloads", body)) is None:
                    if time.monotonic() > end:
                        return
                    time.sleep(0.2)
                self.workloads.append(said["workload"]["workload_id"])
            time.sleep(0.05)

    def _queued(self) -> int:
        (row,) = self.stage.sql(f"select count(*) from mesh_workload where state in {_OPEN}")
        return int(str(row[0]))

    def _body(self, number: int, chance: random.Random) -> dict[str, Any]:
        kind = chance.choice(["requeue", "requeue", "hold"])
        value = {
            "effects": str(self.effects),
            "steps": chance.choice([0, 1, 5, 10]),
            "pause_s": 0.1,
            "fails": kind == "requeue" and chance.random() < 0.15,
        }
        body: dict[str, Any] = {
            "application": "jobs",
            "environment": "soak",
            "definition_id": f"soak.{kind}",
            "definition_revision": "1",
            "trigger": "soak",
            "input": value,
            "idempotency_key": f"soak-{number}",
            "capability_snapshot": [],
            "lost_policy": kind,
            "retry_policy": {"max_attempts": 4, "initial_delay_ms": 200, "max_delay_ms": 1_000},
            "timeouts": {"cancel_grace_ms": 3_000, "execution_ms": 20_000, "claim_ms": 10_000},
        }
        if self.workloads and chance.random() < 0.2:
            state = chance.choice(["SUCCEEDED", "ANY_END"])
            earlier = chance.choice(self.workloads[-10:])
            body["dependencies"] = [{"workload_id": earlier, "required_state": state}]
        return body

    def _call(
        self, what: str, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """The answer; None where there was none or it was a refusal, which is counted."""
        try:
            answer = self.api.request(method, path, json=body or ({} if method == "POST" else None))
            said: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError):
            self.did["no answer"] += 1
            return None
        if answer.is_success:
            if what:
                self.did[what] += 1
            return said
        self.did[f"{answer.status_code} {said.get('code', '')}"] += 1
        if answer.status_code == 422 or answer.status_code == 500:
            raise RuntimeError(f"{method} {path}: {said}")
        return None

    # --- afterwards -------------------------------------------------------------------------------

    def calm_down(self) -> bool:
        """Let everything run undisturbed until no work is open; whether it came to that."""
        end = time.monotonic() + QUIET_S
        while time.monotonic() < end:
            self._start_all()
            self._bring_back()
            self._resolve()
            if self._queued() == 0:
                return True
            time.sleep(0.5)
        return False

    def verdict(self, *, is_quiet: bool) -> dict[str, Any]:
        """What happened, and under `wrong` what must not have."""
        marks = [line.split() for line in self.effects.read_text().splitlines()]
        starts = Counter((workload, attempt) for workload, attempt, _ in marks)
        held = Counter(workload for workload, _, kind in marks if kind == "soak.hold")
        (lost,) = self.stage.sql(_LOST)
        broken = json.loads(self._invariants())["broken"]
        checks: dict[str, Any] = {
            "open work is left": [] if is_quiet else self.stage.sql(_STATES),
            "invariants": broken,
            "started twice": [pair for pair, number in starts.items() if number > 1],
            "hold work started again": [each for each, number in held.items() if number > 1],
            "results of another attempt": self.stage.sql(_FOREIGN_RESULTS),
        }
        return {
            "states": {
                str(state): number for state, number in sorted(self.stage.sql(_STATES), key=str)
            },
            "submitted": len(self.workloads),
            "starts": len(marks),
            "lost attempts": lost[0],
            "done to it": dict(sorted(self.did.items())),
            "processes started": {each.name: each.starts for each in self.children},
            "wrong": {what: found for what, found in checks.items() if found},
        }

    def _invariants(self) -> str:
        command = [sys.executable, "manage.py", "check_invariants", "--json"]
        done = subprocess.run(
            command, cwd=ROOT, env=self.stage.environment, capture_output=True, text=True
        )
        return done.stdout

    def close(self) -> None:
        for each in self.children:
            each.close()
        self.api.close()


def run(seconds: float, seed: int) -> dict[str, Any]:
    """One soak run; see the verdict."""
    with raised(web_processes=0) as stage:
        soak = Soak(stage, seed)
        try:
            soak.rage(seconds)
            is_quiet = soak.calm_down()
            return soak.verdict(is_quiet=is_quiet)
        finally:
            soak.close()


def sweep() -> None:
    """What Celery and its beat do, without a broker: every sweep at its interval, for ever."""
    import django

    django.setup()
    from django.db import close_old_connections

    from config.celery import SWEEPS
    from mesh import recovery

    due = dict.fromkeys(SWEEPS, 0.0)
    while True:
        for name, interval in SWEEPS.items():
            if due[name] <= time.monotonic():
                due[name] = time.monotonic() + interval
                close_old_connections()
                recovery.run(name)
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sweep", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.sweep:
        sweep()
        return
    verdict = run(chosen.minutes * 60, chosen.seed)
    print(json.dumps(verdict, indent=2, default=str))
    sys.exit(1 if verdict["wrong"] else 0)


if __name__ == "__main__":
    main()
