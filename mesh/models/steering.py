"""What people say about work that waits, and what placement found out about it."""

from datetime import datetime

from django.db import models
from django.db.models import Q

from .fields import ExactJSONField
from .scope import TenantQuerySet
from .tenancy import Application, Tenant
from .workers import Worker
from .workloads import Attempt, Workload


class PauseQuerySet(TenantQuerySet["Pause"]):
    def standing(self, at: datetime) -> "PauseQuerySet":
        """Pauses that hold work back at `at`; one is over at its `until` (inclusive)."""
        return self.filter(Q(until__isnull=True) | Q(until__gt=at), lifted_at__isnull=True)


class Pause(models.Model):
    """While it stands, matching work is not claimable. Lifted ones are kept as a record."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="pauses")
    application = models.ForeignKey(
        Application, models.PROTECT, related_name="pauses", db_index=False
    )
    # Empty: all work of the application.
    definition_id = models.CharField(max_length=200, blank=True, default="")
    reason = models.TextField()
    until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=255)
    lifted_at = models.DateTimeField(null=True, blank=True)
    lifted_by = models.CharField(max_length=255, blank=True, default="")

    objects = PauseQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["application", "-id"], name="pauses_of_an_application"),
            models.Index(
                fields=["application"],
                condition=Q(lifted_at__isnull=True),
                name="pauses_not_lifted",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.definition_id or 'all work'} of {self.application}"

    @property
    def pause_id(self) -> str:
        return f"pause_{self.pk}"

    def is_standing(self, at: datetime) -> bool:
        """Whether it holds work back at `at`; it is over at its `until` (inclusive)."""
        return self.lifted_at is None and (self.until is None or self.until > at)


class Decision(models.Model):
    """One placement that the server made or refused: who was considered and why not chosen.

    At most 200 candidates are listed; `counts` has the number of all that failed each test.
    """

    workload = models.ForeignKey(Workload, models.CASCADE, related_name="decisions", db_index=False)
    chosen = models.ForeignKey(
        Worker, models.PROTECT, null=True, related_name="decisions", db_index=False
    )
    # Empty where a worker was chosen, else the code of the refusal.
    code = models.CharField(max_length=64, blank=True, default="")
    actor = models.CharField(max_length=255)
    at = models.DateTimeField()
    considered = models.IntegerField(default=0)
    candidates = models.JSONField(default=list)
    counts = models.JSONField(default=dict)
    nearest = models.JSONField(null=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["workload", "-id"], name="decisions_of_a_workload"),
            models.Index(fields=["at", "id"], name="decisions_by_age"),
            models.Index(
                fields=["chosen"], condition=Q(chosen__isnull=False), name="decisions_for_a_worker"
            ),
        ]

    def __str__(self) -> str:
        return f"decision {self.pk}"

    @property
    def decision_id(self) -> str:
        return f"decision_{self.pk}"


class LateReport(models.Model):
    """A worker's report that the fence refused and that is kept: it says what really happened."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="late_reports")
    step = models.CharField(max_length=16)
    code = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    body = ExactJSONField(null=True)
    reported_at = models.DateTimeField()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "step", "digest"], name="late_report_is_kept_once"
            )
        ]

    def __str__(self) -> str:
        return f"late {self.step} of {self.attempt_id}"
