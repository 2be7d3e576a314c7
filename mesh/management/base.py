"""What our commands share: a refusal is one line, `--json` prints one object and nothing else."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from mesh.errors import DomainError


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
            raise CommandError(str(refusal)) from refusal
        if options["json"]:
            self.stdout.write(json.dumps(answer, cls=DjangoJSONEncoder))
        else:
            self.stdout.write(self.describe(answer))
