"""What our commands share: a refusal is one line, `--json` prints one object and nothing else."""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError

from mesh.errors import DomainError
from mesh.locking import busy_error


class AnswerCommand(BaseCommand):
    """A command that does one thing and answers with facts.

    Subclasses write `add_own_arguments`, `answer` (returns the facts that `--json` prints) and
    `describe` (the same for people). A refusal ends with exit code 1 and `CODE: detail` on stderr.
    """

    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_own_arguments(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def add_own_arguments(self, parser: CommandParser) -> None:
        """The command's own options."""

    @abstractmethod
    def answer(self, **options: Any) -> dict[str, Any]:
        """Do it, and return what there is to say."""

    def describe(self, answer: dict[str, Any]) -> str:
        return "\n".join(f"{name}: {value}" for name, value in answer.items())

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            answer = self.answer(**options)
        except DomainError as refusal:
            self.refuse(str(refusal))
        except DatabaseError as error:
            # Where there is no server at all, manage.py knows better what to say.
            busy = busy_error(error) if getattr(error.__cause__, "sqlstate", None) else None
            if busy is None:
                raise
            self.refuse(str(busy))
        if options["json"]:
            self.stdout.write(json.dumps(answer, cls=DjangoJSONEncoder))
        else:
            self.stdout.write(self.describe(answer))

    def refuse(self, line: str) -> NoReturn:
        """End with exit code 1 and this line; Django would put the name of a class before it."""
        if getattr(self, "_called_from_command_line", False):
            self.stderr.write(line)
            sys.exit(1)
        raise CommandError(line)
