"""End a grant at once."""

from typing import Any

from django.core.management.base import CommandParser

from mesh import revocations, tenancy
from mesh.errors import DomainError
from mesh.management.base import AnswerCommand
from mesh.models import Grant


class Command(AnswerCommand):
    help = "End a grant at once; the workers that rest on it are drained."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("grant_id")

    def answer(self, **options: Any) -> dict[str, Any]:
        grant_id = options["grant_id"]
        grant = Grant.objects.select_related("tenant").filter(grant_id=grant_id).first()
        if grant is None:
            raise DomainError("GRANT_NOT_FOUND", "There is no such grant.")
        revoked = revocations.revoke_grant(
            caller=tenancy.system_caller(grant.tenant, "revoke_grant"), grant_id=grant_id
        )
        return {
            "grant_id": revoked.grant_id,
            "status": revoked.status,
            "revoked_at": revoked.revoked_at,
        }
