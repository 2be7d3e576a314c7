"""Tenants, their applications, and the people who are members."""

from typing import Any, ClassVar

from django.contrib.admin import display as column
from django.db.models import QuerySet, Sum
from django.http import HttpRequest

from .. import tenancy
from ..models import (
    ApiToken,
    Application,
    AuditEntry,
    Grant,
    Membership,
    Role,
    Tenant,
    Worker,
    Workload,
)
from . import access, filters
from .base import ConsoleAdmin, Maker
from .display import age, badge, bar, list_of
from .forms import MemberForm
from .making import MakingAdmin
from .pages import Fact, Facts, Page
from .search import term_of


class MembershipAdmin(MakingAdmin):
    called = "Members"
    related = ("tenant", "user")
    ordering = ("user__username", "pk")
    maker = Maker("add-member", "Add a member", "person_add")
    maker_form: ClassVar[Any] = MemberForm
    maker_intro = "Makes a person who may sign in here, with a role in one tenant."
    about = "People who may sign in, and what each may do."
    list_display = ("show_name", "show_role", "show_tenant", "show_active", "show_login")
    list_filter = (filters.choice("role", "role", Role.choices),)
    search_fields = ("user__username",)
    search_help_text = "User name, from its beginning"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Membership], search_term: str
    ) -> tuple[QuerySet[Membership], bool]:
        term = term_of(search_term).removeprefix("human:")
        return (queryset.filter(user__username__istartswith=term) if term else queryset), False

    @column(description="Person")
    def show_name(self, member: Membership) -> str:
        return member.user.get_username()

    @column(description="Role")
    def show_role(self, member: Membership) -> str:
        return badge(member.role)

    @column(description="Tenant")
    def show_tenant(self, member: Membership) -> str:
        return member.tenant.name

    @column(description="May sign in")
    def show_active(self, member: Membership) -> str:
        return "yes" if member.user.is_active and member.user.is_staff else "no"

    @column(description="Last signed in")
    def show_login(self, member: Membership) -> str:
        return age(member.user.last_login, absent="never")

    def make(self, request: HttpRequest, data: dict[str, Any]) -> tuple[Membership, str]:
        """Make the person as a member of the chosen tenant."""
        member = tenancy.add_member(
            caller=access.acting(request, data["tenant"]),
            name=data["name"],
            role=Role(data["role"]),
            password=data["password"],
        )
        return member, ""

    def page(self, request: HttpRequest, row: Membership) -> Page:
        """One person in one tenant."""
        return Page(
            title=row.user.get_username(),
            badges=[badge(row.role)],
            sentence=_ROLE_SAYS[Role(row.role)],
            main=[
                Facts(
                    "About",
                    [
                        Fact("Tenant", row.tenant.name),
                        Fact("Role", row.get_role_display()),
                        Fact("May sign in", self.show_active(row)),
                        Fact("Last signed in", age(row.user.last_login, absent="never")),
                        Fact("Joined", age(row.user.date_joined)),
                        Fact(
                            "Acts on rights",
                            list_of(AuditEntry, "Audit of this person", q=f"human:{row.user}"),
                        ),
                    ],
                )
            ],
        )


_ROLE_SAYS = {
    Role.VIEWER: "Sees everything in the tenant, changes nothing.",
    Role.OPERATOR: "Sees everything, and acts on work and workers.",
    Role.ADMIN: "Acts on work and workers, and on grants, tokens and members.",
}


class TenantAdmin(ConsoleAdmin):
    tenant_path = "pk"
    about = "The isolation boundary: nothing crosses it."
    empty_text = "Tenants are made with the command create_tenant."
    list_display = ("show_name", "show_role", "show_created")

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return list(self.list_display)

    @column(description="Tenant")
    def show_name(self, tenant: Tenant) -> str:
        return tenant.name

    @column(description="Applications")
    def show_role(self, tenant: Tenant) -> str:
        return list_of(Application, "Show applications", tenant=tenant.pk)

    @column(description="Made")
    def show_created(self, tenant: Tenant) -> str:
        return age(tenant.created_at)

    def page(self, request: HttpRequest, row: Tenant) -> Page:
        """One tenant, and where its rows are."""
        role = access.callers(request)[row.pk].role
        names = Application.objects.filter(tenant=row).values_list("name", flat=True)[:100]
        return Page(
            title=row.name,
            sentence=f"You are {role.value if role else 'a member'} here.",
            main=[
                Facts(
                    "About",
                    [
                        Fact("Made", age(row.created_at)),
                        Fact("Applications", ", ".join(names) or "none yet"),
                        *_limits(row),
                        Fact("Rights", list_of(Grant, "Grants")),
                        Fact("Services", list_of(ApiToken, "API tokens")),
                        Fact("People", list_of(Membership, "Members")),
                    ],
                )
            ],
        )


def _limits(row: Tenant) -> list[Fact]:
    live = Worker.objects.filter(tenant=row).aggregate(live=Sum("active"))["live"] or 0
    most = row.max_live_claims
    submissions = row.max_submissions_per_minute
    return [
        Fact(
            "Live claims",
            f"{live}, no limit" if most is None else bar(live, most),
            "of the most that the tenant may have",
        ),
        Fact("Submissions per minute", "no limit" if submissions is None else submissions),
    ]


class ApplicationAdmin(ConsoleAdmin):
    related = ("tenant",)
    ordering = ("name", "pk")
    about = "What workers, workloads and grants belong to."
    empty_text = "Applications are added with the command create_tenant NAME --application APP."
    list_display = ("show_name", "show_tenant", "show_workers", "show_work", "show_created")
    list_filter = (filters.of_row("tenant", "tenant", "tenant"),)
    search_fields = ("name",)
    search_help_text = "Name, from its beginning"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Application], search_term: str
    ) -> tuple[QuerySet[Application], bool]:
        term = term_of(search_term)
        return (queryset.filter(name__startswith=term) if term else queryset), False

    @column(description="Application")
    def show_name(self, application: Application) -> str:
        return application.name

    @column(description="Tenant")
    def show_tenant(self, application: Application) -> str:
        return application.tenant.name

    @column(description="Workers")
    def show_workers(self, application: Application) -> str:
        return list_of(Worker, "Show workers", application=application.pk)

    @column(description="Work")
    def show_work(self, application: Application) -> str:
        return list_of(Workload, "Show workloads", application=application.pk)

    @column(description="Made")
    def show_created(self, application: Application) -> str:
        return age(application.created_at)

    def page(self, request: HttpRequest, row: Application) -> Page:
        """One application, and where its rows are."""
        return Page(
            title=row.name,
            main=[
                Facts(
                    "About",
                    [
                        Fact("Tenant", row.tenant.name),
                        Fact("Made", age(row.created_at)),
                        Fact("Workers", list_of(Worker, "Show workers", application=row.pk)),
                        Fact("Work", list_of(Workload, "Show workloads", application=row.pk)),
                        Fact("Grants", list_of(Grant, "Show grants", application=row.pk)),
                    ],
                )
            ],
        )
