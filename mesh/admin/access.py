"""Which tenants a signed-in person may look at, and as whom they act there.

The console shows rows of all tenants in which the person is a member, and nothing else; being a
superuser opens no tenant. A role is looked up anew for every request.
"""

from django.contrib.auth.models import User
from django.http import HttpRequest

from .. import tenancy
from ..models import Membership, Role, Tenant
from ..tenancy import Caller

_KEPT = "fencepost_callers"


def callers(request: HttpRequest) -> dict[int, Caller]:
    """The person as caller in each of their tenants, by the tenant's key; one query per request."""
    kept: dict[int, Caller] | None = getattr(request, _KEPT, None)
    if kept is None:
        kept = {}
        if request.user.is_authenticated and request.user.is_active:
            subject = f"human:{request.user.get_username()}"
            for member in Membership.objects.select_related("tenant").filter(user=request.user):
                kept[member.tenant_id] = Caller(
                    subject, member.tenant_id, member.tenant.name, Role(member.role)
                )
        setattr(request, _KEPT, kept)
    return kept


def tenant_ids(request: HttpRequest) -> list[int]:
    return sorted(callers(request))


def can(request: HttpRequest, role: Role, tenant_id: int | None = None) -> bool:
    """Whether the person has the role in that tenant, or in any when none is named."""
    mine = callers(request)
    if tenant_id is None:
        return any(each.can(role) for each in mine.values())
    return tenant_id in mine and mine[tenant_id].can(role)


def can_attest(request: HttpRequest, tenant_id: int | None = None) -> bool:
    """Whether the person may attest hand-overs in that tenant, or in any (`Caller.can_attest`)."""
    mine = callers(request)
    there = [each for key, each in mine.items() if tenant_id in {None, key}]
    if any(each.can_attest for each in there):
        return True
    return bool(there) and isinstance(request.user, User) and request.user.has_perm(tenancy.ATTEST)


def tenants(request: HttpRequest, role: Role) -> list[Tenant]:
    """The person's tenants in which they have at least that role."""
    keys = [key for key, each in callers(request).items() if each.can(role)]
    return list(Tenant.objects.filter(pk__in=keys))


def acting(request: HttpRequest, tenant: Tenant) -> Caller:
    """The caller for an act in that tenant, read anew; refuses like `tenancy.caller_for_user`."""
    return tenancy.caller_for_user(request.user, tenant.name)
