"""What callers send. Types and members only: bounds of values are rules and stand in the domain."""

from typing import Final

from rest_framework import serializers

from .. import reports
from ..intake import MAX_AT_ONCE
from ..models import (
    Backoff,
    Health,
    LostPolicy,
    RequiredState,
    Resolution,
    RevocationKind,
    Runtime,
    ScopeKind,
)
from ..settlement import MAX_REPORTS
from ..starts import MAX_STARTS
from .fields import (
    INT32,
    INT64,
    AnyValue,
    Body,
    Flag,
    Integer,
    Number,
    Object,
    Pairs,
    Text,
    TextList,
    Time,
    Variants,
    Word,
)

MAX_IDS: Final = 1_000
MAX_LIST: Final = 256
_MAX_REASON: Final = 4_000
_MAX_ID: Final = 200


class Int32(Integer):
    """An integer that is kept in a column of 32 bits."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(-INT32 - 1, INT32, **kwargs)


class Ids(TextList):
    """Claim or attempt ids. Long or odd ones name nothing, which is for the rule to say."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(max_items=MAX_IDS, max_length=_MAX_ID, **kwargs)


class Reason(Text):
    """Why; kept with the change."""

    def __init__(self) -> None:
        super().__init__(_MAX_REASON, required=False)


class Reasoned(Body):
    reason = Reason()


class Resume(Body):
    reason = Text(_MAX_REASON)


class Capacity(Body):
    concurrency = Int32()


class ResourceProfile(Body):
    cpu_millis = Integer(required=False)
    memory_bytes = Integer(required=False)
    disk_bytes = Integer(required=False)
    gpu_count = Integer(required=False)


class Register(Body):
    contract_version = Int32()
    tenant = Text()
    application = Text()
    name = Text()
    runtime = Word(choices=Runtime.choices)
    version = Text()
    capabilities = TextList()
    workload_kinds = TextList()
    resource_profile = ResourceProfile()
    labels = Pairs()
    capacity = Capacity()
    registered_by = Text()
    grant = Text(help_text="The signed grant (JWS).")
    heartbeat_interval_ms = Int32(required=False)
    heartbeat_timeout_ms = Int32(required=False)
    abandon_claims = Flag(required=False)


class Heartbeat(Body):
    version = Text()
    capability_version = Integer()
    health = Word(choices=Health.choices)
    timestamp = Time()
    running_claims = Ids()
    capacity = Capacity(required=False)


class TakeClaims(Body):
    max = Integer(1, 100)
    lease_ms = Int32(required=False)
    wait_ms = Integer(
        0, 20_000, required=False, help_text="Answer as soon as there is work, or after this time."
    )


class Reconcile(Body):
    worker_version = Text()
    capability_version = Integer()
    known_claims = Ids()
    running_attempts = Ids()
    completed_attempts = Ids()
    failed_attempts = Ids()
    timestamp = Time()


class Drain(Body):
    reason = Reason()
    deadline_ms = Integer(required=False)


class RetryPolicy(Body):
    max_attempts = Integer(required=False)
    initial_delay_ms = Integer(required=False)
    max_delay_ms = Integer(required=False)
    backoff = Word(choices=Backoff.choices, required=False)
    retry_on = TextList(required=False)
    jitter = Number(required=False)
    max_unstarted = Integer(required=False)


class Timeouts(Body):
    """Milliseconds; null is no timeout."""

    queue_ms = Integer(required=False, allow_null=True)
    claim_ms = Integer(required=False, allow_null=True)
    execution_ms = Integer(required=False, allow_null=True)
    heartbeat_ms = Integer(required=False, allow_null=True)
    overall_ms = Integer(required=False, allow_null=True)
    cancel_grace_ms = Integer(required=False)


class Resources(Body):
    """What is needed of a worker; amounts that it does not declare are not counted."""

    cpu_millis = Integer(required=False)
    memory_bytes = Integer(required=False)
    disk_bytes = Integer(required=False)
    gpu_count = Integer(required=False)


class Policy(Body):
    required_labels = Pairs(required=False)
    affinity = Pairs(required=False)
    anti_affinity = Pairs(required=False)
    pool_id = Text(required=False, allow_null=True)
    resources = Resources(required=False)


class Dependency(Body):
    workload_id = Text()
    required_state = Word(choices=RequiredState.choices, required=False)


class Submit(Body):
    application = Text()
    environment = Text()
    definition_id = Text()
    definition_revision = Text()
    trigger = Text()
    input = AnyValue()
    idempotency_key = Text()
    capability_snapshot = TextList()
    priority = Int32(required=False)
    retry_policy = RetryPolicy(required=False)
    timeouts = Timeouts(required=False)
    policy = Policy(required=False)
    lost_policy = Word(choices=LostPolicy.choices, required=False)
    not_before = Time(required=False, allow_null=True)
    connection_scopes = TextList(required=False)
    session_id = Text(required=False)
    dependencies = Dependency(many=True, required=False, help_text="Work that must end before.")
    grant = Text(required=False, help_text="The signed grant (JWS).")


