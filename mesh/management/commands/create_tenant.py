"""Make a tenant with its applications."""

from typing import Any

from django.core.management.base import CommandParser

from mesh import tenancy
from mesh.management.base import AnswerCommand


class Command(AnswerCommand):
    help = "Make a tenant with its applications; a repeat adds what is missing."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--application", action="append", default=[], metavar="NAME")

    def answer(self, **options: Any) -> dict[str, Any]:
        tenant = tenancy.create_tenant(
            name=options["name"], applications=options["application"], actor="system:create_tenant"
        )
        names = tenant.applications.order_by("name").values_list("name", flat=True)
        return {"tenant": tenant.name, "applications": list(names)}
