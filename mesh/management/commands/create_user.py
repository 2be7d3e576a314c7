"""Make a person who may sign in to the console."""

import sys
from typing import Any

from django.core.management.base import CommandParser

from mesh import tenancy
from mesh.management.base import AnswerCommand
from mesh.models import Role


class Command(AnswerCommand):
    help = "Make a person who may sign in to the console; a repeat sets role and password anew."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--tenant", required=True)
        parser.add_argument("--role", required=True, choices=Role.values)
        # Never as an argument: those are seen by everybody on the machine.
        parser.add_argument(
            "--password-stdin", action="store_true", required=True, help="its first line is taken"
        )

    def answer(self, **options: Any) -> dict[str, Any]:
        password = sys.stdin.readline().rstrip("\r\n")
        user = tenancy.create_user(
            name=options["name"],
            tenant=tenancy.get_tenant(options["tenant"]),
            role=Role(options["role"]),
            password=password,
            actor="system:create_user",
        )
        return {"user": user.username, "tenant": options["tenant"], "role": options["role"]}
