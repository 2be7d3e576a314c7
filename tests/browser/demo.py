"""A tenant with much going on, for tests and pictures of the console."""

from __future__ import annotations

from datetime import timedelta

from mesh import clock
from mesh.models import (
    Application,
    Attempt,
    AttemptStatus,
    DrainCause,
    Grant,
    GrantStatus,
    Health,
    Lifecycle,
    Role,
    Runtime,
    State,
    SweepRun,
    Tenant,
    Worker,
)
from tests.admin import rows
from tests.browser import demo_runs

KINDS = ("documents.extract", "documents.ocr", "invoices.match", "images.thumbnail")
ZONES = ("eu-1", "eu-2", "us-1")


def fill(tenant_name: str = "acme") -> Tenant:
    """Workers in every lifecycle, work in every state, alarms of every kind."""
    tenant = rows.tenant(tenant_name, "documents", "billing")
    documents, billing = (rows.application(tenant, each) for each in ("documents", "billing"))
    for name, role in (("ben", Role.OPERATOR), ("vera", Role.VIEWER)):
        rows.person(tenant, role, name)
    grant = rows.grant(
        documents,
        capabilities=["worker:register", *(f"worker:capability:{kind}" for kind in KINDS)],
    )
    bound = rows.grant(
        billing, constraints={"worker_names": ["billing-*"]}, expires_at=rows.ago(hours=-20)
    )
    rows.grant(
        documents,
        status=GrantStatus.REVOKED,
        revoked_at=rows.ago(hours=3),
        revoked_by="human:ann",
        revoke_reason="key left the building",
    )
    rows.token(tenant, "inbox")
    rows.token(tenant, "reporting")
    workers = []
    for i in range(64):
        lifecycle = (Lifecycle.READY, Lifecycle.BUSY, Lifecycle.READY, Lifecycle.READY)[i % 4]
        workers.append(
            rows.worker(
                documents if i % 3 else billing,
                f"{'extract' if i % 3 else 'billing'}-{i:02}",
                grant=grant if i % 3 else bound,
                lifecycle=lifecycle,
                active=4 if lifecycle == Lifecycle.BUSY else i % 4,
                health=Health.DEGRADED if i % 17 == 0 else Health.HEALTHY,
                runtime=list(Runtime)[i % 4],
                labels={"zone": ZONES[i % 3], "disk": "ssd"},
                last_seen_at=rows.ago(seconds=i % 9),
                last_poll_at=rows.ago(seconds=i % 9),
            )
        )
    _odd_workers(documents, grant)
    _work(documents, billing, workers)
    _pool(documents, [each for each in workers if each.application == documents][:9])
    _sweeps()
    rows.incident(billing, *workers[:5])
    demo_runs.fill(tenant)
    return tenant


def _pool(documents: Application, members: list[Worker]) -> None:
    """A pool that is full, with members that do not count."""
    live = list(Attempt.objects.live().filter(worker__application=documents)[:4])
    rows.pool(
        documents,
        *members,
        pool_id="gpu",
        name="Machines with a GPU",
        capabilities=["documents.extract"],
        required_labels={"zone": ZONES[1]},
        max_concurrency=len(live) or 1,
    )
    Attempt.objects.filter(pk__in=[each.pk for each in live]).update(pool_id="gpu")


def _odd_workers(documents: Application, grant: Grant) -> None:
    add = rows.worker
    add(
        documents,
        "edge-oslo-1",
        grant=grant,
        lifecycle=Lifecycle.DRAINING,
        active=2,
        drain_cause=DrainCause.OPERATOR,
        drain_requested_at=rows.ago(minutes=7),
        drain_deadline_at=rows.ago(minutes=-20),
        drain_reason="kernel update",
    )
    add(
        documents,
        "edge-oslo-2",
        grant=grant,
        lifecycle=Lifecycle.OFFLINE,
        health=Health.UNHEALTHY,
        last_seen_at=rows.ago(hours=2),
    )
    add(
        documents,
        "edge-oslo-3",
        grant=grant,
        lifecycle=Lifecycle.RECOVERING,
        health=Health.UNKNOWN,
        recovering_since=rows.ago(seconds=15),
    )
    add(
        documents,
        "customer-a-build-host-with-a-rather-long-name.internal.example",
        grant=grant,
        lifecycle=Lifecycle.REGISTERED,
        health=Health.UNKNOWN,
        last_poll_at=None,
        last_progress_at=None,
    )
    add(
        documents,
        "extract-deaf",
        grant=grant,
        last_poll_at=rows.ago(minutes=9),
        clock_skew_ms=7400,
    )


