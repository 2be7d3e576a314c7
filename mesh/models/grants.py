"""Grants as the server remembers them. The signed token itself is never stored, only its digest."""

from datetime import datetime

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from .enums import GrantStatus, RevocationKind
from .scope import TenantQuerySet
from .tenancy import Application, Tenant

MAX_DEPTH = 8
STORED_STATUSES = (GrantStatus.ACTIVE, GrantStatus.REVOKED, GrantStatus.SUPERSEDED)


class Grant(models.Model):
    """A signed statement that a subject holds capabilities in one application until a time."""

    grant_id = models.CharField(max_length=64, unique=True)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="grants")
    application = models.ForeignKey(Application, models.PROTECT, related_name="grants")
    subject = models.CharField(max_length=255)
    capabilities = ArrayField(models.CharField(max_length=255))
    resources = models.JSONField(default=list)
    constraints = models.JSONField(default=dict)
    # The grant that this one was derived from; a root has none and depth 1.
    parent = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="children"
    )
    depth = models.IntegerField(default=1, db_default=1)
    revision = models.BigIntegerField(default=1)
    token_digest = models.CharField(max_length=64)
    key_id = models.CharField(max_length=64)
    issued_at = models.DateTimeField()
    not_before = models.DateTimeField()
    expires_at = models.DateTimeField()
    issued_by = models.CharField(max_length=255)
    status = models.CharField(
        max_length=16, choices=GrantStatus, default=GrantStatus.ACTIVE, db_default="ACTIVE"
    )
    supersedes = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="superseded_by"
    )
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_by = models.CharField(max_length=255, blank=True, default="")
    revoke_reason = models.TextField(blank=True, default="")
    # Set while workers registered under this revoked grant are still to be drained.
    drains_pending = models.BooleanField(default=False)

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="grants_of_a_tenant"),
            models.Index(
                fields=["id"], condition=Q(drains_pending=True), name="grants_with_drains_pending"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=STORED_STATUSES), name="grant_status_is_stored_one"
            ),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("not_before")), name="grant_ends_after_it_begins"
            ),
            models.CheckConstraint(condition=Q(revision__gte=1), name="grant_revision_is_positive"),
            models.CheckConstraint(
                condition=Q(parent__isnull=True, depth=1)
                | Q(parent__isnull=False, depth__gte=2, depth__lte=MAX_DEPTH),
                name="grant_depth_is_bounded",
            ),
        ]

    def __str__(self) -> str:
        return self.grant_id

    def status_at(self, at: datetime) -> GrantStatus:
        """The status as shown: an active grant that is over by `at` is EXPIRED."""
        if self.status == GrantStatus.ACTIVE and self.expires_at <= at:
            return GrantStatus.EXPIRED
        return GrantStatus(self.status)


class Revocation(models.Model):
    """What was revoked, by whom and why. Grants issued before it do not outlive it.

    `target` is a grant id, a subject, or the name of an application or tenant.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="revocations")
    kind = models.CharField(max_length=16, choices=RevocationKind)
    target = models.CharField(max_length=255)
    reason = models.TextField(blank=True, default="")
    revoked_by = models.CharField(max_length=255)
    revoked_at = models.DateTimeField()

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(
                fields=["tenant", "kind", "target", "-revoked_at"], name="revocations_by_target"
            )
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=RevocationKind.values), name="revocation_kind_is_known"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"
