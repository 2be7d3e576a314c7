"""Signed capability grants: issue, delegate, verify.

A grant is a compact JWS (EdDSA over Ed25519) that says: this subject holds these capabilities in
this application until that time. The server also remembers each grant it issued, and it is its own
row that decides about time, revocation and rights: a token only proves which row is meant.

Verification goes from what cannot be trusted to what can: form, algorithm, key, signature, issued
here; whose it is; time; revocation; right and scope; constraints; and, of a derived grant, that
each grant above it would allow the same to its own subject and that it is within that one.
Register and submit use the same steps in their own order.

Locks: issue and delegate share the tenant's lock on rights, which a revocation holds alone; so no
grant that a revocation concerns is made while it runs. Beyond that only the superseded row.
"""

import hmac
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from django.db import transaction

from . import clock, history, locking, scopes, signing
from .errors import DomainError
from .models import MAX_DEPTH, Application, Grant, GrantStatus, Role
from .scopes import CAPABILITY_PREFIX, Facts, Request
from .tenancy import Caller, get_application

MAX_LIFE_MS: Final = 365 * 86_400_000
DEFAULT_LIFE_MS: Final = 3_600_000
NOTHING_KNOWN: Final = Facts()


@history.audited("grant.issued", on="subject", writes=False)
def issue(
    *,
    caller: Caller,
    application: str,
    subject: str,
    capabilities: Sequence[str],
    resources: Sequence[Mapping[str, str]] = (),
    constraints: Mapping[str, Any] | None = None,
    expires_in_ms: int = DEFAULT_LIFE_MS,
    not_before: datetime | None = None,
    revision: int = 1,
    supersedes: str | None = None,
) -> tuple[Grant, str]:
    """Sign a new grant; its token is returned only here. Needs the role admin.

    `expires_in_ms` counts from now, `not_before` included. Each call makes a new grant; only one
    named in `supersedes` is superseded, and must be an active one of the same subject.
    Refuses with PERMISSION_DENIED, APPLICATION_NOT_FOUND, REQUEST_INVALID (subject, rights, scopes,
    constraints, times, revision), GRANT_NOT_FOUND and GRANT_REVOKED (`supersedes`).
    """
    caller.require(Role.ADMIN)
    where = get_application(caller, application)
    rules = dict(constraints or {})
    scopes.require_statement(application, subject, capabilities, resources, rules)
    _require_life(expires_in_ms)
    if not 1 <= revision < 2**63:
        raise DomainError("REQUEST_INVALID", "A revision is at least 1.")
    with transaction.atomic():
        locking.share_rights(caller.tenant_id)
        old = None if supersedes is None else _supersede(caller, supersedes, subject, where.pk)
        at = clock.now()
        grant = _draft(caller, where, at)
        grant.subject = subject
        grant.capabilities = sorted(set(capabilities))
        grant.resources = [dict(each) for each in resources]
        grant.constraints = rules
        grant.revision = revision
        grant.not_before = not_before or at
        grant.expires_at = at + timedelta(milliseconds=expires_in_ms)
        grant.supersedes = old
        token = _sign_and_save(grant, caller, "grant.issued", {"supersedes": supersedes})
    return grant, token


