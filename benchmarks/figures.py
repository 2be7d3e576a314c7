"""What a row of the table is, and how it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .stage import Stage


@dataclass(frozen=True)
class Figure:
    """One row of the table. With `at_most`, smaller is better and `reach` is the limit."""

    what: str
    unit: str
    ours: float
    reference: float
    against: str
    reach: float
    at_most: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Against the reference; of a figure without one it is the figure itself."""
        if self.at_most and not self.reference:
            return self.ours
        return self.ours / self.reference if self.reference else 0.0

    @property
    def is_reached(self) -> bool:
        return self.ratio <= self.reach if self.at_most else self.ratio >= self.reach


@dataclass(frozen=True)
class Options:
    """How much is measured."""

    queued: int
    seconds: int
    jobs: int
    requests: int


Measure = Callable[[Stage, Options], list[Figure]]
