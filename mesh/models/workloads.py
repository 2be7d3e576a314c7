"""Work: what it needs, the work itself, and every try at it."""

from datetime import datetime, timedelta

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from . import waking
from .enums import (
    CLAIMED_STATES,
    ENDED_STATES,
    LIVE_ATTEMPT,
    SEALED_STATES,
    AttemptStatus,
    LostPolicy,
    RequiredState,
    State,
)
from .fields import ExactJSONField
from .grants import Grant
from .scope import TenantQuerySet
from .tenancy import Application, Tenant
from .workers import Worker


class Requirement(models.Model):
    """What placement looks at, shared by all workloads that are alike in it. Immutable.

    `number` rises within the application and is null while the requirement is at rest: no open
    work has it, and no worker's eligible set needs it (see `mesh.requirements`).
    """

    application = models.ForeignKey(
        Application, models.PROTECT, related_name="requirements", db_index=False
    )
    digest = models.CharField(max_length=64)
    number = models.BigIntegerField(null=True)
    definition_id = models.CharField(max_length=200)
    capabilities = ArrayField(models.CharField(max_length=255), default=list)
    required_labels = models.JSONField(default=dict)
    affinity = models.JSONField(default=dict)
    anti_affinity = models.JSONField(default=dict)
    # Empty: any worker. A pool that does not exist is nobody.
    pool_id = models.CharField(max_length=200, blank=True, default="", db_default="")
    resources = models.JSONField(default=dict, db_default={})
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["application", "digest"], name="requirement_is_unique_in_application"
            ),
            models.UniqueConstraint(
                fields=["application", "number"], name="requirement_number_is_unique"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.definition_id} needs {', '.join(self.capabilities) or 'nothing'}"


class WorkloadQuerySet(TenantQuerySet["Workload"]):
    def _visible_to_worker(self, worker_pk: int) -> "WorkloadQuerySet":
        """A worker sees the work of its own claims."""
        own = Attempt.objects.filter(workload_id=models.OuterRef("pk"), worker_id=worker_pk)
        return self.filter(models.Exists(own))


