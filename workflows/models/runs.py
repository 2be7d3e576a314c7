"""Runs, their steps, what was tried and what is reserved."""

from django.db import models
from django.db.models import F, Q

from mesh.models import Application, Tenant, Workload
from mesh.models.fields import ExactJSONField
from mesh.models.scope import TenantQuerySet

from .definitions import Definition
from .enums import (
    Access,
    CoordinatorKind,
    Effect,
    LeaseScope,
    OutcomeKind,
    OutcomeSource,
    RunStatus,
    StepState,
)


class RunQuerySet(TenantQuerySet["Run"]):
    def open(self) -> "RunQuerySet":
        return self.filter(status=RunStatus.OPEN)

    def builtin(self) -> "RunQuerySet":
        """Runs that the server's own coordinator drives."""
        return self.filter(coordinator=CoordinatorKind.BUILTIN)


class Run(models.Model):
    """One execution of a definition version. Its row is locked first by everything that moves it.

    The authority is the three columns artifact, instance and generation, all null before the first
    claim, and the hash of its fencing token.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="runs", db_index=False)
    application = models.ForeignKey(Application, models.PROTECT, related_name="runs")
    # In the C collation one index serves both the lookup and the search by prefix.
    run_id = models.CharField(max_length=200, db_collation="C")
    definition = models.ForeignKey(Definition, models.PROTECT, related_name="runs")
    environment = models.CharField(max_length=200)
    input = ExactJSONField(null=True)
    content_digest = models.CharField(max_length=64)
    status = models.CharField(max_length=16, choices=RunStatus, default=RunStatus.OPEN)
    coordinator = models.CharField(max_length=16, choices=CoordinatorKind)
    target_artifact_id = models.TextField(null=True, blank=True)  # noqa: DJ001  # null: no authority
    instance_id = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001
    generation = models.BigIntegerField(null=True, blank=True)
    token_hash = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001
    active_attempts = models.IntegerField(default=0, db_default=0)
    # Attempts that count toward the limit: all but those that never started.
    executions = models.IntegerField(default=0, db_default=0)
    max_concurrency = models.IntegerField(default=8)
    max_executions = models.IntegerField(default=1_000)
    deadline = models.DateTimeField(null=True, blank=True)
    requested_by = models.CharField(max_length=255)
    event_sequence = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    sweep_after = models.DateTimeField(null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "run_id"], name="run_id_is_unique"),
            models.CheckConstraint(
                condition=Q(status__in=RunStatus.values), name="run_status_is_known"
            ),
            models.CheckConstraint(
                condition=Q(coordinator__in=CoordinatorKind.values),
                name="run_coordinator_is_known",
            ),
            models.CheckConstraint(
                condition=Q(
                    target_artifact_id__isnull=True,
                    instance_id__isnull=True,
                    generation__isnull=True,
                    token_hash__isnull=True,
                )
                | Q(
                    target_artifact_id__isnull=False,
                    instance_id__isnull=False,
                    generation__gte=1,
                    token_hash__isnull=False,
                ),
                name="authority_is_whole_or_absent",
            ),
            models.CheckConstraint(
                condition=Q(active_attempts__gte=0, executions__gte=0),
                name="run_counters_are_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(max_concurrency__gte=1, max_executions__gte=1),
                name="run_limits_are_positive",
            ),
            models.CheckConstraint(
                condition=Q(status=RunStatus.OPEN, ended_at__isnull=True)
                | (~Q(status=RunStatus.OPEN) & Q(ended_at__isnull=False, active_attempts=0)),
                name="ended_run_has_an_end_and_nothing_active",
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="runs_of_a_tenant"),
            models.Index(
                fields=["coordinator", "instance_id", "id"],
                condition=Q(status=RunStatus.OPEN),
                name="open_runs_by_coordinator",
            ),
            # The order in which sweeps page; most runs of an old system have ended.
            models.Index(fields=["id"], condition=Q(status=RunStatus.OPEN), name="open_runs"),
            models.Index(
                fields=["deadline"],
                condition=Q(status=RunStatus.OPEN, deadline__isnull=False),
                name="open_runs_by_deadline",
            ),
            models.Index(
                fields=["tenant", "status", "-created_at", "-id"],
                name="runs_by_status",
            ),
            models.Index(
                fields=["tenant", "coordinator", "-created_at", "-id"],
                name="runs_by_coordinator",
            ),
            models.Index(
                fields=["ended_at", "id"],
                condition=Q(ended_at__isnull=False),
                name="ended_runs_by_age",
            ),
        ]

    def __str__(self) -> str:
        return self.run_id

    @property
    def is_open(self) -> bool:
        return self.status == RunStatus.OPEN

    @property
    def has_authority(self) -> bool:
        return self.generation is not None


class Activation(models.Model):
    """One step of a run as it is to be done: where it stands and what it came to."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="activations", db_index=False)
    step = models.CharField(max_length=200)
    # In the order of the definition.
    position = models.IntegerField()
    activation_id = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=StepState, default=StepState.PENDING)
    output = ExactJSONField(null=True)
    # Of the latest attempt; the next one has the number after it.
    last_number = models.IntegerField(default=0, db_default=0)
    # Attempts that count toward `retry.max_attempts`, and those that never started, in a row.
    tries = models.IntegerField(default=0, db_default=0)
    unstarted = models.IntegerField(default=0, db_default=0)
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(fields=["run", "step"], name="one_activation_per_step"),
            models.CheckConstraint(
                condition=Q(state__in=StepState.values), name="step_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(last_number__gte=F("tries"), tries__gte=0, unstarted__gte=0),
                name="activation_counters_agree",
            ),
        ]
        indexes = [
            models.Index(
                fields=["run"], condition=Q(state=StepState.READY), name="activations_due"
            ),
        ]

    def __str__(self) -> str:
        return self.step


