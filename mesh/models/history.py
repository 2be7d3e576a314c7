"""What happened, and who did it. Append-only: the database refuses every change of a row."""

import pgtrigger
from django.db import models

from .scope import TenantQuerySet
from .tenancy import Tenant
from .workers import Worker
from .workloads import Workload


def append_only() -> pgtrigger.Protect:
    """The trigger that keeps a history table from being rewritten, whoever writes."""
    return pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)


class WorkloadEvent(models.Model):
    """One accepted change of a workload; sequences are 1, 2, 3 … without a gap."""

    workload = models.ForeignKey(Workload, models.CASCADE, related_name="events", db_index=False)
    sequence = models.IntegerField()
    event = models.CharField(max_length=64)
    from_state = models.CharField(max_length=24)
    to_state = models.CharField(max_length=24)
    actor = models.CharField(max_length=255)
    at = models.DateTimeField()
    evidence = models.JSONField(default=dict)

    class Meta:
        ordering = ["sequence"]
        constraints = [
            models.UniqueConstraint(
                fields=["workload", "sequence"], name="workload_event_sequence_is_unique"
            )
        ]
        triggers = [append_only()]

    def __str__(self) -> str:
        return f"{self.sequence} {self.event}"


class WorkerEvent(models.Model):
    """One accepted change of a worker other than a beat; `from` and `to` are lifecycles."""

    worker = models.ForeignKey(Worker, models.CASCADE, related_name="events", db_index=False)
    sequence = models.BigIntegerField()
    event = models.CharField(max_length=64)
    from_state = models.CharField(max_length=16)
    to_state = models.CharField(max_length=16)
    actor = models.CharField(max_length=255)
    at = models.DateTimeField()
    evidence = models.JSONField(default=dict)

    class Meta:
        ordering = ["sequence"]
        constraints = [
            models.UniqueConstraint(
                fields=["worker", "sequence"], name="worker_event_sequence_is_unique"
            )
        ]
        triggers = [append_only()]

    def __str__(self) -> str:
        return f"{self.sequence} {self.event}"


class AuditEntry(models.Model):
    """One accepted act of a person or service, or a refusal worth keeping."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="audit_entries", null=True)
    actor = models.CharField(max_length=255)
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=255)
    reason = models.TextField(blank=True, default="")
    code = models.CharField(max_length=64, blank=True, default="")
    evidence = models.JSONField(default=dict)
    at = models.DateTimeField()

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["tenant", "-id"], name="audit_of_a_tenant")]
        verbose_name_plural = "audit entries"
        triggers = [append_only()]

    def __str__(self) -> str:
        return f"{self.action} {self.target}"
