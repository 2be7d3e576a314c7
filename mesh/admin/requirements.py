"""Requirements: what placement looks at, shared by all workloads that are alike in it."""

from django.contrib.admin import display as column
from django.db.models import QuerySet
from django.http import HttpRequest

from ..models import Requirement, State, Workload
from . import display, filters
from .asks import asks, resources
from .base import ConsoleAdmin
from .display import age, badge, list_of
from .pages import Fact, Facts, Page
from .paging import capped_count, capped_text
from .search import term_of


class RequirementAdmin(ConsoleAdmin):
    tenant_path = "application__tenant"
    related = ("application__tenant",)
    ordering = ("-pk",)
    about = "The placement-relevant part of workloads, shared by all that are alike in it."
    empty_title = "No requirement yet"
    empty_text = "The first workload of its kind makes one."
    list_display = (
        "show_definition",
        "show_capabilities",
        "show_asks",
        "show_application",
        "show_tenant",
        "show_rest",
    )
    list_filter = (
        filters.application(),
        filters.choice(
            "rest",
            "in use",
            [("open", "in use"), ("rest", "at rest")],
            lambda rows, value: rows.filter(number__isnull=value == "rest"),
        ),
    )
    search_fields = ("definition_id",)
    search_help_text = "Definition, from its beginning"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Requirement], search_term: str
    ) -> tuple[QuerySet[Requirement], bool]:
        term = term_of(search_term)
        return (queryset.filter(definition_id__startswith=term) if term else queryset), False

    @column(description="Definition")
    def show_definition(self, requirement: Requirement) -> str:
        return requirement.definition_id

    @column(description="Needs")
    def show_capabilities(self, requirement: Requirement) -> str:
        return display.chips(requirement.capabilities, empty="nothing")

    @column(description="Asks for")
    def show_asks(self, requirement: Requirement) -> str:
        return asks(
            {
                "pool_id": requirement.pool_id,
                "required_labels": requirement.required_labels,
                "resources": requirement.resources,
                "affinity": requirement.affinity,
                "anti_affinity": requirement.anti_affinity,
            }
        )

    @column(description="Application")
    def show_application(self, requirement: Requirement) -> str:
        return requirement.application.name

    @column(description="Tenant")
    def show_tenant(self, requirement: Requirement) -> str:
        return requirement.application.tenant.name

    @column(description="In use")
    def show_rest(self, requirement: Requirement) -> str:
        return badge("ACTIVE", "IN USE") if requirement.number else badge("EXPIRED", "AT REST")

    def page(self, request: HttpRequest, row: Requirement) -> Page:
        """What a kind of work asks of a worker, and how much of it waits."""
        waiting = Workload.objects.filter(requirement=row, claimable=True, state=State.READY)
        return Page(
            title=row.definition_id,
            badges=[self.show_rest(row)],
            sentence=f"{capped_text(capped_count(waiting))} claimable workloads wait with it.",
            main=[
                Facts(
                    "Asks of a worker",
                    [
                        Fact("Capabilities", self.show_capabilities(row), is_wide=True),
                        Fact("Required labels", display.pairs(row.required_labels), is_wide=True),
                        Fact("Prefers", display.pairs(row.affinity), is_wide=True),
                        Fact("Avoids", display.pairs(row.anti_affinity), is_wide=True),
                        Fact("Pool", row.pool_id or "any worker", is_wide=True),
                        Fact("Resources", resources(row.resources), is_wide=True),
                    ],
                )
            ],
            side=[
                Facts(
                    "About",
                    [
                        Fact("Tenant", row.application.tenant.name),
                        Fact("Application", row.application.name),
                        Fact("Number", row.number or "at rest"),
                        Fact("Made", age(row.created_at)),
                        Fact(
                            "Work",
                            list_of(Workload, "Show workloads", application=row.application_id),
                        ),
                    ],
                )
            ],
        )
