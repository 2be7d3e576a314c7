"""The demo's handlers and its stream of work."""

import json
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from demo import handlers, stream
from demo.crew import CHECKSUM, COUNT, SUMMARIZE, Crew
from mesh.agent import Context, WorkCancelled, WorkFailure
from mesh.agent.client import ApiClient

URL = "http://mesh.test"
TEXT = """# Title

The lease ends when the worker stays silent for the whole length of the lease.

Nothing else matters here, said nobody. A worker renews its lease while the worker is alive.
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a.md").write_text(TEXT)
    (tmp_path / "secret.txt").write_text("not for you")
    monkeypatch.setenv(handlers.FOLDERS_VARIABLE, json.dumps({"inbox": str(inbox)}))
    return inbox


def context(
    *, attempt: int = 1, checkpoint: Any = None, saved: list[Any] | None = None, stop: bool = False
) -> Context:
    def save(state: Any) -> dict[str, Any]:
        if saved is not None:
            saved.append(state)
        return {"stored": True}

    job: dict[str, Any] = {"workload_id": "w", "attempt_id": "a", "definition_id": "d"}
    job |= {"attempt_number": attempt, "checkpoint": checkpoint}
    return Context(job, save=save, is_cancelled=lambda: stop)


def document(**extra: Any) -> dict[str, Any]:
    return {"folder": "inbox", "file": "a.md", **extra}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"folder": "inbox", "file": "gone.md"}, "file_missing"),
        ({"folder": "inbox", "file": "../secret.txt"}, "file_outside"),
        ({"folder": "etc", "file": "passwd"}, "folder_unknown"),
    ],
)
def test_only_documents_of_the_known_folders_are_read(
    folder: Path, value: dict[str, str], kind: str
) -> None:
    with pytest.raises(WorkFailure) as failed:
        handlers.count(value, context())
    assert (failed.value.kind, failed.value.no_effect) == (kind, True)


def test_a_link_out_of_the_folder_is_not_followed(folder: Path) -> None:
    (folder / "link.md").symlink_to(folder.parent / "secret.txt")
    with pytest.raises(WorkFailure, match="not in its folder"):
        handlers.checksum(document(file="link.md"), context())


def test_the_store_is_unreachable_until_a_given_attempt(folder: Path) -> None:
    value = document(unreachable_until=2)
    with pytest.raises(WorkFailure) as failed:
        handlers.checksum(value, context(attempt=1))
    assert failed.value.kind == "transient_connection"
    assert handlers.checksum(value, context(attempt=2))["bytes"] == len(TEXT)


def test_a_summary_holds_the_sentence_with_the_most_frequent_words(folder: Path) -> None:
    summary = handlers.summarize(document(sentences=1), context())
    assert summary["words"][:2] == ["lease", "worker"]
    assert summary["sentences"] == ["A worker renews its lease while the worker is alive."]


def test_a_summary_goes_on_from_its_checkpoint_to_the_same_end(folder: Path) -> None:
    saved: list[Any] = []
    whole = handlers.summarize(document(pace_ms=1), context(saved=saved))
    sent = json.loads(json.dumps(saved[1]))
    assert isinstance(sent["words"], list), "words as keys would be taken for secrets"
    again = handlers.summarize(document(), context(checkpoint=sent))
    assert again["resumed_after"] == 2
    assert again["sentences"] == whole["sentences"]


def test_a_summary_stops_when_it_is_cancelled(folder: Path) -> None:
    with pytest.raises(WorkCancelled):
        handlers.summarize(document(), context(stop=True))


def serve(open_by_state: dict[str, int], made: list[dict[str, Any]]) -> None:
    """A server that has so much open work and takes more."""

    def listed(request: httpx.Request) -> httpx.Response:
        number = open_by_state.get(request.url.params["state"], 0)
        return httpx.Response(200, json={"results": [{}] * number})

    def submitted(request: httpx.Request) -> httpx.Response:
        made.append(json.loads(request.content))
        answer = {"workload": {"workload_id": f"w{len(made)}"}, "created": True}
        return httpx.Response(201, json=answer)

    respx.get(f"{URL}/api/v1/workloads").mock(side_effect=listed)
    respx.post(f"{URL}/api/v1/workloads").mock(side_effect=submitted)


@respx.mock
def test_the_stream_stops_at_its_bound_of_open_work(folder: Path) -> None:
    made: list[dict[str, Any]] = []
    serve({"READY": 30, "RUNNING": 15}, made)
    one = stream.Stream(ApiClient(URL), {"inbox": folder})
    for _ in range(20):
        one.step()
    assert len(made) == stream.MAX_OPEN - 45


@respx.mock
def test_a_document_in_the_inbox_is_worked_on_once_until_it_changes(folder: Path) -> None:
    made: list[dict[str, Any]] = []
    serve({}, made)
    one = stream.Stream(ApiClient(URL), {"inbox": folder})
    one.step()
    one.step()
    (folder / "a.md").write_text("other")
    one.step()
    inbox = Counter(body["definition_id"] for body in made if body["trigger"] == "inbox")
    assert inbox == {CHECKSUM: 2, COUNT: 2, SUMMARIZE: 2}
    assert len({body["idempotency_key"] for body in made}) == len(made)


@respx.mock
def test_the_agent_that_is_killed_is_one_in_the_middle_of_long_work(folder: Path) -> None:
    works = [{"current_claim": {"worker_id": "w2"}}]
    workers = [{"worker_id": "w1", "name": "demo-1"}, {"worker_id": "w2", "name": "demo-2"}]
    respx.get(f"{URL}/api/v1/workloads").respond(json={"results": works})
    respx.get(f"{URL}/api/v1/workers").respond(json={"results": workers})
    one = stream.Stream(ApiClient(URL), {"inbox": folder})
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    team = Crew(URL, folder, {}, number=3, kill_every=0.001, busy=one.busy_workers)
    for member, sleeper in zip(team.members, sleepers, strict=True):
        member.process = sleeper
    time.sleep(0.002)
    team.tend()
    ended = [member.name for member in team.members if member.process is None]
    team.stop()
    assert ended == ["demo-2"]
    assert [sleeper.returncode for sleeper in sleepers] == [-15, -9, -15]


@respx.mock
def test_the_stream_outlives_a_server_that_was_away(folder: Path) -> None:
    respx.get(f"{URL}/api/v1/workloads").mock(side_effect=httpx.ConnectError("away"))
    one = stream.Stream(ApiClient(URL), {"inbox": folder})
    one.step()
    made: list[dict[str, Any]] = []
    serve({}, made)
    one._wait_until = 0.0
    one.step()
    assert made
