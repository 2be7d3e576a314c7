"""What a grant says, and what falls under it: rights, resources, constraints.

Guarantees: what is left out of a grant's resources or constraints is not restricted; a constraint
whose value is not known is not met; a grant is *within* another one only where every request that
it would allow is one that the other would allow too. Pure: no rows are read here.

A name in `worker_names` and `environments` may end in `*`, which stands for any rest. Labels are
met when each of their pairs is among those asked about, so more pairs are the tighter constraint.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .errors import DomainError
from .models import Grant, Runtime, ScopeKind

CAPABILITY_PREFIX: Final = "worker:capability:"
RIGHTS: Final = frozenset(
    {
        "worker:register",
        "worker:heartbeat",
        "worker:manage",
        "worker:read",
        "workload:create",
        "workload:read",
        "workload:claim",
        "workload:execute",
        "workload:cancel",
        "workload:retry",
        "authorization:grant",
    }
)
_SUBJECT: Final = re.compile(
    r"(human|service|workload|agent|connection|worker):[A-Za-z0-9._:-]{1,200}"
)
_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_ENVIRONMENT: Final = re.compile(r"[^*\0]{0,200}")
_WORKLOAD_ID: Final = re.compile(r"workload_[0-9a-f]{24}")
_MAX_LIST: Final = 256
_MAX_LABELS: Final = 64


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server knows of a request; None is not known, so no constraint on it is met."""

    worker_name: str | None = None
    runtime: str | None = None
    labels: Mapping[str, str] | None = None
    environment: str | None = None
    workload_id: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One use of a grant: a right on a resource, and what is known about it."""

    right: str
    uri: str
    facts: Facts


def is_subject(subject: str) -> bool:
    """Whether it is written `kind:id` with a kind that there is."""
    return bool(_SUBJECT.fullmatch(subject))


def covers(grant: Grant, uri: str) -> bool:
    """Whether the grant reaches the resource; without any resources it reaches the application."""
    return not grant.resources or any(_covers(each, uri) for each in grant.resources)


def unmet(constraints: Mapping[str, Any], facts: Facts) -> list[str]:
    """The names of the constraints that the facts do not meet."""
    return [name for name, wanted in constraints.items() if not _TESTS[name](wanted, facts)]


def excess(child: Grant, parent: Grant) -> list[str]:
    """The parts in which `child` allows what `parent` does not; none where it is within it.

    Their times count too: the child begins no sooner and ends no later.
    """
    is_wider = {
        "capabilities": not set(child.capabilities) <= set(parent.capabilities),
        "resources": not _are_inside(child, parent),
        **{
            f"constraints.{name}": not _is_tightened(
                name, child.constraints.get(name), parent.constraints.get(name)
            )
            for name in parent.constraints
        },
        "not_before": child.not_before < parent.not_before,
        "expires_at": child.expires_at > parent.expires_at,
    }
    return [part for part, holds in is_wider.items() if holds]


def require_statement(
    application: str,
    subject: str,
    capabilities: Sequence[str],
    resources: Sequence[Mapping[str, str]],
    constraints: Mapping[str, Any],
) -> None:
    """Refuse with REQUEST_INVALID what nothing in the mesh could ever ask for."""
    if not is_subject(subject):
        raise _invalid("A subject is written kind:id, as in service:billing.")
    if not capabilities:
        raise _invalid("A grant without any right allows nothing.")
    if unknown := [each for each in capabilities if not _is_right(each)]:
        named = ", ".join(each[:80] for each in unknown[:3])
        rights = ", ".join(sorted(RIGHTS))
        raise _invalid(f"Not a right: {named}. Rights are {CAPABILITY_PREFIX}NAME, {rights}.")
    for each in resources:
        if set(each) != {"kind", "uri"} or each["kind"] not in ScopeKind.values:
            kinds = ", ".join(ScopeKind.values)
            raise _invalid(f"A resource has a uri and a kind of {kinds}.")
        _require_uri(application, each["uri"])
    for name, wanted in constraints.items():
        if name not in _SHAPES:
            raise _invalid(f"A constraint is one of {', '.join(_SHAPES)}.")
        if not _SHAPES[name](wanted):
            raise _invalid(f"The constraint {name} is not as it should be.")


def _is_right(capability: str) -> bool:
    name = capability.removeprefix(CAPABILITY_PREFIX)
    return capability in RIGHTS or (name != capability and bool(_NAME.fullmatch(name)))


def _require_uri(application: str, uri: str) -> None:
    root = f"flow://{application}"
    is_inside = uri == root or uri.startswith(f"{root}/")
    if not is_inside or ".." in uri or "?" in uri or "#" in uri or len(uri) > 1_000:
        raise _invalid(f"A uri begins with {root}/ and has no .. ? or #.")


def _covers(resource: Mapping[str, str], uri: str) -> bool:
    base = resource["uri"].rstrip("/")
    if uri == base:
        return True
    return resource["kind"] != ScopeKind.WORKLOAD and uri.startswith(f"{base}/")


def _are_inside(child: Grant, parent: Grant) -> bool:
    """Whether every uri that the child reaches is one that the parent reaches.

    A resource that reaches below its uri is inside one resource of the parent or in none at all,
    for what is below has no end.
    """
    if not parent.resources:
        return True
    whole = {"kind": ScopeKind.APPLICATION, "uri": f"flow://{child.application.name}"}
    return all(
        any(_is_inside(each, outer) for outer in parent.resources)
        for each in child.resources or [whole]
    )


def _is_inside(inner: Mapping[str, str], outer: Mapping[str, str]) -> bool:
    is_one = ScopeKind.WORKLOAD
    if outer["kind"] == is_one and inner["kind"] != is_one:
        return False
    return _covers(outer, inner["uri"].rstrip("/"))


def _matches(patterns: Sequence[str], name: str | None) -> bool:
    return name is not None and any(
        name.startswith(each[:-1]) if each.endswith("*") else name == each for each in patterns
    )


def _is_tightened(name: str, inner: Any, outer: Any) -> bool:
    """Whether all that meets the child's constraint meets the parent's."""
    if inner is None:
        return False
    if name in _PATTERNS:
        return all(any(_is_narrower(each, wide) for wide in outer) for each in inner)
    if name == "runtimes":
        return set(inner) <= set(outer)
    if name == "labels":
        return set(outer.items()) <= set(inner.items())
    return bool(inner == outer)


def _is_narrower(inner: str, outer: str) -> bool:
    """Whether every name that the one pattern matches is matched by the other."""
    if outer.endswith("*"):
        return inner.removesuffix("*").startswith(outer[:-1])
    return inner == outer


def _are(values: Any, is_good: Callable[[str], bool]) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= _MAX_LIST
        and all(isinstance(each, str) and is_good(each) for each in values)
    )


def _is_pattern(text: str, stem: re.Pattern[str]) -> bool:
    return text == "*" or (bool(text.strip()) and bool(stem.fullmatch(text.removesuffix("*"))))


def _are_labels(pairs: Any) -> bool:
    return (
        isinstance(pairs, dict)
        and len(pairs) <= _MAX_LABELS
        and all(
            isinstance(key, str)
            and isinstance(value, str)
            and 1 <= len(key) <= 63
            and len(value) <= 255
            for key, value in pairs.items()
        )
    )


def _invalid(detail: str) -> DomainError:
    return DomainError("REQUEST_INVALID", detail)


_PATTERNS: Final = frozenset({"environments", "worker_names"})
# Each constraint: how it is written, and when a request meets it.
_SHAPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "environments": lambda names: _are(names, lambda each: _is_pattern(each, _ENVIRONMENT)),
    "worker_names": lambda names: _are(names, lambda each: _is_pattern(each, _NAME)),
    "runtimes": lambda names: _are(names, lambda each: each in Runtime.values),
    "labels": _are_labels,
    "workload_id": lambda each: isinstance(each, str) and bool(_WORKLOAD_ID.fullmatch(each)),
}
_TESTS: Final[Mapping[str, Callable[[Any, Facts], bool]]] = {
    "environments": lambda wanted, facts: _matches(wanted, facts.environment),
    "worker_names": lambda wanted, facts: _matches(wanted, facts.worker_name),
    "runtimes": lambda wanted, facts: facts.runtime in wanted,
    "labels": lambda wanted, facts: (
        facts.labels is not None and wanted.items() <= facts.labels.items()
    ),
    "workload_id": lambda wanted, facts: facts.workload_id == wanted,
}
