"""For probes and monitoring: does the process live, can it do its work, how busy is it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import prometheus_client
from django.conf import settings
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from kombu.exceptions import OperationalError as BrokerError
from prometheus_client import multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from config.celery import SWEEPS, app
from mesh import clock
from mesh.models import SweepRun, Tenant, Worker, Workload
from mesh.models.enums import SEALED_STATES, Lifecycle, State

# Beyond this nobody needs the exact number, and counting on would cost as much as there are rows.
COUNT_CAP: Final = 10_000
# Without a pass of this one, leases do not end: it alone must have run before work may be taken.
VITAL_SWEEP: Final = "recover_expired_leases"
# Passed through within one transaction, so never seen from outside.
NEVER_AT_REST: Final = frozenset({State.CREATED, State.RECOVERING, State.FAILED, State.TIMED_OUT})

# Tenant by tenant, because so the index of unfinished work answers each count in one place.
COUNT_UNFINISHED: Final = f"""
    select wanted.state, coalesce(sum(counted.number), 0)
      from unnest(%(states)s::text[]) as wanted(state)
      left join {Tenant._meta.db_table} as tenant on true
      left join lateral (
        select count(*) as number
          from (
            select 1
              from {Workload._meta.db_table} as workload
             where workload.tenant_id = tenant.id
               and workload.state = wanted.state
               and not (workload.state in ({", ".join(f"'{s}'" for s in sorted(SEALED_STATES))}))
             limit %(cap)s
          ) as found
      ) as counted on true
     group by wanted.state
"""  # noqa: S608 - our own names and words


@require_safe
@never_cache
def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers. Says nothing about what it needs."""
    return JsonResponse({"status": "ok"})


@require_safe
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """200 if everything needed is there, else 503; either way each part with what is wrong."""
    parts = {name: check() for name, check in CHECKS.items()}
    is_ready = all(problem is None for problem in parts.values())
    body = {
        "status": "ok" if is_ready else "unavailable",
        **{
            name: {"ok": problem is None, **({"detail": problem} if problem else {})}
            for name, problem in parts.items()
        },
    }
    return JsonResponse(body, status=200 if is_ready else 503)


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus text: of all web processes together, and of the mesh as it stands."""
    if not settings.METRICS_OPEN:
        raise Http404
    processes = prometheus_client.REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        processes = prometheus_client.CollectorRegistry()
        multiprocess.MultiProcessCollector(processes)  # type: ignore[no-untyped-call]
    mesh = prometheus_client.CollectorRegistry()
    mesh.register(MeshCollector())
    text = b"".join(prometheus_client.generate_latest(each) for each in (processes, mesh))
    return HttpResponse(text, content_type=prometheus_client.CONTENT_TYPE_LATEST)


def database_problem() -> str | None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
    except Error:
        return "no connection"
    return None


_is_migrated = False


def migrations_problem() -> str | None:
    """Looked up until all are applied: from then on this process' code fits its database."""
    global _is_migrated
    if _is_migrated:
        return None
    try:
        executor = MigrationExecutor(connection)
        open_migrations = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except Error:
        return "no connection"
    if open_migrations:
        return f"{len(open_migrations)} not applied"
    _is_migrated = True
    return None


def broker_problem() -> str | None:
    try:
        with app.connection_for_write(connect_timeout=2) as broker:
            broker.ensure_connection(max_retries=1, interval_start=0, timeout=2)
    except (BrokerError, OSError):
        return "no connection"
    return None


def sweeps_problem() -> str | None:
    """Names the sweeps whose last finished pass is too long ago."""
    try:
        lags = sweep_lags()
    except Error:
        return "no connection"
    late = [
        f"{name} finished {lag:.0f} s ago"
        for name, lag in lags.items()
        if lag * 1000 > max(settings.SWEEP_OUTAGE_MS, 3_000 * SWEEPS[name])
    ]
    if VITAL_SWEEP not in lags:
        late.append(f"{VITAL_SWEEP} never ran")
    return ", ".join(late) or None


CHECKS: Final[dict[str, Callable[[], str | None]]] = {
    "database": database_problem,
    "migrations": migrations_problem,
    "broker": broker_problem,
    "sweeps": sweeps_problem,
}


def sweep_lags() -> dict[str, float]:
    """Seconds since each sweep's last finished pass; those that never finished one are left out."""
    rows: Any = SweepRun.objects.filter(name__in=SWEEPS, last_finished_at__isnull=False)
    at = clock.now()
    finished: list[tuple[str, datetime]] = list(rows.values_list("name", "last_finished_at"))
    return {name: max((at - last).total_seconds(), 0.0) for name, last in finished}


class MeshCollector(Collector):
    """Asks the database at each scrape. Numbers only: no tenant, application or worker is named."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("fencepost_database_up", "1 if the database answers")
        try:
            families = [self._workers(), self._workloads(), self._sweeps()]
        except Error:
            families = []
        up.add_metric([], 1 if families else 0)
        yield up
        yield from families

    def _workers(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "fencepost_workers", f"Workers by lifecycle, at most {COUNT_CAP}", labels=["lifecycle"]
        )
        there = Worker.objects.filter(removed_at__isnull=True)
        found = list(there.values_list("lifecycle", flat=True)[:COUNT_CAP])
        for lifecycle in Lifecycle.values:
            family.add_metric([lifecycle], found.count(lifecycle))
        return family

    def _workloads(self) -> GaugeMetricFamily:
        """Ended for good are not counted: they only grow, and no index holds them by state."""
        family = GaugeMetricFamily(
            "fencepost_workloads",
            f"Unfinished workloads by state, at most {COUNT_CAP} per tenant and state",
            labels=["state"],
        )
        states = [state for state in State.values if state not in SEALED_STATES | NEVER_AT_REST]
        with connection.cursor() as cursor:
            cursor.execute(COUNT_UNFINISHED, {"states": states, "cap": COUNT_CAP})
            for state, number in cursor.fetchall():
                family.add_metric([state], int(number))
        return family

    def _sweeps(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "fencepost_sweep_lag_seconds",
            "Seconds since the last finished pass of a sweep",
            labels=["sweep"],
        )
        for name, lag in sweep_lags().items():
            family.add_metric([name], lag)
        return family