def _work(documents: Application, billing: Application, workers: list[Worker]) -> None:
    mine = [each for each in workers if each.application_id == documents.pk]
    for i in range(40):
        rows.workload(
            documents,
            State.SUCCEEDED,
            mine[i % len(mine)],
            KINDS[i % 3],
            rows.ago(minutes=60 + 3 * i),
        )
    for i in range(24):
        state = (State.RUNNING, State.CHECKPOINTED, State.CLAIMED)[i % 3]
        rows.workload(documents, state, mine[i], KINDS[i % 3], rows.ago(minutes=8 + i))
    for i in range(18):
        rows.workload(billing, definition="invoices.match", created_at=rows.ago(minutes=3 * i))
    failure = {"kind": "transient_connection", "error": "connect to files.internal timed out"}
    for i in range(3):
        rows.workload(
            documents,
            State.READY,
            definition=KINDS[0],
            claimable=False,
            available_at=clock.now() + timedelta(minutes=2 + i),
            last_failure=failure,
        )
    for i in range(4):
        dead = rows.workload(
            documents,
            State.DEAD_LETTER,
            mine[i],
            KINDS[i % 2],
            rows.ago(hours=2 + i),
            last_failure={
                "kind": "exit_2",
                "error": "PDF is encrypted: no password was given, and the owner did not answer",
            },
            started_attempts=3,
            attempt_count=3,
            fencing_token=3,
        )
        rows.attempt(dead, mine[i + 5], AttemptStatus.WORKER_LOST, 2)
        rows.attempt(
            dead,
            mine[i + 9],
            AttemptStatus.FAILED,
            3,
            failure={"kind": "exit_2", "error": "PDF is encrypted"},
        )
    stuck = rows.workload(
        documents,
        State.RUNNING,
        None,
        KINDS[1],
        rows.ago(minutes=40),
        fencing_token=1,
        attempt_count=1,
        started_attempts=1,
    )
    rows.attempt(
        stuck,
        mine[3],
        AttemptStatus.RUNNING,
        started_at=rows.ago(minutes=38),
        claimed_at=rows.ago(minutes=38),
        last_progress_at=rows.ago(minutes=25),
    )
    rows.workload(
        documents, State.CANCELLATION_REQUESTED, mine[7], cancel_requested_at=rows.ago(seconds=20)
    )
    _rich(documents, mine)


def _rich(documents: Application, mine: list[Worker]) -> None:
    """One workload with everything a page can show."""
    rich = rows.workload(
        documents,
        State.SUCCEEDED,
        mine[2],
        KINDS[0],
        rows.ago(minutes=30),
        idempotency_key="order-2026-000417",
        attempt_count=2,
        started_attempts=2,
        fencing_token=2,
    )
    first = rich.attempts.get()
    first.status = AttemptStatus.WORKER_LOST
    first.failure = {"kind": "worker_failure", "error": "its lease ended"}
    first.save()
    second = rows.attempt(rich, mine[4], AttemptStatus.SUCCEEDED, 2)
    rows.checkpoint(rich, first, 1)
    rows.checkpoint(rich, second, 2)
    rows.result(rich, second)
    steps = (
        ("started", "CLAIMED", "RUNNING"),
        ("recovered", "RUNNING", "RECOVERING"),
        ("ready", "RECOVERING", "READY"),
        ("claimed", "READY", "CLAIMED"),
        ("started", "CLAIMED", "RUNNING"),
        ("completed", "RUNNING", "SUCCEEDED"),
    )
    for i, (name, before, after) in enumerate(steps):
        rows.event(rich, 3 + i, name, before, after, "system:recovery", rows.ago(minutes=20 - i))
    for i, (name, before, after) in enumerate(
        (
            ("registered", "", "REGISTERED"),
            ("ready", "REGISTERED", "READY"),
            ("busy", "READY", "BUSY"),
        )
    ):
        rows.worker_event(mine[0], i + 1, name, before, after)


def _sweeps() -> None:
    at = clock.now()
    for name, lag in (
        ("promote_due", 1),
        ("recover_expired_leases", 2),
        ("enforce_deadlines", 95),
        ("release_dependents", 1),
        ("detect_silent_workers", 4),
    ):
        SweepRun.objects.update_or_create(
            name=name,
            defaults={
                "last_started_at": at - timedelta(seconds=lag),
                "last_finished_at": at - timedelta(seconds=lag),
                "duration_ms": 7 * lag,
                "counts": {"recovered": lag},
            },
        )
