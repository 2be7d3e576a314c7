"""The web server's worker process: threads, most of which may be calls that wait for work."""

from __future__ import annotations

from types import FrameType

from gunicorn.workers.gthread import ThreadWorker


class Worker(ThreadWorker):  # type: ignore[misc]  # no stubs
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: go on with what is at work, and answer at once those who only wait."""
        super().handle_exit(sig, frame)
        # Not here: a signal may come while its own thread holds a lock.
        self.method_queue.defer(_stop_waiting)


def _stop_waiting() -> None:
    from mesh import lobby

    lobby.present().stop()