class Workload(models.Model):
    """One durable piece of work. `mesh.workloads` owns its moves."""

    # In the C collation one index serves both the lookup and the search by prefix.
    workload_id = models.CharField(max_length=64, db_collation="C")
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="workloads", db_index=False)
    application = models.ForeignKey(
        Application, models.PROTECT, related_name="workloads", db_index=False
    )
    requirement = models.ForeignKey(
        Requirement, models.PROTECT, related_name="workloads", db_index=False
    )
    environment = models.CharField(max_length=200)
    definition_id = models.CharField(max_length=200)
    definition_revision = models.CharField(max_length=200)
    trigger = models.CharField(max_length=200)
    input = ExactJSONField(null=True)
    # Lengths as JSON of the input and the latest checkpoint, so that an answer of many claims can
    # be kept within its bound.
    input_bytes = models.IntegerField(default=0)
    checkpoint_bytes = models.IntegerField(default=0)
    requested_by = models.CharField(max_length=255)
    session_id = models.CharField(max_length=200, blank=True, default="")
    grant = models.ForeignKey(
        Grant, models.PROTECT, null=True, related_name="workloads", db_index=False
    )
    grant_digest = models.CharField(max_length=64, blank=True, default="")
    capability_snapshot = ArrayField(models.CharField(max_length=255), default=list)
    connection_scopes = ArrayField(models.CharField(max_length=255), default=list)
    priority = models.IntegerField(default=0)
    idempotency_key = models.CharField(max_length=255)
    content_digest = models.CharField(max_length=64)
    retry_policy = models.JSONField(default=dict)
    timeouts = models.JSONField(default=dict)
    policy = models.JSONField(default=dict)
    lost_policy = models.CharField(
        max_length=16, choices=LostPolicy, default=LostPolicy.REQUEUE, db_default="requeue"
    )
    not_before = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    state = models.CharField(max_length=24, choices=State, default=State.CREATED)
    # READY, due, unblocked and unheld: the row stands in the ready index.
    claimable = models.BooleanField(default=False)
    # Set and cleared by workflows alone: start nothing; and: its run attempt is settled for good.
    held = models.BooleanField(default=False, db_default=False)
    sealed = models.BooleanField(default=False, db_default=False)
    # Dependencies that have not ended as required.
    open_dependencies = models.IntegerField(default=0, db_default=0)
    # It ended, and work that waits for it is still to be woken.
    dependents_pending = models.BooleanField(default=False, db_default=False)
    available_at = models.DateTimeField()
    # The latest of READY, unblocked and unheld: with `available_at`, where the queue timeout
    # counts from.
    ready_at = models.DateTimeField()
    fencing_token = models.BigIntegerField(default=0)
    attempt_count = models.IntegerField(default=0)
    started_attempts = models.IntegerField(default=0)
    extra_attempts = models.IntegerField(default=0)
    # Ended started attempts since submit or the latest operator's retry: n of the retry delay.
    retries = models.IntegerField(default=0)
    # Losses before start in a row.
    unstarted_losses = models.IntegerField(default=0)
    event_sequence = models.IntegerField(default=0)
    last_failure = models.JSONField(null=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    # Where the overall timeout counts from: creation, or the latest operator's retry.
    overall_from = models.DateTimeField()
    # The earliest of the overall, queue and cancel grace deadlines that apply in this state.
    deadline_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    sweep_after = models.DateTimeField(null=True, blank=True)

    objects = WorkloadQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(
                F("requirement"),
                F("priority").desc(),
                F("created_at"),
                F("id"),
                condition=Q(claimable=True),
                name="ready_work",
            ),
            models.Index(
                fields=["application", "available_at"],
                condition=Q(state=State.READY, claimable=False, held=False, open_dependencies=0),
                name="ready_work_not_yet_due",
            ),
            models.Index(
                fields=["requirement"],
                condition=Q(claimable=False) & ~Q(state__in=ENDED_STATES),
                name="open_work_not_claimable",
            ),
            models.Index(
                fields=["deadline_at"],
                condition=Q(deadline_at__isnull=False),
                name="work_with_a_deadline",
            ),
            models.Index(
                fields=["id"],
                condition=Q(dependents_pending=True),
                name="work_with_dependents_to_wake",
            ),
            models.Index(
                fields=["ended_at", "id"],
                condition=Q(ended_at__isnull=False),
                name="ended_work_by_age",
            ),
            models.Index(fields=["tenant", "-created_at", "-id"], name="work_of_a_tenant"),
            # Of all states but the one that most work is in, which the index above finds as fast.
            models.Index(
                fields=["tenant", "state", "-created_at", "-id"],
                condition=~Q(state=State.SUCCEEDED),
                name="work_by_state_but_done",
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["workload_id"], name="workload_id_is_unique"),
            models.UniqueConstraint(
                fields=["application", "idempotency_key"], name="idempotency_key_is_unique"
            ),
            models.CheckConstraint(
                condition=Q(state__in=State.values), name="workload_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(lost_policy__in=LostPolicy.values), name="lost_policy_is_known"
            ),
            models.CheckConstraint(
                condition=Q(claimable=False) | Q(state=State.READY), name="claimable_work_is_ready"
            ),
            models.CheckConstraint(
                condition=Q(claimable=False) | Q(held=False, open_dependencies=0),
                name="claimable_work_is_free_to_run",
            ),
            models.CheckConstraint(
                condition=Q(open_dependencies__gte=0), name="open_dependencies_are_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True) | Q(state__in=ENDED_STATES),
                name="only_ended_work_has_an_end",
            ),
            models.CheckConstraint(
                condition=Q(
                    fencing_token__gte=F("attempt_count"),
                    attempt_count__gte=F("started_attempts"),
                    started_attempts__gte=0,
                    extra_attempts__gte=0,
                    retries__gte=0,
                    unstarted_losses__gte=0,
                ),
                name="workload_counters_agree",
            ),
        ]
        triggers = [
            pgtrigger.Protect(
                name="finished_work_never_moves",
                operation=pgtrigger.UpdateOf("state"),
                condition=pgtrigger.Q(old__state__in=sorted(SEALED_STATES))
                & ~pgtrigger.Q(old__state=pgtrigger.F("new__state")),
            ),
            *waking.triggers(),
        ]

    def __str__(self) -> str:
        return self.workload_id

    @property
    def is_started(self) -> bool:
        return self.state in {State.RUNNING, State.CHECKPOINTED}

    @property
    def is_claimed(self) -> bool:
        """A worker holds a live claim."""
        return self.state in CLAIMED_STATES

    @property
    def has_budget(self) -> bool:
        """Another started attempt is allowed. Attempts that never started do not count."""
        budget: int = self.retry_policy["max_attempts"] + self.extra_attempts
        return self.started_attempts < budget

    @property
    def overall_deadline_at(self) -> datetime | None:
        overall_ms = self.timeouts.get("overall_ms")
        return (
            None if overall_ms is None else self.overall_from + timedelta(milliseconds=overall_ms)
        )


