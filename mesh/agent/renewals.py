"""Leases that the heartbeats did not renew in time, each by a call of its own.

Heartbeats renew every listed claim, so this has work only where leases are shorter than a few
heartbeats, or heartbeats do not get through.
"""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from mesh.agent.client import ApiError, UnreachableError, is_transient
from mesh.agent.session import DisplacedError, Session
from mesh.agent.works import LOST_CODES, StopReason, Work, WorkTable

log = logging.getLogger("mesh.agent")

_THREADS = 4
_LOOK_EVERY = 0.2


class Renewals:
    """Watches the leases of all claims held."""

    def __init__(self, session: Session, table: WorkTable, halt: threading.Event) -> None:
        self._session = session
        self._table = table
        self._halt = halt
        self._under_way: set[str] = set()

    def run(self) -> None:
        """Renew what has less than a third of its lease left, until the agent halts."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="renew") as pool:
            while not self._halt.wait(_LOOK_EVERY):
                for work in self._table.all():
                    if self._is_due(work):
                        self._under_way.add(work.claim_id)
                        pool.submit(self._renew, work)

    def _is_due(self, work: Work) -> bool:
        is_close = 0 < work.lease_left < work.lease_ms / 3000
        return is_close and work.is_renewable and work.claim_id not in self._under_way

    def _renew(self, work: Work) -> None:
        asked_at = time.monotonic()
        try:
            answer = self._session.call(
                lambda: self._session.client.renew(
                    work.claim_id,
                    work.fencing_token,
                    lease_ms=work.lease_ms,
                    timeout=min(5.0, max(0.2, work.lease_left)),
                )
            )
            work.renewed(asked_at)
            if answer["cancel_requested"]:
                work.request_stop(StopReason.CANCELLED)
        except ApiError as error:
            self._note_refusal(work, error)
        except (UnreachableError, DisplacedError):
            pass  # tried again while there is lease left; the session has told the agent
        finally:
            self._under_way.discard(work.claim_id)

    def _note_refusal(self, work: Work, error: ApiError) -> None:
        if error.code in LOST_CODES:
            work.lose()
        elif not is_transient(error):
            # A revoked grant, a drain whose time is over: the work has what is left of its lease.
            work.is_renewable = False
            log.warning("lease of %s is not renewed: %s", work.workload_id, error.code)
