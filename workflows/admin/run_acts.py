"""What a person may do to runs, and to what people attested about them."""

from collections.abc import Sequence
from typing import Any, Final

from django import forms
from unfold.widgets import UnfoldAdminTextareaWidget

from mesh.admin import access
from mesh.admin.acts import Act, ReasonForm
from mesh.tenancy import Caller

from .. import attestations, blocks, cancellation, coordinator, evidence, steering
from ..models import Attestation, Run
from . import reading

_ENDED: Final = "It has ended."
_DRIVEN: Final = "The built-in coordinator drives it already."


class StatementForm(ReasonForm):
    """What somebody states stands as the reason."""

    reason = forms.CharField(
        max_length=1_000,
        label="What you know, and from where",
        help_text="Stands in the receipt of the hand-over and in the history, beside your name.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4, "autofocus": True}),
    )


def _why_not_pause(run: Run) -> str:
    if not run.is_open:
        return _ENDED
    return "It is paused already." if _standing(run, "user_paused") else ""


def _why_not_resume(run: Run) -> str:
    if not run.is_open:
        return _ENDED
    return "" if _standing(run, "user_paused") else "It is not paused."


def _why_not_cancel(run: Run) -> str:
    if not run.is_open:
        return _ENDED
    return "Its cancellation was requested already." if _standing(run, "cancelled") else ""


def _why_not_clear(run: Run) -> str:
    if not run.is_open:
        return _ENDED
    return "" if _standing(run, "control_failure") else "No control failure stands."


def _why_not_adopt(run: Any) -> str:
    """Adopting needs evidence; what other resolvers than ours know cannot be foretold."""
    if not run.is_open:
        return _ENDED
    if reading.is_driven_here(run):
        return _DRIVEN
    owner = reading.owner_of(run)
    is_known = not owner or owner in reading.STOPPED or run.is_attested
    if is_known or not all(issubclass(each, evidence.Local) for each in evidence.resolvers()):
        return ""
    return {
        reading.ALIVE: "Its coordinator is alive: have it relinquish, or attest that it stopped.",
        reading.LATE: "Its coordinator is late; it counts as gone within seconds.",
    }.get(owner, "Nobody knows whether its coordinator has stopped: attest it first.")


def _why_not_attest(run: Any) -> str:
    if not run.is_open:
        return _ENDED
    if not run.has_authority:
        return "Nobody has it: adopt it."
    return _DRIVEN if reading.is_driven_here(run) else ""


def _why_not_confirm(attestation: Any) -> str:
    if attestation.completed_at is not None:
        return "It is complete: no more statements are needed."
    return (
        "You stated it first: another person confirms it."
        if attestation.first == attestation.me
        else ""
    )


def _standing(run: Run, kind: str) -> bool:
    return blocks.of(run).rows()[kind] is not None


def _pause(caller: Caller, run: Run, data: dict[str, Any]) -> object:
    return steering.pause(caller=caller, run_id=run.run_id, reason=data["reason"])


def _resume(caller: Caller, run: Run, data: dict[str, Any]) -> object:
    return steering.resume(caller=caller, run_id=run.run_id, reason=data["reason"])


def _cancel(caller: Caller, run: Run, data: dict[str, Any]) -> object:
    return cancellation.request(caller=caller, run_id=run.run_id, reason=data["reason"])


def _clear(caller: Caller, run: Run, data: dict[str, Any]) -> object:
    return steering.clear(caller=caller, run_id=run.run_id, reason=data["reason"])


def _adopt(caller: Caller, run: Run, data: dict[str, Any]) -> object:
    return coordinator.adopt(caller=caller, run_id=run.run_id, reason=data["reason"])


def _attest(caller: Caller, run: Run, data: dict[str, Any]) -> object:
    return coordinator.attest(caller=caller, run_id=run.run_id, statement=data["reason"])


def _confirm(caller: Caller, attestation: Attestation, data: dict[str, Any]) -> object:
    return attestations.confirm(
        caller=caller, attestation_id=attestation.attestation_id, statement=data["reason"]
    )


def _what_is_attested(runs: Sequence[Any]) -> str:
    """For the one run that is meant."""
    run = runs[0]
    if not run.has_authority:
        return ""
    owner = reading.owner_of(run)
    seen = {
        reading.ALIVE: "It beats: as far as the server can see, it is at work.",
        reading.LATE: "Its lease has just ended.",
        reading.UNKNOWN: "It was never registered: the server cannot see whether it is at work.",
    }.get(owner, "It is known to be gone: the run can be adopted without a statement.")
    people = run.tenant.attestations
    second = " A second person must confirm it." if people > 1 else ""
    return (
        f"You state that the coordinator {run.instance_id} has stopped and will not move this run"
        f" any more. {seen}{second} The statement may be used for a minute."
    )


def _what_is_confirmed(rows: Sequence[Attestation]) -> str:
    step = rows[0].transition
    return (
        f"You state the same as the first person: that {step['expected']['instance_id']} has"
        f" stopped, so that {step['replacement']['instance_id']} may take run"
        f" {rows[0].run.run_id}. The statement may be used for a minute."
    )


def _one(row: Any) -> dict[str, Any]:
    """Nothing is filled in; but it is stated of one row at a time."""
    return {}


ACTS: Final = (
    Act(
        "pause",
        "Pause",
        "pause_circle",
        "Nothing new starts, and work that no worker has claimed waits. What runs goes on.",
        _pause,
        _why_not_pause,
    ),
    Act(
        "resume",
        "Resume",
        "play_circle",
        "Ends the pause. What else blocks the run goes on to do so.",
        _resume,
        _why_not_resume,
    ),
    Act(
        "clear",
        "Clear failure",
        "build_circle",
        "Says that what stopped the run was put right: it goes on. A step that never started is"
        " counted anew; what is still wrong is found again.",
        _clear,
        _why_not_clear,
    ),
    Act(
        "adopt",
        "Adopt",
        "move_to_inbox",
        "Turns the run over to the built-in coordinator, which drives it from now on. A run that"
        " somebody has is taken only on evidence that its coordinator has stopped; with work under"
        " way nothing new starts before that is explained.",
        _adopt,
        _why_not_adopt,
    ),
    Act(
        "attest",
        "Attest",
        "history_edu",
        "States that the coordinator of the run has stopped although the server cannot see that."
        " If it is still at work, two may move the run, and a step may be done twice: make sure"
        " first. Then adopt the run.",
        _attest,
        _why_not_attest,
        right=access.can_attest,
        is_dangerous=True,
        form=StatementForm,
        effect=_what_is_attested,
        initial=_one,
    ),
    Act(
        "cancel",
        "Cancel",
        "block",
        "Asks that the run ends. Work that no worker has is withdrawn, running work is told to"
        " stop; what really happened is still recorded. It cannot be taken back.",
        _cancel,
        _why_not_cancel,
        is_dangerous=True,
    ),
)
CONFIRM: Final = Act(
    "confirm",
    "Confirm",
    "how_to_reg",
    "Two people must know that the old coordinator has stopped. Make sure yourself first.",
    _confirm,
    _why_not_confirm,
    right=access.can_attest,
    is_dangerous=True,
    form=StatementForm,
    effect=_what_is_confirmed,
    initial=_one,
)
