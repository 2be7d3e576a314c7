"""API tokens: which services may call, with which role; making and revoking them."""

from typing import Any, ClassVar, Final

from django.contrib.admin import display as column
from django.db.models import QuerySet
from django.http import HttpRequest

from .. import tenancy
from ..models import ApiToken, Role
from ..tenancy import Caller
from . import access, filters
from .acts import Act
from .base import Maker
from .display import age, badge, now, two_lines
from .forms import TokenForm
from .making import MakingAdmin
from .pages import Fact, Facts, Page
from .search import term_of


def _status(token: ApiToken) -> str:
    if token.revoked_at is not None:
        return "REVOKED"
    is_over = token.expires_at is not None and token.expires_at <= now()
    return "EXPIRED" if is_over else "ACTIVE"


def _why_not_revoke(token: ApiToken) -> str:
    return "It was revoked already." if token.revoked_at is not None else ""


def _revoke(caller: Caller, token: ApiToken, data: dict[str, Any]) -> object:
    return tenancy.revoke_token(caller=caller, name=token.name, reason=data["reason"])


REVOKE: Final = Act(
    "revoke",
    "Revoke",
    "key_off",
    "Calls with it are refused from now on.",
    _revoke,
    _why_not_revoke,
    role=Role.ADMIN,
    is_dangerous=True,
)


def _of_status(rows: QuerySet[Any], value: str) -> QuerySet[Any]:
    if value == "REVOKED":
        return rows.filter(revoked_at__isnull=False)
    rows = rows.filter(revoked_at__isnull=True)
    over = rows.filter(expires_at__lte=now())
    return over if value == "EXPIRED" else rows.exclude(pk__in=over)


class TokenAdmin(MakingAdmin):
    called = "API tokens"
    related = ("tenant",)
    deferred = ("token_hash",)
    acts = (REVOKE,)
    maker = Maker("create", "Create an API token", "add_circle")
    maker_form: ClassVar[Any] = TokenForm
    maker_intro = "The token is shown once, on the next page. Only its hash is kept."
    about = "How services call the API. Only the hash of a token is kept."
    empty_title = "No API token was made yet"
    empty_text = "A service needs one to submit work or to read. Create one and hand it over."
    list_display = (
        "show_name",
        "show_status",
        "show_role",
        "show_tenant",
        "show_ends",
        "show_used",
        "show_made",
    )
    list_filter = (
        filters.choice(
            "status",
            "status",
            [("ACTIVE", "Active"), ("EXPIRED", "Expired"), ("REVOKED", "Revoked")],
            _of_status,
        ),
        filters.choice("role", "role", Role.choices),
    )
    search_fields = ("name",)
    search_help_text = "Name, from its beginning"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[ApiToken], search_term: str
    ) -> tuple[QuerySet[ApiToken], bool]:
        term = term_of(search_term).removeprefix("service:")
        return (queryset.filter(name__startswith=term) if term else queryset), False

    @column(description="Speaks for")
    def show_name(self, token: ApiToken) -> str:
        return token.subject

    @column(description="Status")
    def show_status(self, token: ApiToken) -> str:
        return badge(_status(token))

    @column(description="Role")
    def show_role(self, token: ApiToken) -> str:
        return badge(token.role)

    @column(description="Tenant")
    def show_tenant(self, token: ApiToken) -> str:
        return token.tenant.name

    @column(description="Ends")
    def show_ends(self, token: ApiToken) -> str:
        return age(token.expires_at, absent="when revoked")

    @column(description="Last used")
    def show_used(self, token: ApiToken) -> str:
        return age(token.last_used_at, absent="never")

    @column(description="Made")
    def show_made(self, token: ApiToken) -> str:
        return two_lines(age(token.created_at), token.created_by)

    def make(self, request: HttpRequest, data: dict[str, Any]) -> tuple[ApiToken, str]:
        """Make the token in the chosen tenant."""
        return tenancy.create_token(
            caller=access.acting(request, data["tenant"]),
            name=data["name"],
            role=Role(data["role"]),
            expires_in_s=data["expires_in_s"] or None,
        )

    def page(self, request: HttpRequest, row: ApiToken) -> Page:
        """One token; its secret is not kept, so it cannot be shown."""
        return Page(
            title=row.subject,
            badges=[badge(_status(row)), badge(row.role)],
            sentence="The secret was shown when it was made and is kept nowhere.",
            main=[
                Facts(
                    "Terms",
                    [
                        Fact("Role", row.get_role_display()),
                        Fact("Tenant", row.tenant.name),
                        Fact("Made", age(row.created_at)),
                        Fact("Made by", row.created_by),
                        Fact("Ends", age(row.expires_at, absent="when revoked")),
                        Fact("Last used", age(row.last_used_at, absent="never"), "to the minute"),
                        Fact("Revoked", age(row.revoked_at)),
                    ],
                )
            ],
        )
