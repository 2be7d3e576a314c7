"""What workflows registers with the mesh: the lock before a retry, the wake-up after an end, its
sweeps, what retention removes and keeps, what a restore distrusts, and what must be true.
"""

from collections.abc import Sequence

from mesh import invariants as mesh_invariants
from mesh import recovery, workloads
from mesh import restore as mesh_restore
from mesh import retention as mesh_retention
from mesh.signals import run_work_ended

from . import instances, invariants, restore, retention, signals, sweeps, waking
from .locking import lock_runs
from .models import RunAttempt


def connect() -> None:
    """Register everything; a repeat changes nothing."""
    workloads.before_retry(lock_runs_of)
    recovery.register(sweeps.SWEEPS, lane=instances.lane)
    run_work_ended.connect(waking.wake_runs_of)
    signals.run_changed.connect(waking.wake)
    mesh_invariants.also(invariants.RULES)
    mesh_retention.keep(retention.KEPT_WORK)
    mesh_retention.also("runs", retention.prune_runs)
    mesh_retention.also("refused_writers", retention.prune_asks)
    mesh_retention.also("resource_keys", retention.prune_keys)
    mesh_retention.also("coordinators", retention.prune_coordinators)
    mesh_restore.also("runs_barred", restore.bar_open_runs)


def lock_runs_of(workload_pks: Sequence[int]) -> None:
    """Lock the runs whose attempts these workloads are, before the workloads are locked.

    So a settlement of the attempt, which seals the work, and its retry do not pass each other.
    """
    found = RunAttempt.objects.filter(workload_id__in=workload_pks)
    lock_runs(list(found.values_list("run_id", flat=True).distinct()))
