"""The small file in the data folder by which other commands find what `up` runs."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFile:
    """`run.json` in a data folder: the embedded servers' URLs, while they run."""

    data_dir: Path

    @property
    def path(self) -> Path:
        return self.data_dir / "run.json"

    def write(self, **facts: str) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(facts))
        temporary.chmod(0o644)
        os.replace(temporary, self.path)

    def read(self) -> dict[str, str]:
        """What was written, or nothing when `up` does not run (or left a broken file)."""
        try:
            facts = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return {key: str(value) for key, value in facts.items()} if isinstance(facts, dict) else {}

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
