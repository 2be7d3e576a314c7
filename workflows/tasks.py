"""Celery's way in, and the process that is an instance of the built-in coordinator.

A worker that serves the queue `runs` is an instance: it beats while it runs and relinquishes when
it is asked to stop. Messages only wake it: what has to be done stands in rows. They go to every
instance, and the one that owns the run acts.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import structlog
from celery import shared_task
from celery.signals import celeryd_after_setup, worker_ready, worker_shutdown
from django.conf import settings
from django.db import close_old_connections, connection

from . import coordinator, coordinators
from .coordinator import Instance
from .models import Coordinator

logger = structlog.get_logger(__name__)
QUEUE: Final = "runs"


@shared_task(name="workflows.tasks.drive")
def drive(run_pk: int) -> None:
    """Bring a run on, if this instance is the one to do it."""
    close_old_connections()
    try:
        driven = coordinator.drive(run_pk)
    finally:
        close_old_connections()
    if driven.done:
        logger.info("run", run_id=driven.run_id, **driven.done)


class Pulse(threading.Thread):
    """Beats for the instance that this process is; an ended one is replaced by a new one."""

    def __init__(self) -> None:
        super().__init__(name="coordinator-pulse", daemon=True)
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(settings.COORDINATOR_LEASE_MS / 3_000):
            try:
                self.beat()
            except Exception:
                logger.exception("the coordinator could not beat")
            finally:
                close_old_connections()
        connection.close()

    def beat(self) -> None:
        own = coordinator.own_instance()
        if own is None:
            return
        rows = Coordinator.objects.filter(instance_id=own.instance_id, token__isnull=True)
        registered = rows.count()
        if coordinators.beat_builtin(instance_id=own.instance_id) < registered:
            # It was taken for gone, and its runs are taken over or will be.
            coordinator.become(Instance.new())
            coordinators.relinquish_builtin(instance_id=own.instance_id)
            logger.warning("coordinator ended, a new one begins", ended=own.instance_id)

    def stop(self) -> None:
        self._stopped.set()
        self.join(timeout=5)


_pulse: Pulse | None = None


@celeryd_after_setup.connect
def begin(sender: Any, instance: Any, **_: Any) -> None:
    """Before the first message is taken: this process is an instance, if it serves the runs."""
    served = instance.app.amqp.queues.consume_from.values()
    if any(QUEUE in {each.name, each.alias} for each in served):
        coordinator.become(Instance.new())


@worker_ready.connect
def beat(**_: Any) -> None:
    global _pulse
    own = coordinator.own_instance()
    if own is not None:
        _pulse = Pulse()
        _pulse.start()
        logger.info("coordinator ready", instance_id=own.instance_id)


@worker_shutdown.connect
def relinquish(**_: Any) -> None:
    """Its last tasks are done: say that it stops, so that another takes its runs over at once."""
    own = coordinator.own_instance()
    if own is None:
        return
    if _pulse is not None:
        _pulse.stop()
    coordinator.become(None)
    try:
        coordinators.relinquish_builtin(instance_id=own.instance_id)
    except Exception:
        # Its lease will end by itself.
        logger.exception("the coordinator could not relinquish")
    finally:
        connection.close()