class RunAttemptQuerySet(models.QuerySet["RunAttempt"]):
    def unsettled(self) -> "RunAttemptQuerySet":
        """Attempts whose outcome is not known yet."""
        return self.filter(outcome__isnull=True)


class RunAttempt(models.Model):
    """One try at a step: its intent, its one workload, and at most one outcome, for ever."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="run_attempts", db_index=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts", db_index=False)
    activation = models.ForeignKey(
        Activation, models.CASCADE, related_name="attempts", db_index=False
    )
    number = models.IntegerField()
    dispatch_identity = models.CharField(max_length=64)
    effect = models.CharField(max_length=16, choices=Effect)
    # The generation of the authority that admitted it.
    generation = models.BigIntegerField()
    workload = models.OneToOneField(Workload, models.PROTECT, related_name="run_attempt")
    outcome = models.CharField(  # noqa: DJ001  # null: not settled
        max_length=16, choices=OutcomeKind, null=True, blank=True
    )
    # Whatever belongs to the outcome beside its kind: output, message, retryable, reason.
    output = ExactJSONField(null=True)
    message = models.TextField(blank=True, default="")
    retryable = models.BooleanField(default=False, db_default=False)
    # By it an identical repeat is known.
    outcome_digest = models.CharField(max_length=64, blank=True, default="")
    source = models.CharField(max_length=16, choices=OutcomeSource, blank=True, default="")
    settled_at = models.DateTimeField(null=True, blank=True)
    settled_by = models.CharField(max_length=255, blank=True, default="")
    admitted_at = models.DateTimeField()

    objects = RunAttemptQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "dispatch_identity"], name="dispatch_identity_is_unique"
            ),
            models.UniqueConstraint(
                fields=["activation", "number"], name="run_attempt_number_is_unique"
            ),
            models.UniqueConstraint(
                fields=["activation"],
                condition=Q(outcome__isnull=True),
                name="one_unsettled_attempt_per_activation",
            ),
            models.CheckConstraint(
                condition=Q(outcome__isnull=True) | Q(outcome__in=OutcomeKind.values),
                name="outcome_is_known",
            ),
            models.CheckConstraint(
                condition=Q(outcome__isnull=True, settled_at__isnull=True, outcome_digest="")
                | Q(outcome__isnull=False, settled_at__isnull=False)
                & ~Q(outcome_digest="")
                & Q(source__in=OutcomeSource.values),
                name="settled_attempt_has_all_of_its_outcome",
            ),
        ]
        indexes = [
            models.Index(fields=["run", "-id"], name="attempts_of_a_run"),
            models.Index(
                fields=["run"],
                condition=Q(outcome__isnull=True),
                name="unsettled_attempts_of_a_run",
            ),
        ]

    def __str__(self) -> str:
        return self.dispatch_identity

    @property
    def is_settled(self) -> bool:
        return self.outcome is not None


class ResourceLease(models.Model):
    """A resource that an unsettled attempt reserves."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="leases", db_index=False)
    attempt = models.ForeignKey(RunAttempt, models.CASCADE, related_name="leases", db_index=False)
    application = models.ForeignKey(
        Application, models.PROTECT, related_name="resource_leases", db_index=False
    )
    resource = models.TextField()
    access = models.CharField(max_length=8, choices=Access)
    scope = models.CharField(max_length=16, choices=LeaseScope)
    generation = models.BigIntegerField()
    acquired_at = models.DateTimeField()

    class Meta:
        ordering = ["resource", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "resource", "scope"], name="one_lease_per_resource_of_an_attempt"
            ),
            # The last line for two writers; a reader beside a writer is kept out by admission.
            models.UniqueConstraint(
                fields=["application", "resource"],
                condition=Q(access=Access.WRITE, scope=LeaseScope.APPLICATION),
                name="one_writer_per_resource_of_an_application",
            ),
            models.UniqueConstraint(
                fields=["run", "resource"],
                condition=Q(access=Access.WRITE, scope=LeaseScope.RUN),
                name="one_writer_per_resource_of_a_run",
            ),
            models.CheckConstraint(
                condition=Q(access__in=Access.values, scope__in=LeaseScope.values),
                name="lease_words_are_known",
            ),
        ]
        indexes = [
            models.Index(fields=["run", "resource"], name="leases_of_a_run"),
            models.Index(
                fields=["application", "resource"],
                condition=Q(scope=LeaseScope.APPLICATION),
                name="leases_of_an_application",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.access} {self.resource}"


class ResourceKey(models.Model):
    """One resource of an application: the row that admissions lock before they look at leases."""

    application = models.ForeignKey(
        Application, models.PROTECT, related_name="resource_keys", db_index=False
    )
    resource = models.TextField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["application", "resource"], name="resource_key_is_unique"
            )
        ]

    def __str__(self) -> str:
        return self.resource


class RefusedWriter(models.Model):
    """A writer that found a resource busy; readers that come later wait behind it for a while."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="refused_writers", db_index=False)
    application = models.ForeignKey(
        Application, models.CASCADE, related_name="refused_writers", db_index=False
    )
    resource = models.TextField()
    scope = models.CharField(max_length=16, choices=LeaseScope)
    dispatch_identity = models.CharField(max_length=64)
    # Of the first ask in a row, which decides who came earlier; and of the last.
    first_asked_at = models.DateTimeField()
    asked_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "dispatch_identity", "resource", "scope"],
                name="refused_writer_is_unique",
            )
        ]
        indexes = [
            models.Index(fields=["application", "resource"], name="refused_writers_by_key"),
            models.Index(fields=["asked_at"], name="refused_writers_by_age"),
        ]

    def __str__(self) -> str:
        return f"writer of {self.resource}"
