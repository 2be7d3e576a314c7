"""Which models stand in the console. What other apps registered is taken out again.

Other apps put their own models in by `also`, in their module `admin`.
"""

from collections.abc import Mapping
from typing import Final

from django.contrib import admin
from django.db.models import Model

from ..models import (
    ApiToken,
    Application,
    Attempt,
    AuditEntry,
    Grant,
    Incident,
    Membership,
    Pause,
    Pool,
    Requirement,
    Revocation,
    SweepRun,
    Tenant,
    Worker,
    WorkerEvent,
    Workload,
    WorkloadEvent,
)
from .attempts import AttemptAdmin
from .base import ConsoleAdmin
from .grants import GrantAdmin
from .history import AuditAdmin, WorkerEventAdmin, WorkloadEventAdmin
from .members import ApplicationAdmin, MembershipAdmin, TenantAdmin
from .pauses import PauseAdmin
from .pools import PoolAdmin
from .requirements import RequirementAdmin
from .revocations import RevocationAdmin
from .sweeps import IncidentAdmin, SweepAdmin
from .tokens import TokenAdmin
from .workers import WorkerAdmin
from .workloads import WorkloadAdmin

_also: Final[dict[type[Model], type[ConsoleAdmin]]] = {}


def also(pages: Mapping[type[Model], type[ConsoleAdmin]]) -> None:
    """Have these models stand in the console too; to be called before `register`."""
    _also.update(pages)


def register() -> None:
    """Put the console's models on the site, and take off every other.

    People are shown as members of tenants; the plain user and group lists know no tenants.
    """
    for model in list(admin.site._registry):
        admin.site.unregister(model)
    pages: dict[type[Model], type[ConsoleAdmin]] = {
        Worker: WorkerAdmin,
        Workload: WorkloadAdmin,
        Pool: PoolAdmin,
        Pause: PauseAdmin,
        Attempt: AttemptAdmin,
        Requirement: RequirementAdmin,
        Grant: GrantAdmin,
        Revocation: RevocationAdmin,
        ApiToken: TokenAdmin,
        Membership: MembershipAdmin,
        Tenant: TenantAdmin,
        Application: ApplicationAdmin,
        WorkloadEvent: WorkloadEventAdmin,
        WorkerEvent: WorkerEventAdmin,
        AuditEntry: AuditAdmin,
        SweepRun: SweepAdmin,
        Incident: IncidentAdmin,
        **_also,
    }
    for model, page in pages.items():
        admin.site.register(model, page)
