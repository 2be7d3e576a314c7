"""Inputs of steps: values of the definition, and references into the run's input and outputs.

`{"$from": "run", "pointer": "/a/b"}` stands for what the JSON Pointer (RFC 6901) finds in the
run's input, another name for what it finds in the output of that step; without a pointer it is the
whole of it. `run` always means the run, whatever a step is called. What was found is taken as it
is: references in it are plain values, so nobody who sends an input can reach for other outputs.
A long value may be referred to often: what is put in is counted before it is, so that an input
never grows beyond what work may have. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mesh.canonical import size
from mesh.workloads import MAX_INPUT

RUN: Final = "run"
_FROM: Final = "$from"
_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
# Of a pointer, which may be as long as a definition.
_SHOWN: Final = 200
# Longer ones are beyond the end of every list that fits an input.
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a value comes from: `run` or a step, and a JSON Pointer into what that has."""

    source: str
    pointer: str


class Unresolved(Exception):  # noqa: N818  # callers turn it into a control failure
    """A reference that nothing is found for."""

    def __init__(self, reference: Reference) -> None:
        shown = reference.pointer[:_SHOWN] + "…" * (len(reference.pointer) > _SHOWN)
        super().__init__(f"Nothing at {shown!r} of {reference.source}.")
        self.source = reference.source
        self.pointer = reference.pointer


class TooLong(Exception):  # noqa: N818  # callers refuse it as they refuse long input
    """What is referred to makes the input longer than it may be."""


def references(value: Any) -> Iterator[Reference]:
    """All references in a step's input; ValueError where one is not made as it must be."""
    if _is_reference(value):
        yield _reference(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from references(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from references(each)


def resolve(
    step_input: Any, run_input: Any, outputs: Mapping[str, Any], *, at_most: int = MAX_INPUT
) -> Any:
    """The step's input with each reference replaced by what it finds.

    `outputs` are those of the steps that ended; one that did not succeed has the output null.
    Raises `Unresolved` for the first reference that finds nothing: a member or place that is not
    there (`-` never is), or a step that has not ended; and `TooLong` once what was found is more
    than `at_most` bytes of JSON.
    """
    return _Sources(run_input, outputs, at_most).put_into(step_input)


@dataclass(slots=True)
class _Sources:
    """Where values are found, and how many bytes of them may still be put in."""

    run_input: Any
    outputs: Mapping[str, Any]
    room: int

    def put_into(self, value: Any) -> Any:
        if _is_reference(value):
            return self._take(_reference(value))
        if isinstance(value, Mapping):
            return {name: self.put_into(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.put_into(each) for each in value]
        return value

    def _take(self, reference: Reference) -> Any:
        found = _find(reference, self.run_input, self.outputs)
        self.room -= size(found)
        if self.room < 0:
            raise TooLong
        return found


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and _FROM in value


def _reference(value: Mapping[str, Any]) -> Reference:
    source, pointer = value[_FROM], value.get("pointer", "")
    if not isinstance(source, str) or value.keys() - {_FROM, "pointer"}:
        raise ValueError(f"{_FROM} names the run or a step, and has beside it a pointer only")
    if not isinstance(pointer, str) or not _POINTER.fullmatch(pointer):
        raise ValueError(f"the pointer beside {_FROM} is no JSON Pointer")
    return Reference(source, pointer)


def _find(reference: Reference, run_input: Any, outputs: Mapping[str, Any]) -> Any:
    if reference.source == RUN:
        found = run_input
    elif reference.source in outputs:
        found = outputs[reference.source]
    else:
        raise Unresolved(reference)
    for token in reference.pointer.split("/")[1:]:
        # In this order, as the RFC says: `~01` is `~1`, not `/`.
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and _INDEX.fullmatch(name) and int(name) < len(found):
            found = found[int(name)]
        else:
            raise Unresolved(reference)
    return found