@history.audited("grant.delegated", on="grant_id", writes=False)
def delegate(
    *,
    caller: Caller,
    grant_id: str,
    subject: str,
    capabilities: Sequence[str],
    resources: Sequence[Mapping[str, str]] = (),
    constraints: Mapping[str, Any] | None = None,
    expires_in_ms: int | None = None,
    reason: str = "",
) -> tuple[Grant, str]:
    """Derive a grant from another one, for any subject and within what that one allows.

    Needs the role admin. It has its parent's application and revision, begins when that one did or
    now, and lasts for `expires_in_ms` from now (default: an hour, or until the parent ends). Each
    call makes a new grant. What the parent constrains must be said again, as tight or tighter.

    Refuses in this order: PERMISSION_DENIED; GRANT_NOT_FOUND; REQUEST_INVALID (as `issue`);
    GRANT_EXPIRED (the parent is over) and GRANT_REVOKED (the parent is no longer in force);
    GRANT_DELEGATION_INVALID with `parts` (it would be wider than a grant above it, or one above is
    superseded) and where it would be more than 8 deep.
    """
    caller.require(Role.ADMIN)
    found = Grant.objects.visible_to(caller).filter(grant_id=grant_id)
    if not found.exists():
        raise DomainError("GRANT_NOT_FOUND", "There is no such grant.")
    rules = dict(constraints or {})
    with transaction.atomic():
        locking.share_rights(caller.tenant_id)
        parent = found.select_related("application").get()
        scopes.require_statement(parent.application.name, subject, capabilities, resources, rules)
        _require_life(DEFAULT_LIFE_MS if expires_in_ms is None else expires_in_ms)
        at = clock.now()
        if parent.expires_at <= at:
            raise DomainError("GRANT_EXPIRED", "The grant is over.")
        above = [parent, *ancestors(parent)]
        require_in_force(parent, above)
        grant = _draft(caller, parent.application, at)
        grant.parent = parent
        grant.depth = parent.depth + 1
        grant.subject = subject
        grant.capabilities = sorted(set(capabilities))
        grant.resources = [dict(each) for each in resources]
        grant.constraints = rules
        grant.revision = parent.revision
        grant.not_before = max(at, parent.not_before)
        grant.expires_at = _end_within(parent, at, expires_in_ms)
        _require_derived(grant, above)
        evidence = {"parent": parent.grant_id}
        token = _sign_and_save(grant, caller, "grant.delegated", evidence, reason)
    return grant, token


def decode(token: str) -> Grant:
    """The remembered grant that a token proves: form, algorithm, key, signature, issued here.

    Refuses with GRANT_INVALID and says nothing more. Time, rights and revocation are not judged.
    """
    claims = signing.verify(token)
    known = Grant.objects.select_related("tenant", "application")
    grant = known.filter(grant_id=str(claims["jti"])).first()
    if grant is None or not hmac.compare_digest(grant.token_digest, signing.token_digest(token)):
        raise signing.invalid()
    return grant


def ancestors(grant: Grant) -> list[Grant]:
    """The grants that it was derived from, its parent first; a root has none.

    Bounded by the depth that a grant may have, whatever the rows say.
    """
    found: list[Grant] = []
    at = grant
    while at.parent_id is not None and len(found) < MAX_DEPTH:
        at = Grant.objects.select_related("application").get(pk=at.parent_id)
        found.append(at)
    return found


def with_derived(pks: Sequence[int]) -> list[int]:
    """The keys of these grants and of all that were derived from them, at any depth; each once."""
    found = level = set(pks)
    while level:
        below = Grant.objects.filter(parent__in=level).values_list("pk", flat=True)
        level = set(below) - found
        found = found | level
    return sorted(found)


def require_in_time(grant: Grant, at: datetime) -> None:
    """Refuse with GRANT_EXPIRED before the grant begins and from its very end on; no leeway."""
    if at < grant.not_before:
        raise DomainError("GRANT_EXPIRED", "The grant is not valid yet.")
    if grant.expires_at <= at:
        raise DomainError("GRANT_EXPIRED", "The grant is over.")


def require_in_force(grant: Grant, above: Sequence[Grant] = ()) -> None:
    """Refuse with GRANT_REVOKED if it was revoked or superseded, or one above it was revoked.

    Subjects, applications and tenants are revoked by revoking their grants, so their status tells.
    """
    if grant.status != GrantStatus.ACTIVE:
        raise DomainError("GRANT_REVOKED", f"The grant is {grant.status.lower()}.")
    if any(each.status == GrantStatus.REVOKED for each in above):
        raise DomainError("GRANT_REVOKED", "A grant that it was derived from is revoked.")


def has_right(grant: Grant, right: str) -> bool:
    """Whether the grant names exactly this right; there are no wildcards."""
    return right in grant.capabilities


