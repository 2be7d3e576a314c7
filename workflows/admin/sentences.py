"""How a run stands and what it waits for, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from mesh.admin.display import age, page_of
from mesh.models import State

from .. import blocks, coordinator
from ..models import (
    Activation,
    ControlFailure,
    CoordinatorKind,
    RefusedWriter,
    Run,
    RunAttempt,
    RunStatus,
    StepState,
    UserPause,
)
from . import reading
from .badges import is_ambiguous

Sentence = SafeString | str


@dataclass(frozen=True)
class Scene:
    """A run with what its sentence is made of."""

    run: Any
    steps: Sequence[Activation]
    unsettled: Sequence[RunAttempt]
    waiting: Sequence[RefusedWriter]

    def named(self, state: str) -> list[str]:
        return [each.step for each in self.steps if each.state == state]

    @property
    def ambiguous(self) -> list[RunAttempt]:
        return [each for each in self.unsettled if is_ambiguous(each)]


def listed(names: Sequence[object], most: int = 3) -> str:
    """`a, b and 4 more`."""
    shown = ", ".join(str(each) for each in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def concern_of_run(run: Any) -> str:
    """What is off, or what an open run waits for, in a few words for a list."""
    stand = blocks.of(run)
    failure = stand.control_failure
    if not run.is_open:
        return f"{failure.code}: {failure.reason}" if failure and _is_failed(run) else ""
    if run.ambiguous:
        return f"{counted(run.ambiguous, 'ambiguous attempt')}: a person must say what it did"
    if failure is not None:
        return f"{failure.code}: {failure.reason or 'cannot go on'}"
    if stand.cancelled is not None:
        return "is being cancelled"
    if stand.recovery is not None:
        return "recovers after a hand-over"
    if stand.user_paused is not None:
        return f"paused: {stand.user_paused.reason}"
    return _concern_of_owner(run)


def _is_failed(run: Run) -> bool:
    return run.status == RunStatus.FAILED


def _concern_of_owner(run: Any) -> str:
    owner = reading.owner_of(run)
    if not owner:
        return "nobody drives it yet"
    if owner not in reading.STOPPED:
        return ""
    if run.coordinator == CoordinatorKind.BUILTIN:
        return "its coordinator is gone, another takes it over"
    return "its coordinator is gone"


def about_run(scene: Scene) -> Sentence:
    """How it stands and what it waits for."""
    run = scene.run
    if not run.is_open:
        return _about_ended(scene)
    if scene.ambiguous:
        return _about_ambiguous(scene)
    stand = blocks.of(run)
    if stand.control_failure is not None:
        return _about_failure(scene, stand.control_failure)
    if stand.cancelled is not None:
        return format_html(
            "Being cancelled since {} by {}: {}",
            age(stand.cancelled.since),
            stand.cancelled.by,
            _until_quiet(scene, "it ends as CANCELLED"),
        )
    if stand.recovery is not None:
        return format_html(
            "Recovers since {} ({}): {}",
            age(stand.recovery.since),
            stand.recovery.reason or "authority was taken over",
            _until_quiet(scene, "the barrier ends and the run goes on"),
        )
    if stand.user_paused is not None:
        return _about_pause(scene, stand.user_paused)
    return _about_owner(run) or _about_progress(scene)


def _about_ended(scene: Scene) -> Sentence:
    run = scene.run
    if run.status == RunStatus.COMPLETED:
        return format_html("Completed {}: nothing is left to do.", age(run.ended_at))
    if run.status == RunStatus.CANCELLED:
        asked = blocks.of(run).cancelled
        by = asked.by if asked else "somebody"
        return format_html("Cancelled {}, as {} asked.", age(run.ended_at), by)
    failure = blocks.of(run).control_failure
    if failure is not None:
        why = f"{failure.code}: {failure.reason}".rstrip(": .")
    else:
        failed = [*scene.named(StepState.FAILED), *scene.named(StepState.CANCELLED)]
        why = f"{listed(failed)} did not succeed" if failed else "see its history"
    return format_html("Failed {}: {}.", age(run.ended_at), why)


def _about_ambiguous(scene: Scene) -> Sentence:
    first = scene.ambiguous[0]
    more = len(scene.ambiguous) - 1
    also = f" So does {counted(more, 'other attempt')}." if more else ""
    return format_html(
        "Waits for a person: {} had begun when its worker was lost, and nobody knows what it did."
        " Find out, then resolve {}.{}",
        first.activation.step,
        page_of(first.workload, "its workload"),
        also,
    )


def _about_failure(scene: Scene, failure: ControlFailure) -> Sentence:
    at = f" at {failure.step}" if failure.step else ""
    why = failure.reason.rstrip(".") or "no message"
    if failure.code in coordinator.WAITS_FOR_A_PERSON:
        then = "It waits for a person: put right what kept it from starting, then clear the failure"
    elif scene.run.coordinator == CoordinatorKind.BUILTIN:
        then = "Unless somebody clears it, " + _until_quiet(scene, "it ends as FAILED").rstrip(".")
    else:
        then = "Its service ends it, or somebody clears the failure"
    return format_html(
        "Cannot go on since {}: {}{} ({}). {}.", age(failure.since), failure.code, at, why, then
    )


def _about_pause(scene: Scene, pause: UserPause) -> Sentence:
    running = [each for each in scene.unsettled if each.workload.state != State.READY]
    goes_on = (
        f" {counted(len(running), 'attempt')} that had begun may go on to the end."
        if running
        else ""
    )
    return format_html(
        "Paused {} by {} ({}): nothing new starts until somebody resumes it.{}",
        age(pause.since),
        pause.by,
        pause.reason.rstrip("."),
        goes_on,
    )


def _until_quiet(scene: Scene, then: str) -> str:
    """What must end before something happens."""
    if not scene.unsettled:
        return f"nothing is under way any more, so {then} when its coordinator looks next."
    steps = listed([each.activation.step for each in scene.unsettled])
    return f"once {steps} {'is' if len(scene.unsettled) == 1 else 'are'} settled, {then}."


def _about_owner(run: Any) -> Sentence:
    """What is wrong with who drives it; empty when nothing is."""
    owner = reading.owner_of(run)
    is_builtin = run.coordinator == CoordinatorKind.BUILTIN
    if not owner:
        return (
            "Waits for a built-in coordinator, which takes it within seconds. If it stays like"
            " this, none is running: see Coordinators."
            if is_builtin
            else "Waits for its service to claim it. Adopt it if none will."
        )
    if owner not in reading.STOPPED:
        return ""
    how = "relinquished" if owner == reading.RELINQUISHED else "is gone"
    if is_builtin:
        return f"Its coordinator {how}; another one takes it over by itself."
    return (
        f"Nobody drives it: its coordinator {run.instance_id} {how}. Have the service hand it over"
        " to a new instance, or adopt it."
    )


def _about_progress(scene: Scene) -> Sentence:
    if scene.unsettled:
        return _about_attempts(scene)
    if scene.waiting:
        keys = listed(sorted({each.resource for each in scene.waiting}))
        return f"Waits for {keys}, which other attempts reserve; see below."
    if due := scene.named(StepState.READY):
        return f"Due next: {listed(due)}. Its coordinator has not admitted it yet."
    if scene.named(StepState.PENDING):
        return "Nothing is due and nothing is under way: its coordinator has yet to look at it."
    return "Its steps have all ended: its coordinator ends the run when it looks next."


def _about_attempts(scene: Scene) -> str:
    """What is under way: with workers, or waiting for one."""
    ready = [each for each in scene.unsettled if each.workload.state == State.READY]
    ended = [each for each in scene.unsettled if each.workload.ended_at is not None]
    busy = [each for each in scene.unsettled if each not in ready and each not in ended]
    told = [
        (busy, "with a worker"),
        (ready, "waiting for a worker"),
        (ended, "done, and about to be settled"),
    ]
    parts = [
        f"{listed([each.activation.step for each in group])} {how}" for group, how in told if group
    ]
    return f"Goes on: {'; '.join(parts)}."
