"""What talks to a server that may be away, and waits for it, later each time."""

import logging
import time
from abc import ABC, abstractmethod

from mesh.agent.client import ApiClient, ApiError, Backoff, UnreachableError

log = logging.getLogger("demo")


class Patient(ABC):
    """Called often; `step` is one tick and never waits."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._backoff = Backoff(base=1.0, cap=15.0)
        self._wait_until = 0.0

    def step(self) -> None:
        """Do what is due, unless the server is being waited for."""
        now = time.monotonic()
        if now < self._wait_until:
            return
        try:
            self._step(now)
            self._backoff.reset()
        except (ApiError, UnreachableError) as error:
            delay = self._backoff.next(error)
            self._wait_until = now + delay
            log.warning("%s; again in %.1f s", error, delay)

    @abstractmethod
    def _step(self, now: float) -> None:
        """One tick, of a time that never goes back."""
