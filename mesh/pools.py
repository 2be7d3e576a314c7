"""Pools: named sets of workers, with tests of their own and a limit on the work that names them.

Guarantees: members are workers of the pool's own application; a member that fails the pool's tests
(capabilities, labels) keeps its place and does not count; the live attempts whose work names a pool
stay below its limit, however many workers ask at once. A limit that is lowered ends nothing: no new
claims until enough attempts ended. Work that names a pool which does not exist waits for it.

Locks: the application row, then the eligible sets of workers that come, go or stay (by worker),
then the pool. So a change waits for claims under way, and later claims go by it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

from django.db import transaction

from . import clock, history, requirements
from .errors import DomainError
from .models import Pool, PoolMember, Role, Worker
from .tenancy import Caller, get_application
from .workers import MAX_LABELS, are_names, is_label

MAX_CONCURRENCY: Final = 2**31 - 1
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_MAX_TOLD: Final = 100


class Change(TypedDict, total=False):
    """What a pool is made of; a change names what it changes. No `max_concurrency`: no limit."""

    name: str
    capabilities: Sequence[str]
    required_labels: Mapping[str, str]
    worker_ids: Sequence[str]
    max_concurrency: int | None


@history.audited("pool.created", on="pool_id", writes=False)
def create(*, caller: Caller, application: str, pool_id: str, content: Change) -> Pool:
    """Make a pool. Work that names its id, and waited for it, may then be taken by its members.

    Refuses in this order: PERMISSION_DENIED; APPLICATION_NOT_FOUND; WORKER_INVALID;
    WORKER_POOL_EXISTS (so does a repeat); WORKER_NOT_FOUND with the `worker_ids` that are unknown.
    """
    caller.require(Role.OPERATOR)
    named = get_application(caller, application)
    _require_values(pool_id, content)
    with transaction.atomic():
        requirements.lock_application(named.pk)
        if Pool.objects.filter(tenant_id=caller.tenant_id, pool_id=pool_id).exists():
            raise _exists(pool_id)
        members = _members(named.pk, content.get("worker_ids", ()))
        requirements.forget_all(list(members.values()))
        at = clock.now()
        pool, is_new = Pool.objects.get_or_create(
            tenant_id=caller.tenant_id,
            pool_id=pool_id,
            defaults={
                "application": named,
                "created_by": caller.subject,
                "created_at": at,
                "updated_at": at,
                **_columns(content),
            },
        )
        if not is_new:
            # Made in this very moment in another application of the tenant.
            raise _exists(pool_id)
        _add(pool, members.values())
        _audit(pool, caller, "created", evidence={**_columns(content), "joined": sorted(members)})
    return pool


@history.audited("pool.changed", on="pool_id", writes=False)
def change(*, caller: Caller, pool_id: str, change: Change, reason: str = "") -> Pool:
    """Change what `change` names; `worker_ids` are all members from then on.

    A repeat changes nothing. Refuses in this order: PERMISSION_DENIED; POOL_NOT_FOUND;
    WORKER_INVALID; WORKER_NOT_FOUND with the `worker_ids` that are unknown.
    """
    caller.require(Role.OPERATOR)
    seen = _find(caller, pool_id)
    _require_values(pool_id, change)
    with transaction.atomic():
        requirements.lock_application(seen.application_id)
        before = _member_ids(seen)
        members = before
        if "worker_ids" in change:
            members = _members(seen.application_id, change["worker_ids"])
        requirements.forget_all([*before.values(), *members.values()])
        pool = _locked(seen)
        changed = {
            name: each for name, each in _columns(change).items() if getattr(pool, name) != each
        }
        joined, left = members.keys() - before.keys(), before.keys() - members.keys()
        if not changed and not joined and not left:
            return pool
        for name, each in changed.items():
            setattr(pool, name, each)
        pool.updated_at = clock.now()
        pool.save(update_fields=[*changed, "updated_at"])
        PoolMember.objects.filter(pool=pool, worker_id__in=[before[each] for each in left]).delete()
        _add(pool, [members[each] for each in joined])
        evidence = {**changed, "joined": sorted(joined), "left": sorted(left)}
        _audit(pool, caller, "changed", reason=reason, evidence=evidence)
    return pool


@history.audited("pool.deleted", on="pool_id", writes=False)
def delete(*, caller: Caller, pool_id: str, reason: str = "") -> None:
    """Take a pool away. Claims that are live go on; work that names it waits for one of its id.

    A repeat finds no pool. Refuses with PERMISSION_DENIED, POOL_NOT_FOUND.
    """
    caller.require(Role.OPERATOR)
    seen = _find(caller, pool_id)
    with transaction.atomic():
        requirements.lock_application(seen.application_id)
        before = _member_ids(seen)
        requirements.forget_all(list(before.values()))
        pool = _locked(seen)
        _audit(pool, caller, "deleted", reason=reason, evidence={"left": sorted(before)})
        pool.delete()


def _find(caller: Caller, pool_id: str) -> Pool:
    pool = Pool.objects.visible_to(caller).filter(pool_id=pool_id).first()
    if pool is None:
        raise _not_found()
    return pool


def _locked(seen: Pool) -> Pool:
    """The pool, locked; the one of the same id that was made anew is another."""
    locked = Pool.objects.select_for_update(of=("self",), no_key=True)
    pool = locked.filter(pk=seen.pk).first()
    if pool is None:
        raise _not_found()
    return pool


def _members(application_pk: int, worker_ids: Sequence[str]) -> dict[str, int]:
    """The keys of the named workers, by their ids."""
    there = Worker.objects.filter(
        application_id=application_pk, worker_id__in=worker_ids, removed_at__isnull=True
    )
    found = dict(there.values_list("worker_id", "pk"))
    missing = [each for each in dict.fromkeys(worker_ids) if each not in found]
    if missing:
        raise DomainError(
            "WORKER_NOT_FOUND",
            "The application has no such workers.",
            worker_ids=missing[:_MAX_TOLD],
        )
    return found


def _member_ids(pool: Pool) -> dict[str, int]:
    members = PoolMember.objects.filter(pool=pool)
    return dict(members.values_list("worker__worker_id", "worker_id"))


def _add(pool: Pool, worker_pks: Iterable[int]) -> None:
    PoolMember.objects.bulk_create(PoolMember(pool=pool, worker_id=pk) for pk in sorted(worker_pks))


def _columns(content: Change) -> dict[str, Any]:
    """What of it stands in the pool's own row."""
    columns: dict[str, Any] = {name: each for name, each in content.items() if name != "worker_ids"}
    if "capabilities" in columns:
        columns["capabilities"] = sorted(set(columns["capabilities"]))
    if "required_labels" in columns:
        columns["required_labels"] = dict(columns["required_labels"])
    return columns


