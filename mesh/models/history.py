"""What happened, and who did it. Append-only: the database refuses every change of a row."""

import pgtrigger
from django.db import models

from .scope import TenantQuerySet
from .tenancy import Tenant
from .workers import Worker
from .workloads import Workload


class AppendOnly(pgtrigger.Protect):
    """Keeps a history table from being rewritten, whoever writes.

    Retention alone may delete, and only what happened before the moment that it puts into a
    setting of its own transaction: no superuser is needed for it, and nothing is switched off.
    """

    def get_func(self, model: models.Model) -> str:
        return """
            IF TG_OP = 'DELETE' AND OLD.at <= nullif(
                current_setting('fencepost.prune_before', true), ''
            )::timestamptz THEN
                RETURN OLD;
            END IF;
            RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME;
        """


def append_only() -> AppendOnly:
    return AppendOnly(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)


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
        indexes = [
            models.Index(fields=["tenant", "-id"], name="audit_of_a_tenant"),
            models.Index(fields=["tenant", "target", "-id"], name="audit_of_a_target"),
            models.Index(fields=["tenant", "at"], name="audit_by_age"),
        ]
        verbose_name_plural = "audit entries"
        triggers = [append_only()]

    def __str__(self) -> str:
        return f"{self.action} {self.target}"
