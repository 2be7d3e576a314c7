"""What came of work, on its way from the slots to the server, many reports in one call.

A report is on disk before its slot goes on. Two calls may be under way; what comes meanwhile goes
with the next.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from mesh.agent.delivery import Deliverer
from mesh.agent.session import DisplacedError
from mesh.agent.spool import Report
from mesh.agent.works import Work

log = logging.getLogger("mesh.agent")

_LANES = 2
_MOST = 100


class Reporter:
    """Brings reports to the server; `end` is told of works about which nothing is left to do."""

    def __init__(self, deliverer: Deliverer, end: Callable[[Sequence[Work]], None]) -> None:
        self._deliverer = deliverer
        self._end = end
        self._queue: queue.SimpleQueue[tuple[Work, Report]] = queue.SimpleQueue()

    def start_threads(self) -> None:
        for number in range(_LANES):
            threading.Thread(target=self._run, name=f"report-{number}", daemon=True).start()

    def put(self, work: Work, report: Report) -> None:
        """Store a report and have it sent; the work is held until the server has answered."""
        self._deliverer.store(report)
        self._queue.put((work, report))

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < _MOST:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            try:
                self._deliverer.deliver(*[report for _work, report in batch])
            except DisplacedError:
                pass  # the session has told the agent
            except Exception:
                log.exception("%d reports wait on disk", len(batch))
            finally:
                self._end([work for work, _report in batch])