def _require_values(pool_id: str, content: Change) -> None:
    """Refuse with WORKER_INVALID what is out of bounds, naming each part of it."""
    labels = content.get("required_labels", {})
    limit = content.get("max_concurrency")
    name = content.get("name", pool_id)
    rules = {
        "pool_id": _ID.fullmatch(pool_id) is not None,
        "name": bool(name.strip()) and len(name) <= 200,
        "capabilities": are_names(content.get("capabilities", ())),
        "required_labels": len(labels) <= MAX_LABELS
        and all(is_label(key, value) for key, value in labels.items()),
        "max_concurrency": limit is None or 1 <= limit <= MAX_CONCURRENCY,
    }
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise DomainError("WORKER_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken)


def _audit(
    pool: Pool, caller: Caller, act: str, *, evidence: dict[str, Any], reason: str = ""
) -> None:
    """Record it; of workers that came or went at most 100 are named, and all are counted."""
    told = dict(evidence)
    for side in ("joined", "left"):
        if side in told:
            told[side], told[f"{side}_count"] = told[side][:_MAX_TOLD], len(told[side])
    history.audit(
        tenant_id=pool.tenant_id,
        actor=caller.subject,
        action=f"pool.{act}",
        target=pool.pool_id,
        reason=reason,
        at=clock.now(),
        evidence=told,
    )


def _exists(pool_id: str) -> DomainError:
    return DomainError("WORKER_POOL_EXISTS", f"There is a pool {pool_id!r} in this tenant.")


def _not_found() -> DomainError:
    return DomainError("POOL_NOT_FOUND", "There is no such pool.")
