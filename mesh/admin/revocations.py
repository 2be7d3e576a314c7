"""Revocations: what was taken away from whom, by whom and why."""

from django.contrib.admin import display as column
from django.db.models import QuerySet
from django.http import HttpRequest

from ..models import Revocation, RevocationKind
from . import display, filters
from .base import ConsoleAdmin
from .display import age, badge
from .pages import Fact, Facts, Page
from .search import term_of


class RevocationAdmin(ConsoleAdmin):
    related = ("tenant",)
    about = "What ended grants before their time. Grants that were issued later are not concerned."
    empty_title = "Nothing was revoked in this window"
    empty_text = "Revoking a grant, or all of a subject or application, leaves a line here."
    list_display = (
        "show_when",
        "show_target",
        "show_kind",
        "show_by",
        "show_tenant",
        "show_reason",
    )
    list_filter = (
        filters.choice("kind", "kind", RevocationKind.choices),
        filters.window("revoked_at", "revoked", default="7d"),
    )
    search_fields = ("target",)
    search_help_text = "What was revoked, from its beginning"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Revocation], search_term: str
    ) -> tuple[QuerySet[Revocation], bool]:
        term = term_of(search_term)
        return (queryset.filter(target__startswith=term) if term else queryset), False

    @column(description="When")
    def show_when(self, row: Revocation) -> str:
        return age(row.revoked_at)

    @column(description="Revoked")
    def show_target(self, row: Revocation) -> str:
        return row.target

    @column(description="Kind")
    def show_kind(self, row: Revocation) -> str:
        return badge(row.kind)

    @column(description="By")
    def show_by(self, row: Revocation) -> str:
        return row.revoked_by

    @column(description="Tenant")
    def show_tenant(self, row: Revocation) -> str:
        return row.tenant.name

    @column(description="Reason")
    def show_reason(self, row: Revocation) -> str:
        return display.clipped(row.reason)

    def page(self, request: HttpRequest, row: Revocation) -> Page:
        """One revocation; what it ended stands with the grants."""
        return Page(
            title=row.target,
            badges=[badge(row.kind)],
            sentence=f"{row.revoked_by} revoked all of it"
            + (f": {row.reason}" if row.reason else ""),
            main=[
                Facts(
                    "About",
                    [
                        Fact("Kind", row.get_kind_display()),
                        Fact("By", row.revoked_by),
                        Fact("When", age(row.revoked_at)),
                        Fact("Tenant", row.tenant.name),
                        Fact("Reason", row.reason or display.ABSENT, is_wide=True),
                    ],
                )
            ],
        )
