"""Drafts: one step as it is sent, its defaults and bounds. Pure.

What is the step's alone is judged here; how steps belong together stands in `workflows.steps`.
Bounds of capabilities, delivery, timeouts and policy are those of a submission, by its own rules,
so that the work of a stored step is never refused for them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mesh import policies
from mesh.submissions import RETRY_DEFAULTS, Submission, retry_rules, timeout_rules
from mesh.workers import are_names

from .models import Access, Effect, LeaseScope, OnFailure, Replay
from .names import ID, is_name

_WORDS: Final[Mapping[str, list[str]]] = {
    "effect": Effect.values,
    "replay": Replay.values,
    "on_failure": OnFailure.values,
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "needs": (),
    "capabilities": (),
    "resources": (),
    # A step that does not say so is not taken to be harmless.
    "effect": Effect.MUTATING.value,
    "replay": Replay.NONE.value,
    "on_failure": OnFailure.FAIL.value,
    "retry": {},
    "delivery": {},
    "timeouts": {},
    "policy": {},
    "input": None,
}

_Test = Callable[[Any], bool]


class Unsound(ValueError):  # noqa: N818  # never leaves workflows.steps
    """What is wrong with a draft, in words that follow `The step …: `."""


def whole(draft: Mapping[str, Any]) -> dict[str, Any]:
    """The step with all defaults written out; raises `Unsound`."""
    _require_types(draft)
    said = {**_DEFAULTS, **draft}
    work = _work(said)
    rules = {
        "step": bool(ID.fullmatch(said["step"])),
        "definition_id": bool(ID.fullmatch(said["definition_id"])),
        **{name: said[name] in words for name, words in _WORDS.items()},
        "retry.max_attempts": _are_attempts(said["retry"]),
        "capabilities": are_names(work["capability_snapshot"]),
        **policies.rules(work["policy"]),
        **timeout_rules(work["timeouts"]),
        **{
            name.replace("retry_policy", "delivery"): holds
            for name, holds in retry_rules(work["retry_policy"]).items()
        },
    }
    broken = [name for name, holds in rules.items() if not holds]
    if broken:
        raise Unsound(f"out of bounds: {', '.join(broken)}")
    return {
        **said,
        "needs": list(said["needs"]),
        "capabilities": work["capability_snapshot"],
        "resources": [_resource(each) for each in said["resources"]],
        "retry": {"max_attempts": 1, **said["retry"]},
        "delivery": work["retry_policy"],
        "timeouts": work["timeouts"],
        "policy": work["policy"],
    }


def _work(said: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the submission that this step would become, with a submission's defaults."""
    submission = Submission(
        application="",
        environment="",
        definition_id=said["definition_id"],
        definition_revision="",
        trigger="",
        input=None,
        idempotency_key="",
        capability_snapshot=said["capabilities"],
        retry_policy=said["delivery"],
        timeouts=said["timeouts"],
        policy=said["policy"],
    )
    return submission.content()


def _are_attempts(retry: Mapping[str, int]) -> bool:
    """A run may try a step as often as work may be tried."""
    return retry_rules({**RETRY_DEFAULTS, **retry})["retry_policy.max_attempts"]


def _resource(said: Mapping[str, str]) -> dict[str, str]:
    whole = {"scope": LeaseScope.RUN.value, **said}
    if not is_name(whole.get("resource", "")):
        raise Unsound("a resource has a name that is not blank, without blanks around it, short")
    if whole.get("access") not in Access.values or whole["scope"] not in LeaseScope.values:
        raise Unsound("a resource has access read or write, and scope run or application")
    return whole


def _require_types(draft: Mapping[str, Any]) -> None:
    if not isinstance(draft, Mapping):
        raise Unsound("it is no object")
    for name in ("step", "definition_id"):
        if name not in draft:
            raise Unsound(f"{name} is missing")
    for name, value in draft.items():
        if name not in _TYPES:
            raise Unsound(f"there is no member {str(name)[:64]}")
        if not _TYPES[name](value):
            raise Unsound(f"{name} has another form")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _is_anything(value: Any) -> bool:
    return True


def _or_null(test: _Test) -> _Test:
    return lambda value: value is None or test(value)


def _list_of(test: _Test) -> _Test:
    return lambda value: isinstance(value, (list, tuple)) and all(map(test, value))


def _pairs_of(test: _Test) -> _Test:
    return lambda value: (
        isinstance(value, Mapping) and all(map(_is_text, value)) and all(map(test, value.values()))
    )


def _object(**members: _Test) -> _Test:
    return lambda value: (
        isinstance(value, Mapping)
        and all(name in members and members[name](each) for name, each in value.items())
    )


_LABELS: Final = _pairs_of(_is_text)
_SPAN: Final = _or_null(_is_integer)
_TYPES: Final[Mapping[str, _Test]] = {
    "step": _is_text,
    "definition_id": _is_text,
    "needs": _list_of(_is_text),
    "capabilities": _list_of(_is_text),
    "resources": _list_of(_object(resource=_is_text, access=_is_text, scope=_is_text)),
    "effect": _is_text,
    "replay": _is_text,
    "on_failure": _is_text,
    "retry": _object(max_attempts=_is_integer),
    "delivery": _object(
        max_attempts=_is_integer,
        initial_delay_ms=_is_integer,
        max_delay_ms=_is_integer,
        backoff=_is_text,
        retry_on=_list_of(_is_text),
        jitter=_is_number,
        max_unstarted=_is_integer,
    ),
    "timeouts": _object(
        queue_ms=_SPAN,
        claim_ms=_SPAN,
        execution_ms=_SPAN,
        heartbeat_ms=_SPAN,
        overall_ms=_SPAN,
        cancel_grace_ms=_is_integer,
    ),
    "policy": _object(
        required_labels=_LABELS,
        affinity=_LABELS,
        anti_affinity=_LABELS,
        pool_id=_or_null(_is_text),
        resources=_pairs_of(_is_integer),
    ),
    "input": _is_anything,
}
