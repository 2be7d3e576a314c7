"""The HTTP API as the agent uses it: one method per route, refusals as ApiError.

No method repeats a call. Every worker call may be repeated after a lost reply, and `retrying`
does that for those who want it.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
Json = dict[str, Any]

CALL_TIMEOUT = 15.0
CONNECT_TIMEOUT = 5.0


class UnreachableError(Exception):
    """No answer, or none that says what became of the call."""


class ApiError(Exception):
    """A refusal of the server, with the code it gave."""

    def __init__(self, status: int, code: str, detail: str, retry_after_ms: int | None) -> None:
        super().__init__(f"{code} ({status})" + (f": {detail}" if detail else ""))
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after_ms = retry_after_ms

    @property
    def is_transient(self) -> bool:
        """Whether the same call may well succeed later."""
        return self.status >= 500 or self.status in (408, 425, 429)


def _refusal(response: httpx.Response) -> ApiError:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return ApiError(response.status_code, f"HTTP_{response.status_code}", "", None)
    wait = problem.get("retry_after_ms")
    return ApiError(
        response.status_code,
        problem["code"],
        str(problem.get("detail") or "")[:500],
        wait if isinstance(wait, int) else None,
    )


class Backoff:
    """Full-jitter exponential delays in seconds."""

    def __init__(self, *, base: float = 0.2, cap: float = 10.0) -> None:
        self._base = base
        self._cap = cap
        self._tries = 0

    def next(self, error: Exception | None = None) -> float:
        ceiling = min(self._cap, self._base * 2 ** min(self._tries, 16))
        self._tries += 1
        return asked_to_wait(error) + random.uniform(0, ceiling)  # noqa: S311  jitter

    def reset(self) -> None:
        self._tries = 0


def asked_to_wait(error: Exception | None) -> float:
    """How many seconds the server asks to wait before the next try; at most a minute."""
    return min((getattr(error, "retry_after_ms", None) or 0) / 1000, 60.0)


def is_transient(error: Exception) -> bool:
    """Whether to try again: the server is away, busy or broken for now."""
    return isinstance(error, UnreachableError) or (
        isinstance(error, ApiError) and error.is_transient
    )


def retrying(
    send: Callable[[], T],
    *,
    halt: threading.Event,
    until: Callable[[], float] | None = None,
    tries: int | None = None,
) -> T:
    """Make a call until it is answered, `halt` is set, `until` (monotonic) or `tries` is reached.

    Raises the last error when it gives up, and every refusal that is not transient at once.
    """
    backoff = Backoff()
    made = 0
    while True:
        made += 1
        try:
            return send()
        except (UnreachableError, ApiError) as error:
            delay = backoff.next(error)
            late = until is not None and time.monotonic() + delay >= until()
            if not is_transient(error) or late or made == tries or halt.wait(delay):
                raise


class ApiClient:
    """JSON over one pool of connections. `token` is sent with every call, and never shown."""

    def __init__(self, url: str, *, token: str | None = None, connections: int = 20) -> None:
        self.token = token
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/api/v1/",
            timeout=httpx.Timeout(CALL_TIMEOUT, connect=CONNECT_TIMEOUT),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            headers={"Accept": "application/json", "User-Agent": "fencepost-agent/1"},
            # A proxy from the environment is for other machines.
            trust_env=httpx.URL(url).host not in ("localhost", "127.0.0.1", "::1"),
        )

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        params: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Json:
        """One call. UnreachableError, ApiError."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        content = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False)
        try:
            response = self._http.request(
                method,
                path,
                content=None if content is None else content.encode("utf-8", "replace"),
                params=params,
                headers=headers,
                timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else max(timeout, 0.1),
            )
        except httpx.HTTPError as error:
            # The text of the exception could hold the address with its user part.
            raise UnreachableError(type(error).__name__) from None
        if not response.is_success:
            raise _refusal(response)
        try:
            answer = response.json() if response.content else {}
        except ValueError:
            raise UnreachableError("answer is not JSON") from None
        if not isinstance(answer, dict):
            raise UnreachableError("answer is not an object")
        return answer


class WorkerClient(ApiClient):
    """The routes of a worker. `token` is its credential."""

    worker_id = ""

    def register(self, body: Json) -> Json:
        return self.call("POST", "workers", body)

    def heartbeat(self, body: Json) -> Json:
        return self._worker("heartbeat", body)

    def claim(self, body: Json, *, wait_ms: int = 0) -> Json:
        return self._worker("claims", body, timeout=CALL_TIMEOUT + wait_ms / 1000)

    def starts(self, items: list[Json], *, timeout: float) -> Json:
        return self._worker("starts", {"starts": items}, timeout=timeout)

    def results(self, items: list[Json]) -> Json:
        return self._worker("results", {"results": items})

    def reconcile(self, body: Json) -> Json:
        return self._worker("reconcile", body)

    def drain(self, *, reason: str, timeout: float) -> Json:
        return self._worker("drain", {"reason": reason}, timeout=timeout)

    def start(self, claim_id: str, fencing_token: int, *, timeout: float | None = None) -> Json:
        return self._claim(claim_id, "start", fencing_token, {}, timeout=timeout)

    def renew(
        self, claim_id: str, fencing_token: int, *, lease_ms: int, timeout: float | None = None
    ) -> Json:
        return self._claim(claim_id, "renew", fencing_token, {"lease_ms": lease_ms}, timeout)

    def checkpoint(
        self, claim_id: str, fencing_token: int, *, state: Any, timeout: float | None = None
    ) -> Json:
        return self._claim(claim_id, "checkpoint", fencing_token, {"state": state}, timeout)

    def complete(self, claim_id: str, fencing_token: int, *, result: Json) -> Json:
        return self._claim(claim_id, "complete", fencing_token, result)

    def fail(self, claim_id: str, fencing_token: int, *, failure: Json) -> Json:
        return self._claim(claim_id, "fail", fencing_token, failure)

    def cancelled(self, claim_id: str, fencing_token: int) -> Json:
        return self._claim(claim_id, "cancelled", fencing_token, {})

    def release(self, claim_id: str, fencing_token: int) -> Json:
        return self._claim(claim_id, "release", fencing_token, {})

    def _worker(self, operation: str, body: Json, timeout: float | None = None) -> Json:
        return self.call("POST", f"workers/{self.worker_id}/{operation}", body, timeout=timeout)

    def _claim(
        self,
        claim_id: str,
        operation: str,
        fencing_token: int,
        body: Json,
        timeout: float | None = None,
    ) -> Json:
        whole = {"fencing_token": fencing_token, **body}
        return self.call("POST", f"claims/{claim_id}/{operation}", whole, timeout=timeout)
