"""How PostgreSQL finds rows: nothing reads a big table from end to end.

The tables are filled as a busy system has them, and every statement that a call or a sweep makes is
explained before it runs. What counts is the way, not the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from pytest_django import DjangoDbBlocker

from benchmarks import explaining
from benchmarks.explaining import explained
from mesh import (
    claims,
    clock,
    expiry,
    explain,
    leases,
    liveness,
    pauses,
    recovery,
    settlement,
    starts,
)
from mesh.api import reading
from mesh.models import (
    Decision,
    Dependency,
    EligibleSet,
    Pool,
    Requirement,
    Role,
    State,
    Worker,
    Workload,
)
from mesh.starts import Start
from mesh.tenancy import Caller

FILL = Path(__file__).parents[2] / "benchmarks" / "fill.sql"
BIG = ("mesh_workload", "mesh_attempt", "mesh_workloadevent")
QUEUED = 20_000
# Work that is not due for an hour and would come first if it were.
DELAYED = """
update mesh_workload set claimable = false, priority = 1000, available_at = now() + interval '1 h'
where id % 2 = 0
"""
FINISHED = """
insert into mesh_attempt (
    uid, workload_id, worker_id, incarnation, number, fencing_token, is_placed, status, lease_ms,
    claimed_at, expires_at, ended_at, report_step, report_digest
)
select
    gen_random_uuid(), w.id, (select min(id) from mesh_worker) + w.id % 1000, 1, 1, 1, false,
    'WORKER_LOST', 60000, now(), now(), now(), '', ''
from mesh_workload w
"""

# The tables are filled once for all these tests; so they belong on one xdist worker.
pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("plans")]


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Around the transactions of the tests, which thus all begin with the same full tables."""
    with django_db_blocker.unblock(), transaction.atomic():
        fill()
        yield
        transaction.set_rollback(True)


def fill() -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL.read_text().replace("{queued}", str(QUEUED)))
        cursor.execute(DELAYED)
        cursor.execute(FINISHED)
        # Numbers go on behind those that the attempts above used.
        cursor.execute("update mesh_workload set attempt_count = 1, fencing_token = 1")
        for table in (*BIG, "mesh_worker", "mesh_requirement"):
            cursor.execute(f"analyze {table}")


@pytest.fixture
def busy_mesh(filled: None, db: None) -> Worker:
    return Worker.objects.get(name="worker-1")


def whole_reads(plans: list[str]) -> list[str]:
    """The plans that read a big table from end to end."""
    return explaining.whole_reads(plans, BIG)


def caller(worker: Worker) -> Caller:
    return Caller(f"worker:{worker.worker_id}", worker.tenant_id, "bench", worker_pk=worker.pk)


def test_a_claim_reads_the_ready_index_however_much_delayed_work_stands_before(
    busy_mesh: Worker,
) -> None:
    with explained() as plans:
        taken = claims.claim(caller=caller(busy_mesh), worker_id=busy_mesh.worker_id, maximum=10)
    assert len(taken.claims) == 10
    assert whole_reads(plans) == []
    assert any("using ready_work on mesh_workload" in plan for plan in plans)


def test_a_careful_claim_reads_the_ready_index_too(busy_mesh: Worker) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "update mesh_requirement set resources = jsonb_build_object('memory_bytes', id)"
        )
    Worker.objects.filter(pk=busy_mesh.pk).update(resource_profile={"memory_bytes": 1_000_000})
    EligibleSet.objects.filter(worker=busy_mesh).update(epoch=-1)
    with explained() as plans:
        taken = claims.claim(caller=caller(busy_mesh), worker_id=busy_mesh.worker_id, maximum=10)
    assert len(taken.claims) == 10
    assert whole_reads(plans) == []
    assert sum("using ready_work on mesh_workload" in plan for plan in plans) >= 2


def test_a_worker_s_calls_on_a_claim_read_single_rows(busy_mesh: Worker) -> None:
    worker: dict[str, Any] = {"caller": caller(busy_mesh), "worker_id": busy_mesh.worker_id}
    claim = claims.claim(**worker, maximum=1).claims[0]
    shown: dict[str, Any] = {
        "caller": worker["caller"],
        "claim_id": claim.claim_id,
        "fencing_token": claim.fencing_token,
    }
    with explained() as plans:
        leases.start(**shown)
        leases.renew(**shown)
        leases.checkpoint(**shown, state={"page": 1})
        liveness.heartbeat(
            **worker,
            version="1",
            capability_version=1,
            health="HEALTHY",
            timestamp=clock.now(),
            running_claims=[claim.claim_id],
        )
        settlement.complete(**shown, result_id="r", output=None)
    assert len(plans) > 15
    assert whole_reads(plans) == []