class Dependency(models.Model):
    """Work that must end before other work may run."""

    # The one that waits, and the one it waits for.
    workload = models.ForeignKey(
        Workload, models.CASCADE, related_name="dependencies", db_index=False
    )
    depends_on = models.ForeignKey(
        Workload, models.CASCADE, related_name="dependents", db_index=False
    )
    required_state = models.CharField(
        max_length=16, choices=RequiredState, default=RequiredState.SUCCEEDED
    )
    is_open = models.BooleanField(default=True, db_default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workload", "depends_on"], name="one_dependency_per_pair"
            ),
            models.CheckConstraint(
                condition=Q(required_state__in=RequiredState.values),
                name="required_state_is_known",
            ),
            models.CheckConstraint(
                condition=~Q(workload=F("depends_on")), name="work_does_not_wait_for_itself"
            ),
        ]
        indexes = [
            models.Index(fields=["depends_on", "workload"], name="dependents_of_a_workload"),
            models.Index(
                fields=["depends_on", "workload"],
                condition=Q(is_open=True),
                name="dependents_still_waiting",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workload_id} waits for {self.depends_on_id}"


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def live(self) -> "AttemptQuerySet":
        """Attempts that hold their workload."""
        return self.filter(status__in=LIVE_ATTEMPT)

    def expired(self, at: datetime) -> "AttemptQuerySet":
        """Live attempts whose lease is over at `at` (inclusive)."""
        return self.live().filter(expires_at__lte=at)


class Attempt(models.Model):
    """One try at a workload by one worker; while it is live it is the claim and holds the lease.

    Rows change only under their worker's lock.
    """

    # Both public ids, of the attempt and of its one claim, are made from it.
    uid = models.UUIDField(unique=True)
    workload = models.ForeignKey(Workload, models.CASCADE, related_name="attempts", db_index=False)
    worker = models.ForeignKey(Worker, models.PROTECT, related_name="attempts", db_index=False)
    incarnation = models.BigIntegerField()
    number = models.IntegerField()
    fencing_token = models.BigIntegerField()
    # Placed by the server: the worker has not asked for it and learns of it later.
    is_placed = models.BooleanField(default=False, db_default=False)
    status = models.CharField(max_length=16, choices=AttemptStatus, default=AttemptStatus.CLAIMED)
    # The pool that its work names, which it counts against; empty for none.
    pool_id = models.CharField(max_length=200, blank=True, default="", db_default="")
    lease_ms = models.IntegerField()
    claimed_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField()
    last_progress_at = models.DateTimeField(null=True, blank=True)
    # The workload's heartbeat timeout, kept here so that a renewal need not read the workload.
    heartbeat_timeout_ms = models.BigIntegerField(null=True, blank=True)
    # The earliest of the execution, heartbeat and claim deadlines that apply in this status.
    execution_deadline_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    failure = models.JSONField(null=True)
    resource_usage = models.JSONField(null=True)
    # What ended the attempt and the digest of that report: an exact repeat is answered from here.
    report_step = models.CharField(max_length=16, blank=True, default="")
    report_digest = models.CharField(max_length=64, blank=True, default="")
    # The end of the sweeps' last finished pass before the outage that this lease was moved for.
    moved_for_outage = models.DateTimeField(null=True, blank=True)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(
                fields=["worker"],
                condition=Q(status__in=sorted(LIVE_ATTEMPT)),
                name="live_attempts_of_a_worker",
            ),
            models.Index(
                fields=["expires_at"],
                condition=Q(status__in=sorted(LIVE_ATTEMPT)),
                name="live_leases_by_end",
            ),
            models.Index(
                fields=["deadline_at"],
                condition=Q(status__in=sorted(LIVE_ATTEMPT), deadline_at__isnull=False),
                name="live_attempts_by_deadline",
            ),
            models.Index(
                fields=["pool_id"],
                condition=Q(status__in=sorted(LIVE_ATTEMPT)) & ~Q(pool_id=""),
                name="live_attempts_of_a_pool",
            ),
            models.Index(fields=["worker", "-id"], name="attempts_of_a_worker"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["workload", "number"], name="attempt_number_is_unique"),
            models.UniqueConstraint(
                fields=["workload"],
                condition=Q(status__in=sorted(LIVE_ATTEMPT)),
                name="one_live_attempt_per_workload",
            ),
            models.UniqueConstraint(
                fields=["workload"],
                condition=Q(status=AttemptStatus.SUCCEEDED),
                name="one_succeeded_attempt_per_workload",
            ),
            models.CheckConstraint(
                condition=Q(status__in=AttemptStatus.values), name="attempt_status_is_known"
            ),
            models.CheckConstraint(
                condition=Q(status__in=sorted(LIVE_ATTEMPT), ended_at__isnull=True)
                | (~Q(status__in=sorted(LIVE_ATTEMPT)) & Q(ended_at__isnull=False)),
                name="attempt_is_live_or_has_an_end",
            ),
        ]

    def __str__(self) -> str:
        return self.attempt_id

    @property
    def attempt_id(self) -> str:
        return f"attempt_{self.uid.hex}"

    @property
    def claim_id(self) -> str:
        return f"claim_{self.uid.hex}"

    @property
    def is_live(self) -> bool:
        return self.status in LIVE_ATTEMPT

    def is_lease_over(self, at: datetime) -> bool:
        """True from the very end of the lease on (inclusive)."""
        return self.expires_at <= at


