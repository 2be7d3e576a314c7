"""Grants: what each allows in words, which workers rest on it, issuing. Acts: `grant_acts`."""

from typing import Any, ClassVar, Final, cast

from django.contrib.admin import display as column
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse

from .. import grants
from ..models import Grant, GrantStatus, Worker
from . import access, display, filters
from .acts import Act, Report
from .base import Maker
from .display import age, badge, now, page_of, two_lines
from .grant_acts import DERIVE, REVOKE, REVOKE_APPLICATION, REVOKE_SUBJECT
from .grant_forms import GrantForm, statement
from .making import MakingAdmin
from .pages import Fact, Facts, Page, Table
from .search import term_of
from .sentences import about_grant

_WORKERS: Final = 50


def _of_status(rows: QuerySet[Any], value: str) -> QuerySet[Any]:
    if value == GrantStatus.ACTIVE:
        return rows.filter(status=GrantStatus.ACTIVE, expires_at__gt=now())
    if value == GrantStatus.EXPIRED:
        return rows.filter(status=GrantStatus.ACTIVE, expires_at__lte=now())
    return rows.filter(status=value)


class GrantAdmin(MakingAdmin):
    related = ("tenant", "application")
    public_id_field = "grant_id"
    acts = (DERIVE, REVOKE, REVOKE_SUBJECT, REVOKE_APPLICATION)
    maker = Maker("issue", "Issue a grant", "add_moderator")
    maker_form: ClassVar[Any] = GrantForm
    maker_intro = "The signed grant is shown once, on the next page. Only its digest is kept."
    about = "Signed statements of who may do what, until when."
    empty_title = "No grant was issued yet"
    empty_text = "A worker needs one to register. Issue a grant and give its token to the agent."
    list_display = (
        "show_subject",
        "show_status",
        "show_allows",
        "show_application",
        "show_tenant",
        "show_expires",
        "show_issued",
    )
    list_filter = (
        filters.choice("status", "status", GrantStatus.choices, _of_status),
        filters.application(),
    )
    search_fields = ("grant_id", "subject")
    search_help_text = "Id or subject, from its beginning"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Grant], search_term: str
    ) -> tuple[QuerySet[Grant], bool]:
        term = term_of(search_term)
        by = Q(grant_id__startswith=term) | Q(subject__startswith=term)
        return (queryset.filter(by) if term else queryset), False

    @column(description="Subject")
    def show_subject(self, grant: Grant) -> str:
        return display.named(grant.subject, grant.grant_id)

    @column(description="Status")
    def show_status(self, grant: Grant) -> str:
        return badge(grant.status_at(now()))

    @column(description="Allows")
    def show_allows(self, grant: Grant) -> str:
        shown = [each.removeprefix("worker:capability:") for each in grant.capabilities]
        more = [f"+{len(shown) - 4} more"] if len(shown) > 4 else []
        return display.chips([*shown[:4], *more])

    @column(description="Application")
    def show_application(self, grant: Grant) -> str:
        names = grant.constraints.get("worker_names")
        return two_lines(
            grant.application.name, f"only {', '.join(names)}" if names else "any worker name"
        )

    @column(description="Tenant")
    def show_tenant(self, grant: Grant) -> str:
        return grant.tenant.name

    @column(description="Ends")
    def show_expires(self, grant: Grant) -> str:
        return age(grant.expires_at)

    @column(description="Issued")
    def show_issued(self, grant: Grant) -> str:
        return two_lines(age(grant.issued_at), grant.issued_by)

    def make(self, request: HttpRequest, data: dict[str, Any]) -> tuple[Grant, str]:
        """Issue the grant in the application's tenant."""
        return grants.issue(
            caller=access.acting(request, data["application"].tenant),
            application=data["application"].name,
            **statement(data),
            expires_in_ms=data["expires_in_s"] * 1000,
            revision=data["revision"],
        )

    def _tell_one(self, request: HttpRequest, act: Act, report: Report, row: Any) -> HttpResponse:
        """A derived grant is shown as an issued one is: its token once, in this answer."""
        outcome = report.outcomes[0]
        if act is not DERIVE or not outcome.is_done:
            return super()._tell_one(request, act, report, row)
        made, secret = cast(tuple[Grant, str], outcome.made)
        return self._made_page(request, made, secret)

    def page(self, request: HttpRequest, row: Grant) -> Page:
        """What a grant allows, and what would happen if it were revoked."""
        notices: list[tuple[str, object]] = []
        if not row.constraints.get("worker_names") and "worker:register" in row.capabilities:
            notices.append(
                ("warn", "Not bound to worker names: its holder may register any worker.")
            )
        if row.revoked_at:
            why = f": {row.revoke_reason}" if row.revoke_reason else ""
            notices.append(("bad", f"Revoked by {row.revoked_by}{why}"))
        return Page(
            title=row.subject,
            public_id=row.grant_id,
            badges=[badge(row.status_at(now()))],
            sentence=about_grant(row),
            notices=notices,
            main=[_workers(row), _rights(row), _derived(row)],
            side=[_terms(row)],
        )


