"""A process or a session dies in the middle of a call; the rows are as if it had never begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.db import connection

from mesh import (
    arrivals,
    claims,
    clock,
    expiry,
    intake,
    leases,
    recovery,
    settlement,
    workers,
    workloads,
)
from mesh.changes import Changes
from mesh.models import (
    Attempt,
    Checkpoint,
    Result,
    State,
    Worker,
    WorkerEvent,
    Workload,
    WorkloadEvent,
)
from tests.factories import Held, World, expire

from .checks import assert_sound
from .steering import Actor, Gate, eventually, is_free

# Kills itself with its changes written and not committed, as the out-of-memory killer would.
CHILD = """
import os, signal, sys
import django
django.setup()
from django.db import connection
connection.settings_dict["NAME"] = sys.argv[1]
from mesh import settlement, workers
from mesh.changes import Changes
write = Changes.write
Changes.write = lambda self: (write(self), print("written", flush=True), sys.stdin.read())
settlement.complete(
    caller=workers.authenticate(sys.argv[2]), claim_id=sys.argv[3], fencing_token=int(sys.argv[4]),
    result_id="r", output=1,
)
"""


def _everything() -> list[Any]:
    models = (Attempt, Checkpoint, Result, Worker, WorkerEvent, Workload, WorkloadEvent)
    return [list(model._default_manager.order_by("pk").values()) for model in models]


def _calls(world: World, held: Held) -> dict[str, tuple[Any, str, Callable[[], Any]]]:
    """Each with the last thing that it does before it commits."""
    asks: dict[str, Any] = {
        "caller": held.worker.caller,
        "worker_id": held.worker.worker_id,
        "maximum": 5,
    }
    return {
        "claim": (workers, "save", partial(claims.claim, **asks)),
        "start": (leases, "_write", partial(leases.start, **held.presenting)),
        "complete": (
            Changes,
            "write",
            partial(settlement.complete, **held.presenting, result_id="r", output=1),
        ),
        "recover": (workers, "save", partial(expiry.end_of, held.worker.row.pk)),
        "submit": (
            arrivals,
            "_insert",
            partial(intake.submit, caller=world.operator, submission=world.submission()),
        ),
        "cancel": (
            workloads,
            "_write",
            partial(workloads.cancel, caller=world.operator, workload_id=held.workload.workload_id),
        ),
    }


@pytest.mark.parametrize("call", ["claim", "start", "complete", "recover", "submit", "cancel"])
def test_a_session_that_ends_before_the_commit_leaves_nothing(world: World, call: str) -> None:
    held = world.claimed() if call == "start" else world.running()
    world.workload()
    if call == "recover":
        expire(held)
    before = _everything()
    owner, name, run = _calls(world, held)[call]
    with Gate(owner, name, after=True) as gate:
        dying: Actor[Any] = Actor(run)
        gate.wait_for_arrival()
        with connection.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(%s, 10000)", [dying.pid])
        gate.let_through()
        assert dying.code() == "STORAGE_BUSY"
    assert _everything() == before
    run()
    assert _everything() != before
    assert_sound()


@contextmanager
def _child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def test_a_process_killed_before_its_commit_leaves_nothing_and_keeps_no_lock(
    world: World,
) -> None:
    held = world.running()
    before = _everything()
    name = str(connection.settings_dict["NAME"])
    arguments = (name, held.worker.credential, held.claim.claim_id, str(held.claim.fencing_token))
    with _child(*arguments) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        assert not is_free(held.worker.row)
        child.send_signal(signal.SIGKILL)
        assert child.wait(20) == -signal.SIGKILL
        eventually(lambda: is_free(held.worker.row), "its locks are free")
    assert _everything() == before
    held.worker.complete(held.claim)
    assert held.refresh().state == State.SUCCEEDED
    assert_sound()


def test_work_of_a_killed_worker_comes_back_after_its_lease(world: World) -> None:
    held = world.running(retry_policy={"initial_delay_ms": 0})
    with clock.set_to(held.attempt.expires_at):
        assert recovery.run("recover_expired_leases").changed == [held.workload.workload_id]
        [claim] = world.worker().claim()
    assert claim.workload_id == held.workload.workload_id
    assert claim.fencing_token > held.claim.fencing_token
