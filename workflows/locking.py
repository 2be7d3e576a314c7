"""The only places of workflows that lock rows. A run comes before everything that the mesh locks.

Order: run → resource key → worker → pool → workload, by primary key within each. Locks are `for no
key update`, so that rows pointing here by foreign key can be inserted meanwhile.
"""

from collections.abc import Collection
from typing import Final

from django.db import transaction

from mesh.errors import DomainError
from mesh.locking import busy
from mesh.tenancy import Caller

from .models import Coordinator, ResourceKey, Run
from .models.runs import RunQuerySet

_TRIES: Final = 3


def lock_run(caller: Caller, run_id: str) -> Run:
    """Lock the caller's run of that id; RUN_NOT_FOUND. Its input is not read, nor its steps."""
    run = _locked().filter(tenant_id=caller.tenant_id, run_id=run_id).first()
    if run is None:
        raise not_found()
    return run


def lock_runs(pks: Collection[int]) -> dict[int, Run]:
    """Lock these runs in the order of their keys; those that are gone are left out."""
    return {each.pk: each for each in _locked().filter(pk__in=pks).order_by("pk")}


def lock_resources(application_pk: int, resources: Collection[str]) -> None:
    """Lock the rows of these resources of an application, made where missing, in key order.

    The caller has locked a run. Whoever admits on one of them waits. A row that retention removed
    in between is made anew, with none of the others held meanwhile.
    """
    names = sorted(set(resources))
    rows = ResourceKey.objects.select_for_update(no_key=True).order_by("resource")
    for _ in range(_TRIES):
        with transaction.atomic():
            ResourceKey.objects.bulk_create(
                [ResourceKey(application_id=application_pk, resource=each) for each in names],
                ignore_conflicts=True,
            )
            found = rows.filter(application_id=application_pk, resource__in=names)
            if len(found.values_list("pk")) == len(names):
                return
            transaction.set_rollback(True)
    raise busy()


def lock_coordinator(tenant_pk: int, instance_id: str) -> Coordinator | None:
    """Lock that coordinator of the tenant; nothing else is locked after it."""
    locked = Coordinator.objects.select_for_update(of=("self",), no_key=True)
    return locked.filter(tenant_id=tenant_pk, instance_id=instance_id).first()


def not_found() -> DomainError:
    return DomainError("RUN_NOT_FOUND", "There is no such run.")


def _locked() -> RunQuerySet:
    return (
        Run.objects.select_for_update(of=("self",), no_key=True)
        .select_related("definition", "application", "tenant")
        .defer("input", "definition__steps")
    )
