"""Ask whether what must always be true of the database is."""

from typing import Any

from mesh import invariants
from mesh.management.base import AnswerCommand


class Command(AnswerCommand):
    help = "Check the invariants over the whole database; exit code 1, and the rows, if one breaks."

    def answer(self, **options: Any) -> dict[str, Any]:
        self.broken = invariants.broken()
        return {
            "ok": not self.broken,
            "checked": len(list(invariants.every())),
            "broken": self.broken,
        }

    def describe(self, answer: dict[str, Any]) -> str:
        lines = [f"{answer['checked']} invariants checked, {len(answer['broken'])} broken"]
        for name, rows in answer["broken"].items():
            lines += [f"{name}:", *(f"  {row}" for row in rows)]
        return "\n".join(lines)

    def handle(self, *args: Any, **options: Any) -> None:
        super().handle(*args, **options)
        if self.broken:
            self.refuse(f"INVARIANTS_BROKEN: {', '.join(self.broken)}")
