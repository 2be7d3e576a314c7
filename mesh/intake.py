"""Intake: submitting work.

Guarantees: a key stands for one workload for ever and equal content.

Locks: nothing but the application row when a new kind of work appears.
"""

from dataclasses import dataclass
from typing import Final

from django.db import IntegrityError, transaction

from . import clock, grants, history, requirements
from .canonical import digest, size
from .errors import DomainError
from .models import Application, Grant, Role, Workload
from .requirements import Need
from .screening import require_no_secrets
from .submissions import Submission, require_values
from .tenancy import Caller, get_application
from .workloads import make_ready

_COPIED: Final = (
    "environment",
    "definition_id",
    "definition_revision",
    "trigger",
    "input",
    "idempotency_key",
    "capability_snapshot",
    "priority",
    "retry_policy",
    "timeouts",
    "policy",
    "lost_policy",
    "connection_scopes",
    "session_id",
)


@dataclass(frozen=True, slots=True)
class Submitted:
    workload: Workload
    created: bool


def submit(*, caller: Caller, submission: Submission, grant: str | None = None) -> Submitted:
    """Take in one workload, READY when due. The same key with the same content is the same work.

    Needs the role operator, or a grant that names the caller. Refuses in this order:
    PERMISSION_DENIED; APPLICATION_NOT_FOUND; WORKLOAD_SECRET_REJECTED; WORKLOAD_INVALID;
    WORKLOAD_IDEMPOTENCY_MISMATCH; the grant's codes (`grants.verify_for_submit`); LIMIT_EXCEEDED.
    """
    if caller.is_worker:
        raise DomainError("PERMISSION_DENIED", "A worker submits no work.")
    if grant is None:
        caller.require(Role.OPERATOR)
    application = get_application(caller, submission.application)
    require_no_secrets(input=submission.input)
    content = submission.content()
    require_values(submission, content)
    content_digest = digest(content)
    stored = _stored(application, submission, content_digest)
    if stored is not None:
        return Submitted(stored, created=False)
    proof = (
        None
        if grant is None
        else grants.verify_for_submit(
            grant, caller, application.name, clock.now(), submission.facts(caller.tenant)
        )
    )
    try:
        with transaction.atomic():
            made = _create(caller, application, submission, content_digest, proof)
            return Submitted(made, created=True)
    except IntegrityError:
        # The same key was taken in this very moment.
        stored = _stored(application, submission, content_digest)
        if stored is None:
            raise
        return Submitted(stored, created=False)


def _stored(
    application: Application, submission: Submission, content_digest: str
) -> Workload | None:
    """The workload that has the key; refuses with WORKLOAD_IDEMPOTENCY_MISMATCH other content."""
    stored = Workload.objects.filter(
        application=application, idempotency_key=submission.idempotency_key
    ).first()
    if stored is not None and stored.content_digest != content_digest:
        raise DomainError(
            "WORKLOAD_IDEMPOTENCY_MISMATCH",
            "This idempotency key stands for other content.",
            workload_id=stored.workload_id,
        )
    return stored


def _create(
    caller: Caller,
    application: Application,
    submission: Submission,
    content_digest: str,
    proof: Grant | None,
) -> Workload:
    content = submission.content()
    requirement = requirements.find(
        application,
        Need(
            submission.definition_id,
            tuple(submission.capability_snapshot),
            **content["policy"],
        ),
    )
    at = clock.now()
    available_at = max(at, submission.not_before or at)
    workload = Workload(
        workload_id=submission.workload_id(caller.tenant),
        tenant_id=caller.tenant_id,
        application=application,
        requirement=requirement,
        requested_by=caller.subject,
        grant=proof,
        grant_digest="" if proof is None else proof.token_digest,
        content_digest=content_digest,
        input_bytes=size(submission.input),
        not_before=submission.not_before,
        created_at=at,
        updated_at=at,
        available_at=available_at,
        ready_at=at,
        overall_from=at,
        **{name: content[name] for name in _COPIED},
    )
    event = make_ready(workload, available_at, actor=caller.subject, at=at)
    workload.save(force_insert=True)
    event.workload_id = workload.pk
    history.write([event])
    return workload
