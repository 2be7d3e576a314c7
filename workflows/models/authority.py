"""How authority over runs moved, on what evidence, and what stops a run from going on."""

from datetime import datetime

from django.db import models
from django.db.models import Q

from mesh.canonical import identity
from mesh.models import ApiToken, Tenant
from mesh.models.history import append_only
from mesh.models.scope import TenantQuerySet

from .enums import HandoffMode, Verdict
from .runs import Run


class Block(models.Model):
    """Why nothing new may start in a run: at most one of each kind stands, ended ones are kept."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="%(class)s_rows")
    since = models.DateTimeField()
    by = models.CharField(max_length=255)
    reason = models.TextField(blank=True, default="")
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=255, blank=True, default="")
    end_reason = models.TextField(blank=True, default="")

    class Meta:
        abstract = True
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self.run_id}"


class UserPause(Block):
    """A person or the coordinator stopped the run for a while."""

    class Meta(Block.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["run"], condition=Q(ended_at__isnull=True), name="one_open_pause_per_run"
            )
        ]


class CancellationRequest(Block):
    """The run is to end; the first request stays."""

    class Meta(Block.Meta):
        constraints = [
            models.UniqueConstraint(fields=["run"], name="one_cancellation_per_run"),
        ]


class ControlFailure(Block):
    """The run cannot go on by itself. `reason` is the message."""

    code = models.CharField(max_length=64)
    step = models.CharField(max_length=200, blank=True, default="")

    class Meta(Block.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["run"],
                condition=Q(ended_at__isnull=True),
                name="one_open_control_failure_per_run",
            )
        ]


class RecoveryBarrier(Block):
    """Authority was taken over while work was under way: nothing new before that is explained.

    Owned by the authority that opened it or took it over; by none after a restore of an ownerless
    run, and then the next authority owns it.
    """

    instance_id = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001
    target_artifact_id = models.TextField(null=True, blank=True)  # noqa: DJ001
    generation = models.BigIntegerField(null=True, blank=True)

    class Meta(Block.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["run"], condition=Q(ended_at__isnull=True), name="one_open_barrier_per_run"
            )
        ]


class Receipt(models.Model):
    """What a resolver said about a transition of authority, and what it saw. Never changed."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="receipts", db_index=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="receipts")
    receipt_id = models.CharField(max_length=64, unique=True)
    resolver = models.CharField(max_length=64)
    verdict = models.CharField(max_length=16, choices=Verdict)
    # Mode, expected and replacement authority, without tokens.
    transition = models.JSONField()
    saw = models.JSONField(default=dict)
    at = models.DateTimeField()

    class Meta:
        ordering = ["-id"]
        triggers = [append_only()]

    def __str__(self) -> str:
        return self.receipt_id


class Handoff(models.Model):
    """Authority moved from one coordinator to the next. `generation` is that of the next."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="handoffs", db_index=False)
    generation = models.BigIntegerField()
    mode = models.CharField(max_length=16, choices=HandoffMode)
    expected_artifact_id = models.TextField()
    expected_instance_id = models.CharField(max_length=200)
    replacement_artifact_id = models.TextField()
    replacement_instance_id = models.CharField(max_length=200)
    receipt = models.ForeignKey(Receipt, models.PROTECT, related_name="handoffs")
    verified_at = models.DateTimeField()
    by = models.CharField(max_length=255)
    at = models.DateTimeField()

    class Meta:
        ordering = ["-generation"]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "generation"], name="one_handoff_per_generation"
            ),
            models.CheckConstraint(
                condition=Q(generation__gte=2), name="handoff_raises_the_generation"
            ),
            models.CheckConstraint(
                condition=Q(mode__in=HandoffMode.values), name="handoff_mode_is_known"
            ),
        ]
        triggers = [append_only()]

    def __str__(self) -> str:
        return f"handoff {self.generation} of {self.run_id}"


class Attestation(models.Model):
    """People state that an old owner has stopped, for one transition of one run."""

    tenant = models.ForeignKey(
        Tenant, models.PROTECT, related_name="handoff_attestations", db_index=False
    )
    run = models.ForeignKey(Run, models.CASCADE, related_name="attestations")
    attestation_id = models.CharField(max_length=64, unique=True)
    transition = models.JSONField()
    transition_digest = models.CharField(max_length=64)
    # How many people must state it.
    required = models.IntegerField()
    created_at = models.DateTimeField()
    # When the last statement that was needed was made.
    completed_at = models.DateTimeField(null=True, blank=True)

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        permissions = [("attest_handoff", "May state that the old owner of a run has stopped")]
        constraints = [
            models.CheckConstraint(
                condition=Q(required__in=[1, 2]), name="one_or_two_people_attest"
            )
        ]

    def __str__(self) -> str:
        return self.attestation_id

    @property
    def receipt_id(self) -> str:
        """Of the receipt, once there is one; blank before."""
        if self.completed_at is None:
            return ""
        return identity("receipt", [self.attestation_id])


class Statement(models.Model):
    """What one person states."""

    attestation = models.ForeignKey(Attestation, models.CASCADE, related_name="statements")
    by = models.CharField(max_length=255)
    statement = models.TextField()
    at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["attestation", "by"], name="one_statement_per_person")
        ]

    def __str__(self) -> str:
        return f"statement of {self.by}"


class Coordinator(models.Model):
    """A process that drives runs, alive while its lease lasts. An ended lease never revives."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="coordinators", db_index=False)
    instance_id = models.CharField(max_length=200)
    artifact = models.TextField()
    # Of the token that registered it; null for the built-in coordinator.
    token = models.ForeignKey(
        ApiToken, models.PROTECT, related_name="coordinators", null=True, blank=True
    )
    registered_by = models.CharField(max_length=255)
    registered_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    lease_ms = models.IntegerField()
    lease_ends_at = models.DateTimeField()
    relinquished_at = models.DateTimeField(null=True, blank=True)

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "instance_id"], name="coordinator_instance_is_unique"
            ),
            models.CheckConstraint(
                condition=Q(lease_ms__gte=1_000, lease_ms__lte=600_000),
                name="coordinator_lease_is_within_bounds",
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="coordinators_of_a_tenant"),
            models.Index(
                fields=["instance_id"],
                condition=Q(token__isnull=True),
                name="builtin_coordinators",
            ),
        ]

    def __str__(self) -> str:
        return self.instance_id

    @property
    def is_builtin(self) -> bool:
        return self.token_id is None

    def is_alive(self, at: datetime) -> bool:
        """Neither relinquished nor past its lease (inclusive) at `at`."""
        return self.relinquished_at is None and at < self.lease_ends_at
