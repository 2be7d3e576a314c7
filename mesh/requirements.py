"""Requirement rows, and which of them each worker may take.

Work that is alike in what placement looks at shares one immutable requirement row, so a claim
looks at a few requirements instead of many workloads. Requirements in use are numbered within
their application, under the application row's lock, so numbers become visible in their order; a
worker's eligible set says up to which number it is worked out and catches up at its next claim.

At most `MAX_IN_USE` requirements of an application are in use. When they are used up, those
without open work are put to rest (`number` null, the application's epoch rises, every eligible
set of the application is worked out anew); if none is, new kinds of work are refused.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet

from . import candidates, locking, placement
from .canonical import digest
from .errors import DomainError
from .models import ENDED_STATES, Application, EligibleSet, Requirement, Worker, Workload

MAX_IN_USE: Final = 5_000
_UNKNOWN: Final[Mapping[str, Any]] = {
    "requirement_ids": [],
    "bounded_ids": [],
    "epoch": -1,
    "upto_number": 0,
}


@dataclass(frozen=True, slots=True)
class Need:
    """What placement looks at."""

    definition_id: str
    capabilities: tuple[str, ...]
    required_labels: dict[str, str] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)
    anti_affinity: dict[str, str] = field(default_factory=dict)
    # None and nothing: any worker, counted by slots alone.
    pool_id: str | None = None
    resources: dict[str, int] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """The columns of the row, as equal needs share them.

        Pool and resources are named only where asked for: needs without them have the digests that
        they had before there were any.
        """
        amounts = {name: amount for name, amount in self.resources.items() if amount}
        bounds = {"pool_id": self.pool_id, "resources": amounts}
        return {
            "definition_id": self.definition_id,
            "capabilities": sorted(set(self.capabilities)),
            "required_labels": self.required_labels,
            "affinity": self.affinity,
            "anti_affinity": self.anti_affinity,
            **{name: each for name, each in bounds.items() if each},
        }

    def digest(self) -> str:
        """What finds its row within an application."""
        return digest(self.content())


def bring_into_use(
    wanted: Iterable[tuple[int, Need]], *, spare: Collection[str] = ()
) -> dict[tuple[int, str], DomainError]:
    """Make requirements for new kinds of work, or take resting ones back into use.

    `wanted` are needs with the keys of their applications, whose rows are locked in their order, so
    that none of theirs is put to rest until the caller's transaction ends, which must insert the
    work. What has a digest in `spare` is not put to rest to make room: the same call needs it.
    Returns the refusals by application and digest: LIMIT_EXCEEDED while `MAX_IN_USE` others have
    open work. Runs before any row of a worker or of work is locked or written.
    """
    refused: dict[tuple[int, str], DomainError] = {}
    named = {(application_pk, need.digest()): need for application_pk, need in wanted}
    for (application_pk, name), need in sorted(named.items(), key=lambda each: each[0][0]):
        try:
            with transaction.atomic():
                _take_into_use(application_pk, need.content(), spare)
        except DomainError as refusal:
            refused[application_pk, name] = refusal
    return refused


def keep_in_use(workload_pks: Sequence[int]) -> None:
    """Have ended work that is to be ready again stand under requirements in use.

    They may have been put to rest meanwhile, and no worker would find the work. They stay in use
    until the caller's transaction ends; `MAX_IN_USE` may be overshot by this. Comes before any lock
    of a worker or workload.
    """
    theirs = Workload.objects.filter(pk__in=workload_pks).values("requirement_id")
    found = Requirement.objects.filter(pk__in=theirs).order_by("application_id", "pk")
    for requirement in found:
        if _pinned(requirement.application_id, requirement.digest) is None:
            locked = lock_application(requirement.application_id)
            requirement.refresh_from_db(fields=["number"])
            if requirement.number is None:
                _number(locked, requirement)


def refresh(worker: Worker, application: Application) -> EligibleSet:
    """Bring a locked worker's eligible set up to date; it is locked until the transaction ends.

    The lock comes before requirements and pools are read: a change of a pool waits for it or has
    been seen, and is never written over by what was read before it.
    """
    locked = EligibleSet.objects.select_for_update(of=("self",), no_key=True)
    eligible = locked.filter(worker=worker).first() or EligibleSet(worker=worker, epoch=-1)
    is_current = eligible.epoch == application.requirement_epoch
    if is_current and eligible.upto_number == application.requirement_number:
        return eligible
    if not is_current:
        eligible.requirement_ids, eligible.bounded_ids, eligible.upto_number = [], [], 0
    newer = Requirement.objects.filter(
        application=application,
        number__gt=eligible.upto_number,
        number__lte=application.requirement_number,
    )
    fitting = _fitting(worker, list(newer))
    bounded = [each.pk for each in fitting if each.pool_id or each.resources]
    eligible.requirement_ids = sorted({*eligible.requirement_ids, *(each.pk for each in fitting)})
    eligible.bounded_ids = sorted({*eligible.bounded_ids, *bounded})
    eligible.epoch = application.requirement_epoch
    eligible.upto_number = application.requirement_number
    eligible.save()
    return eligible


def hold(worker: Worker) -> None:
    """Have changes of pools that a locked worker is in, or comes into, wait for this transaction.

    A pull has the same of `refresh`. Comes before the lock of a pool.
    """
    locked = EligibleSet.objects.select_for_update(of=("self",), no_key=True)
    list(locked.filter(worker=worker).values_list("pk"))


def forget(worker: Worker) -> None:
    """Have the eligible set worked out anew at the next claim: the worker itself changed."""
    EligibleSet.objects.update_or_create(worker=worker, defaults=_UNKNOWN)


def forget_all(worker_pks: Collection[int]) -> None:
    """The same for these workers, which nobody has locked: a pool of theirs changed.

    Keeps the workers as they are, then locks their eligible sets in the order of the workers, and
    waits for registers and claims under way.
    """
    locking.keep_workers(worker_pks)
    locked = EligibleSet.objects.select_for_update(of=("self",), no_key=True)
    held = locked.filter(worker_id__in=worker_pks).order_by("worker_id")
    pks = list(held.values_list("worker_id", flat=True))
    EligibleSet.objects.filter(worker_id__in=pks).update(**_UNKNOWN)


def lock_application(application_pk: int) -> Application:
    """Lock the application row: no new requirement, no other change of pools meanwhile.

    Comes before any lock of a worker, pool or workload.
    """
    return Application.objects.select_for_update(of=("self",), no_key=True).get(pk=application_pk)


def _fitting(worker: Worker, newer: list[Requirement]) -> list[Requirement]:
    pools = candidates.pools_of(worker, {each.pool_id for each in newer if each.pool_id})
    return [
        each
        for each in newer
        if not placement.lasting_reasons(each, worker, pools.get(each.pool_id))
    ]


def _pinned(application_pk: int, content_digest: str) -> Requirement | None:
    """The requirement if it is in use, kept from being put to rest until the transaction ends.

    The foreign key of the work takes this very lock, but only at commit, which is too late.
    """
    with transaction.atomic():
        found = Requirement.objects.raw(
            "select * from mesh_requirement where application_id = %s and digest = %s"
            " for key share",
            [application_pk, content_digest],
        )
        for requirement in found:
            if requirement.number is not None:
                return requirement
        # Taking it into use needs a stronger lock, which two that share this one never get.
        transaction.set_rollback(True)
    return None


def _take_into_use(
    application_pk: int, content: dict[str, Any], spare: Collection[str]
) -> Requirement:
    locked = lock_application(application_pk)
    requirement, _ = Requirement.objects.get_or_create(
        application=locked, digest=digest(content), defaults=content
    )
    if requirement.number is None:
        if _in_use(locked).count() >= MAX_IN_USE and not _put_to_rest(locked, spare):
            raise DomainError(
                "LIMIT_EXCEEDED",
                f"The application has open work of {MAX_IN_USE} different requirements.",
                retry_after_ms=60_000,
            )
        _number(locked, requirement)
    return requirement


def _number(locked: Application, requirement: Requirement) -> None:
    locked.requirement_number += 1
    locked.save(update_fields=["requirement_number"])
    requirement.number = locked.requirement_number
    requirement.save(update_fields=["number"])


def _put_to_rest(locked: Application, spare: Collection[str]) -> int:
    """Take every requirement without open work out of use; how many there were."""
    # `for update` conflicts with `_pinned`, so rows that work under way stands on are skipped.
    others = _in_use(locked).exclude(digest__in=list(spare))
    idle = _without_open_work(others).select_for_update(of=("self",), skip_locked=True)
    pks = [each.pk for each in idle]
    rested = _without_open_work(Requirement.objects.filter(pk__in=pks)).update(number=None)
    if rested:
        Application.objects.filter(pk=locked.pk).update(
            requirement_epoch=F("requirement_epoch") + 1
        )
        locked.refresh_from_db(fields=["requirement_epoch"])
    return rested


def _without_open_work(requirements: QuerySet[Requirement]) -> QuerySet[Requirement]:
    work = Workload.objects.filter(requirement_id=OuterRef("pk"))
    ready = work.filter(claimable=True)
    other = work.filter(claimable=False).exclude(state__in=ENDED_STATES)
    return requirements.filter(~Exists(ready), ~Exists(other))


def _in_use(application: Application) -> QuerySet[Requirement]:
    return Requirement.objects.filter(application=application, number__isnull=False)
