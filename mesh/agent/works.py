"""The claims an agent holds, and what it knows about each: lease, limits, requests to stop.

All times here are local and monotonic. A lease is counted from before the request that gave or
renewed it was sent, so the agent always believes it to be over before the server does.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

_REMEMBERED = 2000


# The server's ways to say that a claim no longer counts.
LOST_CODES = frozenset(
    {
        "CLAIM_NOT_FOUND",
        "WORKLOAD_CLAIM_INVALID",
        "WORKLOAD_STALE_FENCE",
        "WORKLOAD_LEASE_EXPIRED",
    }
)


class StopReason(Enum):
    """Why work must stop before its end."""

    FENCED = "fenced"
    LEASE_OVER = "lease over"
    CANCELLED = "cancelled"
    TIMEOUT = "time limit"
    SHUTDOWN = "agent stops"


class Phase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


# The work may be running elsewhere from now on, so there is nothing to wait for.
AT_ONCE = frozenset({StopReason.FENCED, StopReason.LEASE_OVER})


def _milliseconds(start: str, end: str) -> int:
    span = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    return max(0, round(span.total_seconds() * 1000))


class ServerClock:
    """Reads the server's times as local ones, never later than they are."""

    def __init__(self) -> None:
        self._read: tuple[datetime, float] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the server ever said its time."""
        return self._read is not None

    def learn(self, server_now: str, *, asked_at: float) -> None:
        """The server said its time in the answer to a request that went at `asked_at`."""
        self._read = (datetime.fromisoformat(server_now), asked_at)

    def local(self, moment: str) -> float:
        """The local monotonic time of a server time; infinite as long as nothing is known."""
        if self._read is None:
            return float("inf")
        server_now, asked_at = self._read
        return asked_at + (datetime.fromisoformat(moment) - server_now).total_seconds()


@dataclass(eq=False)
class Work:
    """One claim of this agent."""

    claim_id: str
    workload_id: str
    attempt_id: str
    fencing_token: int
    definition_id: str
    attempt_number: int
    input: Any
    checkpoint: Any
    is_hold: bool
    limit_ms: int | None
    lease_ms: int
    lease_until: float
    is_renewable: bool = True
    phase: Phase = Phase.WAITING
    started_at: float | None = None
    outcome: str | None = None
    _stop: StopReason | None = None
    _wake: Callable[[], None] | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def from_claim(cls, claim: dict[str, Any], *, asked_at: float, clock: "ServerClock") -> "Work":
        """Read a claim as the API sends it; its lease began by `asked_at` or the server's times.

        A claim that was placed some time ago has less left than its whole length.
        """
        workload = claim["workload"]
        policy = claim.get("runtime_policy") or {}
        limits = (policy.get("max_duration_ms"), workload["timeouts"].get("execution_ms"))
        lease_ms = _milliseconds(claim["issued_at"], claim["expires_at"])
        checkpoint = claim.get("checkpoint")
        return cls(
            claim_id=claim["claim_id"],
            workload_id=claim["workload_id"],
            attempt_id=claim["attempt_id"],
            fencing_token=claim["fencing_token"],
            definition_id=workload["definition_id"],
            attempt_number=workload["attempt_number"],
            input=workload["input"],
            checkpoint=checkpoint["state"] if checkpoint else None,
            is_hold=claim["lost_policy"] == "hold",
            limit_ms=min((limit for limit in limits if limit), default=None),
            lease_ms=lease_ms,
            lease_until=min(asked_at + lease_ms / 1000, clock.local(claim["expires_at"])),
        )

    def renewed(self, asked_at: float) -> None:
        """The lease runs for its whole length again, from when that was asked for."""
        with self._lock:
            self.lease_until = max(self.lease_until, asked_at + self.lease_ms / 1000)

    def request_stop(self, reason: StopReason) -> None:
        """Ask the slot to stop this work; the first reason stands, but for a fence."""
        with self._lock:
            if self._stop is None or reason is StopReason.FENCED:
                self._stop = reason
            # Inside the lock: once attach(None) returned, nobody wakes a process that is gone.
            if self._wake is not None:
                self._wake()

    def attach(self, wake: Callable[[], None] | None) -> None:
        """Name what must be woken when a stop is asked for."""
        with self._lock:
            self._wake = wake

    def stop_reason(self, now: float, time_limit: float | None) -> StopReason | None:
        """Why this work has to stop at `now`, if it does.

        Work of the policy `hold` goes on after its lease: what it did has to be reported, and
        nobody else gets it. Only a cancel, the agent's own time limit or its end stop it.
        """
        if self._stop is not None:
            return self._stop
        if now >= self.lease_until and not self._outlives_lease:
            return StopReason.LEASE_OVER
        limit = self._limit(time_limit)
        if limit is not None and now >= limit:
            return StopReason.TIMEOUT
        return None

    def next_look(self, time_limit: float | None) -> float | None:
        """When `stop_reason` may change by time alone."""
        times = [self._limit(time_limit), None if self._outlives_lease else self.lease_until]
        return min((at for at in times if at is not None), default=None)

    @property
    def _outlives_lease(self) -> bool:
        return self.is_hold and self.started_at is not None

    def lose(self) -> None:
        """The server says that this claim no longer counts."""
        if not self._outlives_lease:
            self.request_stop(StopReason.FENCED)

    def _limit(self, time_limit: float | None) -> float | None:
        if self.started_at is None:
            return None
        # The server's own limit holds such work instead of ending it.
        own = self.limit_ms / 1000 if self.limit_ms and not self.is_hold else None
        shortest = min((limit for limit in (own, time_limit) if limit is not None), default=None)
        return None if shortest is None else self.started_at + shortest

    @property
    def lease_left(self) -> float:
        return self.lease_until - time.monotonic()


class WorkTable:
    """Every claim held, by id. Safe to use from all threads."""

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, work: Work) -> bool:
        """Take a claim in; False when it is held or was held before (an answer came twice)."""
        with self._lock:
            if work.claim_id in self._works or work.claim_id in self._ended:
                return False
            self._works[work.claim_id] = work
            return True

    def remove(self, work: Work) -> None:
        with self._lock:
            if self._works.pop(work.claim_id, None) is not None:
                self._ended[work.claim_id] = None
                while len(self._ended) > _REMEMBERED:
                    self._ended.popitem(last=False)

    def get(self, claim_id: str) -> Work | None:
        with self._lock:
            return self._works.get(claim_id)

    def has_ended(self, claim_id: str) -> bool:
        with self._lock:
            return claim_id in self._ended

    def all(self) -> list[Work]:
        with self._lock:
            return list(self._works.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._works)
