"""Signed capability grants: issue and verify.

A grant is a compact JWS (EdDSA over Ed25519) that says: this subject holds these capabilities in
this application until that time. Several keys may verify, one signs; the private key comes from a
file, never from the database. The server also remembers each grant it issued, and it is its own
row that decides about time, revocation and rights: a token only proves which row is meant.

Verification goes from what cannot be trusted to what can: form, algorithm, key, signature, issued
here; whose it is; time; revocation; right and scope; constraints. Register and submit use the same
steps in their own order. Nothing here locks a row but the one that a new grant supersedes.
"""

import base64
import hmac
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from jwt.algorithms import OKPAlgorithm

from . import clock, history
from .errors import DomainError
from .models import Grant, GrantStatus, Role, ScopeKind
from .tenancy import Caller, get_application

ISSUER: Final = "fencepost"
CAPABILITY_PREFIX: Final = "worker:capability:"
RIGHTS: Final = frozenset(
    {
        "worker:register",
        "worker:heartbeat",
        "worker:manage",
        "worker:read",
        "workload:create",
        "workload:read",
        "workload:claim",
        "workload:execute",
        "workload:cancel",
        "workload:retry",
        "authorization:grant",
    }
)
MAX_LIFE_MS: Final = 365 * 86_400_000
_SUBJECT: Final = re.compile(
    r"(human|service|workload|agent|connection|worker):[A-Za-z0-9._:-]{1,200}"
)
_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The key that signs, and every key that verifies, by key id."""

    signing_id: str
    signing: Ed25519PrivateKey
    verifying: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)


def issue(
    *,
    caller: Caller,
    application: str,
    subject: str,
    capabilities: Sequence[str],
    resources: Sequence[Mapping[str, str]] = (),
    constraints: Mapping[str, Any] | None = None,
    expires_in_ms: int = 3_600_000,
    not_before: datetime | None = None,
    revision: int = 1,
    supersedes: str | None = None,
) -> tuple[Grant, str]:
    """Sign a new grant; its token is returned only here. Needs the role admin.

    `expires_in_ms` counts from now, `not_before` included. Each call makes a new grant; only one
    named in `supersedes` is superseded, and must be an active one of the same subject.
    Refuses with APPLICATION_NOT_FOUND, REQUEST_INVALID (subject, rights, scopes, times, revision),
    GRANT_NOT_FOUND and GRANT_REVOKED (`supersedes`).
    """
    caller.require(Role.ADMIN)
    where = get_application(caller, application)
    rules = dict(constraints or {})
    _require_statement(application, subject, capabilities, resources, rules)
    if not 1_000 <= expires_in_ms <= MAX_LIFE_MS:
        raise DomainError("REQUEST_INVALID", "A grant lasts from one second to one year.")
    if not 1 <= revision < 2**63:
        raise DomainError("REQUEST_INVALID", "A revision is at least 1.")
    keys = load_keys()
    with transaction.atomic():
        old = None if supersedes is None else _supersede(caller, supersedes, subject, where.pk)
        at = clock.now()
        grant = Grant(
            grant_id=f"grant_{uuid.uuid4().hex}",
            tenant_id=caller.tenant_id,
            application=where,
            subject=subject,
            capabilities=sorted(set(capabilities)),
            resources=[dict(each) for each in resources],
            constraints=rules,
            revision=revision,
            key_id=keys.signing_id,
            issued_at=at,
            not_before=not_before or at,
            expires_at=at + timedelta(milliseconds=expires_in_ms),
            issued_by=caller.subject,
            supersedes=old,
        )
        if grant.not_before >= grant.expires_at:
            raise DomainError("REQUEST_INVALID", "The grant would end before it begins.")
        token = _sign(grant, caller.tenant, keys)
        grant.token_digest = token_digest(token)
        grant.save()
        history.audit(
            tenant_id=caller.tenant_id,
            actor=caller.subject,
            action="grant.issued",
            target=grant.grant_id,
            at=at,
            evidence={
                "subject": subject,
                "application": application,
                "capabilities": grant.capabilities,
                "supersedes": supersedes,
            },
        )
    return grant, token


def decode(token: str) -> Grant:
    """The remembered grant that a token proves: form, algorithm, key, signature, issued here.

    Refuses with GRANT_INVALID and says nothing more. Time, rights and revocation are not judged.
    """
    try:
        key_id = str(jwt.get_unverified_header(token).get("kid", ""))
        key = load_keys().verifying[key_id]
        claims = jwt.decode(
            token,
            key,
            algorithms=["EdDSA"],
            issuer=ISSUER,
            options={
                "require": ["jti", "iss", "sub", "exp"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_aud": False,
                "verify_sub": False,
            },
        )
        grant = Grant.objects.select_related("tenant", "application").get(grant_id=claims["jti"])
    except (jwt.PyJWTError, KeyError, ValueError, TypeError, Grant.DoesNotExist) as error:
        raise _invalid() from error
    if not hmac.compare_digest(grant.token_digest, token_digest(token)):
        raise _invalid()
    return grant


def require_in_time(grant: Grant, at: datetime) -> None:
    """Refuse with GRANT_EXPIRED before the grant begins and from its very end on; no leeway."""
    if at < grant.not_before:
        raise DomainError("GRANT_EXPIRED", "The grant is not valid yet.")
    if grant.expires_at <= at:
        raise DomainError("GRANT_EXPIRED", "The grant is over.")


def require_in_force(grant: Grant) -> None:
    """Refuse with GRANT_REVOKED if the grant was revoked or superseded."""
    if grant.status != GrantStatus.ACTIVE:
        raise DomainError("GRANT_REVOKED", f"The grant is {grant.status.lower()}.")


def has_right(grant: Grant, right: str) -> bool:
    """Whether the grant names exactly this right; there are no wildcards."""
    return right in grant.capabilities


def require_scope(grant: Grant, right: str, uri: str) -> None:
    """Refuse with GRANT_SCOPE_DENIED unless the grant holds `right` on `uri`."""
    if not has_right(grant, right):
        raise DomainError("GRANT_SCOPE_DENIED", f"The grant does not hold {right}.")
    if grant.resources and not any(_covers(each, uri) for each in grant.resources):
        raise DomainError("GRANT_SCOPE_DENIED", f"The grant does not reach {uri}.")


def require_constraints(grant: Grant, *, worker_name: str | None) -> None:
    """Refuse with GRANT_SCOPE_DENIED unless every constraint is met; a missing value is not."""
    names = grant.constraints.get("worker_names")
    if names is None:
        return
    if worker_name is None or not any(_matches(each, worker_name) for each in names):
        raise DomainError("GRANT_SCOPE_DENIED", "The grant is for workers of other names.")


def names_worker(grant: Grant, worker_name: str) -> bool:
    """Whether the grant names exactly this worker; a name that ends in `*` does not."""
    return worker_name in grant.constraints.get("worker_names", ())


def verify_for_submit(token: str, caller: Caller, application: str, at: datetime) -> Grant:
    """The grant under which `caller` may submit work to its application.

    Refuses in this order: GRANT_INVALID; WORKLOAD_UNAUTHORIZED (subject, tenant, application);
    GRANT_EXPIRED; GRANT_REVOKED; WORKLOAD_UNAUTHORIZED (no `workload:create`);
    GRANT_SCOPE_DENIED (resources, constraints).
    """
    grant = decode(token)
    whose = (grant.subject, grant.tenant_id, grant.application.name)
    if whose != (caller.subject, caller.tenant_id, application):
        raise DomainError("WORKLOAD_UNAUTHORIZED", "The grant is not the caller's for this place.")
    require_in_time(grant, at)
    require_in_force(grant)
    if not has_right(grant, "workload:create"):
        raise DomainError("WORKLOAD_UNAUTHORIZED", "The grant does not hold workload:create.")
    require_scope(grant, "workload:create", f"flow://{application}/workloads")
    require_constraints(grant, worker_name=None)
    return grant


def granted_capabilities(grant: Grant) -> frozenset[str]:
    """The worker capabilities, without their prefix, that the grant allows."""
    return frozenset(
        each.removeprefix(CAPABILITY_PREFIX)
        for each in grant.capabilities
        if each.startswith(CAPABILITY_PREFIX)
    )


def jwks() -> dict[str, Any]:
    """The public keys that verify grants, as a JSON Web Key Set."""
    return {
        "keys": [
            {**_jwk(key), "kid": key_id, "alg": "EdDSA", "use": "sig"}
            for key_id, key in sorted(load_keys().verifying.items())
        ]
    }


def token_digest(token: str) -> str:
    """What is remembered of an issued token."""
    return sha256(token.encode()).hexdigest()


def load_keys() -> Keys:
    """The keys from GRANT_KEY_FILE (signs and verifies) and GRANT_VERIFY_KEYS_DIR (verify only).

    Read once per process; restart after a rotation. A missing or unusable key is a configuration
    error that names the file.
    """
    directory = settings.GRANT_VERIFY_KEYS_DIR
    return _load_keys(str(settings.GRANT_KEY_FILE or ""), str(directory or ""))


def key_id_of(key: Ed25519PublicKey) -> str:
    """The key's JWK thumbprint (RFC 7638), so that a key has the same id wherever it is used."""
    canonical = json.dumps(_jwk(key), separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(sha256(canonical.encode()).digest()).rstrip(b"=").decode()


@lru_cache(maxsize=8)
def _load_keys(key_file: str, directory: str) -> Keys:
    if not key_file:
        raise ImproperlyConfigured("FENCEPOST_GRANT_KEY_FILE is not set: no key to sign grants.")
    signing = _load(load_pem_private_key, Path(key_file), password=None)
    if not isinstance(signing, Ed25519PrivateKey):
        raise ImproperlyConfigured(f"{key_file} does not hold an Ed25519 private key.")
    publics = [signing.public_key()]
    for path in sorted(Path(directory).glob("*.pem")) if directory else ():
        public = _load(load_pem_public_key, path)
        if not isinstance(public, Ed25519PublicKey):
            raise ImproperlyConfigured(f"{path} does not hold an Ed25519 public key.")
        publics.append(public)
    verifying = {key_id_of(each): each for each in publics}
    return Keys(key_id_of(signing.public_key()), signing, verifying)


def _load(read: Any, path: Path, **options: Any) -> Any:
    try:
        return read(path.read_bytes(), **options)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ImproperlyConfigured(f"The grant key {path} cannot be read: {error}") from error


def _jwk(key: Ed25519PublicKey) -> dict[str, str]:
    members = OKPAlgorithm.to_jwk(key, as_dict=True)
    return {name: str(members[name]) for name in ("crv", "kty", "x")}


def _sign(grant: Grant, tenant: str, keys: Keys) -> str:
    claims = {
        "jti": grant.grant_id,
        "iss": ISSUER,
        "sub": grant.subject,
        "iat": grant.issued_at.timestamp(),
        "nbf": grant.not_before.timestamp(),
        "exp": grant.expires_at.timestamp(),
        "tenant": tenant,
        "application": grant.application.name,
        "capabilities": grant.capabilities,
        "resources": grant.resources,
        "constraints": grant.constraints,
        "parent": None,
        "revision": grant.revision,
        "contract_version": 1,
    }
    return jwt.encode(claims, keys.signing, algorithm="EdDSA", headers={"kid": keys.signing_id})


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


def _require_statement(
    application: str,
    subject: str,
    capabilities: Sequence[str],
    resources: Sequence[Mapping[str, str]],
    constraints: Mapping[str, Any],
) -> None:
    """Refuse with REQUEST_INVALID what nothing in the mesh could ever ask for."""
    if not _SUBJECT.fullmatch(subject):
        raise DomainError("REQUEST_INVALID", "A subject is written kind:id, as in service:billing.")
    unknown = [each for each in capabilities if not _is_right(each)]
    if not capabilities:
        raise DomainError("REQUEST_INVALID", "A grant without any right allows nothing.")
    if unknown:
        named = ", ".join(each[:80] for each in unknown[:3])
        rights = ", ".join(sorted(RIGHTS))
        raise DomainError(
            "REQUEST_INVALID",
            f"Not a right: {named}. Rights are {CAPABILITY_PREFIX}NAME, {rights}.",
        )
    for each in resources:
        if set(each) != {"kind", "uri"} or each["kind"] not in ScopeKind.values:
            kinds = ", ".join(ScopeKind.values)
            raise DomainError("REQUEST_INVALID", f"A resource has a uri and a kind of {kinds}.")
        _require_uri(application, each["uri"])
    if set(constraints) - {"worker_names"}:
        raise DomainError("REQUEST_INVALID", "The only constraint is worker_names.")
    for name in constraints.get("worker_names", ()):
        if not _NAME.fullmatch(name.removesuffix("*")) and name != "*":
            raise DomainError("REQUEST_INVALID", f"Not a worker name: {name!r}")


def _is_right(capability: str) -> bool:
    name = capability.removeprefix(CAPABILITY_PREFIX)
    return capability in RIGHTS or (name != capability and bool(_NAME.fullmatch(name)))


def _require_uri(application: str, uri: str) -> None:
    root = f"flow://{application}"
    is_inside = uri == root or uri.startswith(f"{root}/")
    if not is_inside or ".." in uri or "?" in uri or "#" in uri or len(uri) > 1_000:
        raise DomainError("REQUEST_INVALID", f"A uri begins with {root}/ and has no .. ? or #.")


def _covers(resource: Mapping[str, str], uri: str) -> bool:
    base = resource["uri"].rstrip("/")
    if uri == base:
        return True
    return resource["kind"] != ScopeKind.WORKLOAD and uri.startswith(f"{base}/")


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _invalid() -> DomainError:
    return DomainError("GRANT_INVALID", "The grant was not issued here, or was changed.")
