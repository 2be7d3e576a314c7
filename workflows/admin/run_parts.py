"""The cards of a run's page."""

from collections.abc import Sequence
from typing import Any, Final

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Left

from mesh.admin import display
from mesh.admin.display import ABSENT, age, badge, page_of, state_badge, two_lines
from mesh.admin.pages import Fact, Facts, Table

from .. import blocks
from ..models import (
    Activation,
    Attestation,
    Coordinator,
    Handoff,
    ResourceLease,
    Run,
    RunAttempt,
    RunEvent,
)
from ..models import RefusedWriter as Refused
from ..resources import WAITS
from ..steps import Step, Steps
from . import reading
from .badges import is_ambiguous, outcome_badge, step_badge

MAX_STEPS: Final = 200
_MAX_ATTEMPTS: Final = 50
_MAX_LEASES: Final = 100
_MAX_EVENTS: Final = 50
_MAX_HANDOFFS: Final = 20
_MAX_ATTESTATIONS: Final = 5
# Of an output, as a cell shows it; the page of the attempt has all.
_SHOWN: Final = 300
_BLOCKS: Final = {
    "user_paused": ("Pause", "Resume ends it."),
    "cancelled": ("Cancellation", "Nothing takes it back."),
    "control_failure": ("Control failure", "Clear failure ends it."),
    "recovery": ("Recovery barrier", "Ends once all from before is explained."),
}


def steps_of(run: Run) -> list[Activation]:
    """All steps in their order, with the beginning of what they gave."""
    shown = Left(Cast("output", TextField()), _SHOWN)
    return list(run.activations.defer("output").annotate(shown=shown).order_by("position"))


def unsettled_of(run: Run) -> list[RunAttempt]:
    """The attempts that wait for their outcome, the first ones first."""
    return list(_attempts(run).unsettled().order_by("pk")[:_MAX_ATTEMPTS])


def waiting_of(run: Run) -> list[Refused]:
    """Writers of this run that found a resource busy and were heard lately."""
    since = display.now() - WAITS
    rows = Refused.objects.filter(run=run, asked_at__gt=since)
    return list(rows.order_by("first_asked_at")[:_MAX_LEASES])


def _attempts(run: Run) -> Any:
    rows = RunAttempt.objects.filter(run=run).select_related("activation", "workload")
    return rows.defer("output", "activation__output", "workload__input", "workload__policy")


def steps(found: Sequence[Activation], definition: Steps) -> Table:
    """What is to be done, in the order of the definition."""
    return Table(
        "Steps",
        ["Step", "State", "Needs", "Tries", "Output"],
        [_step(each, definition[each.step]) for each in found[:MAX_STEPS]],
        "It has none.",
        note=f"The first {MAX_STEPS} of {len(found)}." if len(found) > MAX_STEPS else "",
        anchor="steps",
    )


def _step(row: Any, step: Step) -> list[object]:
    withdrawn = f"{row.unstarted} never started" if row.unstarted else ""
    tries = f"{row.tries} of {step.max_attempts}"
    return [
        two_lines(row.step, step.definition_id),
        step_badge(row.state),
        display.chips(step.needs, empty="nothing"),
        two_lines(tries, withdrawn) if withdrawn else tries,
        display.clipped(row.shown),
    ]


def attempts(run: Run) -> Table:
    """What was tried, the latest first; each with the work that did it."""
    found = list(_attempts(run).order_by("-pk")[: _MAX_ATTEMPTS + 1])
    return Table(
        "Attempts",
        ["Attempt", "Outcome", "Workload", "Admitted", "Settled", "Why"],
        [
            [
                page_of(each, f"{each.activation.step} no. {each.number}"),
                outcome_badge(each),
                page_of(each.workload, state_badge(each.workload.state)),
                age(each.admitted_at),
                age(each.settled_at, absent="not yet"),
                _why_so(each),
            ]
            for each in found[:_MAX_ATTEMPTS]
        ],
        "Nothing was tried yet.",
        note=f"The newest {_MAX_ATTEMPTS} of more." if len(found) > _MAX_ATTEMPTS else "",
        anchor="attempts",
    )


def _why_so(attempt: RunAttempt) -> object:
    """What its outcome rests on, or who has to say it."""
    if is_ambiguous(attempt):
        return page_of(attempt.workload, "resolve its workload")
    return display.clipped(attempt.message or attempt.get_source_display())


def standing(run: Run) -> Table:
    """The four blocks: since when, by whom, why, and what ends each."""
    # Both name the kinds in the order in which an admission does.
    rows = blocks.of(run).rows()
    return Table(
        "Blocks",
        ["Block", "Stands", "Since, by", "Why"],
        [
            [
                called,
                badge("STANDING" if row else "OVER", "YES" if row else "NO"),
                two_lines(age(row.since), row.by) if row else ABSENT,
                display.wrapped(two_lines(_why(row), then if run.is_open else ""))
                if row
                else ABSENT,
            ]
            for (called, then), row in zip(_BLOCKS.values(), rows.values(), strict=True)
        ],
        "",
        note="While one stands nothing new starts." if run.is_open else "",
        anchor="blocks",
    )


def _why(block: Any) -> str:
    code, step = getattr(block, "code", ""), getattr(block, "step", "")
    told = ": ".join(each for each in (code, step, block.reason) if each)
    return told or "no reason given"


