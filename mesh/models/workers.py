"""Workers, and which requirements each of them may take."""

from datetime import datetime, timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from .enums import DrainCause, Health, Lifecycle, Runtime
from .grants import Grant
from .scope import TenantQuerySet
from .tenancy import Application, Tenant

PLACEABLE = frozenset({Lifecycle.READY, Lifecycle.BUSY})


class WorkerQuerySet(TenantQuerySet["Worker"]):
    def _visible_to_worker(self, worker_pk: int) -> "WorkerQuerySet":
        return self.filter(pk=worker_pk)


class Worker(models.Model):
    """One registered executor.

    Heartbeats and claims write this row often. Its indexed columns change only when it is
    registered, drained or retired and the table keeps room in each page, so those writes stay in
    place.
    """

    worker_id = models.CharField(max_length=64, unique=True)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="workers", db_index=False)
    application = models.ForeignKey(
        Application, models.PROTECT, related_name="workers", db_index=False
    )
    name = models.CharField(max_length=200)
    runtime = models.CharField(max_length=16, choices=Runtime)
    version = models.CharField(max_length=200)
    contract_version = models.IntegerField(default=1)
    declared_capabilities = ArrayField(models.CharField(max_length=255), default=list)
    granted_capabilities = ArrayField(models.CharField(max_length=255), default=list)
    workload_kinds = ArrayField(models.CharField(max_length=255), default=list)
    resource_profile = models.JSONField(default=dict)
    labels = models.JSONField(default=dict)
    concurrency = models.IntegerField()
    heartbeat_interval_ms = models.IntegerField(default=10_000)
    heartbeat_timeout_ms = models.IntegerField(default=30_000)
    capability_version = models.BigIntegerField()
    incarnation = models.BigIntegerField(default=1)
    grant = models.ForeignKey(Grant, models.PROTECT, related_name="workers")
    credential_hash = models.CharField(max_length=64, unique=True, null=True)  # noqa: DJ001
    registered_by = models.CharField(max_length=255)
    registered_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True, blank=True)

    lifecycle = models.CharField(max_length=16, choices=Lifecycle, default=Lifecycle.REGISTERED)
    health = models.CharField(max_length=16, choices=Health, default=Health.UNKNOWN)
    # The last register answered `reconcile_required` and no reconcile followed.
    is_unreconciled = models.BooleanField(default=False)
    active = models.IntegerField(default=0)
    last_seen_at = models.DateTimeField()
    last_poll_at = models.DateTimeField(null=True, blank=True)
    last_progress_at = models.DateTimeField(null=True, blank=True)
    reported_at = models.DateTimeField(null=True, blank=True)
    clock_skew_ms = models.BigIntegerField(null=True, blank=True)
    recovering_since = models.DateTimeField(null=True, blank=True)
    drain_cause = models.CharField(max_length=16, choices=DrainCause, blank=True, default="")
    drain_requested_at = models.DateTimeField(null=True, blank=True)
    drain_deadline_at = models.DateTimeField(null=True, blank=True)
    # When it was told, once, that the deadline had passed with claims still live.
    drain_passed_at = models.DateTimeField(null=True, blank=True)
    drain_reason = models.TextField(blank=True, default="")
    event_sequence = models.BigIntegerField(default=0)
    sweep_after = models.DateTimeField(null=True, blank=True)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="workers_of_a_tenant"),
            models.Index(
                fields=["drain_deadline_at"],
                condition=Q(drain_deadline_at__isnull=False, drain_passed_at__isnull=True),
                name="drains_with_a_deadline",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["application", "name"], name="worker_name_is_unique_in_application"
            ),
            models.CheckConstraint(
                condition=Q(lifecycle__in=Lifecycle.values), name="worker_lifecycle_is_known"
            ),
            models.CheckConstraint(
                condition=Q(health__in=Health.values), name="worker_health_is_known"
            ),
            models.CheckConstraint(
                condition=Q(runtime__in=Runtime.values), name="worker_runtime_is_known"
            ),
            models.CheckConstraint(
                condition=Q(drain_cause__in=["", *DrainCause.values]),
                name="worker_drain_cause_is_known",
            ),
            models.CheckConstraint(
                condition=Q(concurrency__gte=1, concurrency__lte=1000),
                name="worker_concurrency_is_bounded",
            ),
            models.CheckConstraint(
                condition=Q(active__gte=0), name="worker_active_is_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(incarnation__gte=0), name="worker_incarnation_is_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def heartbeat_timeout(self) -> timedelta:
        return timedelta(milliseconds=self.heartbeat_timeout_ms)

    @property
    def silent_at(self) -> datetime:
        """When silence begins unless it is heard before.

        A RECOVERING worker is given its timeout from the moment it was asked to come back.
        """
        heard = self.last_seen_at
        if self.lifecycle == Lifecycle.RECOVERING and self.recovering_since:
            heard = max(heard, self.recovering_since)
        return heard + self.heartbeat_timeout

    def is_silent(self, at: datetime) -> bool:
        """True from the moment on at which the timeout is reached (inclusive)."""
        return self.silent_at <= at

    @property
    def free_slots(self) -> int:
        """How many more claims fit; 0 when the capacity was lowered below what is active."""
        return max(self.concurrency - self.active, 0)

    @property
    def is_removed(self) -> bool:
        return self.removed_at is not None


class EligibleSet(models.Model):
    """The requirements a worker may take, worked out when either side changed, not per claim.

    It is current for requirements up to `upto_number` of the application's `epoch`; a claim call
    that finds it behind brings it up to date first (see `mesh.requirements`).
    """

    worker = models.OneToOneField(
        Worker, models.CASCADE, primary_key=True, related_name="eligible_set"
    )
    requirement_ids = ArrayField(models.BigIntegerField(), default=list)
    epoch = models.BigIntegerField(default=0)
    upto_number = models.BigIntegerField(default=0)
    # Those of them that name a pool or resources: more than slots must be counted for them.
    bounded_ids = ArrayField(models.BigIntegerField(), default=list, db_default=[])

    def __str__(self) -> str:
        return f"{len(self.requirement_ids)} requirements of {self.worker_id}"
