"""Celery's way in: each task calls one function and says what came of it."""

import structlog
from celery import shared_task
from django.db import close_old_connections

from mesh import recovery

logger = structlog.get_logger(__name__)


@shared_task(name="mesh.tasks.sweep")
def sweep(name: str) -> None:
    """One pass of a sweep. Passes that overlap are skipped by the sweep itself."""
    # A request ends with this; a task keeps its connection, and would keep a broken one.
    close_old_connections()
    try:
        report = recovery.run(name)
    finally:
        close_old_connections()
    log = logger.info if report.changed else logger.debug
    log(
        "sweep",
        sweep=name,
        changed=len(report.changed),
        counts=report.counts,
        duration_ms=report.duration_ms,
        skipped=report.skipped,
    )
