"""Wake-ups of the coordinator: hints, sent after commit; the sweeps find what was missed.

A notification of the database, which every instance of the coordinator hears: the one that owns the
run acts (`workflows.tasks`). It needs no broker, and nothing is left of it where nobody listens.
"""

from collections.abc import Sequence
from typing import Any, Final

import structlog
from django.db import DatabaseError, connection

from .models import CoordinatorKind, RunAttempt, RunStatus

logger = structlog.get_logger(__name__)
CHANNEL: Final = "fencepost_runs"


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
    """Have the instances of the coordinator look at a run."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("select pg_notify(%s, %s)", [CHANNEL, str(pk)])
    except DatabaseError as error:
        logger.warning("no wake-up was sent: the sweeps will find it", error=str(error))
