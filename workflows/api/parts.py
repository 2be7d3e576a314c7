"""Parts of bodies as the domain takes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from mesh.api.views.base import Endpoint

from ..authority import Authority
from ..models import HandoffMode, LeaseScope
from ..settlement import Outcome
from ..steps import Resource
from ..transitions import Transition


class RunEndpoint(Endpoint):
    """A view of a run."""

    noun = "RUN"


def authority(said: Mapping[str, Any]) -> Authority:
    return Authority(**said)


def given_authority(said: Mapping[str, Any]) -> Authority | None:
    """That of a body where it may be left out."""
    given = said.get("authority")
    return None if given is None else Authority(**given)


def resources(said: Sequence[Mapping[str, Any]] | None) -> list[Resource] | None:
    if said is None:
        return None
    return [
        Resource(each["resource"], each["access"], each.get("scope", LeaseScope.RUN.value))
        for each in said
    ]


def transition(said: Mapping[str, Any]) -> Transition:
    return Transition(
        HandoffMode(said["mode"]), Authority(**said["expected"]), Authority(**said["replacement"])
    )


def outcome(said: Mapping[str, Any]) -> Outcome:
    return Outcome(**said, has_output="output" in said)
