"""Who calls, and what they may do: tenants, applications, members, roles, API tokens.

Guarantees: a caller belongs to exactly one tenant; every row of another tenant does not exist for
it. A role includes the weaker ones. Token secrets are random, returned once and stored hashed.
Locks nothing: its rows are written by people, rarely.
"""

import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, PermissionsMixin, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, transaction

from . import clock, history, statements
from .canonical import secret_hash
from .errors import DomainError
from .models import ApiToken, Application, Membership, Role, Tenant

TOKEN_PREFIX: Final = "fpt_"  # noqa: S105  # a prefix by which tokens are known, not a secret
# The permission to state that the old owner of a run has stopped. Every admin may; a person without
# that role may where Django gives it to them, in all tenants that they belong to.
ATTEST: Final = "workflows.attest_handoff"
_RANK: Final = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}
_MAX_NAME: Final = 200
_MAX_USER_NAME: Final = 150
_BY_HASH: Final = """
    select t.token_hash, t.id, t.name, t.role, t.tenant_id, n.name,
        t.last_used_at is not null and t.last_used_at > c.at - interval '1 minute'
    from mesh_apitoken t
    join mesh_tenant n on n.id = t.tenant_id
    cross join (select coalesce(%(fixed)s::timestamptz, clock_timestamp()) as at) c
    where t.token_hash = %(hash)s
        and t.revoked_at is null and (t.expires_at is null or t.expires_at > c.at)
"""
_NOTE_USE: Final = """
    update mesh_apitoken set last_used_at = coalesce(%(fixed)s::timestamptz, clock_timestamp())
    where id in (select id from mesh_apitoken where id = %(pk)s for no key update skip locked)
"""
logger = logging.getLogger(__name__)
_LIMIT: Final = range(1, 2**31)
_ATTESTATIONS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a subject in one tenant, with a role, or a worker that may act as itself only."""

    subject: str
    tenant_id: int
    tenant: str
    role: Role | None = None
    worker_pk: int | None = None
    # Of the credential that let a worker in; it may have registered anew by the time it acts.
    incarnation: int | None = None
    # Of the API token that let a service in; a later token of the same name is another one.
    token_pk: int | None = None
    # A person to whom Django gave the permission `ATTEST`.
    is_attester: bool = False

    @property
    def is_worker(self) -> bool:
        return self.worker_pk is not None

    def can(self, role: Role) -> bool:
        """Whether the caller's role is `role` or stronger; a worker has none."""
        return self.role is not None and _RANK[self.role] >= _RANK[role]

    @property
    def can_attest(self) -> bool:
        """Whether the caller may state that the old owner of a run has stopped."""
        return self.is_attester or self.can(Role.ADMIN)

    def require(self, role: Role) -> None:
        """Refuse (PERMISSION_DENIED) unless the caller's role is `role` or stronger."""
        if not self.can(role):
            raise DomainError("PERMISSION_DENIED", f"This needs the role {role.value}.")


def system_caller(tenant: Tenant, what: str) -> Caller:
    """The server itself, acting in `tenant` for a command or a sweep."""
    return Caller(f"system:{what}", tenant.pk, tenant.name, Role.ADMIN)


def caller_for_user(user: AbstractBaseUser | AnonymousUser, tenant_name: str | None) -> Caller:
    """A signed-in person as caller in the named tenant, or in their only one.

    Refuses with PERMISSION_DENIED where the person is no member, and with REQUEST_INVALID where
    they belong to several tenants and named none.
    """
    if not user.is_authenticated or not user.is_active:
        raise DomainError("AUTHENTICATION_REQUIRED", "Sign in first.")
    memberships = Membership.objects.select_related("tenant").filter(user_id=user.pk)
    if tenant_name is not None:
        memberships = memberships.filter(tenant__name=tenant_name)
    found = list(memberships[:2])
    if not found:
        raise DomainError("PERMISSION_DENIED", "You are not a member of that tenant.")
    if len(found) > 1:
        raise DomainError("REQUEST_INVALID", "You belong to several tenants: name one.")
    member = found[0]
    subject = f"human:{user.get_username()}"
    role = Role(member.role)
    # Admins may anyhow: not asked for them.
    is_attester = (
        role != Role.ADMIN and isinstance(user, PermissionsMixin) and user.has_perm(ATTEST)
    )
    return Caller(subject, member.tenant_id, member.tenant.name, role, is_attester=is_attester)