def leases(run: Run) -> Table:
    """What its unsettled attempts reserve."""
    rows = ResourceLease.objects.filter(run=run).select_related("attempt__activation")
    slim = rows.defer("attempt__output", "attempt__activation__output")
    found = list(slim.order_by("resource", "id")[: _MAX_LEASES + 1])
    return Table(
        "Resource leases",
        ["Resource", "Access", "Within", "Held by", "Generation", "Since"],
        [
            [
                display.mono(each.resource),
                each.get_access_display(),
                f"the {each.scope}",
                page_of(each.attempt, f"{each.attempt.activation.step} no. {each.attempt.number}"),
                each.generation,
                age(each.acquired_at),
            ]
            for each in found[:_MAX_LEASES]
        ],
        "It reserves nothing.",
        note=f"The first {_MAX_LEASES} of more." if len(found) > _MAX_LEASES else "",
        anchor="leases",
    )


def waits(found: Sequence[Refused]) -> list[Table]:
    """Resources that its steps found busy; no card where there are none."""
    if not found:
        return []
    rows: list[list[object]] = [
        [
            display.mono(each.resource),
            f"the {each.scope}",
            age(each.first_asked_at),
            age(each.asked_at),
        ]
        for each in found
    ]
    headers = ["Resource", "Within", "Asked first", "Asked last"]
    return [Table("Waits for", headers, rows, "", note="Others reserve them.")]


def handoffs(run: Run) -> Table:
    """How authority moved, each time with the receipt of what was known."""
    rows = Handoff.objects.filter(run=run).select_related("receipt").order_by("-generation")
    found = list(rows[: _MAX_HANDOFFS + 1])
    return Table(
        "Hand-overs",
        ["No.", "When, by", "Mode", "From", "To", "Receipt"],
        [
            [
                each.generation,
                two_lines(age(each.at), each.by),
                each.get_mode_display(),
                display.short(each.expected_instance_id, 24),
                display.short(each.replacement_instance_id, 24),
                display.folded(
                    {
                        "receipt_id": each.receipt.receipt_id,
                        "at": each.receipt.at.isoformat(),
                        **each.receipt.saw,
                    },
                    title=f"{each.receipt.resolver}: {each.receipt.verdict}",
                ),
            ]
            for each in found[:_MAX_HANDOFFS]
        ],
        "Authority never moved.",
        note=f"The newest {_MAX_HANDOFFS} of more." if len(found) > _MAX_HANDOFFS else "",
        anchor="handoffs",
    )


def attested(run: Run) -> list[Table]:
    """What people stated about its owner; no card where they stated nothing."""
    rows = Attestation.objects.filter(run=run).prefetch_related("statements").order_by("-id")
    found = list(rows[:_MAX_ATTESTATIONS])
    if not found:
        return []
    table = Table(
        "Attested stops",
        ["Attestation", "Stopped", "Next owner", "Stated by", "State"],
        [
            [
                page_of(each, display.short(each.attestation_id)),
                each.transition["expected"]["instance_id"],
                each.transition["replacement"]["instance_id"],
                display.lines(said.by for said in each.statements.all()),
                badge("COMPLETE" if each.completed_at else "INCOMPLETE"),
            ]
            for each in found
        ],
        "",
        note="May be used for a minute after the last statement that was needed.",
        anchor="attestations",
    )
    return [table]


def history(events: "QuerySet[RunEvent]") -> Table:
    """The newest changes."""
    found = list(events.order_by("-sequence")[: _MAX_EVENTS + 1])
    return Table(
        "History",
        ["No.", "When", "Event", "By", "Evidence"],
        [
            [
                each.sequence,
                age(each.at),
                each.event.partition(".")[2].replace("_", " "),
                display.short(each.actor, 24),
                display.compact(each.evidence),
            ]
            for each in found[:_MAX_EVENTS]
        ],
        "Nothing is recorded yet.",
        note=f"The newest {_MAX_EVENTS} of more." if len(found) > _MAX_EVENTS else "",
        anchor="history",
    )


def authority(run: Any) -> Facts:
    """Who may move it, and whether that one is alive."""
    driven = Fact("Driven by", f"{run.get_coordinator_display().lower()} coordinator")
    if not run.has_authority:
        return Facts("Authority", [driven, Fact("Owner", "nobody yet")])
    rows = Coordinator.objects.filter(tenant_id=run.tenant_id, instance_id=run.instance_id)
    known = rows.first()
    shown = page_of(known) if known else display.copyable(run.instance_id)
    facts = [
        driven,
        Fact("Instance", shown, is_wide=True),
        Fact("Artifact", display.copyable(run.target_artifact_id), is_wide=True),
        Fact("Generation", run.generation),
        Fact("It is", badge(reading.owner_of(run))),
    ]
    if known:
        facts.append(Fact("Last beat", age(known.heartbeat_at)))
        facts.append(Fact("Lease", display.countdown(known.lease_ends_at)))
    return Facts("Authority", facts)


def about(run: Run) -> Facts:
    return Facts(
        "About",
        [
            Fact("Tenant", run.tenant.name),
            Fact("Application", run.application.name),
            Fact("Environment", run.environment),
            Fact("Definition", page_of(run.definition), is_wide=True),
            Fact("Requested by", run.requested_by),
        ],
    )


def limits(run: Run) -> Facts:
    return Facts(
        "Limits",
        [
            Fact("At once", f"{run.active_attempts} of {run.max_concurrency}"),
            Fact("Executions", f"{run.executions} of {run.max_executions}"),
            Fact("Deadline", age(run.deadline, absent="none")),
        ],
    )


def times(run: Run) -> Facts:
    took = display.took(run.created_at, run.ended_at or display.now())
    return Facts(
        "Times",
        [
            Fact("Started", age(run.created_at)),
            Fact("Changed", age(run.updated_at)),
            Fact("Ended", age(run.ended_at, absent="open")),
            Fact("Took" if run.ended_at else "Open for", took),
        ],
    )