def require_scope(grant: Grant, asked: Request) -> None:
    """Refuse with GRANT_SCOPE_DENIED unless the grant holds the right on the resource."""
    if not has_right(grant, asked.right):
        raise DomainError("GRANT_SCOPE_DENIED", f"The grant does not hold {asked.right}.")
    if not scopes.covers(grant, asked.uri):
        raise DomainError("GRANT_SCOPE_DENIED", f"The grant does not reach {asked.uri}.")


def require_constraints(grant: Grant, asked: Request) -> None:
    """Refuse with GRANT_SCOPE_DENIED unless every constraint is met; of what is not known, none."""
    if unmet := scopes.unmet(grant.constraints, asked.facts):
        raise DomainError(
            "GRANT_SCOPE_DENIED",
            f"The grant is constrained to other {', '.join(unmet)}.",
            constraints=unmet,
        )


def require_lineage(grant: Grant, above: Sequence[Grant], asked: Request, at: datetime) -> None:
    """Refuse with GRANT_DELEGATION_INVALID unless each grant above allows the same.

    Each is asked with its own subject, and the one below it must be within it.
    """
    if len(above) >= MAX_DEPTH:
        raise DomainError("GRANT_DELEGATION_INVALID", "The grant is derived too often.")
    _require_derived(grant, above)
    for each in above:
        try:
            require_in_time(each, at)
            require_scope(each, asked)
            require_constraints(each, asked)
        except DomainError as refusal:
            raise DomainError(
                "GRANT_DELEGATION_INVALID",
                f"A grant that it was derived from does not allow this: {refusal.detail}",
            ) from refusal


def names_worker(grant: Grant, worker_name: str) -> bool:
    """Whether the grant names exactly this worker; a name that ends in `*` does not."""
    return worker_name in grant.constraints.get("worker_names", ())


