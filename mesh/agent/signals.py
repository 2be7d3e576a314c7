"""SIGTERM and SIGINT as a count that the main thread can wait for.

The handler itself does nothing: one that takes a lock could meet the main thread holding it.
"""

import select
import signal
import socket


class Signals:
    """Counts stop signals from its making on. Main thread only."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self.count = 0
        signal.set_wakeup_fd(self._write.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)

    def wait(self, timeout: float) -> int:
        """How many have come so far; returns early when one comes."""
        ready, _, _ = select.select([self._read], [], [], timeout)
        if ready:
            self.count += len(self._read.recv(64))
        return self.count
