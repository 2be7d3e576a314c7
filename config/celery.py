"""Celery: the application, and everything that runs by the clock.

Celery only wakes sweeps: what has to be done stands in rows, so a lost, late or doubled message
does no harm. Sweeps have a queue and a process of their own, which no other task can keep busy.
"""

from __future__ import annotations

import logging.config
import os
from datetime import UTC, datetime
from typing import Any, Final

from celery import Celery
from celery.signals import setup_logging
from django_structlog.celery.steps import DjangoStructLogInitStep

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SWEEP_QUEUE: Final = "sweeps"
# Served by the instances of the built-in coordinator.
RUN_QUEUE: Final = "runs"
# Sweep → seconds between its passes; first those of runs.
RUN_SWEEPS: Final[dict[str, float]] = {
    "take_over_dead_coordinators": 2,
    "settle_finished_attempts": 2,
    "finish_cancellations": 2,
    "advance_runs": 2,
}
SWEEPS: Final[dict[str, float]] = {
    "promote_due": 1,
    "recover_expired_leases": 2,
    "enforce_deadlines": 2,
    "release_dependents": 2,
    "detect_silent_workers": 5,
    "prune_history": 3600,
    **RUN_SWEEPS,
}
_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)

app = Celery("fencepost")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["worker"].add(DjangoStructLogInitStep)
app.conf.beat_schedule = {
    name: {
        "task": "mesh.tasks.sweep",
        "schedule": seconds,
        # Long ago, so that a sweep runs as soon as the first beat starts, also a rare one.
        "last_run_at": _LONG_AGO,
        "args": [name],
        # The next one is under way by then; passes that pile up help nobody.
        "options": {
            "queue": RUN_QUEUE if name in RUN_SWEEPS else SWEEP_QUEUE,
            "expires": seconds,
        },
    }
    for name, seconds in SWEEPS.items()
}


@setup_logging.connect
def use_our_logging(**_: Any) -> None:
    """Celery's own handlers would write unmasked text."""
    from django.conf import settings

    logging.config.dictConfig(settings.LOGGING)
