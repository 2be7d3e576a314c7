"""A route of the API, and one call of it that is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mesh.models import Role
from tests.factories import Member, World

WORKER: Final = "worker"
OPEN: Final = "open"


@dataclass(frozen=True)
class Call:
    """One call that is accepted; `worker` is the one that a worker's call is made by.

    `secret` is that of the only caller that may make it, where not any of its role may.
    """

    path: str
    body: dict[str, Any] | None = None
    worker: Member | None = None
    secret: str | None = None


@dataclass(frozen=True)
class Route:
    """`needs` is the weakest role, `worker`, or `open`; `noun` what the id in the path names."""

    method: str
    pattern: str
    needs: str
    make: Callable[[World], Call]
    noun: str = ""
    free: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.pattern}"

    def secret(self, world: World, call: Call) -> str | None:
        """What the weakest caller that may do it presents."""
        if self.needs == OPEN:
            return None
        if call.secret is not None:
            return call.secret
        if self.needs == WORKER:
            assert call.worker is not None
            return call.worker.credential
        return world.token(Role(self.needs))
