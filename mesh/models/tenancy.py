"""Who is apart from whom: tenants, their applications, members and API tokens."""

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from .enums import Role
from .scope import TenantQuerySet


class Tenant(models.Model):
    """The isolation boundary. Nothing crosses it."""

    name = models.CharField(max_length=200, unique=True)
    created_at = models.DateTimeField(db_default=Now())
    # Null is no limit. Either may be overshot by one batch.
    max_live_claims = models.IntegerField(null=True, blank=True)
    max_submissions_per_minute = models.IntegerField(null=True, blank=True)
    # How many people must state that the old owner of a run has stopped.
    attestations = models.IntegerField(default=1, db_default=1)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(max_live_claims__isnull=True) | Q(max_live_claims__gte=1),
                name="tenant_claim_limit_is_positive",
            ),
            models.CheckConstraint(
                condition=Q(max_submissions_per_minute__isnull=True)
                | Q(max_submissions_per_minute__gte=1),
                name="tenant_submission_limit_is_positive",
            ),
            models.CheckConstraint(
                condition=Q(attestations__in=[1, 2]), name="one_or_two_people_attest_in_a_tenant"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Application(models.Model):
    """One application of a tenant. It numbers its requirements (see `mesh.requirements`)."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="applications")
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now())
    # The highest number given to a requirement, and how often requirements were put to rest.
    requirement_number = models.BigIntegerField(default=0)
    requirement_epoch = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="application_name_is_unique")
        ]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A person's role in one tenant."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "tenant"], name="one_role_per_member"),
            models.CheckConstraint(
                condition=Q(role__in=Role.values), name="membership_role_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} ({self.role}) in {self.tenant}"


class ApiToken(models.Model):
    """A service's way in: the subject `service:<name>` with a role. Only the hash is stored."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="tokens")
    name = models.CharField(max_length=200)
    role = models.CharField(max_length=16, choices=Role)
    token_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=255)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    # To about a minute: it is not written at every call.
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = TenantQuerySet.as_manager()

    class Meta:
        verbose_name = "API token"
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(revoked_at__isnull=True),
                name="one_token_in_force_per_name",
            ),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="token_role_is_known"),
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(expires_at__gt=F("created_at")),
                name="token_expires_after_it_was_made",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def subject(self) -> str:
        """The caller that this token speaks for."""
        return f"service:{self.name}"
