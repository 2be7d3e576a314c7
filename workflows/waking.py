"""Wake-ups of the coordinator: hints, sent after commit; the sweeps find what was missed.

Where the broker is away the caller goes on, and no other call tries it for a while.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import structlog
from kombu.exceptions import OperationalError

from . import tasks
from .models import CoordinatorKind, RunAttempt, RunStatus

logger = structlog.get_logger(__name__)
# So long the broker is left alone after it failed, in seconds.
_PATIENCE: Final = 10.0
# Nobody needs it any more by then, in seconds: a sweep was there.
_EXPIRES: Final = 60
_quiet_until = 0.0


def wake_runs_of(sender: object, *, pks: Sequence[int], **_: Any) -> None:
    """Work of runs ended: have their attempts settled."""
    found = RunAttempt.objects.filter(
        workload_id__in=pks,
        run__status=RunStatus.OPEN,
        run__coordinator=CoordinatorKind.BUILTIN,
    )
    for pk in found.values_list("run_id", flat=True).distinct():
        wake(sender, pk=pk)


def wake(sender: object, *, pk: int, **_: Any) -> None:
    """Tell the instances of the coordinator to look at a run."""
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    try:
        tasks.drive.apply_async((pk,), queue=tasks.QUEUE, expires=_EXPIRES, retry=False)
    except (OperationalError, OSError) as error:
        _quiet_until = time.monotonic() + _PATIENCE
        logger.warning("no wake-up was sent: the sweeps will find it", error=str(error))
