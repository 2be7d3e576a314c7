"""Submissions: work as a client describes it, its defaults and bounds. Asks no database.

Two submissions are the same when their content after defaults is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from . import policies
from .canonical import digest, identity, size
from .dependencies import MAX_DEPENDENCIES
from .errors import DomainError
from .models import Backoff, LostPolicy, RequiredState
from .requirements import Need
from .scopes import Facts
from .signals import RUN_KEY
from .workers import are_names
from .workloads import MAX_INPUT

RETRY_DEFAULTS: Final[Mapping[str, Any]] = {
    "max_attempts": 3,
    "initial_delay_ms": 1_000,
    "max_delay_ms": 300_000,
    "backoff": Backoff.EXPONENTIAL.value,
    "retry_on": ["timeout", "transient_connection", "worker_failure"],
    "jitter": 0,
    "max_unstarted": 10,
}
TIMEOUT_DEFAULTS: Final[Mapping[str, int | None]] = {
    "queue_ms": None,
    "claim_ms": None,
    "execution_ms": None,
    "heartbeat_ms": None,
    "overall_ms": None,
    "cancel_grace_ms": 60_000,
}
PRIORITY: Final = range(-(2**31), 2**31)
MAX_SPAN_MS: Final = 10 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Submission:
    """Work as a client describes it; mappings hold only what the client sent."""

    application: str
    environment: str
    definition_id: str
    definition_revision: str
    trigger: str
    input: Any
    idempotency_key: str
    capability_snapshot: Sequence[str] = ()
    priority: int = 0
    retry_policy: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Mapping[str, int | None] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    lost_policy: str = LostPolicy.REQUEUE.value
    not_before: datetime | None = None
    connection_scopes: Sequence[str] = ()
    session_id: str = ""
    # Each `workload_id` and, where it is not SUCCEEDED, `required_state`.
    dependencies: Sequence[Mapping[str, str]] = ()

    def workload_id(self, tenant: str) -> str:
        """The id that the work has, or would have."""
        return identity("workload", [tenant, self.application, self.idempotency_key])

    def facts(self, tenant: str) -> Facts:
        """What a grant's constraints are tested on."""
        return Facts(
            environment=self.environment,
            workload_id=self.workload_id(tenant),
            labels=self.policy.get("required_labels", {}),
        )

    def content(self) -> dict[str, Any]:
        """All that was sent, after defaults, in one form: equal content has an equal digest."""
        retry = {**RETRY_DEFAULTS, **self.retry_policy}
        content: dict[str, Any] = {
            "application": self.application,
            "environment": self.environment,
            "definition_id": self.definition_id,
            "definition_revision": self.definition_revision,
            "trigger": self.trigger,
            "input": self.input,
            "idempotency_key": self.idempotency_key,
            "capability_snapshot": sorted(set(self.capability_snapshot)),
            "priority": self.priority,
            "retry_policy": {**retry, "retry_on": sorted(set(retry["retry_on"]))},
            "timeouts": {**TIMEOUT_DEFAULTS, **self.timeouts},
            "policy": policies.whole(self.policy),
            "lost_policy": self.lost_policy,
            "not_before": self.not_before and self.not_before.timestamp(),
            "connection_scopes": list(self.connection_scopes),
            "session_id": self.session_id,
        }
        if self.dependencies:
            # Only then: what was sent before there were any is still the same content.
            content["dependencies"] = self.waits_for()
        return content

    def waits_for(self) -> list[dict[str, str]]:
        """The dependencies with their required states, each once, in the order of their ids."""
        pairs = {
            (each["workload_id"], each.get("required_state", RequiredState.SUCCEEDED.value))
            for each in self.dependencies
        }
        return [{"workload_id": one, "required_state": state} for one, state in sorted(pairs)]