class Known:
    """Grants by the tokens that prove them, each read once however often it is presented."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Grant, list[Grant]] | DomainError] = {}

    def read(self, token: str) -> tuple[Grant, list[Grant]]:
        """The grant with those above it; refuses with GRANT_INVALID, as `decode` does."""
        if token not in self._read:
            try:
                grant = decode(token)
                self._read[token] = (grant, ancestors(grant))
            except DomainError as refusal:
                self._read[token] = refusal
        found = self._read[token]
        if isinstance(found, DomainError):
            raise found
        return found


def verify_for_submit(
    token: str,
    caller: Caller,
    application: str,
    at: datetime,
    facts: Facts = NOTHING_KNOWN,
    known: Known | None = None,
) -> Grant:
    """The grant under which `caller` may submit work to its application.

    Of a submission the environment, the id it will have and the labels that it requires of workers
    are known; a name or runtime of a worker is not, so a constraint on one refuses. `known` holds
    what one call has read already.

    Refuses in this order: GRANT_INVALID; WORKLOAD_UNAUTHORIZED (subject, tenant, application);
    GRANT_EXPIRED; GRANT_REVOKED; WORKLOAD_UNAUTHORIZED (no `workload:create`);
    GRANT_SCOPE_DENIED (resources, constraints); GRANT_DELEGATION_INVALID.
    """
    grant, above = (known or Known()).read(token)
    whose = (grant.subject, grant.tenant_id, grant.application.name)
    if whose != (caller.subject, caller.tenant_id, application):
        raise DomainError("WORKLOAD_UNAUTHORIZED", "The grant is not the caller's for this place.")
    require_in_time(grant, at)
    require_in_force(grant, above)
    if not has_right(grant, "workload:create"):
        raise DomainError("WORKLOAD_UNAUTHORIZED", "The grant does not hold workload:create.")
    asked = Request("workload:create", f"flow://{application}/workloads", facts)
    require_scope(grant, asked)
    require_constraints(grant, asked)
    require_lineage(grant, above, asked, at)
    return grant


def granted_capabilities(grant: Grant) -> frozenset[str]:
    """The worker capabilities, without their prefix, that the grant allows."""
    return frozenset(
        each.removeprefix(CAPABILITY_PREFIX)
        for each in grant.capabilities
        if each.startswith(CAPABILITY_PREFIX)
    )


def _draft(caller: Caller, application: Application, at: datetime) -> Grant:
    return Grant(
        grant_id=f"grant_{uuid.uuid4().hex}",
        tenant_id=caller.tenant_id,
        application=application,
        key_id=signing.load_keys().signing_id,
        issued_at=at,
        issued_by=caller.subject,
    )


def _sign_and_save(
    grant: Grant, caller: Caller, action: str, evidence: Mapping[str, Any], reason: str = ""
) -> str:
    """Write the grant, which is complete, and its audit row; the token."""
    if grant.not_before >= grant.expires_at:
        raise DomainError("REQUEST_INVALID", "The grant would end before it begins.")
    token = signing.sign(
        {
            "jti": grant.grant_id,
            "sub": grant.subject,
            "iat": grant.issued_at.timestamp(),
            "nbf": grant.not_before.timestamp(),
            "exp": grant.expires_at.timestamp(),
            "tenant": caller.tenant,
            "application": grant.application.name,
            "capabilities": grant.capabilities,
            "resources": grant.resources,
            "constraints": grant.constraints,
            "parent": None if grant.parent is None else grant.parent.grant_id,
            "revision": grant.revision,
            "contract_version": 1,
        }
    )
    grant.token_digest = signing.token_digest(token)
    grant.save()
    history.audit(
        tenant_id=caller.tenant_id,
        actor=caller.subject,
        action=action,
        target=grant.grant_id,
        reason=reason,
        at=grant.issued_at,
        evidence={
            "subject": grant.subject,
            "application": grant.application.name,
            "capabilities": grant.capabilities,
            **evidence,
        },
    )
    return token


def _require_life(expires_in_ms: int) -> None:
    if not 1_000 <= expires_in_ms <= MAX_LIFE_MS:
        raise DomainError("REQUEST_INVALID", "A grant lasts from one second to one year.")


def _end_within(parent: Grant, at: datetime, expires_in_ms: int | None) -> datetime:
    if expires_in_ms is None:
        return min(parent.expires_at, at + timedelta(milliseconds=DEFAULT_LIFE_MS))
    return at + timedelta(milliseconds=expires_in_ms)


def _require_derived(grant: Grant, above: Sequence[Grant]) -> None:
    """Refuse with GRANT_DELEGATION_INVALID unless each grant is within the one above it."""
    if grant.depth > MAX_DEPTH:
        raise DomainError("GRANT_DELEGATION_INVALID", f"A grant is at most {MAX_DEPTH} deep.")
    for child, parent in pairwise([grant, *above]):
        is_elsewhere = child.application_id != parent.application_id
        parts = ["application"] if is_elsewhere else scopes.excess(child, parent)
        if parts:
            raise DomainError(
                "GRANT_DELEGATION_INVALID",
                f"A derived grant stays within its parent: {', '.join(parts)}.",
                parts=parts,
            )
        if parent.status == GrantStatus.SUPERSEDED:
            raise DomainError(
                "GRANT_DELEGATION_INVALID", "A grant that it was derived from is superseded."
            )


def _supersede(caller: Caller, grant_id: str, subject: str, application_pk: int) -> Grant:
    old = (
        Grant.objects.visible_to(caller)
        .select_for_update(of=("self",), no_key=True)
        .filter(grant_id=grant_id)
        .first()
    )
    if old is None:
        raise DomainError("GRANT_NOT_FOUND", "There is no grant to supersede.")
    if (old.subject, old.application_id) != (subject, application_pk):
        raise DomainError("REQUEST_INVALID", "A grant supersedes one of the same subject only.")
    require_in_force(old)
    old.status = GrantStatus.SUPERSEDED
    old.save(update_fields=["status"])
    return old
