"""What the mesh tells those who build on it, once it is committed. Hints: rows are the truth."""

from typing import Final

from django.dispatch import Signal

# How the idempotency keys of workflow runs' work begin; nobody else may use such keys.
RUN_KEY: Final = "run:"

# `pks`: workloads of runs that ended.
run_work_ended: Final = Signal()
