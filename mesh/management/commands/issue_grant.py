"""Sign a grant."""

from typing import Any

from django.core.management.base import CommandParser

from mesh import grants, tenancy
from mesh.management.base import AnswerCommand


class Command(AnswerCommand):
    help = "Sign a new grant; its token is shown only once."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", required=True)
        parser.add_argument("--application", required=True)
        parser.add_argument("--subject", required=True, help="kind:id, as in service:registrar")
        parser.add_argument(
            "--capability",
            action="append",
            required=True,
            metavar="RIGHT",
            help="worker:register, worker:capability:NAME, …; repeat",
        )
        parser.add_argument(
            "--worker-name", action="append", metavar="NAME", help="only for workers so named"
        )
        parser.add_argument(
            "--expires-in", type=int, default=3600, metavar="SECONDS", help="default: an hour"
        )
        parser.add_argument("--revision", type=int, default=1, help="raise it to renew; default: 1")

    def answer(self, **options: Any) -> dict[str, Any]:
        tenant = tenancy.get_tenant(options["tenant"])
        names = options["worker_name"]
        grant, token = grants.issue(
            caller=tenancy.system_caller(tenant, "issue_grant"),
            application=options["application"],
            subject=options["subject"],
            capabilities=options["capability"],
            constraints={"worker_names": names} if names else {},
            expires_in_ms=options["expires_in"] * 1000,
            revision=options["revision"],
        )
        return {"grant_id": grant.grant_id, "grant": token}

    def describe(self, answer: dict[str, Any]) -> str:
        return str(answer["grant"])
