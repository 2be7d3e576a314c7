"""Reports: what a worker says that ends its claim. Their shape, bounds and sameness.

Pure: nothing is read or written. Two reports are the same when claim, token, step and body are;
an exact repeat has an equal digest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from .canonical import digest, is_within
from .errors import DomainError
from .screening import require_no_secrets
from .workloads import MAX_INPUT

MAX_LOGS: Final = 256 * 1024
MAX_DETAILS: Final = 256 * 1024
MAX_ARTIFACTS: Final = 100
MAX_ERROR: Final = 64 * 1024
COMPLETE: Final = "complete"
FAIL: Final = "fail"
CANCELLED: Final = "cancelled"
RELEASE: Final = "release"


@dataclass(frozen=True)
class Report:
    """One report on one claim; `body` is in its one form, with every default filled in."""

    claim_id: str
    token: int
    step: str
    body: Mapping[str, Any]

    @cached_property
    def digest(self) -> str:
        """What the report is known by when it comes again."""
        return digest([self.token, self.body] if self.body else [self.token])

    def require_sound(self) -> None:
        """Refuse with WORKLOAD_SECRET_REJECTED a secret anywhere, then with WORKLOAD_INVALID."""
        require_no_secrets(**{name: self.body.get(name) for name in _SCREENED[self.step]})
        require_bounds(**_RULES[self.step](self.body))


def complete(
    claim_id: str,
    token: int,
    *,
    result_id: str,
    output: Any,
    artifacts: Sequence[str] = (),
    logs: str = "",
    resource_usage: Mapping[str, Any] | None = None,
) -> Report:
    """The work succeeded; `output` is its result."""
    body = {
        "result_id": result_id,
        "output": output,
        "artifacts": list(artifacts),
        "logs": logs,
        "resource_usage": resource_usage,
    }
    return Report(claim_id, token, COMPLETE, body)


def fail(
    claim_id: str,
    token: int,
    *,
    kind: str,
    error: str,
    details: Mapping[str, Any] | None = None,
    no_effect: bool = False,
) -> Report:
    """The attempt failed; `no_effect` says that nothing happened that must not happen twice."""
    body: dict[str, Any] = {"kind": kind, "error": error, "details": dict(details or {})}
    if no_effect:
        body["no_effect"] = True
    return Report(claim_id, token, FAIL, body)


def cancelled(claim_id: str, token: int) -> Report:
    """The work was stopped, as asked."""
    return Report(claim_id, token, CANCELLED, {})


def release(claim_id: str, token: int) -> Report:
    """The work was not begun and is given back."""
    return Report(claim_id, token, RELEASE, {})


def require_bounds(**rules: bool) -> None:
    """Refuse with WORKLOAD_INVALID where a rule does not hold, naming each that does not."""
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise DomainError("WORKLOAD_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken)


def _rules_of_complete(body: Mapping[str, Any]) -> dict[str, bool]:
    artifacts = body["artifacts"]
    return {
        "result_id": len(body["result_id"]) <= 200 and bool(body["result_id"].strip()),
        "output": is_within(body["output"], MAX_INPUT),
        "artifacts": len(artifacts) <= MAX_ARTIFACTS and all(len(a) <= 2_000 for a in artifacts),
        "logs": len(body["logs"].encode()) <= MAX_LOGS,
        "resource_usage": is_within(body["resource_usage"], MAX_DETAILS),
    }


def _rules_of_fail(body: Mapping[str, Any]) -> dict[str, bool]:
    return {
        "kind": len(body["kind"]) <= 200 and bool(body["kind"].strip()),
        "error": len(body["error"].encode()) <= MAX_ERROR,
        "details": is_within(body["details"], MAX_DETAILS),
    }


def _no_rules(body: Mapping[str, Any]) -> dict[str, bool]:
    return {}


_SCREENED: Final[Mapping[str, Sequence[str]]] = {
    COMPLETE: ("output", "artifacts", "logs"),
    FAIL: ("error", "details"),
    CANCELLED: (),
    RELEASE: (),
}
_RULES: Final = {
    COMPLETE: _rules_of_complete,
    FAIL: _rules_of_fail,
    CANCELLED: _no_rules,
    RELEASE: _no_rules,
}
MAKERS: Final[Mapping[str, Callable[..., Report]]] = {
    COMPLETE: complete,
    FAIL: fail,
    CANCELLED: cancelled,
    RELEASE: release,
}
