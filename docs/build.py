"""Writes the tables of the documents that follow from the code: `make docs`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parent


def table(*rows: tuple[str, ...]) -> str:
    head, *rest = rows
    lines = [head, tuple("---" for _ in head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def errors() -> str:
    from mesh.errors import CODES

    rows = sorted(CODES.items(), key=lambda item: (item[1].status, item[1].kind, item[0]))
    return table(
        ("status", "kind", "code"),
        *((str(meaning.status), meaning.kind, f"`{code}`") for code, meaning in rows),
    )


def moves(legal: Mapping[str, frozenset[str]]) -> str:
    order = list(legal)
    return table(
        ("from", "to"),
        *(
            (f"`{state}`", ", ".join(f"`{s}`" for s in sorted(to, key=order.index)) or "never left")
            for state, to in legal.items()
        ),
    )


def workload() -> str:
    from mesh.models.enums import WORKLOAD_MOVES

    return moves(WORKLOAD_MOVES)


def worker() -> str:
    from mesh.models.enums import WORKER_MOVES

    return moves(WORKER_MOVES)


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "errors.md": {"errors": errors},
    "state_machines.md": {"workload": workload, "worker": worker},
}


def built(name: str) -> str:
    """The document with its tables as the code has them now."""
    text = (DOCS / name).read_text()
    for mark, make in TABLES[name].items():
        begin = re.search(rf"<!-- begin: {mark} [^\n]*-->\n", text)
        assert begin, f"{name} has no place for {mark}"  # noqa: S101 - a tool for developers
        end = text.index(f"<!-- end: {mark} -->")
        text = f"{text[: begin.end()]}\n{make()}\n\n{text[end:]}"
    return text


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    for name in TABLES:
        (DOCS / name).write_text(built(name))
