"""The last line, which PostgreSQL holds: constraints and triggers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, IntegrityError, connection, models, transaction

from mesh import history
from mesh.models import (
    ApiToken,
    Application,
    Attempt,
    AuditEntry,
    Checkpoint,
    Grant,
    Membership,
    Requirement,
    Result,
    Worker,
    WorkerEvent,
    Workload,
    WorkloadEvent,
)
from tests.factories import World, in_state
from tests.mesh.checks import NOON, ms


def violates(name: str) -> AbstractContextManager[Any]:
    return pytest.raises(IntegrityError, match=name)


def change(row: models.Model, **facts: Any) -> None:
    """Change a row behind the domain's back."""
    with transaction.atomic():
        type(row)._default_manager.filter(pk=row.pk).update(**facts)


def copy(row: Any, **facts: Any) -> None:
    """Insert another row like this one."""
    with transaction.atomic():
        row.pk = None
        for name, value in facts.items():
            setattr(row, name, value)
        row.save(force_insert=True)


def a_workload(world: World) -> Workload:
    return world.workload()


def a_worker(world: World) -> Worker:
    return world.worker().row


def a_grant(world: World) -> Grant:
    return world.grant()[0]


def an_attempt(world: World) -> Attempt:
    return world.claimed().attempt


def a_token(world: World) -> ApiToken:
    world.token()
    return ApiToken.objects.get(tenant=world.tenant)


CHECKS: list[tuple[Callable[[World], models.Model], dict[str, Any], str]] = [
    (a_workload, {"state": "LOST", "claimable": False}, "workload_state_is_known"),
    (a_workload, {"state": "RUNNING"}, "claimable_work_is_ready"),
    (a_workload, {"lost_policy": "forget"}, "lost_policy_is_known"),
    (a_workload, {"ended_at": NOON}, "only_ended_work_has_an_end"),
    (a_workload, {"attempt_count": 1}, "workload_counters_agree"),
    (a_workload, {"started_attempts": 1}, "workload_counters_agree"),
    (a_workload, {"extra_attempts": -1}, "workload_counters_agree"),
    (a_workload, {"retries": -1}, "workload_counters_agree"),
    (a_workload, {"unstarted_losses": -1}, "workload_counters_agree"),
    (a_worker, {"lifecycle": "GONE"}, "worker_lifecycle_is_known"),
    (a_worker, {"health": "FINE"}, "worker_health_is_known"),
    (a_worker, {"runtime": "vm"}, "worker_runtime_is_known"),
    (a_worker, {"drain_cause": "weather"}, "worker_drain_cause_is_known"),
    (a_worker, {"concurrency": 0}, "worker_concurrency_is_bounded"),
    (a_worker, {"concurrency": 1_001}, "worker_concurrency_is_bounded"),
    (a_worker, {"active": -1}, "worker_active_is_not_negative"),
    (a_worker, {"incarnation": -1}, "worker_incarnation_is_not_negative"),
    (a_grant, {"status": "EXPIRED"}, "grant_status_is_stored_one"),
    (a_grant, {"expires_at": NOON}, "grant_ends_after_it_begins"),
    (a_grant, {"revision": 0}, "grant_revision_is_positive"),
    (an_attempt, {"status": "LOST", "ended_at": NOON}, "attempt_status_is_known"),
    (an_attempt, {"ended_at": NOON}, "attempt_is_live_or_has_an_end"),
    (an_attempt, {"status": "FAILED"}, "attempt_is_live_or_has_an_end"),
    (a_token, {"role": "root"}, "token_role_is_known"),
    (a_token, {"expires_at": NOON - ms(1)}, "token_expires_after_it_was_made"),
]


@pytest.mark.parametrize(
    ("make", "facts", "name"), CHECKS, ids=[f"{n}-{next(iter(f))}" for _, f, n in CHECKS]
)
def test_a_check_refuses_what_no_rule_would_write(
    world: World, make: Callable[[World], models.Model], facts: dict[str, Any], name: str
) -> None:
    row = make(world)
    with violates(name):
        change(row, **facts)


def test_active_may_exceed_the_capacity(world: World) -> None:
    worker = a_worker(world)
    change(worker, active=worker.concurrency + 1)
    worker.refresh_from_db()
    assert worker.active > worker.concurrency


def test_a_workload_has_one_live_attempt(world: World) -> None:
    attempt = an_attempt(world)
    with violates("one_live_attempt_per_workload"):
        copy(attempt, uid=uuid.uuid4(), number=2)


