"""Make an API token for a service."""

from typing import Any

from django.core.management.base import CommandParser

from mesh import tenancy
from mesh.management.base import AnswerCommand
from mesh.models import Role


class Command(AnswerCommand):
    help = "Make an API token for the subject service:NAME; it is shown only once."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--tenant", required=True)
        parser.add_argument("--role", required=True, choices=Role.values)
        parser.add_argument("--expires-in", type=int, metavar="SECONDS")

    def answer(self, **options: Any) -> dict[str, Any]:
        tenant = tenancy.get_tenant(options["tenant"])
        _, secret = tenancy.create_token(
            caller=tenancy.system_caller(tenant, "create_token"),
            name=options["name"],
            role=Role(options["role"]),
            expires_in_s=options["expires_in"],
        )
        return {"token": secret}

    def describe(self, answer: dict[str, Any]) -> str:
        return str(answer["token"])
