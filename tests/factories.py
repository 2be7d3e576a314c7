"""Rows in a state, made the way the product makes them: through the functions of the domain.

Each call makes its own names, so that tests do not meet by chance. `World` is one tenant with an
application and everything that acts in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, cast

from mesh import (
    claims,
    clock,
    grants,
    intake,
    leases,
    liveness,
    pauses,
    placing,
    pools,
    resolutions,
    settlement,
    tenancy,
    workloads,
)
from mesh.giving import Claim
from mesh.models import (
    Attempt,
    Grant,
    Health,
    Incident,
    Lifecycle,
    LostPolicy,
    Pause,
    Pool,
    Role,
    Runtime,
    State,
    Tenant,
    Worker,
    Workload,
)
from mesh.registration import Registration
from mesh.submissions import Submission
from mesh.tenancy import Caller

CAPABILITY: Final = "documents.extract"
REGISTRAR: Final = "service:registrar"
_numbers = itertools.count(1)


def name(noun: str) -> str:
    """A name that nothing else in this run has."""
    return f"{noun}-{next(_numbers)}"


def registration(
    *, tenant: str, application: str, grant: str, name: str, **members: Any
) -> Registration:
    """What a worker says of itself; `members` replaces any of it."""
    said: dict[str, Any] = {
        "runtime": Runtime.CONTAINER.value,
        "version": "1.0",
        "contract_version": 1,
        "registered_by": REGISTRAR,
        "concurrency": 4,
        "capabilities": [CAPABILITY],
    }
    return Registration(
        tenant=tenant, application=application, grant=grant, name=name, **{**said, **members}
    )


@dataclass
class Member:
    """A registered worker: its row (`refresh` reads it anew), credential and caller."""

    row: Worker
    credential: str

    @cached_property
    def caller(self) -> Caller:
        return Caller(
            f"worker:{self.row.worker_id}",
            self.row.tenant_id,
            self.row.tenant.name,
            worker_pk=self.row.pk,
        )

    @property
    def worker_id(self) -> str:
        return self.row.worker_id

    def refresh(self) -> Worker:
        self.row.refresh_from_db()
        return self.row

    def beat(self, *running: str, **members: Any) -> liveness.Beat:
        said = {"health": Health.HEALTHY.value, **members}
        said["timestamp"] = said.get("timestamp") or clock.now()
        return liveness.heartbeat(
            caller=self.caller,
            worker_id=self.worker_id,
            version=self.row.version,
            capability_version=self.row.capability_version,
            running_claims=list(running),
            **said,
        )

    def claim(self, maximum: int = 1, lease_ms: int | None = None) -> list[Claim]:
        taken = claims.claim(
            caller=self.caller, worker_id=self.worker_id, maximum=maximum, lease_ms=lease_ms
        )
        return taken.claims

    def start(self, claim: Claim) -> Attempt:
        return leases.start(**self.presenting(claim))

    def complete(self, claim: Claim, output: Any = None, result_id: str = "") -> Attempt:
        return settlement.complete(
            **self.presenting(claim), result_id=result_id or name("result"), output=output
        )

    def fail(self, claim: Claim, kind: str = "broken", error: str = "It broke.") -> Attempt:
        return settlement.fail(**self.presenting(claim), kind=kind, error=error)

    def presenting(self, claim: Claim) -> dict[str, Any]:
        """The arguments by which this worker presents a claim."""
        return {
            "caller": self.caller,
            "claim_id": claim.claim_id,
            "fencing_token": claim.fencing_token,
        }


@dataclass
class World:
    """One tenant with one application, and callers of each role."""

    tenant: Tenant = field(default_factory=lambda: make_tenant())
    application: str = "documents"

    def caller(self, role: Role = Role.ADMIN, subject: str = "service:ops") -> Caller:
        return Caller(subject, self.tenant.pk, self.tenant.name, role)

    @property
    def operator(self) -> Caller:
        return self.caller(Role.OPERATOR)

    def token(self, role: Role = Role.OPERATOR) -> str:
        """The secret of a new API token."""
        return tenancy.create_token(caller=self.caller(), name=name(role.value), role=role)[1]

    def grant(
        self,
        *,
        subject: str = REGISTRAR,
        capabilities: Sequence[str] = ("worker:register", f"worker:capability:{CAPABILITY}"),
        **members: Any,
    ) -> tuple[Grant, str]:
        return grants.issue(
            caller=self.caller(),
            application=self.application,
            subject=subject,
            capabilities=capabilities,
            **members,
        )

    def delegated(
        self,
        parent: Grant,
        *,
        subject: str = REGISTRAR,
        capabilities: Sequence[str] = ("worker:register", f"worker:capability:{CAPABILITY}"),
        **members: Any,
    ) -> tuple[Grant, str]:
        """A grant derived from another one."""
        return grants.delegate(
            caller=self.caller(),
            grant_id=parent.grant_id,
            subject=subject,
            capabilities=capabilities,
            **members,
        )

    def registration(self, **members: Any) -> Registration:
        said = {"grant": members.pop("grant", None) or self.grant()[1], "name": name("worker")}
        return registration(
            tenant=self.tenant.name, application=self.application, **{**said, **members}
        )

    def registered(self, **members: Any) -> Member:
        """A worker that registered and was not heard since."""
        done = liveness.register(registration=self.registration(**members), credential=None)
        return Member(
            Worker.objects.select_related("tenant").get(pk=done.worker.pk), done.credential
        )

    def worker(self, **members: Any) -> Member:
        """A READY, HEALTHY worker."""
        member = self.registered(**members)
        member.beat()
        member.refresh()
        return member

    def submission(self, **members: Any) -> Submission:
        said: dict[str, Any] = {
            "application": self.application,
            "environment": "production",
            "definition_id": "extract",
            "definition_revision": "1",
            "trigger": "manual",
            "input": {"document": "a.pdf"},
            "idempotency_key": name("key"),
            "capability_snapshot": [CAPABILITY],
        }
        return Submission(**{**said, **members})

    def workload(self, **members: Any) -> Workload:
        """READY work, due unless `not_before` says otherwise."""
        submission = self.submission(**members)
        return intake.submit(caller=self.operator, submission=submission).workload

    def pause(self, **members: Any) -> Pause:
        """A pause of all work of the application, unless it names a definition."""
        said = {"application": self.application, "reason": "bad release", **members}
        return pauses.create(caller=self.operator, **said)

    def pool(self, *members: Member, pool_id: str = "", **content: Any) -> Pool:
        """A pool of these workers, without a limit unless one is said."""
        said = {"name": "pool", "worker_ids": [each.worker_id for each in members], **content}
        return pools.create(
            caller=self.operator,
            application=self.application,
            pool_id=pool_id or name("pool"),
            content=cast(pools.Change, said),
        )

    def claimed(self, worker: Member | None = None, **members: Any) -> Held:
        """Work that a worker claimed and did not start."""
        row = self.workload(**members)
        holder = worker or self.worker()
        given = placing.place(
            caller=self.operator, workload_id=row.workload_id, worker_id=holder.worker_id
        )
        return Held(row, holder, given)

    def running(self, worker: Member | None = None, **members: Any) -> Held:
        held = self.claimed(worker, **members)
        held.worker.start(held.claim)
        return held

    def checkpointed(self, worker: Member | None = None, **members: Any) -> Held:
        held = self.running(worker, **members)
        leases.checkpoint(**held.presenting, state={"page": 1})
        return held

    def succeeded(self, worker: Member | None = None, **members: Any) -> Held:
        held = self.running(worker, **members)
        held.worker.complete(held.claim)
        return held

    def held(self, worker: Member | None = None, **members: Any) -> Held:
        """Started work that was taken from its worker and waits to be resolved."""
        held = self.running(worker, lost_policy=LostPolicy.HOLD.value, **members)
        resolutions.reclaim(
            caller=self.operator, workload_id=held.workload.workload_id, reason="it hangs"
        )
        held.refresh()
        return held

    def dead_letter(self, worker: Member | None = None, **members: Any) -> Held:
        held = self.running(worker, **{"retry_policy": {"max_attempts": 1}, **members})
        held.worker.fail(held.claim)
        return held

    def cancelling(self, worker: Member | None = None, **members: Any) -> Held:
        held = self.running(worker, **members)
        workloads.cancel(caller=self.operator, workload_id=held.workload.workload_id)
        return held

    def cancelled(self, **members: Any) -> Workload:
        row = self.workload(**members)
        return workloads.cancel(caller=self.operator, workload_id=row.workload_id)


@dataclass
class Held:
    """Work, and the worker that holds or held it by a claim."""

    workload: Workload
    worker: Member
    claim: Claim

    @property
    def presenting(self) -> dict[str, Any]:
        return self.worker.presenting(self.claim)

    @property
    def attempt(self) -> Attempt:
        return Attempt.objects.get(workload=self.workload, number=self.claim.attempt_number)

    def refresh(self) -> Workload:
        self.workload.refresh_from_db()
        return self.workload


def make_tenant(tenant: str | None = None, applications: Sequence[str] = ("documents",)) -> Tenant:
    return tenancy.create_tenant(
        name=tenant or name("tenant"), applications=applications, actor="system:test"
    )


def in_state(world: World, state: str) -> Workload:
    """A workload at rest in `state`."""
    makers: Mapping[str, Any] = {
        State.READY: world.workload,
        State.CLAIMED: world.claimed,
        State.RUNNING: world.running,
        State.CHECKPOINTED: world.checkpointed,
        State.CANCELLATION_REQUESTED: world.cancelling,
        State.SUCCEEDED: world.succeeded,
        State.DEAD_LETTER: world.dead_letter,
        State.CANCELLED: world.cancelled,
        State.HELD: world.held,
    }
    made = makers[state]()
    row: Workload = made.refresh() if isinstance(made, Held) else made
    assert row.state == state
    return row


def offline(world: World) -> Member:
    """A worker that was drained without claims, and so went offline."""
    from mesh import workers

    member = world.worker()
    workers.drain(caller=world.operator, worker_id=member.worker_id)
    assert member.refresh().lifecycle == Lifecycle.OFFLINE
    return member


def incident(world: World, *members: Member) -> Incident:
    """An open incident of the brake with these workers on its list."""
    application = tenancy.get_application(world.operator, world.application)
    made = Incident.objects.create(
        tenant=world.tenant,
        application=application,
        sweep="detect_silent_workers",
        reason="too_many_silent",
        opened_at=clock.now(),
    )
    made.workers.set([each.row for each in members])
    return made


def expire(held: Held) -> None:
    """Let the lease of a held claim be over since a moment ago."""
    Attempt.objects.filter(pk=held.attempt.pk).update(
        expires_at=clock.now() - timedelta(milliseconds=1)
    )