def test_many_starts_and_results_in_one_call_are_looked_up_by_their_ids(
    busy_mesh: Worker,
) -> None:
    worker: dict[str, Any] = {"caller": caller(busy_mesh), "worker_id": busy_mesh.worker_id}
    taken = claims.claim(**worker, maximum=3).claims
    with explained() as plans:
        starts.start(**worker, said=[Start(each.claim_id, each.fencing_token) for each in taken])
    assert len(plans) > 3
    assert whole_reads(plans) == []
    assert not [plan for plan in plans if "work_of_a_tenant" in plan]


@pytest.mark.parametrize("name", recovery.SWEEPS)
def test_a_sweep_reads_only_what_it_looks_for(busy_mesh: Worker, name: str) -> None:
    claims.claim(caller=caller(busy_mesh), worker_id=busy_mesh.worker_id, maximum=5, lease_ms=1_000)
    with clock.set_to(clock.now() + timedelta(seconds=2)), explained() as plans:
        recovery.run(name)
    assert plans
    assert whole_reads(plans) == []


# Thousands are late at once, as after an outage.
OVERDUE = (
    """
    update mesh_workload set deadline_at = now() + id * interval '1 ms'
    where id in (select id from mesh_workload order by id limit 5000)
    """,
    """
    update mesh_attempt a set status = 'RUNNING', ended_at = null,
        expires_at = now() + id * interval '1 ms', deadline_at = now() + id * interval '1 ms'
    where id in (select id from mesh_attempt order by id desc limit 5000)
    """,
)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("recover_expired_leases", "live_leases_by_end"),
        ("enforce_deadlines", "work_with_a_deadline"),
    ],
)
def test_what_is_late_is_found_by_its_index_also_when_it_is_much(
    busy_mesh: Worker, monkeypatch: pytest.MonkeyPatch, name: str, index: str
) -> None:
    with connection.cursor() as cursor:
        for statement in (*OVERDUE, "analyze mesh_workload", "analyze mesh_attempt"):
            cursor.execute(statement)
    monkeypatch.setattr("mesh.expiry.end_of_free", lambda pks: expiry.Ended())
    monkeypatch.setattr("mesh.deadlines.enforce", lambda **_: None)
    with clock.set_to(clock.now() + timedelta(hours=1)), explained() as plans:
        recovery.run(name)
    assert len(plans) > 5_000 / recovery.PAGE
    assert whole_reads(plans) == []
    assert any(f" {index} " in plan for plan in plans)


ENDED = """
update mesh_workload set state = 'CANCELLED', claimable = false, ended_at = now()
where id in (select id from mesh_workload order by id limit 1200)
"""


def test_retention_reads_what_is_old(busy_mesh: Worker, settings: Any) -> None:
    settings.KEEP_HISTORY_DAYS = 30
    with connection.cursor() as cursor:
        cursor.execute(ENDED)
        cursor.execute("analyze mesh_workload")
    with clock.set_to(clock.now() + timedelta(days=100)), explained() as plans:
        assert recovery.run("prune_history").counts["work"] == 1_200
    assert len(plans) > 20
    assert whole_reads(plans) == []


@pytest.mark.parametrize("state", [State.CANCELLED, State.DEAD_LETTER])
def test_a_list_of_a_rare_state_reads_its_index(busy_mesh: Worker, state: State) -> None:
    viewer = Caller("human:vera", busy_mesh.tenant_id, "bench", Role.VIEWER)
    with explained() as plans:
        listed = reading.workloads(viewer).filter(state=state).order_by("-created_at", "-id")[:51]
        assert list(listed) == []
    assert any("work_by_state_but_done" in plan for plan in plans)
    assert whole_reads(plans) == []


def test_why_work_does_not_run_is_answered_from_indexes(busy_mesh: Worker) -> None:
    viewer = Caller("human:vera", busy_mesh.tenant_id, "bench", Role.VIEWER)
    last, other = Workload.objects.filter(claimable=True).order_by("priority", "-created_at")[:2]
    waiting = Workload.objects.filter(claimable=False).earliest("pk")
    Dependency.objects.create(workload=waiting, depends_on=other)
    now = clock.now()
    Workload.objects.filter(pk=waiting.pk).update(open_dependencies=1, available_at=now)
    Requirement.objects.filter(pk=last.requirement_id).update(
        pool_id="gpu", resources={"gpu_count": 1}
    )
    Pool.objects.create(
        tenant=busy_mesh.tenant, application=busy_mesh.application, pool_id="gpu", name="GPUs"
    )
    with explained() as plans:
        states = [
            explain.explain(caller=viewer, workload_id=each.workload_id).state
            for each in (last, other, waiting)
        ]
        pauses.last_end(busy_mesh.application_id, "definition-1", now)
        list(Decision.objects.filter(workload=last)[:10])
    assert states == ["unplaceable", "queued", "blocked"]
    assert whole_reads(plans) == []
    assert any("using ready_work on mesh_workload" in plan for plan in plans)
    assert any("attempts_of_a_worker" in plan for plan in plans)
