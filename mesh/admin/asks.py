"""What work asks of its worker, in words."""

from collections.abc import Mapping
from typing import Any

from django.utils.safestring import SafeString

from ..words import resource
from .display import chips


def asks(policy: Mapping[str, Any]) -> SafeString:
    """A policy as chips: pool, labels, resources, what is preferred and what is avoided."""
    pool = [f"pool {policy['pool_id']}"] if policy.get("pool_id") else []
    return chips(
        [
            *pool,
            *_labels("", policy.get("required_labels")),
            *_amounts(policy.get("resources")),
            *_labels("prefers ", policy.get("affinity")),
            *_labels("avoids ", policy.get("anti_affinity")),
        ],
        empty="nothing more",
    )


def resources(profile: Mapping[str, int]) -> SafeString:
    """What a worker declares, or work needs, as chips."""
    return chips(_amounts(profile))


def _amounts(profile: Mapping[str, int] | None) -> list[str]:
    return [resource(key, value) for key, value in sorted((profile or {}).items())]


def _labels(verb: str, labels: Mapping[str, str] | None) -> list[str]:
    return [f"{verb}{key} = {value}" for key, value in sorted((labels or {}).items())]