class Checkpoint(models.Model):
    """Progress that the next claimant gets. Only the last few of a workload are kept."""

    workload = models.ForeignKey(
        Workload, models.CASCADE, related_name="checkpoints", db_index=False
    )
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="checkpoints")
    sequence = models.IntegerField()
    state = ExactJSONField(null=True)
    digest = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-sequence"]
        constraints = [
            models.UniqueConstraint(
                fields=["workload", "sequence"], name="checkpoint_sequence_is_unique"
            )
        ]

    def __str__(self) -> str:
        return f"checkpoint {self.sequence} of {self.workload_id}"


class Result(models.Model):
    """What a workload came to; at most one."""

    workload = models.OneToOneField(Workload, models.CASCADE, related_name="result")
    attempt = models.OneToOneField(Attempt, models.CASCADE, related_name="result")
    result_id = models.CharField(max_length=200)
    digest = models.CharField(max_length=64)
    output = ExactJSONField(null=True)
    artifacts = models.JSONField(default=list)
    logs = models.TextField(blank=True, default="")
    resource_usage = models.JSONField(null=True)
    # The person who said it in place of the worker; empty where the worker did.
    author = models.CharField(max_length=255, blank=True, default="", db_default="")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workload", "result_id"], name="result_id_is_unique_in_workload"
            )
        ]

    def __str__(self) -> str:
        return self.result_id


def uid_of(public_id: str, noun: str) -> str | None:
    """The hex uid in `claim_<hex>` or `attempt_<hex>`; None if it is not one of that noun."""
    prefix, _, digits = public_id.partition("_")
    is_hex = len(digits) == 32 and not digits.strip("0123456789abcdef")
    return digits if prefix == noun and is_hex else None
