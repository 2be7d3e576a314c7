"""What callers send about runs. Types and members only: bounds of values are rules."""

from typing import Any, Final

from rest_framework import serializers

from mesh.api.bodies import Int32, Policy, Reason, RetryPolicy, Timeouts
from mesh.api.fields import AnyValue, Body, Flag, Integer, Text, TextList, Time, Word

from ..models import (
    Access,
    CoordinatorKind,
    Effect,
    HandoffMode,
    LeaseScope,
    OnFailure,
    OutcomeKind,
    Replay,
)

_MAX_REASON: Final = 4_000
# The members that an outcome of each kind may have beside it.
_OF_OUTCOME: Final[dict[str, frozenset[str]]] = {
    OutcomeKind.SUCCEEDED: frozenset({"output"}),
    OutcomeKind.FAILED: frozenset({"message", "retryable"}),
    OutcomeKind.CANCELLED: frozenset(),
    OutcomeKind.NOT_STARTED: frozenset(),
    OutcomeKind.ABANDONED: frozenset({"reason"}),
}


class PublicAuthority(Body):
    """Who may move a run, without the secret."""

    target_artifact_id = Text()
    instance_id = Text()
    generation = Integer()


class Authority(PublicAuthority):
    """Who may move a run. The token is a secret: only its hash is kept, and no answer has it."""

    fencing_token = Text()


class Expected(PublicAuthority):
    """The authority that is to be replaced, with its token where the caller knows it."""

    fencing_token = Text(required=False)


class Reserved(Body):
    resource = Text()
    access = Word(choices=Access.choices)
    scope = Word(choices=LeaseScope.choices, required=False)


class StepRetry(Body):
    max_attempts = Int32(required=False)


class Step(Body):
    step = Text()
    definition_id = Text(help_text="What the work of the step is, for workers.")
    needs = TextList(required=False, help_text="Steps that must end before.")
    capabilities = TextList(required=False)
    resources = Reserved(many=True, required=False)
    effect = Word(choices=Effect.choices, required=False)
    replay = Word(choices=Replay.choices, required=False)
    retry = StepRetry(required=False, help_text="Attempts of the run.")
    delivery = RetryPolicy(required=False, help_text="The retry policy of the work.")
    on_failure = Word(choices=OnFailure.choices, required=False)
    timeouts = Timeouts(required=False)
    policy = Policy(required=False)
    input = AnyValue(
        required=False,
        help_text='May hold {"$from": "run" or a step, "pointer": "/a/b"} anywhere.',
    )


class StoreDefinition(Body):
    application = Text()
    definition_id = Text()
    version = Int32()
    steps = Step(many=True)


class RunLimits(Body):
    concurrency = Int32(required=False)
    step_executions = Int32(required=False)
    deadline = Time(required=False, allow_null=True)


class StartRun(Body):
    application = Text()
    run_id = Text()
    definition_id = Text()
    version = Int32()
    input = AnyValue()
    limits = RunLimits(required=False)
    coordinator = Word(choices=CoordinatorKind.choices, required=False)
    authority = Authority(required=False)
    environment = Text(required=False)


class UnderAuthority(Body):
    authority = Authority()


class Adopt(Body):
    reason = Text(_MAX_REASON)


class Steer(Body):
    """With an `authority` it is checked; without, the operator acts through the server."""

    reason = Text(_MAX_REASON)
    authority = Authority(required=False)


class CancelRun(Body):
    """As for a pause; the reason may be left out."""

    reason = Reason()
    authority = Authority(required=False)


class Admit(UnderAuthority):
    step = Text()
    attempt = Int32()
    resources = Reserved(many=True, required=False)


class Outcome(Body):
    """What an attempt came to; each kind has members of its own."""

    kind = Word(choices=OutcomeKind.choices)
    output = AnyValue(required=False, help_text="Of `succeeded`; left out: that of the result.")
    message = Text(_MAX_REASON, required=False, help_text="Of `failed`.")
    retryable = Flag(required=False, help_text="Of `failed`.")
    reason = Text(_MAX_REASON, required=False, help_text="Of `abandoned`.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        foreign = attrs.keys() - {"kind"} - _OF_OUTCOME[attrs["kind"]]
        if foreign:
            raise serializers.ValidationError(
                {name: [f"Not a member of {attrs['kind']}."] for name in sorted(foreign)}
            )
        return attrs


class Settle(UnderAuthority):
    outcome = Outcome()


class FailRun(UnderAuthority):
    code = Text()
    message = Text(_MAX_REASON)
    step = Text(required=False)


class HandOver(Body):
    mode = Word(choices=HandoffMode.choices)
    expected = Expected()
    replacement = Authority()


class Transition(Body):
    mode = Word(choices=HandoffMode.choices)
    expected = PublicAuthority()
    replacement = PublicAuthority()


class Attest(Body):
    transition = Transition()
    statement = Text(_MAX_REASON)


class Confirm(Body):
    statement = Text(_MAX_REASON)


class RegisterCoordinator(Body):
    instance_id = Text()
    artifact = Text()
    lease_ms = Int32()


class BeatCoordinator(Body):
    lease_ms = Int32(required=False)


class Nothing(Body):
    """Has no members."""
