"""Pools: named sets of workers with requirements and a limit of their own."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from .scope import TenantQuerySet
from .tenancy import Application, Tenant
from .workers import Worker


class Pool(models.Model):
    """A named set of workers; `max_concurrency` bounds the live attempts whose work names it."""

    pool_id = models.CharField(max_length=200)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="pools", db_index=False)
    application = models.ForeignKey(Application, models.PROTECT, related_name="pools")
    name = models.CharField(max_length=200)
    capabilities = ArrayField(models.CharField(max_length=255), default=list)
    required_labels = models.JSONField(default=dict)
    max_concurrency = models.IntegerField(null=True, blank=True)
    workers = models.ManyToManyField(Worker, through="PoolMember", related_name="pools")
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=255)
    updated_at = models.DateTimeField(db_default=Now())

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "pool_id"], name="pool_id_is_unique_in_tenant"
            ),
            models.CheckConstraint(
                condition=Q(max_concurrency__isnull=True) | Q(max_concurrency__gte=1),
                name="pool_concurrency_is_positive",
            ),
        ]
        indexes = [models.Index(fields=["tenant", "-id"], name="pools_of_a_tenant")]

    def __str__(self) -> str:
        return self.pool_id


class PoolMember(models.Model):
    """A worker's place in a pool. Whether it counts there is a question of the pool's tests."""

    pool = models.ForeignKey(Pool, models.CASCADE, related_name="members", db_index=False)
    worker = models.ForeignKey(Worker, models.CASCADE, related_name="memberships")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pool", "worker"], name="one_place_per_pool_member")
        ]

    def __str__(self) -> str:
        return f"{self.worker_id} in {self.pool_id}"
