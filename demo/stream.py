"""A stream of work on real documents, within bounds: a few a second, a few dozen open."""

import hashlib
import logging
import random
import secrets
from collections import deque
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from demo.crew import APPLICATION, CHECKSUM, COUNT, SUMMARIZE
from demo.patient import Patient
from mesh.agent.client import ApiClient, ApiError, UnreachableError

log = logging.getLogger("demo")

MAX_OPEN = 50
OPEN_STATES = ("READY", "CLAIMED", "RUNNING", "CHECKPOINTED", "CANCELLATION_REQUESTED")
SUFFIXES = (".md", ".txt", ".py", ".toml", ".html", ".csv")
_COUNT_EVERY = 5.0
_MAX_FILES = 300
_MAX_SEEN = 10_000

# How often each kind of work comes, and what it is.
_MENU: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (40, CHECKSUM, {}),
    (30, COUNT, {}),
    (12, SUMMARIZE, {"sentences": 3}),
    (12, SUMMARIZE, {"sentences": 3, "pace_ms": 600}),
    (7, CHECKSUM, {"unreachable_until": 2}),
    (1, COUNT, {"file": "gone.md"}),
)


class Stream(Patient):
    """Submits work, cancels some of it, and counts what is open."""

    def __init__(self, client: ApiClient, folders: dict[str, Path]) -> None:
        super().__init__(client)
        self._folders = folders
        self._series = secrets.token_hex(4)
        self._number = 0
        self._open = 0
        self._count_at = 0.0
        self._cancels: deque[tuple[float, str]] = deque()
        self._seen: set[str] = set()

    def _step(self, now: float) -> None:
        if now >= self._count_at:
            self._open = self._count_open()
            self._count_at = now + _COUNT_EVERY
        while self._cancels and self._cancels[0][0] <= now:
            self._cancel(self._cancels.popleft()[1])
        if self._open < MAX_OPEN:
            self._submit_new_arrivals()
            self._submit_one(now)

    def _count_open(self) -> int:
        """Open work, counted up to where it is too much."""
        total = 0
        for state in OPEN_STATES:
            query = {"application": APPLICATION, "state": state, "page_size": str(MAX_OPEN)}
            total += len(self._client.call("GET", "workloads", params=query)["results"])
        return total

    def busy_workers(self) -> set[str]:
        """Names of the workers in the middle of work that keeps checkpoints."""
        query = {"application": APPLICATION, "state": "CHECKPOINTED"}
        try:
            works = self._client.call("GET", "workloads", params=query)["results"]
            workers = self._client.call("GET", "workers", params={"application": APPLICATION})
        except (ApiError, UnreachableError):
            return set()
        holders = {work["current_claim"]["worker_id"] for work in works if work["current_claim"]}
        return {row["name"] for row in workers["results"] if row["worker_id"] in holders}

    def _submit_one(self, now: float) -> None:
        weights = [weight for weight, _definition, _extra in _MENU]
        _weight, definition, extra = random.choices(_MENU, weights)[0]  # noqa: S311  a demo
        document = self.pick()
        if document is None:
            return
        self._number += 1
        fields: dict[str, Any] = {}
        chance = random.random()  # noqa: S311  a demo
        if chance < 0.1:
            fields["priority"] = 10
        elif chance < 0.2:
            later = datetime.now(UTC) + timedelta(seconds=20)
            fields["not_before"] = later.isoformat(timespec="milliseconds")
        elif chance < 0.3 and definition == COUNT:
            fields["policy"] = {"required_labels": {"zone": "b"}}
        key = f"demo-{self._series}-{self._number}"
        workload = self._submit(definition, document | extra, key=key, trigger="demo", **fields)
        if "pace_ms" in extra and chance > 0.7:
            self._cancels.append((now + 4.0, workload["workload_id"]))

    def _submit_new_arrivals(self) -> None:
        """Everything for a document that was put into the inbox or changed there."""
        for path in self._documents("inbox"):
            facts = path.stat()
            mark = f"{path.name}\0{facts.st_mtime_ns}\0{facts.st_size}"
            digest = hashlib.sha256(mark.encode(errors="surrogateescape")).hexdigest()[:24]
            if digest in self._seen or self._open >= MAX_OPEN:
                continue
            document = {"folder": "inbox", "file": path.name}
            for definition in (CHECKSUM, COUNT, SUMMARIZE):
                key = f"inbox-{digest}-{definition}"
                self._submit(definition, document, key=key, trigger="inbox", priority=5)
            if len(self._seen) < _MAX_SEEN:
                self._seen.add(digest)

    def _submit(
        self, definition: str, value: dict[str, Any], *, key: str, trigger: str, **fields: Any
    ) -> dict[str, Any]:
        body = {
            "application": APPLICATION,
            "environment": "demo",
            "definition_id": definition,
            "definition_revision": "1",
            "trigger": trigger,
            "input": value,
            "idempotency_key": key,
            "capability_snapshot": [definition],
            **fields,
        }
        answer = self._client.call("POST", "workloads", body)
        self._open += bool(answer["created"])
        workload: dict[str, Any] = answer["workload"]
        return workload

    def _cancel(self, workload_id: str) -> None:
        try:
            body = {"reason": "no longer wanted"}
            self._client.call("POST", f"workloads/{workload_id}/cancel", body)
        except ApiError as error:
            if error.is_transient:
                raise
            log.info("not cancelled: %s", error.code)  # it was faster

    def pick(self) -> dict[str, Any] | None:
        """Any of the documents there are."""
        names = list(self._folders)
        for folder in random.sample(names, len(names)):
            documents = self._documents(folder)
            if documents:
                path = random.choice(documents)  # noqa: S311  a demo
                return {"folder": folder, "file": str(path.relative_to(self._folders[folder]))}
        return None

    def _documents(self, folder: str) -> list[Path]:
        """Files that can be read as text, not deep and not many."""
        root = self._folders[folder]
        found = [path for path in [*root.glob("*"), *root.glob("docs/*")] if path.is_file()]
        wanted = [p for p in found if folder == "inbox" or p.suffix in SUFFIXES]
        return sorted(path for path in wanted if not path.name.startswith("."))[:_MAX_FILES]
