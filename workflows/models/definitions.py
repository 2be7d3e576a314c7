"""What a run executes."""

import pgtrigger
from django.db import models
from django.db.models.functions import Now

from mesh.models import Application, Tenant
from mesh.models.fields import ExactJSONField
from mesh.models.scope import TenantQuerySet


class Definition(models.Model):
    """One version of a workflow: its steps. Never changed once it is stored."""

    tenant = models.ForeignKey(
        Tenant, models.PROTECT, related_name="workflow_definitions", db_index=False
    )
    application = models.ForeignKey(
        Application, models.PROTECT, related_name="workflow_definitions"
    )
    definition_id = models.CharField(max_length=200)
    version = models.IntegerField()
    # With all defaults written out, so that what is executed stands here and nowhere else.
    steps = ExactJSONField()
    # Of application and steps: by it the same content is known.
    checksum = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=255)

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "definition_id", "version"],
                name="definition_version_is_unique",
            ),
            models.CheckConstraint(
                condition=models.Q(version__gte=1), name="definition_version_is_positive"
            ),
        ]
        indexes = [models.Index(fields=["tenant", "-id"], name="definitions_of_a_tenant")]
        triggers = [pgtrigger.Protect(name="definition_never_changes", operation=pgtrigger.Update)]

    def __str__(self) -> str:
        return f"{self.definition_id} version {self.version}"
