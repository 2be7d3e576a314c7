"""What callers get about runs, for the OpenAPI document; `answers` makes it."""

from typing import Any

from mesh.api.fields import AnyValue, Flag, Integer, Object, Text, TextList, Time, Word
from mesh.api.shapes import Shape, page_of
from mesh.models import State

from ..models import (
    Access,
    CoordinatorKind,
    Effect,
    HandoffMode,
    LeaseScope,
    OutcomeKind,
    OutcomeSource,
    RunStatus,
    StepState,
    Verdict,
)
from .bodies import RunLimits


class RunAuthority(Shape):
    """Never with the token."""

    target_artifact_id = Text()
    instance_id = Text()
    generation = Integer()


class StoredResource(Shape):
    resource = Text()
    access = Word(choices=Access.choices)
    scope = Word(choices=LeaseScope.choices)


class StoredStep(Shape):
    step = Text()
    definition_id = Text()
    needs = TextList()
    capabilities = TextList()
    resources = StoredResource(many=True)
    effect = Word(choices=Effect.choices)
    replay = Text()
    retry = Object()
    delivery = Object()
    on_failure = Text()
    timeouts = Object()
    policy = Object()
    input = AnyValue()


class DefinitionVersion(Shape):
    application = Text()
    definition_id = Text()
    version = Integer()
    steps = StoredStep(many=True, help_text="With all defaults written out, in their order.")
    checksum = Text()
    created_at = Time()
    created_by = Text()


class Block(Shape):
    blocked = Flag()
    since = Time(allow_null=True)
    by = Text(allow_null=True)
    reason = Text(allow_null=True)
    code = Text(required=False, help_text="Of a control failure.")
    step = Text(allow_null=True, required=False, help_text="Of a control failure.")
    owner = RunAuthority(allow_null=True, required=False, help_text="Of a recovery barrier.")


class Admission(Shape):
    """Why nothing new may start; all four from one moment."""

    user_paused = Block()
    cancelled = Block()
    control_failure = Block()
    recovery = Block()


class RunOutcome(Shape):
    kind = Word(choices=OutcomeKind.choices)
    output = AnyValue(required=False)
    output_omitted = Flag(
        required=False,
        help_text="True where the answer would be too long with it: the work's result has it.",
    )
    message = Text(required=False)
    retryable = Flag(required=False)
    reason = Text(required=False)


class RunAttempt(Shape):
    dispatch_identity = Text()
    run_id = Text()
    step = Text()
    attempt = Integer()
    activation_id = Text()
    effect = Word(choices=Effect.choices)
    generation = Integer(help_text="Of the authority that admitted it.")
    workload_id = Text()
    workload_state = Word(choices=State.choices)
    ambiguous = Flag(help_text="Nobody knows what became of it: a late report or a person says.")
    outcome = RunOutcome(allow_null=True)
    admitted_at = Time()
    settled_at = Time(allow_null=True)
    settled_by = Text(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        # Not declared as the others: a serializer has another thing of that name.
        source = Word(choices=OutcomeSource.choices, allow_null=True)
        return {**super().get_fields(), "source": source}


class AdmittedAttempt(RunAttempt):
    authority = RunAuthority(allow_null=True, help_text="The current one, whoever asked.")


class Activation(Shape):
    step = Text()
    activation_id = Text()
    state = Word(choices=StepState.choices)
    needs = TextList()
    attempts = Integer(help_text="The number of the latest attempt.")
    output = AnyValue()
    output_omitted = Flag(
        help_text="The answer would be too long with the output, which stands as null here:"
        " the result of the step's work has it."
    )
    updated_at = Time()


class Lease(Shape):
    resource = Text()
    access = Word(choices=Access.choices)
    scope = Word(choices=LeaseScope.choices)
    step = Text()
    dispatch_identity = Text()
    generation = Integer()
    acquired_at = Time()
    age_ms = Integer()


class Run(Shape):
    run_id = Text()
    application = Text()
    definition_id = Text()
    version = Integer()
    environment = Text()
    status = Word(choices=RunStatus.choices)
    coordinator = Word(choices=CoordinatorKind.choices)
    authority = RunAuthority(allow_null=True)
    active_attempts = Integer()
    limits = RunLimits()
    requested_by = Text()
    created_at = Time()
    updated_at = Time()
    ended_at = Time(allow_null=True)


class RunDetail(Run):
    input = AnyValue()
    blocks = Admission()
    activations = Activation(many=True)
    attempts = RunAttempt(many=True, help_text="The latest 200.")
    leases = Lease(many=True, help_text="At most 1 000.")


class Leases(Shape):
    results = Lease(many=True, help_text="At most 1 000.")


class Holder(Shape):
    run_id = Text()
    step = Text(help_text="Empty of a writer that waits.")
    dispatch_identity = Text()
    waiting = Flag(help_text="A writer that was refused; readers wait behind it for a minute.")


class Conflict(Shape):
    conflict = Text(allow_null=True, help_text="The resource that is in the way.")
    holder = Holder(allow_null=True)


class Receipt(Shape):
    receipt_id = Text()
    resolver = Text()
    verdict = Word(choices=Verdict.choices)
    saw = Object()
    at = Time()


class Handoff(Shape):
    generation = Integer()
    mode = Word(choices=HandoffMode.choices)
    expected = RunAuthority()
    replacement = RunAuthority()
    receipt = Receipt()
    verified_at = Time()
    by = Text()
    at = Time()


class HandedOver(Shape):
    handoff = Handoff()
    authority = RunAuthority(help_text="The current one, whoever asked.")


class Statement(Shape):
    by = Text()
    at = Time()
    statement = Text()


class Attestation(Shape):
    attestation_id = Text()
    receipt_id = Text(allow_null=True)
    transition = Object()
    statements = Statement(many=True)
    complete = Flag()


class Coordinator(Shape):
    instance_id = Text()
    artifact = Text()
    lease_ms = Integer()
    registered_by = Text()
    registered_at = Time()
    heartbeat_at = Time()
    lease_ends_at = Time()
    relinquished_at = Time(allow_null=True)
    alive = Flag()


class RunEvent(Shape):
    sequence = Integer()
    event = Text()
    actor = Text()
    at = Time()
    evidence = Object()


DefinitionPage = page_of(DefinitionVersion)
RunPage = page_of(Run)
HandoffPage = page_of(Handoff)
EventPage = page_of(RunEvent)
