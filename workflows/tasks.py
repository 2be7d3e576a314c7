"""The process that is an instance of the built-in coordinator: a Celery worker of the queue `runs`.

It beats while it runs, acts on runs that it is told of (`workflows.waking`), runs the sweeps that
beat sends for runs, and relinquishes when it is asked to stop. Wake-ups reach every instance; the
one that owns the run acts.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg
import structlog
from celery.signals import celeryd_after_setup, worker_ready, worker_shutdown
from django.conf import settings
from django.db import close_old_connections, connection

from mesh import lobby, locking

from . import coordinator, coordinators, instances, waking
from .instances import Instance
from .models import Coordinator

logger = structlog.get_logger(__name__)
QUEUE: Final = "runs"
_DRIVERS: Final = 4
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 1.0


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
        own = instances.own_instance()
        if own is None:
            return
        rows = Coordinator.objects.filter(instance_id=own.instance_id, token__isnull=True)
        registered = rows.count()
        if coordinators.beat_builtin(instance_id=own.instance_id) < registered:
            # It was taken for gone, and its runs are taken over or will be.
            instances.become(Instance.new())
            coordinators.relinquish_builtin(instance_id=own.instance_id)
            logger.warning("coordinator ended, a new one begins", ended=own.instance_id)

    def stop(self) -> None:
        self._stopped.set()
        self.join(timeout=5)


class Ears(threading.Thread):
    """Hears of runs in which something may have become possible, and has them driven.

    One thread drives a run at a time: whatever it does there tells of the run again, and others
    would only wait for its lock, while no other run is driven.
    """

    def __init__(self) -> None:
        super().__init__(name="coordinator-ears", daemon=True)
        self._stopped = threading.Event()
        self._drivers = ThreadPoolExecutor(_DRIVERS, thread_name_prefix="coordinator")
        self._lock = threading.Lock()
        # Told, and not begun: to be told of them again changes nothing.
        self._waiting: set[int] = set()
        # Being driven; of those that were told of meanwhile, the next drive is still to come.
        self._driven: set[int] = set()
        self._again: set[int] = set()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                with lobby.open_session() as session:
                    session.execute(f"listen {waking.CHANNEL}")
                    self._listen(session)
            except psycopg.Error as error:
                logger.warning("nobody hears of runs: the sweeps find them", error=str(error))
                self._stopped.wait(_PATIENCE_S)
            except Exception:
                # Anybody who has the database may say anything on the channel.
                logger.exception("hearing of runs broke; it begins again")
                self._stopped.wait(_PATIENCE_S)

    def _listen(self, session: psycopg.Connection[Any]) -> None:
        while not self._stopped.is_set():
            for told in session.notifies(timeout=_LOOK_S, stop_after=1):
                self.hear(int(told.payload))

    def hear(self, run_pk: int) -> None:
        """Have a run driven, soon."""
        with self._lock:
            if run_pk in self._driven:
                self._again.add(run_pk)
                return
            if run_pk in self._waiting:
                return
            self._waiting.add(run_pk)
        self._drivers.submit(self._attend, run_pk)

    def _attend(self, run_pk: int) -> None:
        with self._lock:
            self._waiting.discard(run_pk)
            self._driven.add(run_pk)
        self._drive(run_pk)
        with self._lock:
            self._driven.discard(run_pk)
            is_told_again = run_pk in self._again
            self._again.discard(run_pk)
        if is_told_again and not self._stopped.is_set():
            self.hear(run_pk)

    def _drive(self, run_pk: int) -> None:
        close_old_connections()
        try:
            driven = coordinator.drive(run_pk)
            if driven.done:
                logger.info("run", run_id=driven.run_id, **driven.done)
        except Exception as error:
            # The sweeps try it again, and push it back if it raises there too.
            if locking.is_busy(error):
                logger.info("a run was busy", run=run_pk)
            else:
                logger.exception("a run could not be driven", run=run_pk)
        finally:
            close_old_connections()

    def stop(self) -> None:
        """Hear nothing more, and end what is being driven."""
        self._stopped.set()
        self.join(timeout=5)
        self._drivers.shutdown(cancel_futures=True)


_threads: list[Pulse | Ears] = []


@celeryd_after_setup.connect
def begin(sender: Any, instance: Any, **_: Any) -> None:
    """Before the first message is taken: this process is an instance, if it serves the runs."""
    if QUEUE in instance.app.amqp.queues.consume_from:
        instances.become(Instance.new())


@worker_ready.connect
def attend(**_: Any) -> None:
    """Beat and listen, from now on."""
    own = instances.own_instance()
    if own is not None:
        _threads.extend((Pulse(), Ears()))
        for each in _threads:
            each.start()
        logger.info("coordinator ready", instance_id=own.instance_id)


@worker_shutdown.connect
def relinquish(**_: Any) -> None:
    """Its last tasks are done: say that it stops, so that another takes its runs over at once."""
    own = instances.own_instance()
    if own is None:
        return
    while _threads:
        _threads.pop().stop()
    instances.become(None)
    try:
        coordinators.relinquish_builtin(instance_id=own.instance_id)
    except Exception:
        # Its lease will end by itself.
        logger.exception("the coordinator could not relinquish")
    finally:
        connection.close()
