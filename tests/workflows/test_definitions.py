"""Definitions: a version stands for one content, for ever, and can be submitted as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.db import ProgrammingError, transaction

from mesh import intake
from mesh.errors import DomainError
from mesh.models import AuditEntry, Role
from mesh.submissions import Submission
from tests.factories import World, make_tenant, name
from workflows import definitions
from workflows.models import Definition
from workflows.steps import Steps

pytestmark = pytest.mark.django_db
ONE: Mapping[str, Any] = {"step": "one", "definition_id": "extract"}


@pytest.fixture
def world() -> World:
    return World()


def ask(world: World, *steps: Mapping[str, Any], **members: Any) -> dict[str, Any]:
    return {
        "caller": world.operator,
        "application": world.application,
        "definition_id": name("flow"),
        "version": 1,
        "steps": steps or (ONE,),
        **members,
    }


def refusal(asked: Mapping[str, Any]) -> DomainError:
    with pytest.raises(DomainError) as refused:
        definitions.store(**asked)
    return refused.value


def test_a_stored_version_is_found_with_all_its_defaults(world: World) -> None:
    asked = ask(world)
    stored, created = definitions.store(**asked)
    assert created
    found = definitions.get(
        caller=world.caller(Role.VIEWER), definition_id=asked["definition_id"], version=1
    )
    assert found.pk == stored.pk
    assert (found.application.name, found.created_by) == (world.application, "service:ops")
    assert Steps.of(found)["one"].delivery["max_attempts"] == 3
    assert found.steps == stored.steps


def test_a_step_input_comes_back_exactly_as_it_was_sent(world: World) -> None:
    sent = {"z": [1e300, 1.0, -0.0, 2**63 - 1, "é\U0001f600"], "a": None}
    asked = ask(world, {**ONE, "input": sent})
    definitions.store(**asked)
    found = definitions.get(caller=world.operator, definition_id=asked["definition_id"], version=1)
    assert repr(found.steps[0]["input"]) == repr(sent)
    # And is therefore known again.
    assert definitions.store(**asked)[1] is False


def test_the_same_content_again_is_the_stored_one_and_audited_once(world: World) -> None:
    asked = ask(world)
    first, _ = definitions.store(**asked)
    spelled_out = {**asked, "steps": first.steps}
    for again in (asked, spelled_out):
        found, created = definitions.store(**again)
        assert (found.pk, created) == (first.pk, False)
    kept = AuditEntry.objects.get(action="definition.stored", target=asked["definition_id"])
    assert kept.evidence["version"] == 1


@pytest.mark.parametrize(
    "steps",
    [
        ({**ONE, "effect": "read_only"},),
        (ONE, {**ONE, "step": "two"}),
        ({**ONE, "input": 0},),
    ],
)
def test_other_content_for_a_stored_version_is_refused(
    world: World, steps: tuple[Mapping[str, Any], ...]
) -> None:
    asked = ask(world)
    stored, _ = definitions.store(**asked)
    assert refusal({**asked, "steps": steps}).code == "ADMISSION_INVALID"
    stored.refresh_from_db()
    assert [each["step"] for each in stored.steps] == ["one"]
    assert definitions.store(**{**asked, "steps": steps, "version": 2})[1]


def test_the_application_is_part_of_the_content() -> None:
    tenant = make_tenant(applications=["documents", "images"])
    asked = ask(World(tenant))
    definitions.store(**asked)
    assert refusal({**asked, "application": "images"}).code == "ADMISSION_INVALID"


def test_the_same_id_and_version_in_two_tenants_are_two_definitions(world: World) -> None:
    other = World()
    mine, _ = definitions.store(**ask(world, definition_id="flow"))
    theirs, created = definitions.store(**ask(other, definition_id="flow"))
    assert created
    found = definitions.get(caller=other.operator, definition_id="flow", version=1)
    assert found.pk == theirs.pk != mine.pk


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"application": "nothing"}, "APPLICATION_NOT_FOUND"),
        ({"definition_id": "no id"}, "ADMISSION_INVALID"),
        ({"definition_id": "d" * 201}, "ADMISSION_INVALID"),
        ({"version": 0}, "ADMISSION_INVALID"),
        ({"version": 2**31}, "ADMISSION_INVALID"),
        ({"steps": []}, "ADMISSION_INVALID"),
        ({"steps": [{**ONE, "needs": ["one"]}]}, "ADMISSION_INVALID"),
        ({"steps": [{**ONE, "input": {"token": "x"}}]}, "WORKLOAD_SECRET_REJECTED"),
    ],
)
def test_a_definition_is_refused_with_the_code_of_what_is_wrong(
    world: World, members: Mapping[str, Any], code: str
) -> None:
    assert refusal(ask(world, **members)).code == code
    assert not Definition.objects.filter(tenant=world.tenant).exists()


def test_a_secret_in_an_input_is_told_by_its_step_and_not_repeated(world: World) -> None:
    refused = refusal(ask(world, ONE, {**ONE, "step": "two", "input": {"secret": "hunter2"}}))
    assert "step two" in refused.detail
    assert "hunter2" not in str(refused)


def test_storing_needs_an_operator_and_reading_a_viewer(world: World) -> None:
    asked = ask(world, caller=world.caller(Role.VIEWER))
    assert refusal(asked).code == "PERMISSION_DENIED"
    worker = world.worker().caller
    for look in (
        lambda: definitions.store(**{**asked, "caller": worker}),
        lambda: definitions.get(caller=worker, definition_id="flow", version=1),
    ):
        with pytest.raises(DomainError, match="PERMISSION_DENIED"):
            look()


def test_what_is_not_stored_or_another_tenants_is_not_there(world: World) -> None:
    asked = ask(World())
    definitions.store(**asked)
    for definition_id, version in ((asked["definition_id"], 1), ("nothing", 1), ("x" * 300, 1)):
        with pytest.raises(DomainError, match="DEFINITION_NOT_FOUND"):
            definitions.get(caller=world.operator, definition_id=definition_id, version=version)


def test_a_stored_version_cannot_be_changed_by_anybody(world: World) -> None:
    stored, _ = definitions.store(**ask(world))
    with pytest.raises(ProgrammingError, match="Cannot update"), transaction.atomic():
        Definition.objects.filter(pk=stored.pk).update(created_by="somebody")


@pytest.mark.parametrize(
    "members",
    [
        {},
        {
            "definition_id": "d" * 200,
            "capabilities": [f"c{n}" for n in range(256)],
            "delivery": {"max_attempts": 1_000, "jitter": 1, "backoff": "fixed"},
            "timeouts": {"execution_ms": 10 * 365 * 86_400_000, "cancel_grace_ms": 1},
            "policy": {
                "required_labels": {"k" * 63: "v" * 255},
                "pool_id": "p" * 200,
                "resources": {"memory_bytes": 2**63 - 1},
            },
        },
    ],
)
def test_what_was_stored_can_be_submitted(world: World, members: Mapping[str, Any]) -> None:
    stored, _ = definitions.store(**ask(world, {**ONE, **members}))
    step = Steps.of(stored)["one"]
    submission = Submission(
        application=world.application,
        environment="production",
        definition_id=step.definition_id,
        definition_revision=str(stored.version),
        trigger="workflow",
        input=step.input,
        idempotency_key=name("key"),
        capability_snapshot=step.capabilities,
        retry_policy=step.delivery,
        timeouts=step.timeouts,
        policy=step.policy,
    )
    assert intake.submit(caller=world.operator, submission=submission).created
