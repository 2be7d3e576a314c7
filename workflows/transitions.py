"""Transitions: from which authority to which next one a run is to go, and in what mode. Pure.

A transition holds no fencing token, so that it can be shown, stored and told to resolvers.
"""

from dataclasses import dataclass
from typing import Any

from mesh.canonical import digest
from mesh.errors import DomainError

from .authority import Authority
from .models import Handoff, HandoffMode


@dataclass(frozen=True, slots=True)
class Transition:
    """From `expected` to `replacement`. Tokens of authorities that it is made of are left out."""

    mode: HandoffMode
    expected: Authority
    replacement: Authority

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", self.expected.without_token())
        object.__setattr__(self, "replacement", self.replacement.without_token())

    def shown(self) -> dict[str, Any]:
        return {
            "mode": str(self.mode),
            "expected": self.expected.public(),
            "replacement": self.replacement.public(),
        }

    def digest(self) -> str:
        """By which two transitions of a run are the same."""
        return digest(self.shown())

    def require_sound(self) -> None:
        """Refuse with ADMISSION_INVALID an instance id or artifact that could not be one."""
        self.expected.require_sound()
        self.replacement.require_sound()

    def require_step(self) -> None:
        """Refuse with TRANSITION_INVALID what does not lead to the next generation of another."""
        if self.expected.generation < 1:
            raise invalid("The first generation is 1.")
        if self.replacement.generation != self.expected.generation + 1:
            raise invalid("The generation rises by exactly one.")
        if self.replacement.instance_id == self.expected.instance_id:
            raise invalid("A run is handed over to another instance.")

    def is_that_of(self, handoff: Handoff) -> bool:
        """Whether a stored hand-over was this one."""
        return self.shown() == of(handoff).shown()


def of(handoff: Handoff) -> Transition:
    """The transition that a stored hand-over made."""
    return Transition(
        HandoffMode(handoff.mode),
        Authority(
            handoff.expected_artifact_id, handoff.expected_instance_id, handoff.generation - 1
        ),
        Authority(
            handoff.replacement_artifact_id, handoff.replacement_instance_id, handoff.generation
        ),
    )


def invalid(detail: str) -> DomainError:
    return DomainError("TRANSITION_INVALID", detail)
