"""Attestations: people state that the old owner of a run has stopped.

Guarantees: a statement holds for one transition of one run. It takes as many people as the tenant
asked for when the first one spoke, each another one; then it is complete, once, and has a receipt.
Only complete ones are evidence (`workflows.evidence`), and only for a while.

People are told apart by who they are as callers (`human:<name>`, `service:<name>`).

Locks: the run. So two statements of a run do not pass each other.
"""

import uuid
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from mesh import clock
from mesh.errors import DomainError
from mesh.history import audited
from mesh.models import Tenant
from mesh.tenancy import Caller

from . import blocks, history
from .locking import lock_run
from .models import Attestation, Receipt, Run, Statement, Verdict
from .transitions import Transition

RESOLVER = "attestation"


@audited("run.handoff_attested", on="run_id")
def attest(*, caller: Caller, run_id: str, transition: Transition, statement: str) -> Attestation:
    """State that the run's old owner has stopped, so that this transition may be made.

    Whether the transition fits the run is not asked here. A repeat by the same person gets the same
    row, until its evidence is too old to be used; then it is a new one. Refuses in this order:
    PERMISSION_DENIED (no attester); ADMISSION_INVALID (ids, a blank or too long statement);
    WORKLOAD_SECRET_REJECTED; RUN_NOT_FOUND; TRANSITION_INVALID.
    """
    require_attester(caller)
    transition.require_sound()
    blocks.require_reason(statement, what="statement")
    with transaction.atomic():
        run = lock_run(caller, run_id)
        transition.require_step()
        at = clock.now()
        mine = _standing(run, transition, caller.subject, at)
        if mine is not None:
            return mine
        made = Attestation.objects.create(
            tenant_id=run.tenant_id,
            run=run,
            attestation_id=f"attestation_{uuid.uuid4().hex}",
            transition=transition.shown(),
            transition_digest=transition.digest(),
            required=run.tenant.attestations,
            created_at=at,
        )
        _state(made, caller, statement, at)
    return made


@audited("run.handoff_confirmed", on="attestation_id")
def confirm(*, caller: Caller, attestation_id: str, statement: str) -> Attestation:
    """State the same as somebody else did before. A repeat by the same person changes nothing.

    Refuses in this order: PERMISSION_DENIED (no attester); ADMISSION_INVALID (a blank or too long
    statement); WORKLOAD_SECRET_REJECTED; ATTESTATION_NOT_FOUND; PERMISSION_DENIED (the caller is
    the first).
    """
    require_attester(caller)
    blocks.require_reason(statement, what="statement")
    with transaction.atomic():
        run_id = get(caller, attestation_id).run.run_id
        lock_run(caller, run_id)
        row = get(caller, attestation_id)
        people = list(row.statements.values_list("by", flat=True))
        if people[0] == caller.subject:
            raise DomainError("PERMISSION_DENIED", "Another person than the first confirms it.")
        if caller.subject not in people:
            _state(row, caller, statement, clock.now())
    return row


def get(caller: Caller, attestation_id: str) -> Attestation:
    """The attestation of the caller's tenant; ATTESTATION_NOT_FOUND."""
    rows = Attestation.objects.select_related("run")
    row = rows.filter(tenant_id=caller.tenant_id, attestation_id=attestation_id).first()
    if row is None:
        raise DomainError("ATTESTATION_NOT_FOUND", "There is no such attestation.")
    return row


def complete(run_pk: int, tenant_pk: int, transition: Transition) -> Attestation | None:
    """The latest complete attestation of this transition, by as many people as the tenant asks."""
    required = Tenant.objects.values_list("attestations", flat=True).get(pk=tenant_pk)
    return (
        Attestation.objects.filter(run_id=run_pk, transition_digest=transition.digest())
        .filter(completed_at__isnull=False, required__gte=required)
        .order_by("-completed_at", "-id")
        .first()
    )


def of_another(run_pk: int, transition: Transition, since: datetime) -> Attestation | None:
    """A complete attestation, not older than `since`, of another step from the same generation."""
    return (
        Attestation.objects.filter(
            run_id=run_pk,
            completed_at__gte=since,
            transition__expected__generation=transition.expected.generation,
        )
        .exclude(transition_digest=transition.digest())
        .order_by("-completed_at")
        .first()
    )


def named(run: Run, at: datetime) -> str:
    """The next owner that people named last who attested that the run's owner has stopped.

    Blank where nobody did whose word may still be used at `at`, or may still become complete.
    """
    usable = Q(completed_at__isnull=True) | Q(completed_at__gte=at - max_age())
    said = Attestation.objects.filter(usable, run=run).order_by("-id")
    latest = said.filter(transition__expected__generation=run.generation).first()
    return "" if latest is None else str(latest.transition["replacement"]["instance_id"])


def max_age() -> timedelta:
    """How long evidence may be used."""
    return timedelta(milliseconds=settings.EVIDENCE_MAX_AGE_MS)


def _standing(run: Run, transition: Transition, by: str, at: datetime) -> Attestation | None:
    """What that person stated already, unless it is too old by now."""
    own = Attestation.objects.filter(
        run=run, transition_digest=transition.digest(), required=run.tenant.attestations
    )
    latest = own.filter(statements__by=by).order_by("-id").first()
    if latest is None or latest.completed_at is None:
        return latest
    return latest if at - latest.completed_at <= max_age() else None


def _state(row: Attestation, caller: Caller, statement: str, at: datetime) -> None:
    """Write a statement; with the last one needed the attestation is complete."""
    Statement.objects.create(attestation=row, by=caller.subject, statement=statement, at=at)
    history.record(
        row.run,
        "handoff_attested",
        actor=caller.subject,
        at=at,
        evidence={"attestation_id": row.attestation_id, **row.transition},
    )
    if row.completed_at is None and row.statements.count() >= row.required:
        row.completed_at = at
        row.save(update_fields=["completed_at"])
        Receipt.objects.create(
            tenant_id=row.tenant_id,
            run_id=row.run_id,
            receipt_id=row.receipt_id,
            resolver=RESOLVER,
            verdict=Verdict.CONFIRMED,
            transition=row.transition,
            saw=saw(row),
            at=at,
        )


def saw(row: Attestation) -> dict[str, object]:
    """Who stated what, and when, as a receipt shows it."""
    statements = [
        {"by": each.by, "at": each.at.isoformat(), "statement": each.statement}
        for each in row.statements.all()
    ]
    return {"attestation_id": row.attestation_id, "statements": statements}


def require_attester(caller: Caller) -> None:
    """Refuse with PERMISSION_DENIED who may not state that an old owner has stopped."""
    if not caller.can_attest:
        raise DomainError("PERMISSION_DENIED", "This needs the permission to attest hand-overs.")
