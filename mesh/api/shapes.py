"""What callers get, for the OpenAPI document; `answers` makes it.

Everything named here is always there, unless it is not `required`; what may be null says so.
"""

from typing import Any

from rest_framework import serializers

from ..models import (
    AttemptStatus,
    GrantStatus,
    Health,
    Lifecycle,
    LostPolicy,
    RequiredState,
    RevocationKind,
    Runtime,
    State,
)
from .bodies import Capacity, Constraints, Policy, Resource, ResourceProfile, RetryPolicy, Timeouts
from .fields import AnyValue, Flag, Integer, Object, Pairs, Text, TextList, Time, Word


class Shape(serializers.Serializer[Any]):
    # A JSON object that is sent. (Docstrings go into the OpenAPI document.)
    pass


class FieldError(Shape):
    field = Text()
    detail = Text()


class Problem(Shape):
    """A refusal (RFC 9457). Some codes come with further members, as facts."""

    type = Text()
    title = Text()
    status = Integer()
    code = Text(help_text="What a program switches on; it never changes its meaning.")
    kind = Text(help_text="The family of the code.")
    detail = Text(help_text="For people.")
    retry_after_ms = Integer(required=False)

    def get_fields(self) -> dict[str, Any]:
        # Not declared as the others: a serializer has another thing of that name.
        return {**super().get_fields(), "errors": FieldError(many=True, required=False)}


class WorkerCapacity(Capacity):
    active = Integer()


class Worker(Shape):
    worker_id = Text()
    tenant = Text()
    application = Text()
    name = Text()
    runtime = Word(choices=Runtime.choices)
    version = Text()
    contract_version = Integer()
    declared_capabilities = TextList()
    granted_capabilities = TextList()
    workload_kinds = TextList()
    resource_profile = ResourceProfile()
    labels = Pairs()
    capacity = WorkerCapacity()
    health = Word(choices=Health.choices)
    lifecycle = Word(choices=Lifecycle.choices)
    heartbeat_interval_ms = Integer()
    heartbeat_timeout_ms = Integer()
    capability_version = Integer()
    incarnation = Integer()
    grant_id = Text()
    last_seen_at = Time()
    last_poll_at = Time(allow_null=True)
    last_progress_at = Time(allow_null=True)
    clock_skew_ms = Integer(allow_null=True)
    drain_requested_at = Time(allow_null=True)
    drain_deadline_at = Time(allow_null=True)
    registered_at = Time()


class Registered(Shape):
    worker = Worker()
    credential = Text(help_text="The worker's secret, sent only here.")
    reconcile_required = Flag()


class LatestCheckpoint(Shape):
    sequence = Integer()
    state = AnyValue()


class Checkpoint(LatestCheckpoint):
    created_at = Time()


class ClaimedWorkload(Shape):
    definition_id = Text()
    definition_revision = Text()
    input = AnyValue()
    environment = Text()
    attempt_number = Integer()
    timeouts = Timeouts()
    connection_scopes = TextList()


class RuntimePolicy(Shape):
    max_duration_ms = Integer(required=False, allow_null=True)
    max_cpu_millis = Integer(required=False, allow_null=True)
    max_memory_bytes = Integer(required=False, allow_null=True)


class Claim(Shape):
    claim_id = Text()
    workload_id = Text()
    attempt_id = Text()
    worker_id = Text()
    lease_id = Text()
    fencing_token = Integer()
    capability_snapshot = TextList()
    execution_context_id = Text()
    issued_at = Time()
    expires_at = Time()
    workload = ClaimedWorkload()
    checkpoint = LatestCheckpoint(allow_null=True)
    runtime_policy = RuntimePolicy(allow_null=True)
    lost_policy = Word(choices=LostPolicy.choices)


class Renewed(Shape):
    claim_id = Text()
    expires_at = Time()


class Beat(Shape):
    worker = Worker()
    renewed = Renewed(many=True)
    fenced_claims = TextList()
    cancel_claims = TextList()
    missing_claims = TextList()
    assigned_claims = Claim(many=True)
    grant_ends_at = Time()


class Claims(Shape):
    claims = Claim(many=True)
    reason = Text(allow_null=True, help_text="Why the list is empty, where there is a reason.")


class Reconciled(Shape):
    authoritative_claims = TextList()
    fenced_claims = TextList()
    cancel_attempts = TextList()
    reports = Pairs(help_text="The verdict on each attempt that was reported as over.")
    worker = Worker()


class Failure(Shape):
    kind = Text()
    error = Text()


class CurrentClaim(Renewed):
    worker_id = Text()


class Attempt(Shape):
    attempt_id = Text()
    number = Integer()
    worker_id = Text()
    claim_id = Text()
    fencing_token = Integer()
    status = Word(choices=AttemptStatus.choices)
    claimed_at = Time()
    started_at = Time(allow_null=True)
    ended_at = Time(allow_null=True)
    expires_at = Time()
    failure = Object(allow_null=True)
    resource_usage = Object(allow_null=True)


class Result(Shape):
    result_id = Text()
    output = AnyValue()
    artifacts = TextList()
    logs = Text()
    resource_usage = Object(allow_null=True)
    created_at = Time()


class DependsOn(Shape):
    workload_id = Text()
    required_state = Word(choices=RequiredState.choices)


