"""The built-in coordinator: what it takes, admits, settles, withdraws and ends; what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import clock, resolutions, workloads
from mesh.canonical import secret_hash
from mesh.giving import Claim
from mesh.models import State, Workload
from tests.factories import Member, World, name
from workflows import admission, blocks, cancellation, coordinators, steering
from workflows.instances import Instance
from workflows.models import (
    ControlFailure,
    Coordinator,
    CoordinatorKind,
    Handoff,
    OutcomeKind,
    RecoveryBarrier,
    Run,
    RunStatus,
    StepState,
)

from . import rows
from .driving import acting_as, claims_of, drive, finish

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def worker(world: World) -> Member:
    return world.worker(concurrency=20)


@pytest.fixture
def instance() -> Iterator[Instance]:
    with acting_as() as mine:
        yield mine


def states(run: Run) -> dict[str, str]:
    return dict(run.activations.values_list("step", "state"))


def input_of(claim: Claim) -> Any:
    return Workload.objects.get(workload_id=claim.workload_id).input


def outcomes(run: Run) -> dict[str, str | None]:
    return {each.activation.step: each.outcome for each in run.attempts.order_by("pk")}


def test_it_drives_a_run_to_its_end(world: World, worker: Member, instance: Instance) -> None:
    steps = [
        rows.step("one"),
        rows.step("two", needs=["one"], input={"$from": "one", "pointer": "/pages"}),
        rows.step("three", needs=["one"]),
    ]
    run = rows.make_run(world, steps)
    assert drive(run) == {"claimed": 1, "admitted": 1}
    assert states(run) == {"one": "ACTIVE", "two": "PENDING", "three": "PENDING"}
    worker.complete(claims_of(worker)["one"], output={"pages": 7})
    assert drive(run) == {"settled": 1, "admitted": 2}
    taken = claims_of(worker)
    assert input_of(taken["two"]) == 7
    for claim in taken.values():
        worker.complete(claim)
    assert drive(run) == {"settled": 2, "ended": 1}
    assert run.status == RunStatus.COMPLETED
    assert drive(run) == {}


def test_its_token_is_stored_as_a_hash_only(world: World, instance: Instance) -> None:
    run = rows.make_run(world)
    drive(run)
    mine = instance.authority(run, 1)
    assert (run.instance_id, run.generation) == (instance.instance_id, 1)
    assert run.token_hash == secret_hash(mine.fencing_token or "")
    assert instance.authority(run, 2).fencing_token != mine.fencing_token


def test_it_leaves_runs_of_services_alone(world: World, instance: Instance) -> None:
    run = rows.make_run(world, coordinator=CoordinatorKind.EXTERNAL)
    assert drive(run) == {}
    assert not run.has_authority


def test_it_leaves_the_runs_of_an_instance_that_lives(world: World) -> None:
    run = rows.make_run(world)
    with acting_as():
        drive(run)
    with acting_as():
        assert drive(run) == {}
    assert run.generation == 1


def test_a_process_that_is_no_instance_acts_for_the_one_that_lives(world: World) -> None:
    run, other = rows.make_run(world), rows.make_run(world)
    with acting_as() as instance:
        drive(run)
    assert drive(other) == {"claimed": 1, "admitted": 1}
    assert other.instance_id == instance.instance_id


def die(instance: Instance) -> None:
    """Its lease and the grace after it are over."""
    long_ago = clock.now() - timedelta(minutes=10)
    Coordinator.objects.filter(instance_id=instance.instance_id).update(lease_ends_at=long_ago)


def test_another_takes_over_the_runs_of_one_that_died(world: World, worker: Member) -> None:
    run = rows.make_run(world, [rows.step("one"), rows.step("two", needs=["one"])])
    with acting_as() as first:
        drive(run)
    claim = claims_of(worker)["one"]
    die(first)
    with acting_as() as second:
        assert drive(run) == {"taken_over": 1}
        assert (run.instance_id, run.generation) == (second.instance_id, 2)
        barrier = RecoveryBarrier.objects.get(run=run, ended_at__isnull=True)
        assert barrier.instance_id == second.instance_id
        assert drive(run) == {}
        worker.complete(claim)
        assert drive(run) == {"settled": 1, "recovered": 1, "admitted": 1}
        finish(world, run, worker)
    assert run.status == RunStatus.COMPLETED
    assert Handoff.objects.get(run=run).mode == "recovery"


def test_the_runs_of_one_that_relinquished_in_order_need_no_barrier(
    world: World, instance: Instance
) -> None:
    run = rows.make_run(world)
    steering.pause(caller=world.operator, run_id=run.run_id, reason="not yet")
    drive(run)
    coordinators.relinquish_builtin(instance_id=instance.instance_id)
    with acting_as():
        assert drive(run) == {"taken_over": 1}
    assert Handoff.objects.get(run=run).mode == "normal"
    assert not RecoveryBarrier.objects.filter(run=run).exists()


def test_work_that_nobody_claimed_is_withdrawn_after_a_take_over(world: World) -> None:
    run = rows.make_run(world)
    with acting_as() as first:
        drive(run)
    die(first)
    with acting_as():
        assert drive(run) == {"taken_over": 1, "settled": 1, "recovered": 1, "admitted": 1}
    assert outcomes(run) == {"one": None}
    assert run.attempts.get(number=1).outcome == OutcomeKind.NOT_STARTED


@pytest.mark.parametrize(("effect", "status"), [("read_only", "COMPLETED"), ("mutating", "FAILED")])
def test_a_step_that_waits_for_its_retry_is_tried_again_after_a_take_over_if_it_may_be_repeated(
    world: World, worker: Member, effect: str, status: str
) -> None:
    slow = {"max_attempts": 3, "initial_delay_ms": 60_000, "retry_on": ["broken"]}
    run = rows.make_run(world, [rows.step("one", effect=effect, delivery=slow)])
    with acting_as() as first:
        drive(run)
    worker.fail(claims_of(worker)["one"])
    die(first)
    with acting_as():
        drive(run)
        drive(run)
        if run.is_open:
            assert run.attempts.get(number=1).outcome == OutcomeKind.CANCELLED
            worker.complete(claims_of(worker)["one"])
            drive(run)
    assert run.status == status
    assert run.activations.get().tries == 1


def test_a_cancelled_run_ends_once_all_that_ran_has_said_what_it_did(
    world: World, worker: Member, instance: Instance
) -> None:
    steps = [rows.step(each, effect="mutating") for each in ("one", "two")]
    run = rows.make_run(world, steps)
    drive(run)
    taken = worker.claim(1)
    worker.start(taken[0])
    cancellation.request(caller=world.operator, run_id=run.run_id, reason="wrong document")
    assert drive(run) == {"stopping": 1, "settled": 1}
    workload = run.attempts.unsettled().get().workload
    assert workload.state == State.CANCELLATION_REQUESTED
    worker.complete(taken[0])
    assert drive(run) == {"settled": 1, "ended": 1}
    assert run.status == RunStatus.CANCELLED
    assert sorted(filter(None, outcomes(run).values())) == ["not_started", "succeeded"]


def test_a_failure_that_is_reported_before_the_cancel_comes_stays_one(
    world: World, worker: Member, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rows.make_run(world, [rows.step("one", effect="mutating")])
    drive(run)
    claim = claims_of(worker)["one"]
    cancellation.request(caller=world.operator, run_id=run.run_id)
    cancel = workloads.cancel

    def fail_first(**said: Any) -> Workload:
        worker.fail(claim)
        return cancel(**said)

    monkeypatch.setattr(workloads, "cancel", fail_first)
    assert drive(run) == {"settled": 1, "ended": 1}
    assert outcomes(run) == {"one": OutcomeKind.FAILED}
    assert run.status == RunStatus.CANCELLED


def test_under_a_pause_work_that_nobody_claimed_stays(world: World, instance: Instance) -> None:
    run = rows.make_run(world)
    drive(run)
    steering.pause(caller=world.operator, run_id=run.run_id, reason="look first")
    assert drive(run) == {}
    assert run.attempts.get().workload.state == State.READY
    assert run.attempts.get().workload.held


def test_a_step_that_fails_ends_the_run_as_failed(
    world: World, worker: Member, instance: Instance
) -> None:
    steps = [rows.step("one", delivery={"max_attempts": 1}), rows.step("two", needs=["one"])]
    run = rows.make_run(world, steps)
    drive(run)
    worker.fail(claims_of(worker)["one"])
    assert drive(run) == {"settled": 1, "ended": 1}
    assert run.status == RunStatus.FAILED
    assert states(run) == {"one": StepState.FAILED, "two": StepState.SKIPPED}


def test_a_step_that_may_fail_lets_the_run_go_on_with_null(
    world: World, worker: Member, instance: Instance
) -> None:
    steps = [
        rows.step("one", delivery={"max_attempts": 1}, on_failure="continue"),
        rows.step("two", needs=["one"], input={"$from": "one", "pointer": ""}),
    ]
    run = rows.make_run(world, steps)
    drive(run)
    worker.fail(claims_of(worker)["one"])
    drive(run)
    claim = claims_of(worker)["two"]
    assert input_of(claim) is None
    worker.complete(claim)
    drive(run)
    assert run.status == RunStatus.COMPLETED


def test_an_ambiguous_step_waits_for_a_person(
    world: World, worker: Member, instance: Instance
) -> None:
    run = rows.make_run(world, [rows.step("one", effect="mutating")])
    drive(run)
    claims_of(worker)
    said: dict[str, Any] = {
        "caller": world.operator,
        "workload_id": run.attempts.get().workload.workload_id,
        "reason": "it hangs",
    }
    resolutions.reclaim(**said)
    assert drive(run) == {}
    resolutions.resolve(**said, resolution="succeeded", output={"published": True})
    assert drive(run) == {"settled": 1, "ended": 1}
    assert run.status == RunStatus.COMPLETED
    assert run.attempts.get().output == {"published": True}


@pytest.mark.parametrize("pointer", ["/gone", "/gone" * 1_000], ids=["short", "long"])
def test_an_input_that_cannot_be_found_stops_the_run(
    world: World, instance: Instance, pointer: str
) -> None:
    run = rows.make_run(world, [rows.step("one", input={"$from": "run", "pointer": pointer})])
    assert drive(run) == {"claimed": 1, "failed": 1}
    failure = ControlFailure.objects.get(run=run)
    assert (failure.code, failure.step) == ("input_unresolved", "one")
    assert drive(run) == {"ended": 1}
    assert run.status == RunStatus.FAILED


def test_an_input_that_would_grow_too_long_stops_the_run(world: World, instance: Instance) -> None:
    long = rows.step("one", input=[{"$from": "run"}] * 3)
    run = rows.make_run(world, [long], input="x" * 500_000)
    assert drive(run) == {"claimed": 1, "failed": 1}
    failure = ControlFailure.objects.get(run=run)
    assert (failure.code, failure.step) == ("WORKLOAD_INVALID", "one")
    assert drive(run) == {"ended": 1}


def test_an_admission_that_can_never_succeed_is_not_tried_for_ever(
    world: World, instance: Instance
) -> None:
    run = rows.make_run(world, [rows.step("one")], max_executions=1)
    Run.objects.filter(pk=run.pk).update(executions=1)
    assert drive(run) == {"claimed": 1, "failed": 1}
    assert ControlFailure.objects.get(run=run).code == "LIMIT_REACHED"


def test_a_step_that_is_kept_out_by_a_resource_does_not_stop_the_next(
    world: World, instance: Instance
) -> None:
    shelf = {"resource": "shelf", "access": "write", "scope": "application"}
    first = rows.make_run(world, [rows.step("one", resources=[shelf])])
    second = rows.make_run(world, [rows.step("one", resources=[shelf]), rows.step("two")])
    drive(first)
    assert drive(second) == {"claimed": 1, "admitted": 1}
    assert states(second) == {"one": StepState.READY, "two": StepState.ACTIVE}


SHELF = {"resource": "shelf", "access": "write", "scope": "application"}
BENCH = {**SHELF, "resource": "bench"}


def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that are asked for from now on, in their order."""
    steps: list[str] = []
    admit = admission.admit

    def listening(**said: Any) -> admission.Admitted:
        steps.append(said["step"])
        return admit(**said)

    monkeypatch.setattr(admission, "admit", listening)
    return steps