def authenticate(secret: str) -> Caller:
    """The service that an API token speaks for; one statement.

    That it was used is noted once a minute, in a second one that waits for nobody. Refuses with
    TOKEN_INVALID alike where the token is unknown, expired or revoked.
    """
    hashed = secret_hash(secret)
    found = statements.first(_BY_HASH, {"hash": hashed, "fixed": clock.fixed()})
    if found is None or not hmac.compare_digest(found[0], hashed):
        raise DomainError("TOKEN_INVALID", "The token is unknown, expired or revoked.")
    _, pk, name, role, tenant_id, tenant, was_noted = found
    if not was_noted:
        _note_use(pk)
    return Caller(f"service:{name}", tenant_id, tenant, Role(role), token_pk=pk)


def _note_use(pk: int) -> None:
    """A note for people: where it cannot be written now, the call goes on without it."""
    try:
        with transaction.atomic():
            statements.change(_NOTE_USE, {"pk": pk, "fixed": clock.fixed()})
    except DatabaseError as error:
        logger.info("The use of token %s was not noted: %s", pk, error)


def get_tenant(name: str) -> Tenant:
    """The tenant of that name; REQUEST_INVALID if there is none."""
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None:
        raise DomainError("REQUEST_INVALID", f"There is no tenant {name!r}.")
    return tenant


def get_application(caller: Caller, name: str) -> Application:
    """The caller's application of that name; APPLICATION_NOT_FOUND if there is none."""
    application = Application.objects.filter(tenant_id=caller.tenant_id, name=name).first()
    if application is None:
        raise DomainError("APPLICATION_NOT_FOUND", "There is no such application.")
    return application


def create_tenant(
    *,
    name: str,
    applications: Sequence[str],
    actor: str,
    limits: Mapping[str, int | None] | None = None,
    attestations: int | None = None,
) -> Tenant:
    """Make a tenant with its applications; a repeat adds what is missing and sets the `limits`.

    Limits are `max_live_claims` and `max_submissions_per_minute`, at least 1; None is no limit.
    `attestations` is how many people, 1 or 2, must state that the old owner of a run has stopped;
    None leaves it as it is (1 at first).
    What changes is audited, each limit with what it was before and is now.
    Refuses with REQUEST_INVALID a name that could not stand in an id or a path, a bad limit, and
    another number of people.
    """
    for each in (name, *applications):
        _require_name(each)
    wanted = limits or {}
    if not all(each is None or each in _LIMIT for each in wanted.values()):
        raise DomainError("REQUEST_INVALID", "A limit is a number from 1 on.")
    if attestations is not None:
        if attestations not in _ATTESTATIONS:
            raise DomainError("REQUEST_INVALID", "One or two people attest a hand-over.")
        wanted = {**wanted, "attestations": attestations}
    with transaction.atomic():
        tenant, is_new = Tenant.objects.get_or_create(name=name)
        changed = _limit(tenant, wanted)
        added = [
            each
            for each in dict.fromkeys(applications)
            if Application.objects.get_or_create(tenant=tenant, name=each)[1]
        ]
        if is_new or added or changed:
            done = "created" if is_new else "extended" if added else "limited"
            history.audit(
                tenant_id=tenant.pk,
                actor=actor,
                action=f"tenant.{done}",
                target=name,
                at=clock.now(),
                evidence={"applications": added, "limits": changed},
            )
    return tenant


def _limit(tenant: Tenant, wanted: Mapping[str, int | None]) -> dict[str, list[int | None]]:
    """Set what differs; of each such limit what it was before, and is now."""
    changed = {
        key: [getattr(tenant, key), most]
        for key, most in wanted.items()
        if getattr(tenant, key) != most
    }
    for key, (_, most) in changed.items():
        setattr(tenant, key, most)
    if changed:
        tenant.save(update_fields=list(changed))
    return changed


def create_user(*, name: str, tenant: Tenant, role: Role, password: str, actor: str) -> User:
    """Make a person who may sign in to the console as a member of `tenant`.

    A repeat sets role and password anew. Refuses with REQUEST_INVALID a bad name or weak password.
    """
    _require_person(name, password)
    with transaction.atomic():
        user, is_new = get_user_model().objects.get_or_create(username=name)
        _join(user, tenant, role, password, actor=actor, is_new=is_new)
    return user


