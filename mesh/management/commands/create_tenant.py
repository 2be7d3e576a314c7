"""Make a tenant with its applications."""

from typing import Any, Final

from django.core.management.base import CommandParser

from mesh import tenancy
from mesh.management.base import AnswerCommand

_LIMITS: Final = {
    "--max-live-claims": "the most live claims of the tenant",
    "--max-submissions-per-minute": "the most submissions of the tenant in a minute",
}


class Command(AnswerCommand):
    help = "Make a tenant with its applications; a repeat adds what is missing and sets limits."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--application", action="append", default=[], metavar="NAME")
        for option, said in _LIMITS.items():
            parser.add_argument(option, type=int, metavar="N", help=f"{said}; 0 takes it away")

        parser.add_argument(
            "--attestations",
            type=int,
            choices=(1, 2),
            help="how many people must state that the old owner of a run has stopped",
        )

    def answer(self, **options: Any) -> dict[str, Any]:
        names = [option.removeprefix("--").replace("-", "_") for option in _LIMITS]
        tenant = tenancy.create_tenant(
            name=options["name"],
            applications=options["application"],
            actor="system:create_tenant",
            limits={name: options[name] or None for name in names if options[name] is not None},
            attestations=options["attestations"],
        )
        applications = tenant.applications.order_by("name").values_list("name", flat=True)
        limits = {name: getattr(tenant, name) for name in names}
        return {
            "tenant": tenant.name,
            "applications": list(applications),
            **limits,
            "attestations": tenant.attestations,
        }