def test_a_workload_has_one_succeeded_attempt(world: World) -> None:
    attempt = world.succeeded().attempt
    with violates("one_succeeded_attempt_per_workload"):
        copy(attempt, uid=uuid.uuid4(), number=2)


def test_natural_keys_are_unique(world: World) -> None:
    held = world.succeeded()
    work, worker, attempt = held.workload, held.worker.row, held.attempt
    with violates("attempt_number_is_unique"):
        copy(attempt, uid=uuid.uuid4(), status="FAILED")
    with violates("workload_id_is_unique"):
        copy(Workload.objects.get(pk=work.pk), idempotency_key="other")
    with violates("idempotency_key_is_unique"):
        copy(Workload.objects.get(pk=work.pk), workload_id="other")
    with violates("worker_name_is_unique_in_application"):
        copy(Worker.objects.get(pk=worker.pk), worker_id="other", credential_hash="x")
    with violates("mesh_worker_worker_id"):
        copy(Worker.objects.get(pk=worker.pk), name="other", credential_hash="x")
    with violates("mesh_worker_credential_hash"):
        copy(Worker.objects.get(pk=worker.pk), name="other", worker_id="other")
    with violates("mesh_result"):
        copy(Result.objects.get(workload=work), result_id="other")
    with violates("application_name_is_unique"):
        copy(Application.objects.get(pk=work.application_id))


def test_requirements_events_and_checkpoints_are_unique(world: World) -> None:
    held = world.checkpointed()
    with violates("checkpoint_sequence_is_unique"):
        copy(Checkpoint.objects.get(workload=held.workload))
    with violates("workload_event_sequence_is_unique"):
        copy(WorkloadEvent.objects.get(workload=held.workload, sequence=1))
    with violates("worker_event_sequence_is_unique"):
        copy(WorkerEvent.objects.get(worker=held.worker.row, sequence=1))
    with violates("requirement_is_unique_in_application"):
        copy(Requirement.objects.get(pk=held.workload.requirement_id), number=99)
    with violates("requirement_number_is_unique"):
        copy(Requirement.objects.get(pk=held.workload.requirement_id), digest="x")


def test_one_role_per_member_and_one_token_in_force_per_name(world: World) -> None:
    with violates("one_token_in_force_per_name"):
        copy(a_token(world), token_hash="x")
    member = Membership.objects.create(
        user=User.objects.create(username="ann"), tenant=world.tenant, role="viewer"
    )
    with violates("membership_role_is_known"):
        change(member, role="root")
    with violates("one_role_per_member"):
        copy(member, role="admin")


# --- Triggers -------------------------------------------------------------------------------------


def rejects(name: str, sql: str, *values: Any) -> None:
    """The statement is refused by the trigger of that name."""
    refusal = pytest.raises(DatabaseError, match=name)
    with refusal, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, values)


@pytest.mark.parametrize("state", ["SUCCEEDED", "CANCELLED"])
def test_a_final_state_is_never_left_even_by_raw_sql(world: World, state: str) -> None:
    work = in_state(world, state)
    sql = "update mesh_workload set state = %s, ended_at = null where id = %s"
    for to in {"READY", "RUNNING", "SUCCEEDED", "CANCELLED", "DEAD_LETTER"} - {state}:
        rejects("finished_work_never_moves", sql, to, work.pk)
    work.refresh_from_db()
    assert work.state == state


def test_a_dead_letter_may_be_left(world: World) -> None:
    work = in_state(world, "DEAD_LETTER")
    change(work, state="READY", ended_at=None)
    work.refresh_from_db()
    assert work.state == "READY"


HISTORIES: list[type[models.Model]] = [WorkloadEvent, WorkerEvent, AuditEntry]


@pytest.mark.parametrize("model", HISTORIES)
def test_histories_are_append_only_even_for_raw_sql(
    world: World, model: type[models.Model]
) -> None:
    world.claimed()
    table = model._meta.db_table
    before = list(model._default_manager.order_by("pk").values())
    assert before
    for sql in (f"update {table} set actor = 'evil'", f"delete from {table}"):
        rejects("append_only", sql)
    assert list(model._default_manager.order_by("pk").values()) == before


def test_an_audit_entry_tells_who_did_what_and_why(world: World) -> None:
    entry = history.audit(
        tenant_id=world.tenant.pk,
        actor="human:ann",
        action="test.done",
        target="x",
        at=NOON,
        reason="why",
        code="GRANT_INVALID",
    )
    entry.refresh_from_db()
    assert (entry.actor, entry.reason, entry.code) == ("human:ann", "why", "GRANT_INVALID")