class Workload(Shape):
    workload_id = Text()
    application = Text()
    environment = Text()
    definition_id = Text()
    definition_revision = Text()
    trigger = Text()
    input = AnyValue()
    idempotency_key = Text()
    capability_snapshot = TextList()
    priority = Integer()
    retry_policy = RetryPolicy()
    timeouts = Timeouts()
    policy = Policy()
    lost_policy = Word(choices=LostPolicy.choices)
    not_before = Time(allow_null=True)
    connection_scopes = TextList()
    session_id = Text()
    dependencies = DependsOn(many=True)
    state = Word(choices=State.choices)
    attempt_count = Integer()
    fencing_token = Integer()
    available_at = Time()
    last_failure = Failure(allow_null=True)
    current_claim = CurrentClaim(allow_null=True)
    cancel_requested_at = Time(allow_null=True)
    ended_at = Time(allow_null=True)
    created_at = Time()
    updated_at = Time()


class WorkloadDetail(Workload):
    attempts = Attempt(many=True, help_text="The latest ones, at most 200, in order.")
    checkpoint = Checkpoint(allow_null=True, help_text="The latest one.")
    result = Result(allow_null=True)


class Submitted(Shape):
    workload = Workload()
    created = Flag()


class SubmittedItem(Shape):
    workload_id = Text(required=False, help_text="If it was accepted.")
    created = Flag(required=False)
    code = Text(required=False, help_text="If it was refused.")
    detail = Text(required=False)


class SubmittedMany(Shape):
    results = SubmittedItem(many=True, help_text="In the order of the workloads.")


class JudgedItem(Shape):
    claim_id = Text()
    status = Word(choices=AttemptStatus.choices, required=False, help_text="If it was accepted.")
    code = Text(required=False, help_text="If it was refused.")
    detail = Text(required=False)


class Settled(Shape):
    results = JudgedItem(many=True, help_text="In the order of the reports.")


class Started(Shape):
    starts = JudgedItem(many=True, help_text="In the order of the starts.")


class Valid(Shape):
    valid = Flag()
    expires_at = Time()


class Renewal(Shape):
    state = Word(choices=State.choices)
    expires_at = Time()
    cancel_requested = Flag()
    deadline = Time(allow_null=True)


class Event(Shape):
    sequence = Integer()
    event = Text()
    to = Text()
    actor = Text()
    at = Time()
    evidence = Object()

    def get_fields(self) -> dict[str, Any]:
        return {**super().get_fields(), "from": Text()}  # a word of the language, elsewhere


class Grant(Shape):
    grant_id = Text()
    application = Text()
    subject = Text()
    capabilities = TextList()
    resources = Resource(many=True)
    constraints = Constraints()
    # A member of the answer, not the serializer's own parent.
    parent = Text(allow_null=True, help_text="The grant that it was derived from.")  # type: ignore[assignment]
    depth = Integer(help_text="1 for a grant that was issued, at most 8.")
    revision = Integer()
    status = Word(choices=GrantStatus.choices)
    issued_at = Time()
    issued_by = Text()
    not_before = Time()
    expires_at = Time()
    supersedes = Text(allow_null=True)
    revoked_at = Time(allow_null=True)
    revoked_by = Text()
    revoke_reason = Text()


class Issued(Shape):
    grant = Grant()
    token = Text(help_text="The signed grant (JWS), sent only here.")


class Incident(Shape):
    incident_id = Text()
    sweep = Text()
    application = Text()
    opened_at = Time()
    workers = TextList(help_text="Ids of the workers it listed; at most 1 000 are told.")
    resumed_at = Time(allow_null=True)
    resumed_by = Text()
    reason = Text(help_text="Why it was resumed; empty until then.")


class Sweep(Shape):
    name = Text()
    last_started_at = Time(allow_null=True)
    last_finished_at = Time(allow_null=True)
    duration_ms = Integer(allow_null=True)
    counts = Object(help_text="What the last finished pass did, by outcome.")
    lag_ms = Integer(allow_null=True, help_text="Time since the last finished pass; null: never.")
    incident = Incident(allow_null=True)


class Sweeps(Shape):
    results = Sweep(many=True)


class Revocation(Shape):
    revocation_id = Text()
    kind = Word(choices=RevocationKind.choices)
    id = Text()
    reason = Text()
    by = Text()
    created_at = Time()
    grants = Integer(help_text="How many grants it ended, those derived from others too.")


class Pool(Shape):
    pool_id = Text()
    application = Text()
    name = Text()
    capabilities = TextList()
    required_labels = Pairs()
    worker_ids = TextList()
    max_concurrency = Integer(allow_null=True)


class Key(Shape):
    kty = Text()
    crv = Text()
    x = Text()
    kid = Text()
    alg = Text()
    use = Text()


class KeySet(Shape):
    keys = Key(many=True)


def page_of(shape: type[Shape]) -> type[Shape]:
    """One page of a list of such things."""
    members = {
        "next": Text(allow_null=True, help_text="The next page, if there is one."),
        "previous": Text(allow_null=True),
        "results": shape(many=True),
    }
    return type(f"{shape.__name__}Page", (Shape,), members)


WorkerPage = page_of(Worker)
WorkloadPage = page_of(Workload)
AttemptPage = page_of(Attempt)
CheckpointPage = page_of(Checkpoint)
EventPage = page_of(Event)
GrantPage = page_of(Grant)
PoolPage = page_of(Pool)
IncidentPage = page_of(Incident)
