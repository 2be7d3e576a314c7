"""Instances of the built-in coordinator: which one this process is, and what it presents.

An instance is one process (`workflows.tasks`), alive while it beats, with a row in each tenant that
it drives runs of. The fencing token of a run's authority is derived from the server's secret key,
so it is stored nowhere; other processes of the server (a command, a sweep) act for an instance that
is alive, never for one that is gone.
"""

import hashlib
import hmac
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Final

from django.conf import settings

from mesh import clock
from mesh.errors import DomainError
from mesh.models import Tenant

from . import coordinators
from .authority import Authority
from .models import Coordinator, Run

ARTIFACT: Final = "fencepost.coordinator"


@dataclass(frozen=True, slots=True)
class Instance:
    """One incarnation of the built-in coordinator."""

    instance_id: str

    @classmethod
    def new(cls) -> "Instance":
        """One that nobody was before; not registered yet."""
        host = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname())[:60]
        return cls(f"builtin-{host}-{os.getpid()}-{secrets.token_hex(4)}")

    def register(self, tenant: Tenant) -> Coordinator:
        """Its row in a tenant, made where it has none."""
        return coordinators.register_builtin(
            tenant=tenant,
            instance_id=self.instance_id,
            artifact=ARTIFACT,
            lease_ms=int(settings.COORDINATOR_LEASE_MS),
        )

    def authority(self, run: Run, generation: int) -> Authority:
        """What it presents as the owner of a run."""
        said = f"{self.instance_id}\n{run.pk}\n{generation}"
        key = f"run authority {settings.SECRET_KEY}".encode()
        token = hmac.new(key, said.encode(), hashlib.sha256).hexdigest()
        return Authority(ARTIFACT, self.instance_id, generation, token)


# The instance that this process is, where it is one.
_own: Instance | None = None


def become(instance: Instance | None) -> None:
    """This process is that instance from now on, or none any more."""
    global _own
    _own = instance


def own_instance() -> Instance | None:
    return _own


def lane() -> str:
    """Passes of sweeps wait only for those of the same instance."""
    return _own.instance_id if _own else ""


def instance_for(tenant: Tenant) -> Instance:
    """The instance that this process acts as in a tenant; registered there and alive.

    Its own. A process that is none acts for the one that was heard last, or registers one that
    lives for a lease.
    """
    if _own is not None:
        return _registered(_own, tenant)
    at = clock.now()
    alive = Coordinator.objects.filter(
        tenant=tenant, token__isnull=True, relinquished_at__isnull=True, lease_ends_at__gt=at
    )
    row = alive.order_by("-heartbeat_at", "-pk").first()
    if row is not None:
        return Instance(row.instance_id)
    made = Instance.new()
    made.register(tenant)
    return made


def _registered(own: Instance, tenant: Tenant) -> Instance:
    """This process's own instance; a new one where that was taken for gone meanwhile."""
    try:
        own.register(tenant)
    except DomainError as refusal:
        if refusal.code != "COORDINATOR_ENDED":
            raise
        own = Instance.new()
        own.register(tenant)
        become(own)
    return own
