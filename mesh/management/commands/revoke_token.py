"""End an API token at once."""

from typing import Any

from django.core.management.base import CommandParser

from mesh import tenancy
from mesh.management.base import AnswerCommand


class Command(AnswerCommand):
    help = "End the token in force of that name at once."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--tenant", required=True)

    def answer(self, **options: Any) -> dict[str, Any]:
        tenant = tenancy.get_tenant(options["tenant"])
        token = tenancy.revoke_token(
            caller=tenancy.system_caller(tenant, "revoke_token"), name=options["name"]
        )
        return {"subject": token.subject, "revoked_at": token.revoked_at}
