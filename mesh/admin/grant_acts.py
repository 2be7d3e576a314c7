"""What people do to grants: derive one from another, and revoke."""

from collections.abc import Sequence
from typing import Any, Final

from django.db.models import Q, QuerySet

from .. import grants, revocations
from ..models import Grant, GrantStatus, Lifecycle, Role, Worker
from ..tenancy import Caller
from .acts import Act
from .display import now
from .grant_forms import DeriveForm, as_it_is, statement
from .paging import capped_count, capped_text


def _why_not_derive(grant: Grant) -> str:
    status = grant.status_at(now())
    return "" if status == GrantStatus.ACTIVE else f"The grant is {status.lower()}."


def _derive(caller: Caller, grant: Grant, data: dict[str, Any]) -> tuple[Grant, str]:
    return grants.delegate(
        caller=caller,
        grant_id=grant.grant_id,
        **statement(data),
        expires_in_ms=data["expires_in_s"] * 1000 or None,
        reason=data["reason"],
    )


def _why_not_revoke(grant: Grant) -> str:
    return "It was revoked already." if grant.status == GrantStatus.REVOKED else ""


def _revoke(caller: Caller, grant: Grant, data: dict[str, Any]) -> object:
    return revocations.revoke_grant(caller=caller, grant_id=grant.grant_id, reason=data["reason"])


def _revoke_subject(caller: Caller, grant: Grant, data: dict[str, Any]) -> object:
    return revocations.revoke(
        caller=caller, kind="subject", target=grant.subject, reason=data["reason"]
    )


def _revoke_application(caller: Caller, grant: Grant, data: dict[str, Any]) -> object:
    return revocations.revoke(
        caller=caller, kind="application", target=grant.application.name, reason=data["reason"]
    )


def _effect(rows: Sequence[Grant]) -> str:
    return _reached(Grant.objects.filter(pk__in=[each.pk for each in rows]))


def _effect_on_subjects(rows: Sequence[Grant]) -> str:
    concerned = Q()
    for each in rows:
        concerned |= Q(tenant=each.tenant_id, subject=each.subject)
    return _reached(Grant.objects.filter(concerned))


def _effect_on_applications(rows: Sequence[Grant]) -> str:
    return _reached(Grant.objects.filter(application__in=[each.application_id for each in rows]))


def _reached(concerned: QuerySet[Grant]) -> str:
    """What revoking these grants does: how many are in force, and whom that drains."""
    in_force = concerned.exclude(status=GrantStatus.REVOKED)
    pks = grants.with_derived(list(in_force.values_list("pk", flat=True)))
    resting = Worker.objects.filter(grant__in=pks, removed_at__isnull=True)
    return f"{len(pks)} {'grant ends' if len(pks) == 1 else 'grants end'}. {_drained(resting)}"


def _drained(resting: QuerySet[Worker]) -> str:
    reached = capped_count(resting.exclude(lifecycle__in=[Lifecycle.DRAINING, Lifecycle.OFFLINE]))
    return f"{capped_text(reached)} {'worker' if reached == 1 else 'workers'} will drain."


DERIVE: Final = Act(
    "derive",
    "Derive",
    "account_tree",
    "Signs a grant within this one, for any subject. It never allows more, ends no later, and is "
    "revoked with it. What this one constrains must be said again, as tight or tighter.",
    _derive,
    _why_not_derive,
    role=Role.ADMIN,
    form=DeriveForm,
    initial=as_it_is,
)
REVOKE: Final = Act(
    "revoke",
    "Revoke",
    "gpp_bad",
    "Takes effect at once: claims and renewals under it are refused, and the workers that rest "
    "on it drain.",
    _revoke,
    _why_not_revoke,
    role=Role.ADMIN,
    is_dangerous=True,
    effect=_effect,
)
REVOKE_SUBJECT: Final = Act(
    "revoke-subject",
    "Revoke the subject",
    "person_off",
    "Ends every grant of this subject in the tenant, and what was derived from them. Grants that "
    "are issued later are good.",
    _revoke_subject,
    lambda grant: "",
    role=Role.ADMIN,
    is_dangerous=True,
    effect=_effect_on_subjects,
)
REVOKE_APPLICATION: Final = Act(
    "revoke-application",
    "Revoke the application",
    "domain_disabled",
    "Ends every grant in this application: all of its workers drain. Grants that are issued later "
    "are good.",
    _revoke_application,
    lambda grant: "",
    role=Role.ADMIN,
    is_dangerous=True,
    effect=_effect_on_applications,
)
