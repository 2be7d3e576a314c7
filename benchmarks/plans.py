"""How rows are found at a million: no statement reads a big table from end to end.

`python -m benchmarks.plans FILE` runs claims, every sweep and every list of API and console once,
with each of its filters, on the database that the environment names; it writes what it found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from .claiming import QUICKLY, fill, put_in_the_way
from .figures import Figure, Options
from .stage import Stage

HERE = Path(__file__).parent
BIG: Final = (
    "mesh_workload",
    "mesh_attempt",
    "mesh_workloadevent",
    "mesh_workerevent",
    "mesh_auditentry",
    "mesh_result",
    "mesh_checkpoint",
    "mesh_decision",
    "mesh_dependency",
)
# A fleet is bounded, and whom nobody heard of no index tells that not every heartbeat would write:
# sweeps and lists may read it whole. What is done for each claim may not.
FLEET: Final = ("mesh_worker", "mesh_eligibleset")
WORKERS: Final = 10_000
# Of a hundred rows beside the queue: how many wait, are under way, are dead, and the rest is done.
_STATE: Final = (
    "case when (id + n) % 100 < 12 then 'READY' when (id + n) % 100 < 14 then 'RUNNING'"
    " when (id + n) % 100 < 17 then 'DEAD_LETTER' else 'SUCCEEDED' end"
)
_GROWN: Final = {
    "state": _STATE,
    "claimable": "false",
    "created_at": "created_at - n * interval '1 hour'",
    "available_at": "now() + (id % 100000 - 500) * interval '1 s'",
    "ended_at": "case when (id + n) % 100 >= 14 then now() - (id + n) % 92 * interval '1 day' end",
    "deadline_at": "case when (id + n) % 100 < 14 and id % 7 = 0"
    " then now() + (id % 7200 - 90) * interval '1 s' end",
    "event_sequence": "case when (id + n) % 100 < 12 then 1"
    " when (id + n) % 100 < 14 then 3 else 4 end",
    "attempt_count": "case when (id + n) % 100 < 12 then 0 else 1 end",
    "fencing_token": "case when (id + n) % 100 < 12 then 0 else 1 end",
    "started_attempts": "case when (id + n) % 100 < 12 then 0 else 1 end",
}
_MORE_WORKERS: Final = {
    "worker_id": "worker_id || '_' || n",
    "name": "name || '-' || n",
    "credential_hash": "encode(sha256(convert_to(worker_id || n, 'UTF8')), 'hex')",
    "last_seen_at": "now() - id % 40 * interval '1 min'",
    "health": "case when id % 9 = 0 then 'DEGRADED' else 'HEALTHY' end",
}


def plans(stage: Stage, options: Options) -> list[Figure]:
    """Every plan of claims, sweeps and lists, with as many rows as a big mesh has."""
    grow(stage, options.queued)
    stage.finish(stage.start("plans"))
    told = json.loads((stage.base / "plans.json").read_text())
    for each in told["whole_reads"]:
        print(f"--- {each['by']} reads a big table whole:\n{each['plan']}", file=sys.stderr)
    if told["failed"]:
        raise RuntimeError("\n".join(told["failed"]))
    found = len(told["whole_reads"])
    what = f"whole reads in {told['plans']:,} plans"
    return [Figure(what, "reads", found, 0.0, "-", 0.0, True, told)]


def grow(stage: Stage, number: int) -> None:
    """`number` rows of work, a fifth of them READY, with all that hangs on them."""
    fill(stage, number // 5)
    columns = [
        str(each)
        for (each,) in stage.sql(
            "select column_name from information_schema.columns"
            " where table_name = 'mesh_worker' and column_name <> 'id'"
        )
    ]
    stage.sql(
        f"{QUICKLY} insert into mesh_worker ({', '.join(columns)})"
        f" select {', '.join(_MORE_WORKERS.get(each, each) for each in columns)}"
        f" from mesh_worker, generate_series(1, {WORKERS // 1_000 - 1}) as n;"
        " insert into mesh_eligibleset (worker_id, requirement_ids, epoch, upto_number)"
        " select w.id, e.requirement_ids, e.epoch, e.upto_number from mesh_worker w"
        " cross join (select * from mesh_eligibleset limit 1) as e"
        " where w.id not in (select worker_id from mesh_eligibleset)"
    )
    put_in_the_way(stage, number - number // 5, "grown", _GROWN)
    stage.sql(QUICKLY + (HERE / "grown.sql").read_text())
    stage.sql("vacuum analyze")


def main() -> None:
    import django

    django.setup()
    from .explaining import cost, explained, whole_reads

    number, found, dearest, failed = 0, [], [], []
    for name, run in _runs():
        with explained(each=3) as seen:
            try:
                run()
            except Exception as error:
                failed.append(f"{name}: {error}")
        number += len(seen)
        whole = (
            whole_reads(seen, BIG + FLEET)
            if name.startswith("claim")
            else whole_reads(seen, BIG, unless_cut_short=True)
        )
        found += [{"by": name, "plan": each} for each in whole]
        dearest += [(cost(each), name, each.splitlines()[0]) for each in seen]
    told = {
        "plans": number,
        "whole_reads": found,
        "failed": failed,
        "dearest": sorted(dearest, reverse=True)[:20],
    }
    Path(sys.argv[1]).write_text(json.dumps(told, indent=2))


def _runs() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield from _lists_of_the_api()
    yield from _lists_of_the_console()
    yield from _claims()
    from mesh import recovery

    for name in recovery.SWEEPS:
        yield name, lambda name=name: recovery.run(name)  # type: ignore[misc]


def _claims() -> Iterator[tuple[str, Callable[[], Any]]]:
    """A claim by slots alone, then one where more must be counted, and one under a pause."""
    from mesh import claims, clock
    from mesh.models import EligibleSet, Pause, Requirement, Worker
    from mesh.tenancy import Caller

    worker = Worker.objects.earliest("pk")
    caller = Caller(f"worker:{worker.worker_id}", worker.tenant_id, "bench", worker_pk=worker.pk)

    def claim() -> None:
        taken = claims.claim(caller=caller, worker_id=worker.worker_id, maximum=10).claims
        if len(taken) != 10:
            raise RuntimeError(f"{len(taken)} claims instead of 10")

    yield "claim", claim
    pause = Pause.objects.create(
        tenant_id=worker.tenant_id,
        application_id=worker.application_id,
        definition_id="definition-1",
        created_at=clock.now(),
    )
    yield "claim under a pause", claim
    pause.delete()
    Requirement.objects.update(resources={"memory_bytes": 1})
    Worker.objects.filter(pk=worker.pk).update(resource_profile={"memory_bytes": 1_000_000})
    EligibleSet.objects.filter(worker=worker).update(epoch=-1)
    yield "claim by resources", claim


def _lists_of_the_api() -> Iterator[tuple[str, Callable[[], Any]]]:
    from django.test import Client

    from mesh import tenancy
    from mesh.models import Health, Lifecycle, Role, State, Tenant, Worker, Workload

    system = tenancy.system_caller(Tenant.objects.get(name="bench"), "bench")
    _, secret = tenancy.create_token(caller=system, name="plans", role=Role.ADMIN)
    client = Client(headers={"authorization": f"Bearer {secret}"}, SERVER_NAME="127.0.0.1")
    work, worker = Workload.objects.earliest("pk"), Worker.objects.earliest("pk")
    of_work = (
        *({"state": each} for each in State.values),
        {"definition_id": "definition-1"},
        {"definition_id": "nothing"},
        {"worker": worker.worker_id},
        {"q": work.workload_id[:20]},
        {"q": work.idempotency_key},
        {"created_after": "2020-01-01T00:00:00Z"},
        {"created_before": "2020-01-01T00:00:00Z"},
    )
    of_workers = (
        *({"lifecycle": each} for each in Lifecycle.values),
        *({"health": each} for each in Health.values),
        {"runtime": "wasm"},
        {"pool": "gpu"},
        {"label": "zone:a"},
        {"label": "zone:nowhere"},
        {"q": "worker-9-"},
    )
    lists = {
        "workloads": ({}, {"application": "documents"}, *of_work),
        "workers": ({}, {"application": "documents"}, *of_workers),
        **{each: ({},) for each in ("pauses", "pools", "grants", "incidents")},
        **{
            f"workloads/{work.workload_id}{each}": ({},)
            for each in ("", "/history", "/attempts", "/checkpoints", "/placement", "/decisions")
        },
        f"workers/{worker.worker_id}": ({},),
    }
    for path, queries in lists.items():
        for query in queries:
            yield (
                f"GET /{path} {query}",
                lambda p=path, q=query: _get(  # type: ignore[misc]
                    client, f"/api/v1/{p}", q
                ),
            )


def _lists_of_the_console() -> Iterator[tuple[str, Callable[[], Any]]]:
    from django.contrib.admin import SimpleListFilter, site
    from django.contrib.auth.models import User
    from django.test import Client, RequestFactory
    from django.urls import reverse

    from mesh.models import Membership, Role, Tenant, Worker, Workload

    user = User.objects.create_superuser("plans")
    Membership.objects.create(user=user, tenant=Tenant.objects.get(name="bench"), role=Role.ADMIN)
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)
    request = RequestFactory().get("/")
    request.user = user
    home = reverse(f"{site.name}:index")
    yield f"GET {home}", lambda: _get(client, home, {})
    for model, admin in site._registry.items():
        meta = model._meta
        url = reverse(f"{site.name}:{meta.app_label}_{meta.model_name}_changelist")
        queries: list[dict[str, str]] = [{}]
        for made in admin.list_filter:
            if isinstance(made, type) and issubclass(made, SimpleListFilter):
                spec = made(request, {}, model, admin)
                name = str(spec.parameter_name)
                queries += [{name: str(key)} for key, _ in spec.lookup_choices]
        if admin.search_fields:
            work, worker = Workload.objects.earliest("pk"), Worker.objects.earliest("pk")
            queries += [{"q": each} for each in (work.workload_id[:20], worker.name, "documents")]
        for query in queries:
            yield f"GET {url} {query}", lambda u=url, q=query: _get(client, u, q)  # type: ignore[misc]


def _get(client: Any, path: str, query: dict[str, str]) -> None:
    answer = client.get(path, query)
    if answer.status_code != 200:
        raise RuntimeError(f"{path} {query}: {answer.status_code} {answer.content[:500]!r}")


if __name__ == "__main__":
    main()