def _workers(row: Grant) -> Table:
    resting = Worker.objects.filter(grant=row, removed_at__isnull=True).order_by("name")
    found = list(resting[: _WORKERS + 1])
    return Table(
        "Workers that rest on it",
        ["Worker", "Lifecycle", "Capacity", "Last heard"],
        [
            [
                page_of(each, each.name),
                badge(each.lifecycle),
                display.bar(each.active, each.concurrency),
                age(each.last_seen_at),
            ]
            for each in found[:_WORKERS]
        ],
        "No worker is registered under it; revoking it drains nobody.",
        note=f"The first {_WORKERS} by name; there are more."
        if len(found) > _WORKERS
        else "Revoking the grant drains them.",
    )


def _derived(row: Grant) -> Table:
    below = Grant.objects.filter(parent=row).order_by("-pk")
    found = list(below[: _WORKERS + 1])
    return Table(
        "Derived from it",
        ["Grant", "Status", "Ends"],
        [
            [
                page_of(each, display.named(each.subject, each.grant_id)),
                badge(each.status_at(now())),
                age(each.expires_at),
            ]
            for each in found[:_WORKERS]
        ],
        "No grant was derived from it.",
        note=f"The newest {_WORKERS}; there are more."
        if len(found) > _WORKERS
        else "They never allow more than it does, and are revoked with it.",
    )


def _rights(row: Grant) -> Facts:
    scopes = [f"{each.get('kind')} {each.get('uri')}" for each in row.resources]
    return Facts(
        "Exactly",
        [
            Fact("Capabilities", display.chips(row.capabilities), is_wide=True),
            Fact(
                "Resources",
                display.chips(scopes, empty=f"the whole application {row.application.name}"),
                is_wide=True,
            ),
            Fact("Constraints", display.pairs(row.constraints), is_wide=True),
        ],
    )


def _terms(row: Grant) -> Facts:
    return Facts(
        "Terms",
        [
            Fact("Tenant", row.tenant.name),
            Fact("Application", row.application.name),
            Fact("Issued", age(row.issued_at)),
            Fact("Issued by", row.issued_by),
            Fact("Valid from", age(row.not_before)),
            Fact("Ends", age(row.expires_at)),
            Fact("Revision", row.revision),
            Fact("Key", display.mono(row.key_id), is_wide=True),
            Fact(
                "Derived from",
                page_of(row.parent, display.short(row.parent.grant_id))
                if row.parent
                else display.ABSENT,
            ),
            Fact(
                "Supersedes",
                page_of(row.supersedes, display.short(row.supersedes.grant_id))
                if row.supersedes
                else display.ABSENT,
            ),
            Fact("Revoked", age(row.revoked_at)),
        ],
    )
