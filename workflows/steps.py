"""Steps of a definition: what is to be done, in what order, on what resources. Pure.

A stored definition holds each step with all defaults written out; `Steps.of` reads it back.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .models import Definition, Effect, OnFailure, Replay


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """A resource that a step reserves while it is tried."""

    resource: str
    access: str
    scope: str

    def shown(self) -> dict[str, str]:
        return {"resource": self.resource, "access": self.access, "scope": self.scope}


@dataclass(frozen=True, slots=True)
class Step:
    """One step, sound and complete. `position` is its place in the definition."""

    position: int
    step: str
    # Of the work that is done for it.
    definition_id: str
    needs: tuple[str, ...]
    capabilities: tuple[str, ...]
    # Normalized: each once, write before read, sorted.
    resources: tuple[Resource, ...]
    effect: str
    replay: str
    on_failure: str
    # How many attempts of the run at this step.
    max_attempts: int
    # The retry policy, timeouts and placement policy of its workload, as a submission has them.
    delivery: Mapping[str, Any]
    timeouts: Mapping[str, Any]
    policy: Mapping[str, Any]
    # May hold `{"$from": …, "pointer": …}`.
    input: Any

    @property
    def is_held_when_lost(self) -> bool:
        """Whether its work is held when lost: it changes something and must not be replayed."""
        return self.effect == Effect.MUTATING and self.replay != Replay.IDEMPOTENT

    @property
    def fails_the_run(self) -> bool:
        return self.on_failure == OnFailure.FAIL


class Steps(Mapping[str, Step]):
    """The steps of one definition by name, in the order of the definition."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = {each.step: each for each in steps}

    @classmethod
    def of(cls, definition: Definition) -> "Steps":
        """As they are stored: sound and with all defaults."""
        return cls([_read(place, each) for place, each in enumerate(definition.steps)])

    def __getitem__(self, name: str) -> Step:
        return self._steps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def dependents(self, name: str) -> list[Step]:
        """The steps that need it directly."""
        return [each for each in self._steps.values() if name in each.needs]


def _read(place: int, said: Mapping[str, Any]) -> Step:
    return Step(
        position=place,
        step=said["step"],
        definition_id=said["definition_id"],
        needs=tuple(said["needs"]),
        capabilities=tuple(said["capabilities"]),
        resources=tuple(
            Resource(each["resource"], each["access"], each["scope"]) for each in said["resources"]
        ),
        effect=said["effect"],
        replay=said["replay"],
        on_failure=said["on_failure"],
        max_attempts=said["retry"]["max_attempts"],
        delivery=said["delivery"],
        timeouts=said["timeouts"],
        policy=said["policy"],
        input=said["input"],
    )
