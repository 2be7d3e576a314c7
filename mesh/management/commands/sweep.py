"""Run sweeps now, each once."""

from typing import Any

from django.core.management.base import CommandParser

from mesh import recovery
from mesh.management.base import AnswerCommand

ALL = "all"


class Command(AnswerCommand):
    help = "Run one sweep, or all of them, now. One that runs elsewhere at this moment is skipped."

    def add_own_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", default=ALL, choices=[*recovery.SWEEPS, ALL])

    def answer(self, **options: Any) -> dict[str, Any]:
        chosen = recovery.SWEEPS if options["name"] == ALL else (options["name"],)
        answers = {}
        for name in chosen:
            report = recovery.run(name)
            answers[name] = {
                "changed": report.changed,
                "counts": report.counts,
                "duration_ms": report.duration_ms,
                "skipped": report.skipped,
            }
        return answers

    def describe(self, answer: dict[str, Any]) -> str:
        return "\n".join(
            f"{name}: {'skipped' if said['skipped'] else len(said['changed'])}"
            for name, said in answer.items()
        )
