"""Rows for reading: found within the caller's reach, with all that their answers name."""

from typing import Final, TypeVar

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Count, Model, OuterRef, Prefetch, QuerySet, TextField
from django.db.models.functions import Cast, JSONObject, Length

from .. import clock, recovery
from ..errors import DomainError
from ..models import (
    Attempt,
    Checkpoint,
    Dependency,
    Grant,
    Incident,
    Pause,
    Pool,
    PoolMember,
    Role,
    SweepRun,
    Worker,
    Workload,
)
from ..models.scope import TenantQuerySet
from ..tenancy import Caller

MAX_EMBEDDED: Final = 200
MAX_LISTED: Final = 1_000
_MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
_MAX_PAGE_MEMBERS: Final = 100_000
_WAITS_FOR: Final = ArraySubquery(
    Dependency.objects.filter(workload_id=OuterRef("pk"))
    .order_by("depends_on_id")
    .values(row=JSONObject(workload_id="depends_on__workload_id", required_state="required_state"))
)
Row = TypeVar("Row", bound=Model)


def workers(caller: Caller) -> "QuerySet[Worker]":
    """The workers that the caller may list."""
    caller.require(Role.VIEWER)
    return _workers().visible_to(caller)


def worker(caller: Caller, worker_id: str) -> Worker:
    """One worker; a worker sees only itself."""
    return _one(_workers(), caller, "WORKER", worker_id=worker_id)


def whole(row: Worker) -> Worker:
    """A worker as the domain returned it, with what its answer names; one query at most."""
    if not {"tenant", "application", "grant"} <= row._state.fields_cache.keys():
        named = _workers().only("tenant__name", "application__name", "grant__grant_id")
        found = named.get(pk=row.pk)
        row.tenant, row.application, row.grant = found.tenant, found.application, found.grant
    return row


def workloads(caller: Caller) -> "QuerySet[Workload]":
    """The workloads that the caller may list, without inputs: see `with_inputs`."""
    caller.require(Role.VIEWER)
    live = Attempt.objects.live().select_related("worker")
    return (
        Workload.objects.visible_to(caller)
        .select_related("application")
        .prefetch_related(Prefetch("attempts", queryset=live, to_attr="live_attempts"))
        .defer("input")
        .annotate(input_size=Length(Cast("input", TextField())), waits_for=_WAITS_FOR)
    )


def with_inputs(page: list[Workload]) -> list[Workload]:
    """As many rows from the front as an answer can carry, each with its input."""
    kept: list[Workload] = []
    total = 0
    for row in page:
        total += row.input_size or 0  # type: ignore[attr-defined]  # annotated in `workloads`
        if kept and total > _MAX_PAGE_BYTES:
            break
        kept.append(row)
    keys = [row.pk for row in kept]
    inputs = dict(Workload.objects.filter(pk__in=keys).values_list("pk", "input"))
    for row in kept:
        row.input = inputs.get(row.pk)
    return kept


def workload(caller: Caller, workload_id: str) -> Workload:
    """One workload; a worker sees only the work of its own claims."""
    rows = Workload.objects.select_related("application", "result").annotate(waits_for=_WAITS_FOR)
    return _one(rows, caller, "WORKLOAD", workload_id=workload_id)


def workload_pk(caller: Caller, workload_id: str) -> int:
    """The key of a workload whose rows the caller may list."""
    caller.require(Role.VIEWER)
    return _one(Workload.objects.only("pk"), caller, "WORKLOAD", workload_id=workload_id).pk


def attempts(workload_pk: int) -> "QuerySet[Attempt]":
    return Attempt.objects.filter(workload_id=workload_pk).select_related("worker")


def latest_attempts(workload_pk: int) -> list[Attempt]:
    """The latest attempts in order; old ones may be many."""
    return list(attempts(workload_pk).order_by("-number")[:MAX_EMBEDDED])[::-1]


def waits_for(workload_pk: int) -> list[dict[str, str]]:
    """The dependencies of one workload; rows of `workload` and `workloads` bring them along."""
    rows = Dependency.objects.filter(workload_id=workload_pk).order_by("depends_on_id")
    named = rows.values_list("depends_on__workload_id", "required_state")
    return [{"workload_id": one, "required_state": state} for one, state in named]


