"""Placement policies: what work asks of its worker, beside the capabilities it needs.

All of it but the ranking (`affinity`) binds, also when a worker pulls.
"""

from collections.abc import Mapping
from typing import Any, Final

from .workers import MAX_LABELS, are_amounts, is_label

_PAIRS: Final = ("required_labels", "affinity", "anti_affinity")


def whole(said: Mapping[str, Any]) -> dict[str, Any]:
    """The policy after defaults; a pool and resources stand in it only where they are asked for.

    So work without them has the digest that it had before there were any.
    """
    asked = {name: each for name, each in said.items() if each not in (None, {})}
    return {**{name: {} for name in _PAIRS}, **asked}


def rules(policy: Mapping[str, Any]) -> dict[str, bool]:
    """Whether each part of a whole policy is within its bounds, by the name of the part.

    A pool need not be there: until it is, nobody may take the work.
    """
    pairs = {
        f"policy.{name}": len(policy[name]) <= MAX_LABELS
        and all(is_label(key, value) for key, value in policy[name].items())
        for name in _PAIRS
    }
    pool_id = policy.get("pool_id")
    return {
        **pairs,
        "policy.pool_id": pool_id is None or (bool(pool_id.strip()) and len(pool_id) <= 200),
        "policy.resources": are_amounts(policy.get("resources", {})),
    }