@dataclass(frozen=True, slots=True)
class Asked:
    """One workload that is to be taken in, and the grant (JWS) under which, if not by a role."""

    submission: Submission
    grant: str | None = None
    # Of a workflow run, which alone may use the keys that begin with `run:`.
    is_of_run: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """What was asked, with all that is worked out from it alone."""

    submission: Submission
    grant: str | None
    content: dict[str, Any]
    digest: str
    input_bytes: int
    need: Need
    need_digest: str
    is_of_run: bool = False

    @classmethod
    def of(cls, asked: Asked, known: dict[str, tuple[Need, str]]) -> "Item":
        """`known` holds the needs of the same call, most of which are alike."""
        content = asked.submission.content()
        parts = [content["definition_id"], content["capability_snapshot"], content["policy"]]
        name = repr(parts)
        if name not in known:
            need = Need(parts[0], tuple(parts[1]), **parts[2])
            known[name] = (need, need.digest())
        need, need_digest = known[name]
        input_bytes = size(asked.submission.input)
        return cls(
            asked.submission,
            asked.grant,
            content,
            digest(content),
            input_bytes,
            need,
            need_digest,
            asked.is_of_run,
        )


def require_values(item: Item, at: datetime) -> None:
    """Refuse with WORKLOAD_INVALID what is out of bounds at `at`, naming each part of it."""
    submission, content = item.submission, item.content
    key = submission.idempotency_key
    texts = {
        "environment": submission.environment,
        "definition_id": submission.definition_id,
        "definition_revision": submission.definition_revision,
        "trigger": submission.trigger,
    }
    rules = {
        **{name: is_text(text) for name, text in texts.items()},
        "idempotency_key": bool(key.strip())
        and len(key) <= 255
        and key.startswith(RUN_KEY) == item.is_of_run,
        "session_id": len(submission.session_id) <= 200,
        "priority": submission.priority in PRIORITY,
        "capability_snapshot": are_names(submission.capability_snapshot),
        "connection_scopes": are_names(submission.connection_scopes),
        "input": item.input_bytes <= MAX_INPUT,
        "not_before": is_near(submission.not_before, at),
        "dependencies": len(submission.dependencies) <= MAX_DEPENDENCIES
        and all(each["required_state"] in RequiredState.values for each in submission.waits_for()),
        # What was left out has its default, which is within all bounds.
        **(policies.rules(content["policy"]) if submission.policy else {}),
        **(retry_rules(content["retry_policy"]) if submission.retry_policy else {}),
        **(timeout_rules(content["timeouts"]) if submission.timeouts else {}),
    }
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise DomainError("WORKLOAD_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken)


def is_text(text: str) -> bool:
    """A text that is kept with work (environment, definition): not blank, at most 200 long."""
    return bool(text.strip()) and len(text) <= 200


def retry_rules(policy: Mapping[str, Any]) -> dict[str, bool]:
    """Whether each part of a whole retry policy is within its bounds, by the name of the part."""
    return {
        "retry_policy.max_attempts": 1 <= policy["max_attempts"] <= 1_000,
        "retry_policy.initial_delay_ms": 0 <= policy["initial_delay_ms"] <= MAX_SPAN_MS,
        "retry_policy.max_delay_ms": 0 <= policy["max_delay_ms"] <= MAX_SPAN_MS,
        "retry_policy.backoff": policy["backoff"] in Backoff.values,
        "retry_policy.retry_on": are_names(policy["retry_on"]),
        "retry_policy.jitter": 0 <= policy["jitter"] <= 1,
        "retry_policy.max_unstarted": 1 <= policy["max_unstarted"] <= 1_000,
    }


def timeout_rules(timeouts: Mapping[str, int | None]) -> dict[str, bool]:
    """Whether each of all timeouts is within its bounds, by its name."""
    return {
        f"timeouts.{name}": (value is None and name != "cancel_grace_ms")
        or (value is not None and 1 <= value <= MAX_SPAN_MS)
        for name, value in timeouts.items()
    }


def is_near(moment: datetime | None, at: datetime) -> bool:
    """Within ten years: no further than a span may reach, so that deadlines can be worked out."""
    return moment is None or abs(moment.timestamp() - at.timestamp()) * 1_000 <= MAX_SPAN_MS