def live_attempt(workload: Workload) -> Attempt | None:
    """The attempt that holds the workload, if its state says that one does."""
    if not workload.is_claimed:
        return None
    return attempts(workload.pk).live().first()  # type: ignore[attr-defined,no-any-return]


def latest_checkpoint(workload_pk: int) -> Checkpoint | None:
    return Checkpoint.objects.filter(workload_id=workload_pk).order_by("-sequence").first()


def pauses(caller: Caller) -> "QuerySet[Pause]":
    """The pauses that stand now and that the caller may list."""
    caller.require(Role.VIEWER)
    rows = Pause.objects.visible_to(caller).standing(clock.now())
    return rows.select_related("application")


def grants(caller: Caller) -> "QuerySet[Grant]":
    """The grants that the caller may list."""
    caller.require(Role.ADMIN)
    return _grants().visible_to(caller)


def grant(caller: Caller, grant_id: str) -> Grant:
    caller.require(Role.ADMIN)
    return _one(_grants(), caller, "GRANT", grant_id=grant_id)


def incidents(caller: Caller) -> "QuerySet[Incident]":
    """The incidents that the caller may list, each with the first of its workers."""
    caller.require(Role.VIEWER)
    listed = Worker.objects.only("worker_id").order_by("pk")[:MAX_LISTED]
    return (
        Incident.objects.visible_to(caller)
        .select_related("application")
        .prefetch_related(Prefetch("workers", queryset=listed, to_attr="listed"))
    )


def sweeps(caller: Caller) -> list[tuple[SweepRun, Incident | None]]:
    """Every sweep in the order of its name, with the open incident of the tenant that holds it."""
    caller.require(Role.VIEWER)
    names = sorted(recovery.SWEEPS)
    runs = {each.name: each for each in SweepRun.objects.filter(name__in=names)}
    standing = incidents(caller).filter(closed_at__isnull=True)
    newest = standing.order_by("sweep", "-pk").distinct("sweep")
    holding = {each.sweep: each for each in newest}
    return [(runs.get(name) or SweepRun(name=name), holding.get(name)) for name in names]


def pools(caller: Caller) -> "QuerySet[Pool]":
    """The pools that the caller may list, without their members: see `with_members`."""
    caller.require(Role.VIEWER)
    return Pool.objects.select_related("application").visible_to(caller)


def pool(caller: Caller, pool_id: str) -> Pool:
    """One pool with its members."""
    rows = Pool.objects.select_related("application")
    return with_members([_one(rows, caller, "POOL", pool_id=pool_id)])[0]


def with_members(page: list[Pool]) -> list[Pool]:
    """As many pools from the front as an answer can carry, each with its members' ids."""
    counted = PoolMember.objects.filter(pool__in=page).values_list("pool_id")
    sizes = dict(counted.annotate(number=Count("pk")))
    kept: list[Pool] = []
    total = 0
    for row in page:
        total += sizes.get(row.pk, 0)
        if kept and total > _MAX_PAGE_MEMBERS:
            break
        kept.append(row)
    ids: dict[int, list[str]] = {row.pk: [] for row in kept}
    members = PoolMember.objects.filter(pool__in=kept).order_by("worker__worker_id")
    for pool_pk, worker_id in members.values_list("pool_id", "worker__worker_id"):
        ids[pool_pk].append(worker_id)
    for row in kept:
        row.worker_ids = ids[row.pk]  # type: ignore[attr-defined]  # for `answers`
    return kept


def _workers() -> "TenantQuerySet[Worker]":
    rows = Worker.objects.filter(removed_at__isnull=True)
    return rows.select_related("tenant", "application", "grant")


def _grants() -> "TenantQuerySet[Grant]":
    return Grant.objects.select_related("application", "parent", "supersedes")


def _one(rows: "TenantQuerySet[Row]", caller: Caller, noun: str, **key: str) -> Row:
    """The row; what is in the tenant but out of a worker's reach is denied, all else not there."""
    row = rows.visible_to(caller).filter(**key).first()
    if row is not None:
        return row
    if caller.is_worker and rows.filter(tenant_id=caller.tenant_id, **key).exists():
        raise DomainError("PERMISSION_DENIED", "A worker sees only itself and its own work.")
    raise DomainError(f"{noun}_NOT_FOUND", "There is nothing of that id.")