@history.audited("member.created", on="name", writes=False)
def add_member(*, caller: Caller, name: str, role: Role, password: str) -> Membership:
    """Make a new person with a role in the caller's tenant. Needs the role admin.

    Refuses with REQUEST_INVALID a bad name, a weak password and the name of a person who exists
    already: an admin of one tenant must not set the password of somebody in another.
    """
    caller.require(Role.ADMIN)
    _require_person(name, password)
    tenant = Tenant.objects.get(pk=caller.tenant_id)
    try:
        with transaction.atomic():
            user = get_user_model().objects.create(username=name)
            return _join(user, tenant, role, password, actor=caller.subject, is_new=True)
    except IntegrityError as error:
        raise DomainError("REQUEST_INVALID", f"A person named {name!r} exists already.") from error


@history.audited("token.created", on="name", writes=False)
def create_token(
    *, caller: Caller, name: str, role: Role, expires_in_s: int | None = None
) -> tuple[ApiToken, str]:
    """Make an API token for the subject `service:<name>`; its secret is returned only here.

    Needs the role admin. Refuses with REQUEST_INVALID a bad name, a duration below one second and
    a name that a token in force already has; so a repeat is refused until that one is revoked.
    """
    caller.require(Role.ADMIN)
    _require_name(name)
    if expires_in_s is not None and not 1 <= expires_in_s <= 10 * 366 * 86_400:
        raise DomainError("REQUEST_INVALID", "A token lasts from one second to ten years.")
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    try:
        with transaction.atomic():
            at = clock.now()
            token = ApiToken.objects.create(
                tenant_id=caller.tenant_id,
                name=name,
                role=role,
                token_hash=secret_hash(secret),
                created_at=at,
                created_by=caller.subject,
                expires_at=None if expires_in_s is None else at + timedelta(seconds=expires_in_s),
            )
            history.audit(
                tenant_id=caller.tenant_id,
                actor=caller.subject,
                action="token.created",
                target=token.subject,
                at=at,
                evidence={"role": role},
            )
    except IntegrityError as error:
        raise DomainError(
            "REQUEST_INVALID", f"A token named {name!r} is in force; revoke it first."
        ) from error
    return token, secret


@history.audited("token.revoked", on="name", writes=False)
def revoke_token(*, caller: Caller, name: str, reason: str = "") -> ApiToken:
    """End the token of that name at once. A repeat finds none in force: REQUEST_INVALID."""
    caller.require(Role.ADMIN)
    with transaction.atomic():
        at = clock.now()
        in_force = ApiToken.objects.filter(
            tenant_id=caller.tenant_id, name=name, revoked_at__isnull=True
        )
        token = in_force.first()
        if token is None or not in_force.filter(pk=token.pk).update(revoked_at=at):
            raise DomainError("REQUEST_INVALID", f"No token named {name!r} is in force.")
        token.revoked_at = at
        history.audit(
            tenant_id=caller.tenant_id,
            actor=caller.subject,
            action="token.revoked",
            target=token.subject,
            reason=reason,
            at=at,
        )
    return token


def _require_person(name: str, password: str) -> None:
    _require_name(name)
    if len(name) > _MAX_USER_NAME:
        raise DomainError("REQUEST_INVALID", "A person's name has at most 150 characters.")
    if not password.strip():
        raise DomainError("REQUEST_INVALID", "A password is needed.")
    try:
        validate_password(password)
    except ValidationError as error:
        raise DomainError("REQUEST_INVALID", " ".join(error.messages)) from error


def _join(
    user: User, tenant: Tenant, role: Role, password: str, *, actor: str, is_new: bool
) -> Membership:
    user.is_staff = True
    user.set_password(password)
    user.save()
    member, _ = Membership.objects.update_or_create(
        user=user, tenant=tenant, defaults={"role": role}
    )
    history.audit(
        tenant_id=tenant.pk,
        actor=actor,
        action="member.created" if is_new else "member.changed",
        target=f"human:{user.get_username()}",
        at=clock.now(),
        evidence={"role": role},
    )
    return member


def _require_name(name: str) -> None:
    is_safe = all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    if not is_safe or not 1 <= len(name) <= _MAX_NAME:
        raise DomainError(
            "REQUEST_INVALID", "A name has 1 to 200 of the characters A-Z a-z 0-9 . _ -"
        )
