"""What the sweeps leave behind: their last run, and incidents of the brake."""

from datetime import datetime

from django.db import models

from .scope import TenantQuerySet
from .tenancy import Application, Tenant
from .workers import Worker


def not_pushed_back(at: datetime, of: str = "") -> models.Q:
    """Rows (or what `of` names of them) that no sweep passes over at `at`: none raised lately."""
    is_ripe = models.Q(**{f"{of}sweep_after__lte": at})
    return models.Q(**{f"{of}sweep_after__isnull": True}) | is_ripe


class SweepRun(models.Model):
    """The last run of one sweep. A sweep that stopped running is an alarm."""

    name = models.CharField(max_length=64, primary_key=True)
    last_started_at = models.DateTimeField(null=True, blank=True)
    last_finished_at = models.DateTimeField(null=True, blank=True)
    duration_ms = models.IntegerField(null=True, blank=True)
    counts = models.JSONField(default=dict)
    # Where the next pass goes on, for a sweep that does not find it by looking.
    progress = models.JSONField(default=dict, db_default={})

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Incident(models.Model):
    """The brake held: too many workers of one application fell silent at once.

    Its workers are taken offline when its hold is over, if they are still silent then.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="incidents", db_index=False)
    application = models.ForeignKey(Application, models.PROTECT, related_name="incidents")
    sweep = models.CharField(max_length=64)
    reason = models.CharField(max_length=64)
    workers = models.ManyToManyField(Worker, related_name="incidents")
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)
    # An operator ended the hold before its time.
    resumed_at = models.DateTimeField(null=True, blank=True)
    resumed_by = models.CharField(max_length=255, blank=True, default="")
    resume_reason = models.TextField(blank=True, default="")

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(
                fields=["application"],
                condition=models.Q(closed_at__isnull=True),
                name="open_incidents",
            ),
            models.Index(fields=["tenant", "-id"], name="incidents_of_a_tenant"),
        ]

    def __str__(self) -> str:
        return f"incident {self.pk}"

    @property
    def incident_id(self) -> str:
        return f"incident_{self.pk}"
