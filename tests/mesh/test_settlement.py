"""The reports that end a claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mesh import settlement, workloads
from mesh.models import Attempt, AttemptStatus, Result, State, WorkloadEvent
from tests.factories import Held, World
from tests.mesh.checks import NOON, Clock, counted, events, ms, refused, unchanged

KIB = 1024


def complete(held: Held, **members: Any) -> Attempt:
    said = {"result_id": "r1", "output": {"pages": 3}, **members}
    return settlement.complete(**{**held.presenting, **said})


def fail(held: Held, **members: Any) -> Attempt:
    said = {"kind": "broken", "error": "It broke.", **members}
    return settlement.fail(**{**held.presenting, **said})


def cancelled(held: Held) -> Attempt:
    return settlement.cancelled(**held.presenting)


def release(held: Held) -> Attempt:
    return settlement.release(**held.presenting)


# --- Effects --------------------------------------------------------------------------------------


def test_complete_stores_the_result_and_frees_the_slot(world: World) -> None:
    held = world.running()
    attempt = complete(held, artifacts=["s3://a"], logs="ok", resource_usage={"cpu": 1})
    work, stored = held.refresh(), Result.objects.get(workload=held.workload)
    assert (attempt.status, work.state, work.ended_at) == ("SUCCEEDED", State.SUCCEEDED, NOON)
    assert (stored.result_id, stored.output, stored.logs) == ("r1", {"pages": 3}, "ok")
    assert (stored.artifacts, stored.resource_usage) == (["s3://a"], {"cpu": 1})
    assert (held.worker.refresh().active, held.worker.row.last_progress_at) == (0, NOON)


def test_complete_after_a_checkpoint_is_accepted(world: World) -> None:
    assert complete(world.checkpointed()).status == AttemptStatus.SUCCEEDED


def test_fail_retries_what_the_policy_names(world: World) -> None:
    held = world.running(retry_policy={"retry_on": ["broken"]})
    attempt = fail(held, details={"line": 3})
    work = held.refresh()
    assert (attempt.status, work.state, work.claimable) == ("FAILED", State.READY, False)
    assert work.available_at == NOON + ms(1_000)
    assert work.last_failure == {"kind": "broken", "error": "It broke."}
    assert attempt.failure == {"kind": "broken", "error": "It broke.", "details": {"line": 3}}
    assert events(work)[-2:] == ["failed", "ready"]


@pytest.mark.parametrize(
    ("kind", "retry_on", "attempts"),
    [
        ("broken", ["timeout"], 3),
        ("broken", [], 3),
        ("broken", ["broken"], 1),
        ("secret_rejected", ["secret_rejected"], 3),
        ("Timeout", ["timeout"], 3),
    ],
)
def test_fail_buries_what_is_not_retried(
    world: World, kind: str, retry_on: list[str], attempts: int
) -> None:
    held = world.running(retry_policy={"retry_on": retry_on, "max_attempts": attempts})
    fail(held, kind=kind)
    work = held.refresh()
    assert work.last_failure == {"kind": kind, "error": "It broke."}
    assert work.state == State.DEAD_LETTER
    assert events(work)[-2:] == ["failed", "dead_lettered"]
    assert held.worker.refresh().active == 0


@pytest.mark.parametrize("kind", ["timeout", "worker_failure", "transient_connection"])
def test_fail_retries_the_default_kinds(world: World, kind: str) -> None:
    held = world.running()
    fail(held, kind=kind)
    assert held.refresh().state == State.READY


def test_delays_grow_with_each_failure_and_end_with_the_budget(world: World, clock: Clock) -> None:
    held = world.running(retry_policy={"retry_on": ["broken"]})
    delays = []
    for _ in range(2):
        fail(held)
        work = held.refresh()
        delays.append(work.available_at - clock.at)
        clock.to(work.available_at)
        held = Held(work, held.worker, held.worker.claim()[0])
        held.worker.start(held.claim)
    fail(held)
    assert delays == [ms(1_000), ms(2_000)]
    assert held.refresh().state == State.DEAD_LETTER


def test_release_gives_the_work_back_at_once_without_costing_budget(world: World) -> None:
    held = world.claimed()
    attempt = release(held)
    work = held.refresh()
    assert (attempt.status, work.state, work.claimable) == ("RELEASED", State.READY, True)
    assert (work.started_attempts, work.unstarted_losses) == (0, 1)
    assert (events(work)[-1], held.worker.refresh().active) == ("released", 0)


def test_cancelled_confirms(world: World) -> None:
    held = world.cancelling()
    attempt = cancelled(held)
    assert (attempt.status, held.refresh().state) == ("CANCELLED", State.CANCELLED)
    assert held.worker.refresh().active == 0
    last = WorkloadEvent.objects.filter(workload=held.workload).latest("sequence")
    assert (last.event, last.from_state) == ("workload.cancelled", "CANCELLATION_REQUESTED")


@pytest.mark.parametrize("state", ["claimed", "running", "checkpointed"])
def test_release_under_a_cancel_confirms_it(world: World, state: str) -> None:
    held = getattr(world, state)()
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    attempt = release(held)
    assert (attempt.status, held.refresh().state) == ("CANCELLED", State.CANCELLED)


# --- Where they do not belong ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (complete, "claimed"),
        (complete, "cancelling"),
        (fail, "claimed"),
        (fail, "cancelling"),
        (cancelled, "claimed"),
        (cancelled, "running"),
        (cancelled, "checkpointed"),
        (release, "running"),
        (release, "checkpointed"),
    ],
)
def test_a_report_that_does_not_fit_the_state_is_refused(
    world: World, report: Callable[[Held], Attempt], state: str
) -> None:
    held = getattr(world, state)()
    with refused("WORKLOAD_TRANSITION_DENIED"):
        report(held)


# --- Checks in their order ------------------------------------------------------------------------


SECRET: dict[str, Any] = {"token": "x"}


@pytest.mark.parametrize(
    ("report", "members"),
    [(complete, {"output": SECRET}), (fail, {"details": SECRET})],
)
def test_a_report_tells_the_state_before_a_secret(
    world: World, report: Callable[..., Attempt], members: dict[str, Any]
) -> None:
    held = world.claimed()
    with refused("WORKLOAD_TRANSITION_DENIED"):
        report(held, **members)


@pytest.mark.parametrize(
    ("report", "members"),
    [
        (complete, {"output": SECRET, "logs": "x" * (256 * KIB + 1)}),
        (fail, {"details": SECRET, "error": "x" * (256 * KIB + 1)}),
    ],
)
def test_a_report_tells_a_secret_before_its_size(
    world: World, report: Callable[..., Attempt], members: dict[str, Any]
) -> None:
    held = world.running()
    with refused("WORKLOAD_SECRET_REJECTED"):
        report(held, **members)


PEM = "-----BEGIN RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("report", "members"),
    [
        (complete, {"output": {"a": [{"Password": "x"}]}}),
        (complete, {"output": PEM}),
        (complete, {"logs": f"log\n{PEM}\n"}),
        (complete, {"artifacts": [PEM]}),
        (fail, {"error": f"Could not read {PEM}"}),
        (fail, {"details": {"env": {"private_key": "x"}}}),
    ],
)
def test_no_report_holds_a_secret(
    world: World, report: Callable[..., Attempt], members: dict[str, Any]
) -> None:
    held = world.running()
    with refused("WORKLOAD_SECRET_REJECTED"):
        report(held, **members)


@pytest.mark.parametrize(
    ("report", "name", "within", "beyond"),
    [
        (complete, "output", "x" * (1024 * KIB - 2), "x" * (1024 * KIB - 1)),
        (complete, "logs", "x" * 256 * KIB, "x" * (256 * KIB + 1)),
        (complete, "logs", "", "ß" * (128 * KIB + 1)),
        (complete, "artifacts", ["u"] * 100, ["u"] * 101),
        (complete, "result_id", "r" * 200, "r" * 201),
        (complete, "result_id", "r", " "),
        (fail, "kind", "k" * 200, "k" * 201),
        (fail, "kind", "k", ""),
    ],
)
def test_a_report_takes_the_bound_and_refuses_one_over(
    world: World, report: Callable[..., Attempt], name: str, within: Any, beyond: Any
) -> None:
    held = world.running()
    with refused("WORKLOAD_INVALID") as caught:
        report(held, **{name: beyond})
    assert caught.value.facts["fields"] == [name]
    assert report(held, **{name: within}).ended_at == NOON


# --- Repeats --------------------------------------------------------------------------------------


def cancelling(world: World) -> Held:
    return world.cancelling()


REPORTS: list[tuple[Callable[..., Attempt], str]] = [
    (complete, "running"),
    (fail, "running"),
    (cancelled, "cancelling"),
    (release, "claimed"),
    (release, "cancelling"),
]


@pytest.mark.parametrize(("report", "state"), REPORTS)
def test_an_exact_repeat_is_answered_before_the_fence_and_writes_nothing(
    world: World, clock: Clock, report: Callable[..., Attempt], state: str
) -> None:
    held = getattr(world, state)()
    first = report(held)
    clock.pass_(ms(3_600_000))
    with unchanged():
        again = report(held)
    assert (again.pk, again.status, again.ended_at) == (first.pk, first.status, NOON)


@pytest.mark.parametrize(("report", "state"), [each for each in REPORTS if each[0] is not complete])
def test_a_repeat_with_another_token_meets_the_fence(
    world: World, report: Callable[..., Attempt], state: str
) -> None:
    held = getattr(world, state)()
    report(held)
    other = Held(held.workload, held.worker, held.claim)
    object.__setattr__(other.claim, "fencing_token", 99)
    with refused("WORKLOAD_CLAIM_INVALID"):
        report(other)


def test_a_repeat_with_another_body_meets_the_fence(world: World) -> None:
    held = world.running()
    fail(held)
    with refused("WORKLOAD_CLAIM_INVALID"):
        fail(held, error="It broke otherwise.")


def test_a_report_of_another_step_meets_the_fence(world: World) -> None:
    held = world.running()
    complete(held)
    with refused("WORKLOAD_CLAIM_INVALID"):
        fail(held)


@pytest.mark.parametrize(
    "members", [{"output": 2}, {"logs": "x"}, {"fencing_token": 9}, {"artifacts": ["a"]}]
)
def test_a_result_id_stands_for_one_content(world: World, members: dict[str, Any]) -> None:
    held = world.running()
    complete(held)
    with refused("WORKLOAD_RESULT_DUPLICATE"):
        complete(held, **members)


def test_a_result_id_is_looked_up_before_the_fence(world: World) -> None:
    held = world.running()
    complete(held)
    other = world.worker()
    with refused("WORKLOAD_RESULT_DUPLICATE"):
        complete(held, caller=other.caller)


def test_another_result_of_ended_work_meets_the_fence(world: World) -> None:
    held = world.running()
    complete(held)
    with refused("WORKLOAD_CLAIM_INVALID"):
        complete(held, result_id="r2")


def test_two_workloads_may_use_the_same_result_id(world: World) -> None:
    complete(world.running())
    assert complete(world.running()).status == AttemptStatus.SUCCEEDED


# --- Cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("report", "state"), [(complete, "running"), (fail, "running")])
def test_settling_costs_the_same_with_one_claim_or_twenty(
    world: World, report: Callable[..., Attempt], state: str
) -> None:
    counts = []
    for number in (1, 20):
        worker = world.worker(concurrency=40)
        held = [getattr(world, state)(worker) for _ in range(number)]
        with counted() as queries:
            report(held[0])
        counts.append(len(queries))
    assert counts[0] == counts[1]
