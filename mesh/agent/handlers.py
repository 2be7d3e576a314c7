"""What a handler module needs: `@handler`, failures with a kind, and the context of one attempt.

A handler is a callable `(input, context) -> output`, registered under a definition id. It runs in
a child process of the agent that may be killed at any instruction; what must outlive that goes
into `context.checkpoint`.
"""

from collections.abc import Callable
from typing import Any

Handler = Callable[[Any, "Context"], Any]

_registered: dict[str, Handler] = {}


def handler(definition_id: str) -> Callable[[Handler], Handler]:
    """Register the decorated callable for a definition; a second one for it is an error."""

    def register(function: Handler) -> Handler:
        if definition_id in _registered:
            raise ValueError(f"two handlers for {definition_id}")
        _registered[definition_id] = function
        return function

    return register


def registered() -> dict[str, Handler]:
    """Every handler registered so far, by definition id."""
    return dict(_registered)


class WorkFailure(Exception):  # noqa: N818  what happened to the work, not a bug
    """The attempt failed, and `kind` says how; whether it is tried again is the workload's policy.

    `no_effect` states that nothing outside was changed: work whose effects must not be repeated
    is only retried with it.
    """

    def __init__(
        self,
        kind: str,
        error: str = "",
        details: dict[str, Any] | None = None,
        *,
        no_effect: bool = False,
    ) -> None:
        super().__init__(error or kind)
        self.kind = kind
        self.error = error or kind
        self.details = details
        self.no_effect = no_effect


class CheckpointRefused(WorkFailure):
    """The server refused a checkpoint for good (too large, or it held a secret)."""

    def __init__(self, code: str, detail: str = "") -> None:
        kind = "secret_rejected" if code == "WORKLOAD_SECRET_REJECTED" else "checkpoint_refused"
        super().__init__(kind, f"checkpoint refused: {detail or code}")
        self.code = code


class WorkCancelled(Exception):  # noqa: N818  likewise
    """Raised by a handler that stopped because it was asked to."""


class Context:
    """One attempt as its handler sees it."""

    def __init__(
        self,
        job: dict[str, Any],
        *,
        save: Callable[[Any], dict[str, Any]],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.workload_id: str = job["workload_id"]
        self.attempt_id: str = job["attempt_id"]
        self.attempt_number: int = job["attempt_number"]
        self.definition_id: str = job["definition_id"]
        self.previous_checkpoint: Any = job["checkpoint"]
        self.log_lines: list[str] = []
        self._save = save
        self._is_cancelled = is_cancelled

    def checkpoint(self, state: Any) -> bool:
        """Store progress for a later attempt; True when it is stored.

        False when it could not be stored now (server away, cancel requested): go on, or stop if
        `cancelled` says so. Raises CheckpointRefused when the state itself is refused.
        """
        answer = self._save(state)
        if answer.get("refused"):
            raise CheckpointRefused(answer["refused"], answer.get("detail", ""))
        return bool(answer.get("stored"))

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop: a cancel, its time limit, or the agent's own end."""
        return self._is_cancelled()

    def stop_if_cancelled(self) -> None:
        """Raise WorkCancelled when the attempt should stop."""
        if self.cancelled:
            raise WorkCancelled

    def log(self, line: str) -> None:
        """Add a line to the logs that are stored with the result."""
        self.log_lines.append(line)
