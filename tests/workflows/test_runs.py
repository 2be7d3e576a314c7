"""Runs: how one begins, what is due in it, and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import clock
from mesh.errors import DomainError
from mesh.models import AuditEntry, Role
from tests.factories import World, make_tenant, name
from workflows import inputs, names, runs, signals
from workflows.authority import Authority
from workflows.models import Activation, Definition, Run, RunEvent, RunStatus, StepState

from . import rows

pytestmark = pytest.mark.django_db

AT = datetime(2030, 1, 1, tzinfo=UTC)
OnCommit = Callable[..., AbstractContextManager[list[Callable[[], object]]]]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def definition(world: World) -> Definition:
    return rows.make_definition(world, [rows.step("one"), rows.step("two", needs=["one"])])


def ask(world: World, definition: Definition, **members: Any) -> dict[str, Any]:
    return {
        "caller": world.operator,
        "application": world.application,
        "run_id": name("run"),
        "definition_id": definition.definition_id,
        "version": definition.version,
        "input": {"document": "a.pdf"},
        **members,
    }


def refusal(asked: Mapping[str, Any]) -> DomainError:
    with pytest.raises(DomainError) as refused:
        runs.start(**asked)
    return refused.value


def states(run: Run) -> dict[str, str]:
    return dict(run.activations.values_list("step", "state"))


def put(run: Run, **states: str) -> Run:
    """Bring steps into a state, with the output that the first of the run has then."""
    for step, state in states.items():
        run.activations.filter(step=step).update(state=state)
    return run


# start


def test_a_run_begins_open_with_all_its_steps_and_nobody_has_it(
    world: World, definition: Definition
) -> None:
    asked = ask(world, definition)
    run, created = runs.start(**asked)
    assert created
    run = runs.get(caller=world.caller(Role.VIEWER), run_id=run.run_id)
    assert (run.status, run.coordinator, run.environment) == (
        RunStatus.OPEN,
        "builtin",
        "production",
    )
    assert not run.has_authority
    assert (run.max_concurrency, run.max_executions, run.deadline) == (8, 1_000, None)
    assert (run.input, run.requested_by) == ({"document": "a.pdf"}, world.operator.subject)
    assert states(run) == {"one": StepState.READY, "two": StepState.PENDING}
    identities = set(run.activations.values_list("step", "position", "activation_id"))
    assert identities == {
        (step, place, names.activation_id(run.run_id, step))
        for place, step in enumerate(["one", "two"])
    }


def test_a_start_is_in_the_history_and_audited_once(world: World, definition: Definition) -> None:
    asked = ask(world, definition)
    for _ in range(2):
        runs.start(**asked)
    event = RunEvent.objects.get(run__run_id=asked["run_id"])
    assert (event.event, event.sequence, event.actor) == ("run.started", 1, world.operator.subject)
    kept = AuditEntry.objects.get(action="run.started", target=asked["run_id"])
    assert kept.evidence["definition_id"] == definition.definition_id


def test_the_same_start_again_is_the_run_as_it_stands(world: World, definition: Definition) -> None:
    asked = ask(world, definition, limits={"deadline": AT}, authority=rows.authority())
    first, _ = runs.start(**asked)
    # Meanwhile somebody else has it, and it has ended.
    Run.objects.filter(pk=first.pk).update(
        generation=2, instance_id="other", status=RunStatus.FAILED, ended_at=AT
    )
    spelled_out = {
        **asked,
        "limits": {"concurrency": 8, "step_executions": 1_000, "deadline": AT},
        "environment": "production",
        "coordinator": "external",
    }
    for again in (asked, spelled_out):
        run, created = runs.start(**again)
        assert (run.pk, run.generation, run.status, created) == (first.pk, 2, "FAILED", False)
    assert Activation.objects.filter(run=first).count() == 2


def _authority(**members: Any) -> Authority:
    return rows.authority("instance", fencing_token="secret", **members)


@pytest.mark.parametrize(
    "members",
    [
        {"input": {"document": "b.pdf"}},
        {"environment": "staging"},
        {"limits": {"concurrency": 9}},
        {"limits": {"deadline": AT}},
        {"authority": _authority(target_artifact_id="other:1")},
        {"authority": rows.authority("instance", fencing_token="another")},
        # Other content, before the generation is looked at.
        {"authority": _authority(generation=2)},
        {"authority": None, "coordinator": "builtin"},
    ],
)
def test_a_run_id_stands_for_one_content(
    world: World, definition: Definition, members: Mapping[str, Any]
) -> None:
    asked = ask(world, definition, authority=_authority())
    runs.start(**asked)
    assert refusal({**asked, **members}).code == "ADMISSION_INVALID"


def test_a_run_id_stands_for_one_version(world: World, definition: Definition) -> None:
    asked = ask(world, definition)
    runs.start(**asked)
    rows.make_definition(world, definition_id=definition.definition_id, version=2)
    assert refusal({**asked, "version": 2}).code == "ADMISSION_INVALID"


def test_the_same_run_id_in_two_tenants_is_two_runs(world: World, definition: Definition) -> None:
    other = World()
    theirs = rows.make_definition(other)
    first, _ = runs.start(**ask(world, definition, run_id="r1"))
    second, created = runs.start(**ask(other, theirs, run_id="r1"))
    assert created
    assert runs.get(caller=world.operator, run_id="r1").pk == first.pk
    assert runs.pk_for(caller=other.operator, run_id="r1") == second.pk


def test_a_run_with_an_authority_is_external_and_owned(
    world: World, definition: Definition
) -> None:
    owner = rows.authority()
    run, _ = runs.start(**ask(world, definition, authority=owner))
    run.refresh_from_db()
    assert run.coordinator == "external"
    assert owner.is_of(run)
    assert owner.has_token_of(run)


def test_a_start_keeps_no_token(world: World, definition: Definition) -> None:
    owner = rows.authority(fencing_token="very-secret-token")
    run, _ = runs.start(**ask(world, definition, authority=owner))
    kept = AuditEntry.objects.get(action="run.started", target=run.run_id)
    event = RunEvent.objects.get(run=run)
    assert kept.evidence["authority"] == event.evidence["authority"] == owner.public()
    assert "very-secret-token" not in str([vars(run), vars(kept), vars(event)])


def test_an_external_run_may_begin_without_an_owner(world: World, definition: Definition) -> None:
    run, _ = runs.start(**ask(world, definition, coordinator="external"))
    assert run.coordinator == "external"
    assert not run.has_authority


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"limits": {"concurrency": 0}}, "limits.concurrency"),
        ({"limits": {"concurrency": 1_001}}, "limits.concurrency"),
        ({"limits": {"step_executions": 0}}, "limits.step_executions"),
        ({"limits": {"step_executions": 100_001}}, "limits.step_executions"),
        ({"limits": {"deadline": AT + timedelta(days=3_651)}}, "limits.deadline"),
        ({"environment": " "}, "environment"),
        ({"environment": "e" * 201}, "environment"),
        ({"input": "x" * (1024 * 1024 - 1)}, "input"),
        ({"coordinator": "nobody"}, "coordinator"),
        ({"coordinator": "builtin", "authority": rows.authority()}, "coordinator"),
    ],
)
def test_a_start_refuses_what_is_out_of_bounds(
    world: World, definition: Definition, members: Mapping[str, Any], field: str
) -> None:
    with clock.set_to(AT):
        refused = refusal(ask(world, definition, **members))
    assert refused.code == "ADMISSION_INVALID"
    assert refused.facts["fields"] == [field]
    assert not Run.objects.filter(tenant=world.tenant).exists()


@pytest.mark.parametrize(
    "members",
    [
        {"limits": {"concurrency": 1, "step_executions": 1, "deadline": AT}},
        {
            "limits": {
                "concurrency": 1_000,
                "step_executions": 100_000,
                "deadline": AT + timedelta(days=3_650),
            }
        },
        {"input": "x" * (1024 * 1024 - 2), "environment": "e" * 200, "run_id": "r" * 200},
    ],
)
def test_a_start_takes_what_is_just_within_bounds(
    world: World, definition: Definition, members: Mapping[str, Any]
) -> None:
    with clock.set_to(AT):
        assert runs.start(**ask(world, definition, **members))[1]


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"run_id": "not an id"}, "ADMISSION_INVALID"),
        ({"run_id": ""}, "ADMISSION_INVALID"),
        ({"application": "nothing"}, "APPLICATION_NOT_FOUND"),
        ({"definition_id": "nothing"}, "DEFINITION_NOT_FOUND"),
        ({"version": 2}, "DEFINITION_NOT_FOUND"),
        ({"version": 2**40}, "DEFINITION_NOT_FOUND"),
        ({"input": [{"Password": "x"}]}, "WORKLOAD_SECRET_REJECTED"),
        ({"authority": rows.authority(generation=2)}, "TRANSITION_INVALID"),
        ({"authority": rows.authority(generation=0)}, "TRANSITION_INVALID"),
        ({"authority": rows.authority("no id")}, "ADMISSION_INVALID"),
        ({"authority": Authority("a:1", "i", 1)}, "ADMISSION_INVALID"),
    ],
)
def test_a_start_is_refused_with_the_code_of_what_is_wrong(
    world: World, definition: Definition, members: Mapping[str, Any], code: str
) -> None:
    assert refusal(ask(world, definition, **members)).code == code
    assert not Run.objects.filter(tenant=world.tenant).exists()


def test_a_start_needs_an_operator(world: World, definition: Definition) -> None:
    asked = ask(world, definition, caller=world.caller(Role.VIEWER))
    assert refusal(asked).code == "PERMISSION_DENIED"


def test_a_definition_of_another_application_or_tenant_is_not_there() -> None:
    tenant = make_tenant(applications=["documents", "images"])
    here, there, other = World(tenant), World(tenant, application="images"), World()
    for owner in (there, other):
        definition = rows.make_definition(owner)
        assert refusal(ask(here, definition)).code == "DEFINITION_NOT_FOUND"


def test_a_run_of_another_tenant_is_not_there(world: World, definition: Definition) -> None:
    run, _ = runs.start(**ask(world, definition))
    other = World().operator
    for look in (runs.get, runs.pk_for):
        with pytest.raises(DomainError, match="RUN_NOT_FOUND"):
            look(caller=other, run_id=run.run_id)


def test_a_new_run_wakes_its_coordinator_once_it_is_committed(
    world: World, definition: Definition, django_capture_on_commit_callbacks: OnCommit
) -> None:
    heard: list[int] = []

    def hear(pk: int, **_: object) -> None:
        heard.append(pk)

    signals.run_changed.connect(hear)
    asked = ask(world, definition)
    with django_capture_on_commit_callbacks(execute=True):
        run, _ = runs.start(**asked)
        assert heard == []
    assert heard == [run.pk]
    with django_capture_on_commit_callbacks(execute=True):
        runs.start(**asked)
    assert heard == [run.pk]


# what is due


def diamond(world: World, **members: Any) -> Run:
    """`top`, then `left` and `right`, then `end`, and `alone` beside them."""
    return rows.make_run(
        world,
        [
            rows.step("top"),
            rows.step("left", needs=["top"], **members),
            rows.step("right", needs=["top"]),
            rows.step("end", needs=["left", "right"]),
            rows.step("alone"),
        ],
    )


def test_a_step_is_due_once_all_that_it_needs_succeeded(world: World) -> None:
    run = put(diamond(world), top="SUCCEEDED")
    runs.make_due(run, AT)
    assert states(run) == {
        "top": "SUCCEEDED",
        "left": "READY",
        "right": "READY",
        "end": "PENDING",
        "alone": "READY",
    }
    put(run, left="SUCCEEDED", right="ACTIVE")
    runs.make_due(run, AT)
    assert states(run)["end"] == "PENDING"
    put(run, right="SUCCEEDED")
    runs.make_due(run, AT)
    assert states(run)["end"] == "READY"
    assert run.activations.get(step="end").updated_at == AT


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_a_step_without_which_the_run_goes_on_counts_as_ended(world: World, state: str) -> None:
    run = put(diamond(world, on_failure="continue"), top="SUCCEEDED", left=state, right="SUCCEEDED")
    runs.make_due(run, AT)
    assert states(run)["end"] == "READY"
    assert not runs.is_failed(run)


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_after_a_failed_step_nothing_new_begins(world: World, state: str) -> None:
    run = put(diamond(world), top="SUCCEEDED", left=state, right="ACTIVE")
    runs.make_due(run, AT)
    assert states(run) == {
        "top": "SUCCEEDED",
        "left": state,
        "right": "ACTIVE",
        "end": "SKIPPED",
        "alone": "SKIPPED",
    }
    # What was under way ends as it does; what waits for it still does not begin.
    put(run, right="READY")
    runs.make_due(run, AT)
    assert states(run)["right"] == "SKIPPED"
    assert runs.is_failed(run)


@pytest.mark.parametrize("state", sorted(set(StepState.values) - {"FAILED", "CANCELLED"}))
def test_a_run_fails_only_by_a_step_that_failed(world: World, state: str) -> None:
    assert not runs.is_failed(put(diamond(world), left=state))


def test_all_is_done_when_each_exit_counts_as_ended(world: World) -> None:
    run = put(diamond(world), top="SUCCEEDED", left="SUCCEEDED", right="SUCCEEDED", end="SUCCEEDED")
    assert not runs.are_exits_done(run)
    assert runs.are_exits_done(put(run, alone="SUCCEEDED"))
    for state in set(StepState.values) - {"SUCCEEDED"}:
        assert not runs.are_exits_done(put(run, alone=state)), state


def test_an_exit_that_failed_without_failing_the_run_is_done(world: World) -> None:
    run = rows.make_run(world, [rows.step("one", on_failure="continue")])
    assert runs.are_exits_done(put(run, one="FAILED"))
    assert not runs.are_exits_done(put(run, one="READY"))


@pytest.mark.parametrize("first", ["SUCCEEDED", "FAILED"])
def test_what_is_due_costs_the_same_statements_whatever_the_size(world: World, first: str) -> None:
    spent = set()
    for count in (1, 40):
        later = [rows.step(f"s{n}", needs=["one"]) for n in range(count)]
        run = put(rows.make_run(world, [rows.step("one"), *later]), one=first)
        with CaptureQueriesContext(connection) as queries:
            runs.make_due(run, AT)
        spent.add(len(queries))
        assert "PENDING" not in states(run).values()
    assert spent == {2}


def test_a_start_costs_the_same_statements_whatever_the_size(world: World) -> None:
    spent = set()
    for count in (1, 40):
        definition = rows.make_definition(world, [rows.step(f"s{n}") for n in range(count)])
        with CaptureQueriesContext(connection) as queries:
            runs.start(**ask(world, definition))
        spent.add(len(queries))
    assert len(spent) == 1


def test_a_run_is_quiescent_when_nothing_is_active_unsettled_or_reserved(world: World) -> None:
    run = rows.make_run(world, owner=rows.authority())
    assert runs.is_quiescent(run)
    attempt = rows.make_attempt(world, run)
    assert not runs.is_quiescent(run)
    # Also where the counter is wrong: the rows are asked too.
    run.active_attempts = 0
    assert not runs.is_quiescent(run)
    attempt.outcome, attempt.settled_at = "not_started", AT
    attempt.outcome_digest, attempt.source = "d", "never_claimed"
    attempt.save()
    assert runs.is_quiescent(run)
    attempt.leases.create(
        run=run,
        application=run.application,
        resource="file",
        access="write",
        scope="run",
        generation=1,
        acquired_at=AT,
    )
    assert not runs.is_quiescent(run)


# inputs of steps


@pytest.fixture
def reading(world: World) -> Run:
    """A run whose last step reads the run's input and two outputs, one of another's need."""
    said = {
        "document": {"$from": "run", "pointer": "/document"},
        "text": {"$from": "ocr", "pointer": "/pages/0"},
        "maybe": {"$from": "enrich"},
        "fixed": [1, None],
    }
    return rows.make_run(
        world,
        [
            rows.step("ocr"),
            rows.step("enrich", needs=["ocr"], on_failure="continue"),
            rows.step("store", needs=["enrich"], input=said),
        ],
    )


def test_a_step_gets_what_its_input_refers_to(reading: Run) -> None:
    reading.activations.filter(step="ocr").update(state="SUCCEEDED", output={"pages": ["a", "b"]})
    reading.activations.filter(step="enrich").update(state="FAILED")
    locked = Run.objects.defer("input").get(pk=reading.pk)
    assert runs.step_input(locked, rows.step_of(locked, "store")) == {
        "document": "a.pdf",
        "text": "a",
        "maybe": None,
        "fixed": [1, None],
    }


def test_a_step_is_not_given_what_is_not_there(reading: Run) -> None:
    reading.activations.filter(step="ocr").update(state="SUCCEEDED", output={"pages": []})
    reading.activations.filter(step="enrich").update(state="SUCCEEDED")
    with pytest.raises(inputs.Unresolved) as missing:
        runs.step_input(reading, rows.step_of(reading, "store"))
    assert (missing.value.source, missing.value.pointer) == ("ocr", "/pages/0")
