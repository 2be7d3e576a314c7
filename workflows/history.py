"""The append-only record of runs: each accepted change has one row, numbered without a gap."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .models import Run, RunEvent


def record(
    run: Run,
    event: str,
    *,
    actor: str,
    at: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> RunEvent:
    """Write the next event (`run.<event>`) of a locked run, its counter and `updated_at` with it.

    Evidence holds no secret: authorities go in by `Authority.public`.
    """
    run.event_sequence += 1
    run.updated_at = at
    run.save(update_fields=["event_sequence", "updated_at"])
    return RunEvent.objects.create(
        run=run,
        sequence=run.event_sequence,
        event=f"run.{event}",
        actor=actor,
        at=at,
        evidence=dict(evidence or {}),
    )
