"""The documents say what the code does."""

from __future__ import annotations

import re

import pytest

from docs.build import DOCS, TABLES, built
from tests.house.commands import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("**/*.md"))]


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_code(name: str) -> None:
    assert (DOCS / name).read_text() == built(name), "run make docs"


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{document.name}: {target}"
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []


def test_every_setting_is_documented() -> None:
    source = (ROOT / "config" / "settings.py").read_text()
    names = set(re.findall(r'(?:env(?:\.\w+)?|number)\(\s*"([A-Z_]+)"', source))
    example = (ROOT / ".env.example").read_text()
    assert names
    assert [name for name in sorted(names) if not re.search(rf"^#{name}=", example, re.M)] == []


def test_every_sweep_is_in_the_runbook_with_its_interval() -> None:
    from config.celery import SWEEPS

    runbook = (DOCS / "runbook.md").read_text()
    for name, seconds in SWEEPS.items():
        assert f"| `{name}` | {seconds:g} s |" in runbook
