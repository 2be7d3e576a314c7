"""Reports that the server has not acknowledged yet, as files: one per attempt.

Written before a report is sent for the first time, removed when it was answered for good, so a
finished result survives the end of the agent. Reports of `hold` work are forced to the disk at
once, for nobody else can find out what happened; others when their delivery had to wait.
"""

import hashlib
import json
import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mesh.agent.state import write_private

log = logging.getLogger("mesh.agent")


@dataclass(frozen=True)
class Report:
    """What became of one attempt: `complete`, `fail` or `cancelled`, with the body to send."""

    outcome: str
    claim_id: str
    workload_id: str
    attempt_id: str
    fencing_token: int
    is_hold: bool
    body: dict[str, Any]
    made_at: float = field(default_factory=time.time)


class Spool:
    """The folder of unacknowledged reports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, report: Report, *, durable: bool) -> None:
        """Store a report, or store it again; one of the same attempt is replaced."""
        text = json.dumps(asdict(report), ensure_ascii=False)
        write_private(self._path(report), text, durable=durable)

    def remove(self, report: Report) -> None:
        self._path(report).unlink(missing_ok=True)

    def load(self) -> list[Report]:
        """Everything stored, oldest first; files that cannot be read are set aside."""
        reports = []
        for path in self._folder.glob("*.json"):
            try:
                stored = path.read_text(encoding="utf-8", errors="surrogatepass")
                reports.append(Report(**json.loads(stored)))
            except (OSError, ValueError, TypeError):
                log.error("unreadable report set aside: %s", path.name)
                path.rename(path.with_suffix(".unreadable"))
        return sorted(reports, key=lambda report: report.made_at)

    def _path(self, report: Report) -> Path:
        # Ids come from the server; as a file name only their digest is used.
        return self._folder / f"{hashlib.sha256(report.attempt_id.encode()).hexdigest()[:40]}.json"
