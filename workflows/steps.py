"""Steps of a definition: what is to be done, in what order, on what resources. Pure.

A definition is judged once, by `parse`, when it is stored. Stored is each step with all defaults
written out, so that what is executed stands there and nowhere else; `Steps.of` reads it back. It
never changes, so a process reads it once: each act on a run of a thousand steps needs them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from mesh.canonical import size
from mesh.errors import DomainError

from . import drafts, inputs
from .models import Access, Definition, Effect, OnFailure, Replay

MAX_STEPS: Final = 1_000
MAX_BYTES: Final = 1024 * 1024
# Per step.
MAX_RESOURCES: Final = 1_000
# Definitions whose steps a process keeps at hand.
_KEPT: Final = 64
_SHOWN: Final = 64


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

    def stored(self) -> dict[str, Any]:
        """All of it but its place, as `Steps.of` reads it."""
        return {
            "step": self.step,
            "definition_id": self.definition_id,
            "needs": list(self.needs),
            "capabilities": list(self.capabilities),
            "resources": [each.shown() for each in self.resources],
            "effect": self.effect,
            "replay": self.replay,
            "retry": {"max_attempts": self.max_attempts},
            "delivery": dict(self.delivery),
            "on_failure": self.on_failure,
            "timeouts": dict(self.timeouts),
            "policy": dict(self.policy),
            "input": self.input,
        }


class Steps(Mapping[str, Step]):
    """The steps of one definition by name, in the order of the definition."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = {each.step: each for each in steps}

    @classmethod
    def of(cls, definition: Definition) -> "Steps":
        """As they are stored: sound and with all defaults. Everybody gets the same ones."""
        return _kept(_Stored(definition.checksum, definition))

    @classmethod
    def read(cls, stored: Sequence[Mapping[str, Any]]) -> "Steps":
        """What `stored` gave, read back."""
        return cls([_read(place, each) for place, each in enumerate(stored)])

    def __getitem__(self, name: str) -> Step:
        return self._steps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def dependents(self, name: str) -> list[Step]:
        """The steps that need it directly."""
        return [each for each in self._steps.values() if name in each.needs]

    def exits(self) -> list[Step]:
        """The steps that no other needs: once they are done, all are."""
        needed = {name for each in self._steps.values() for name in each.needs}
        return [each for name, each in self._steps.items() if name not in needed]

    def stored(self) -> list[dict[str, Any]]:
        """As a definition keeps them, in their order."""
        return [each.stored() for each in self._steps.values()]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored definition. Its checksum is that of its steps, which are often not loaded yet."""

    checksum: str
    definition: Definition = field(compare=False)


@lru_cache(_KEPT)
def _kept(stored: _Stored) -> Steps:
    return Steps.read(stored.definition.steps)


def parse(raw: Sequence[Mapping[str, Any]]) -> Steps:
    """The steps of a definition as it is sent: sound, and with all defaults.

    Parsing what is stored gives the same again. Refuses with ADMISSION_INVALID, with the facts
    `step` (empty where it is about all of them) and `reason`, in this order: no step, more than
    1 000, more than 1 MiB in all; a step that is not within its own bounds (`workflows.drafts`);
    a name that comes twice; a need that is no step, or comes twice; more than 1 000 resources of a
    step; needs that go round in a circle; an input that refers to what the step does not need,
    directly or by way of others.
    """
    if not 1 <= len(raw) <= MAX_STEPS:
        raise unsound("", f"a definition has 1 to {MAX_STEPS} steps")
    if size(list(raw)) > MAX_BYTES:
        raise unsound("", f"the steps are at most {MAX_BYTES} bytes of JSON")
    parsed = [_parse(place, each) for place, each in enumerate(raw)]
    steps = Steps(parsed)
    if len(steps) < len(parsed):
        twice = next(each.step for each in parsed if steps[each.step] is not each)
        raise unsound(twice, "its name comes twice")
    for step in parsed:
        _require_needs(step, steps)
    _require_inputs(steps, _in_order(steps))
    return steps


def normalized(resources: Iterable[Resource]) -> tuple[Resource, ...]:
    """Each resource once within its scope, as a write if it is written at all; sorted."""
    kept: dict[tuple[str, str], Resource] = {}
    for each in resources:
        key = (each.resource, each.scope)
        if key not in kept or each.access == Access.WRITE:
            kept[key] = each
    return tuple(kept[key] for key in sorted(kept))


def unsound(step: str, reason: str) -> DomainError:
    """What is wrong with a definition, or with that step of it."""
    told = f"The step {step}: {reason}." if step else f"{reason[:1].upper()}{reason[1:]}."
    return DomainError("ADMISSION_INVALID", told, step=step, reason=reason)


def _parse(place: int, said: Mapping[str, Any]) -> Step:
    try:
        step = _read(place, drafts.whole(said))
    except drafts.Unsound as error:
        name = said.get("step") if isinstance(said, Mapping) else None
        # A name that is none, or too long to repeat, is told by its place.
        shown = name if isinstance(name, str) and 0 < len(name) <= _SHOWN else f"number {place + 1}"
        raise unsound(shown, str(error)) from error
    step = replace(step, resources=normalized(step.resources))
    if len(step.resources) > MAX_RESOURCES:
        raise unsound(step.step, f"it has more than {MAX_RESOURCES} resources")
    return step


def _require_needs(step: Step, steps: Steps) -> None:
    for need in step.needs:
        if need not in steps:
            raise unsound(step.step, f"it needs {need[:_SHOWN]}, which is no step")
    if len(set(step.needs)) < len(step.needs):
        raise unsound(step.step, "it needs another step twice")


def _in_order(steps: Steps) -> list[str]:
    """The names of the steps, each after what it needs; refuses a circle."""
    sorter = TopologicalSorter({name: each.needs for name, each in steps.items()})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        # From need to what needs it; told the other way round, as it is written.
        circle = error.args[1][::-1]
        shown = " → ".join(circle[:5] + ["…"] * (len(circle) > 5))
        raise unsound(circle[0], f"it needs itself: {shown}") from error


def _require_inputs(steps: Steps, order: Sequence[str]) -> None:
    """Refuse references to what has not surely ended by the time that the input is needed."""
    # Of each step all that it needs, as bits by position: a thousand steps that each need all
    # before them would be half a million names.
    above: dict[str, int] = {}
    for name in order:
        above[name] = 0
        for need in steps[name].needs:
            above[name] |= above[need] | 1 << steps[need].position
    for name, step in steps.items():
        try:
            sources = {each.source for each in inputs.references(step.input)}
        except ValueError as error:
            raise unsound(name, str(error)) from error
        for source in sorted(sources - {inputs.RUN}):
            if source not in steps or not above[name] >> steps[source].position & 1:
                raise unsound(
                    name, f"its input refers to {source[:_SHOWN]}, which it does not need"
                )


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