def test_of_steps_that_wait_for_one_resource_only_the_first_is_asked_for(
    world: World, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(rows.make_run(world, [rows.step("one", resources=[SHELF, BENCH])]))
    many = [rows.step(f"s{n}", resources=[SHELF]) for n in range(4)]
    run = rows.make_run(world, [*many, rows.step("other", resources=[BENCH]), rows.step("free")])
    steps = asked(monkeypatch)
    assert drive(run) == {"claimed": 1, "admitted": 1}
    assert steps == ["s0", "other", "free"]


def test_behind_a_writer_that_waits_one_reader_is_asked_for_and_every_writer(
    world: World, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {**SHELF, "access": "read"}
    drive(rows.make_run(world, [rows.step("one", resources=[reads])]))
    drive(rows.make_run(world, [rows.step("one", resources=[SHELF])]))
    readers = [rows.step(f"s{n}", resources=[reads]) for n in range(4)]
    run = rows.make_run(world, [*readers, rows.step("writes", resources=[reads, BENCH])])
    steps = asked(monkeypatch)
    drive(run)
    assert steps == ["s0", "writes"]


def test_the_steps_of_a_definition_that_are_known_are_not_read_again(
    world: World, instance: Instance
) -> None:
    steps = [rows.step("one", definition_id=name("kind")), rows.step("two", needs=["one"])]
    run = rows.make_run(world, steps)
    with CaptureQueriesContext(connection) as done:
        drive(run)
    loaded = [each["sql"] for each in done if '"steps"' in each["sql"]]
    # Whoever made the run has read them.
    assert loaded == []


def test_a_step_that_never_starts_waits_for_a_person_who_clears_it(
    world: World, instance: Instance
) -> None:
    run = rows.make_run(world)
    drive(run)
    for _ in range(21):
        work = run.attempts.unsettled().get().workload
        workloads.cancel(caller=world.operator, workload_id=work.workload_id)
        drive(run)
    assert ControlFailure.objects.get(run=run).code == "never_started"
    assert drive(run) == {}
    assert run.status == RunStatus.OPEN
    steering.clear(caller=world.operator, run_id=run.run_id, reason="workers are back")
    assert drive(run) == {"admitted": 1}
    assert not blocks.standing(run.pk).any


def test_a_repeat_of_every_drive_changes_nothing(
    world: World, worker: Member, instance: Instance, settings: LazySettings
) -> None:
    run = rows.make_run(world, [rows.step("one"), rows.step("two", needs=["one"])])
    for _ in range(2):
        drive(run)
        assert drive(run) == {}
        for claim in claims_of(worker).values():
            worker.complete(claim)
    drive(run)
    assert drive(run) == {}
    assert run.status == RunStatus.COMPLETED
