"""What came of work, on its way from the slots to the server, many reports in one call.

A report is on disk before its slot goes on. While a call is under way, or much work waits for its
turn here, what comes gathers and goes with the next call: at once where many wait, or after a
moment.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from mesh.agent.delivery import Deliverer
from mesh.agent.session import DisplacedError
from mesh.agent.spool import Report
from mesh.agent.works import Work

log = logging.getLogger("mesh.agent")

_LANES = 2
_MOST = 100
# So many go at once, whatever is under way.
_MANY = 50
# Seconds that a report waits at most for a call that is under way, and for others to come.
_PATIENCE = 0.1
_LINGER = 0.02


class Reporter:
    """Brings reports to the server; `end` is told of works about which nothing is left to do.

    `backlog` tells how much started work waits for its turn.
    """

    def __init__(
        self,
        deliverer: Deliverer,
        end: Callable[[Sequence[Work]], None],
        backlog: Callable[[], int],
    ) -> None:
        self._deliverer = deliverer
        self._end = end
        self._backlog = backlog
        self._waiting: deque[tuple[Work, Report]] = deque()
        self._calls = 0
        self._since = 0.0
        self._changed = threading.Condition()

    def start_threads(self) -> None:
        for number in range(_LANES):
            threading.Thread(target=self._run, name=f"report-{number}", daemon=True).start()

    def put(self, work: Work, report: Report) -> None:
        """Store a report and have it sent; the work is held until the server has answered."""
        self._deliverer.store(report)
        with self._changed:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append((work, report))
            # Of those that only gather nobody need be woken for each.
            if len(self._waiting) in {1, _MANY}:
                self._changed.notify()

    def _next(self) -> list[tuple[Work, Report]]:
        """What goes in the next call, once that is to be made."""
        with self._changed:
            while not self._waiting or (wait := self._wait()) > 0:
                self._changed.wait(wait if self._waiting else None)
            self._calls += 1
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))]
            self._since = time.monotonic()
            return batch

    def _wait(self) -> float:
        """How many seconds what waits is to go on waiting."""
        if len(self._waiting) >= _MANY:
            return 0.0
        patience = _PATIENCE if self._calls else _LINGER if self._backlog() >= _MANY else 0.0
        return self._since + patience - time.monotonic() if patience else 0.0

    def _run(self) -> None:
        while True:
            batch = self._next()
            try:
                self._deliverer.deliver(*[report for _work, report in batch])
            except DisplacedError:
                pass  # the session has told the agent
            except Exception:
                log.exception("%d reports wait on disk", len(batch))
            finally:
                with self._changed:
                    self._calls -= 1
                    self._changed.notify()
                self._end([work for work, _report in batch])