class SubmitMany(Body):
    workloads = serializers.ListField(child=Submit(), max_length=MAX_AT_ONCE, allow_empty=False)


class Place(Body):
    worker_id = Text(_MAX_ID, required=False, allow_null=True)
    lease_ms = Int32(required=False)


class CreatePause(Body):
    application = Text()
    definition_id = Text(required=False, allow_null=True)
    reason = Text()
    until = Time(required=False, allow_null=True)


class Retry(Body):
    extra_attempts = Integer(1, 100, required=False)
    dependents = Flag(required=False, help_text="Also the dead letters that its end buried.")
    reason = Reason()


class Resolve(Body):
    resolution = Word(choices=Resolution.choices)
    output = AnyValue(required=False)
    reason = Text(_MAX_REASON)


class Reclaim(Body):
    reason = Text(_MAX_REASON)


class Fenced(Body):
    fencing_token = Integer()


class Renew(Fenced):
    lease_ms = Int32(required=False)


class SaveCheckpoint(Fenced):
    state = AnyValue()


class Complete(Fenced):
    result_id = Text()
    output = AnyValue()
    artifacts = TextList(required=False)
    logs = Text(required=False)
    resource_usage = Object(required=False, allow_null=True)


class Fail(Fenced):
    kind = Text()
    error = Text()
    details = Object(required=False, allow_null=True)
    no_effect = Flag(
        required=False,
        help_text="Nothing happened that must not happen twice: `hold` work may be tried again.",
    )


class CompleteItem(Complete):
    claim_id = Text(_MAX_ID)
    outcome = Word(choices=[reports.COMPLETE])


class FailItem(Fail):
    claim_id = Text(_MAX_ID)
    outcome = Word(choices=[reports.FAIL])


class CancelledItem(Fenced):
    claim_id = Text(_MAX_ID)
    outcome = Word(choices=[reports.CANCELLED])


class ReleaseItem(Fenced):
    claim_id = Text(_MAX_ID)
    outcome = Word(choices=[reports.RELEASE])


class Results(Body):
    """Reports on up to 100 claims, each with the members that its outcome has."""

    results = Variants(
        "outcome",
        {
            reports.COMPLETE: CompleteItem,
            reports.FAIL: FailItem,
            reports.CANCELLED: CancelledItem,
            reports.RELEASE: ReleaseItem,
        },
        max_length=MAX_REPORTS,
    )


class StartItem(Fenced):
    claim_id = Text(_MAX_ID)


class Starts(Body):
    """Up to 1 000 claims that their worker begins with."""

    starts = serializers.ListField(child=StartItem(), max_length=MAX_STARTS, allow_empty=False)


class Validate(Fenced):
    worker_id = Text(_MAX_ID)
    workload_id = Text(_MAX_ID)
    capabilities = TextList(MAX_LIST, required=False)


class ChangePool(Body):
    """What is left out stays; without a `max_concurrency` (null) there is no limit."""

    name = Text(required=False)
    capabilities = TextList(required=False)
    required_labels = Pairs(required=False)
    worker_ids = TextList(required=False)
    max_concurrency = Int32(required=False, allow_null=True)


class CreatePool(Body):
    pool_id = Text()
    application = Text()
    name = Text()
    capabilities = TextList()
    required_labels = Pairs()
    worker_ids = TextList()
    max_concurrency = Int32(required=False, allow_null=True)


class Resource(Body):
    kind = Word(choices=ScopeKind.choices)
    uri = Text()


class Constraints(Body):
    """Each is optional; a name in `worker_names` and `environments` may end in `*`."""

    environments = TextList(MAX_LIST, _MAX_ID, required=False)
    worker_names = TextList(MAX_LIST, _MAX_ID + 1, required=False)
    runtimes = TextList(MAX_LIST, _MAX_ID, required=False)
    labels = Pairs(required=False)
    workload_id = Text(_MAX_ID, required=False)


class Delegate(Body):
    subject = Text()
    capabilities = TextList(MAX_LIST)
    resources = serializers.ListField(child=Resource(), max_length=MAX_LIST, required=False)
    constraints = Constraints(required=False)
    expires_in_ms = Integer(required=False)


class Issue(Delegate):
    application = Text()
    not_before = Time(required=False, allow_null=True)
    revision = Integer(1, INT64, required=False)
    supersedes = Text(_MAX_ID, required=False, allow_null=True)


class Revoke(Body):
    kind = Word(choices=RevocationKind.choices)
    id = Text(help_text="A grant id, a subject, or the name of an application or of the tenant.")
    reason = Text(_MAX_REASON)
