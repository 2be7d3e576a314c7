"""Who the agent is to the server: registration, credential, and the end of both.

Only one process may act under a worker's name. A credential that the server no longer knows means
that another process registered the name (or that the worker was removed): this one ends. To
register again would throw the other out, which would do the same, for ever.
"""

import base64
import json
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from mesh.agent.client import ApiError, Backoff, UnreachableError, WorkerClient, is_transient
from mesh.agent.options import CONTRACT_VERSION, AgentOptions, GrantMissingError
from mesh.agent.state import State

log = logging.getLogger("mesh.agent")
T = TypeVar("T")

_SILENCE_MARGIN = 15.0
# Answers that say for sure that the call did nothing, although they are no refusals for good.
_NOTHING_CHANGED = frozenset({"STORAGE_BUSY", "LIMIT_EXCEEDED"})


class DisplacedError(Exception):
    """The server does not know this credential any more."""


class RegistrationError(Exception):
    """The server will not have this worker; the message holds its code."""


class HaltedError(Exception):
    """The agent was told to end before it got that far."""


class Session:
    """One registration, renewed in place when the grant file brings a new grant."""

    def __init__(
        self, options: AgentOptions, state: State, client: WorkerClient, halt: threading.Event
    ) -> None:
        self.client = client
        self.capability_version = 0
        self.displaced = threading.Event()
        self._options = options
        self._state = state
        self._halt = halt
        self._kinds: tuple[str, ...] = ()
        self._generation = 0
        self._grant: str | None = None
        self._refused: str | None = None
        self._registered_at: datetime | None = None
        self._said = ""
        self._lock = threading.Lock()

    def register(self, kinds: tuple[str, ...]) -> bool:
        """Register, waiting as long as that makes sense; whether a reconcile is asked for.

        RegistrationError, GrantMissingError, HaltedError.
        """
        self._kinds = kinds
        with self._lock:
            return bool(self._register())

    def refresh(self) -> bool | None:
        """Register again under a new grant, if the grant file holds one; claims are kept.

        Whether a reconcile is asked for; None where there is no new grant, or it must wait. One
        that was refused is not sent again. RegistrationError, HaltedError.
        """
        with self._lock:
            try:
                grant = self._options.read_grant()
            except GrantMissingError as error:
                self._say(str(error))
                return None
            if grant in (self._grant, self._refused):
                return None
            self._say("there is a new grant: registering again")
            try:
                return self._accept(self._send(grant))
            except UnreachableError as error:
                lost: Exception = error
            except ApiError as error:
                if error.status < 500 or error.code in _NOTHING_CHANGED:
                    self._put_off(error, grant)
                    return None
                lost = error
            # It may have been accepted; then only this session's next register is heard.
            self._say(f"the new registration was not answered: {lost}")
            return self._register(is_renewal=True)

    def is_ending(self, ends_at: str, at: str) -> bool:
        """Whether the grant is in the last fifth of its life; by the server's times."""
        end, now = datetime.fromisoformat(ends_at), datetime.fromisoformat(at)
        begin = _begin_of(self._grant or "") or self._registered_at or now
        return end - now <= (end - begin) / 5

    def call(self, send: Callable[[], T]) -> T:
        """Make a call with the credential; DisplacedError when that is no longer known."""
        generation = self._generation
        try:
            return send()
        except ApiError as error:
            if error.status != 401:
                raise
        with self._lock:  # waits for a registration that is under way
            if self._generation == generation:
                self.displaced.set()
                raise DisplacedError
        return self.call(send)

    def _put_off(self, error: ApiError, grant: str) -> None:
        """What becomes of a new grant that was refused: asked again later, or not at all."""
        if error.is_transient or error.code == "WORKER_BUSY":
            self._say(f"the new grant must wait: {error}")
            return
        self._refused = grant
        raise RegistrationError(str(error)) from None

    def _register(self, *, is_renewal: bool = False) -> bool | None:
        patience = time.monotonic() + self._options.silence_ms / 1000 + _SILENCE_MARGIN
        backoff = Backoff(base=0.5, cap=10.0)
        said = None
        while True:
            try:
                return self._accept(self._send(self._options.read_grant()))
            except (ApiError, UnreachableError) as error:
                if is_renewal and isinstance(error, ApiError) and error.code == "WORKER_BUSY":
                    # Still registered as before, and beating again is what the claims need.
                    return None
                if not self._may_wait(error, patience):
                    raise RegistrationError(str(error)) from None
                if str(error) != said:
                    said = str(error)
                    log.warning("registration waits: %s", said)
                if self._halt.wait(backoff.next(error)):
                    raise HaltedError from None

    def _may_wait(self, error: Exception, patience: float) -> bool:
        if is_transient(error):
            return True
        code = error.code if isinstance(error, ApiError) else ""
        # The name is taken by a process that still beats: perhaps ourselves, after a lost answer
        # or without our state folder. It is free once that has been silent.
        if code == "WORKER_UNAUTHORIZED":
            return time.monotonic() < patience
        # Claims of an earlier version are live; they end by themselves.
        return code == "WORKER_BUSY"

    def _send(self, grant: str) -> dict[str, Any]:
        options = self._options
        body: dict[str, Any] = {
            "contract_version": CONTRACT_VERSION,
            **options.identity,
            "runtime": options.runtime,
            "version": options.version,
            "capabilities": list(options.capabilities),
            "workload_kinds": list(self._kinds),
            "resource_profile": options.resources,
            "labels": options.labels,
            "capacity": {"concurrency": options.concurrency},
            "registered_by": options.registered_by,
            "grant": grant,
            "heartbeat_interval_ms": options.heartbeat_interval_ms,
            "heartbeat_timeout_ms": options.silence_ms,
        }
        if options.abandon_claims and self._generation == 0:
            body["abandon_claims"] = True
        self.client.token = self._state.credential
        answer = self.client.register(body)
        self._grant = grant
        return answer

    def _accept(self, answer: dict[str, Any]) -> bool:
        worker = answer["worker"]
        self._state.keep_credential(answer["credential"])
        self.client.token = answer["credential"]
        self.client.worker_id = worker["worker_id"]
        self.capability_version = worker["capability_version"]
        self._registered_at = datetime.fromisoformat(worker["last_seen_at"])
        self._generation += 1
        log.info(
            "registered as %s (%s, incarnation %s), granted: %s",
            worker["name"],
            worker["worker_id"],
            worker["incarnation"],
            ", ".join(worker["granted_capabilities"]) or "nothing",
        )
        return bool(answer["reconcile_required"])

    def _say(self, text: str) -> None:
        """Log something only when it is news."""
        if self._said != text:
            self._said = text
            log.warning("%s", text)


def _begin_of(grant: str) -> datetime | None:
    """When a grant begins, as it says itself; None where it cannot be read.

    It is not verified here: that is the server's part; this only tells when to look for another.
    """
    try:
        payload = grant.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return datetime.fromtimestamp(claims["nbf"], UTC)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
