"""What workflows registers with the mesh: the lock before a retry, and the wake-up after an end."""

from collections.abc import Sequence

from mesh import workloads

from .locking import lock_runs
from .models import RunAttempt


def connect() -> None:
    """Register everything; a repeat changes nothing."""
    workloads.before_retry(lock_runs_of)


def lock_runs_of(workload_pks: Sequence[int]) -> None:
    """Lock the runs whose attempts these workloads are, before the workloads are locked.

    So a settlement of the attempt, which seals the work, and its retry do not pass each other.
    """
    found = RunAttempt.objects.filter(workload_id__in=workload_pks)
    lock_runs(list(found.values_list("run_id", flat=True).distinct()))
