"""Lists: pages by cursor, filters, windows, and how much one answer carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core import signing

from mesh.api import reading
from mesh.models import Attempt, Role, State
from tests.factories import World, in_state, incident, offline
from tests.workflows import rows
from workflows.api import reading as run_reading

from .client import Answer, assert_refused, get


@pytest.fixture
def secret(world: World) -> str:
    return world.token(Role.ADMIN)


def ids(answer: Answer, key: str) -> list[str]:
    assert answer.status == 200, answer.text
    return [each[key] for each in answer.json["results"]]


def follow(url: str, secret: str) -> Answer:
    parts = urlsplit(url)
    return get(f"{parts.path}?{parts.query}", secret)


LISTS: dict[str, tuple[str, Callable[[World], str]]] = {
    "workers": ("worker_id", lambda world: world.registered().worker_id),
    "workloads": ("workload_id", lambda world: world.workload().workload_id),
    "grants": ("grant_id", lambda world: world.grant()[0].grant_id),
    "incidents": ("incident_id", lambda world: incident(world).incident_id),
}


@pytest.mark.parametrize("path", LISTS)
def test_pages_lead_through_all_rows_and_back(path: str, world: World, secret: str) -> None:
    key, make = LISTS[path]
    made = [make(world) for _ in range(7)]
    newest_first = made[::-1]
    page, forward = get(f"{path}?page_size=3", secret), []
    while True:
        forward.append(ids(page, key))
        if page.json["next"] is None:
            break
        page = follow(page.json["next"], secret)
    expected = [newest_first[:3], newest_first[3:6], newest_first[6:]]
    assert forward == expected
    backward = [ids(page, key)]
    while page.json["previous"] is not None:
        page = follow(page.json["previous"], secret)
        backward.append(ids(page, key))
    assert backward[::-1] == expected


def test_rows_that_come_meanwhile_shift_no_page(world: World, secret: str) -> None:
    old = [world.workload().workload_id for _ in range(4)]
    first = get("workloads?page_size=2", secret)
    world.workload()
    second = follow(first.json["next"], secret)
    assert ids(first, "workload_id") + ids(second, "workload_id") == old[::-1]


def test_rows_of_one_moment_are_paged_by_their_keys(world: World, secret: str) -> None:
    from mesh.models import Workload

    made = [world.workload().workload_id for _ in range(5)]
    Workload.objects.update(created_at=world.workload().created_at)
    Workload.objects.exclude(workload_id__in=made).update(created_at="2000-01-01T00:00:00Z")
    page, seen = get("workloads?page_size=2", secret), []
    while True:
        seen += ids(page, "workload_id")
        if page.json["next"] is None:
            break
        page = follow(page.json["next"], secret)
    assert seen[:5] == made[::-1]
    assert len(seen) == 6


@pytest.mark.parametrize("cursor", ["", "x", "W10:x:y", "%00", "a" * 300])
def test_a_cursor_that_was_not_given_out_is_refused(cursor: str, world: World, secret: str) -> None:
    assert_refused(get(f"workloads?cursor={cursor}", secret), "REQUEST_INVALID")


def test_a_cursor_of_something_else_is_refused(world: World, secret: str) -> None:
    for cursor in (
        signing.dumps([False, ["2030-01-01T00:00:00Z", 1]]),
        signing.dumps([False, [1]], salt="cursor:mesh.Worker:-id"),
    ):
        assert_refused(get(f"workloads?cursor={cursor}", secret), "REQUEST_INVALID")


def test_a_changed_cursor_is_refused(world: World, secret: str) -> None:
    for _ in range(2):
        world.workload()
    url = get("workloads?page_size=1", secret).json["next"]
    assert follow(url, secret).status == 200
    for changed in (
        url[:-1] + ("A" if url[-1] != "A" else "B"),
        url.replace("cursor=", "cursor=W"),
    ):
        assert_refused(follow(changed, secret), "REQUEST_INVALID")


@pytest.mark.parametrize(
    "size", ["0", "201", "-1", "x", "1.5", "", "9" * 400, "²", "%00", "1&page_size=2"]
)
def test_page_sizes_are_1_to_200(size: str, world: World, secret: str) -> None:
    assert_refused(get(f"workers?page_size={size}", secret), "REQUEST_INVALID")


@pytest.mark.parametrize("size", ["1", "200"])
def test_page_sizes_at_the_bounds_are_taken(size: str, world: World, secret: str) -> None:
    assert get(f"workers?page_size={size}", secret).status == 200


@pytest.mark.parametrize(
    "query",
    [
        "nothing=1",
        "limit=5",
        "tenant=acme",
        "lifecycle=ready",
        "lifecycle=",
        "health=SICK",
        "runtime=teapot",
        "runtime=wasm&runtime=wasm",
        "label=novalue",
        "label=a:1&label=a:2",
        "q=%00",
        "application=%00",
        "q=" + "x" * 256,
        "created_after=yesterday",
        "created_after=2030-01-01T00:00:00",
        "created_before=",
        "&".join(f"label=k{n}:v" for n in range(65)),
    ],
)
def test_unknown_or_ill_typed_parameters_are_refused(query: str, world: World, secret: str) -> None:
    answer = get(f"workers?{query}", secret)
    assert_refused(answer, "REQUEST_INVALID")
    assert answer.json["errors"][0]["field"] == query.partition("=")[0]


@pytest.mark.parametrize("query", ["state=ready", "state=NOTHING", "worker=%00", "lifecycle=READY"])
def test_workloads_have_filters_of_their_own(query: str, world: World, secret: str) -> None:
    assert_refused(get(f"workloads?{query}", secret), "REQUEST_INVALID")


def test_workers_are_found_by_what_they_are(world: World, secret: str) -> None:
    edge = world.worker(runtime="edge", name="edge-1", labels={"zone": "a", "url": "http://x:1"})
    plain, gone = world.registered(name="plain"), offline(world)
    mine = edge.worker_id
    for query, expected in {
        "lifecycle=OFFLINE": [gone.worker_id],
        "health=UNKNOWN": [plain.worker_id],
        "runtime=edge": [mine],
        "label=zone:a&label=url:http://x:1": [mine],
        "label=zone:b": [],
        "application=documents&runtime=edge": [mine],
        "application=nothing": [],
        "q=edge": [mine],
        "q=dge": [],
        f"q={mine[:20]}": [mine],
        "q=%25": [],
        "created_after=2999-01-01T00:00:00Z": [],
        "created_before=2000-01-01T00:00:00%2B02:00": [],
    }.items():
        assert ids(get(f"workers?{query}", secret), "worker_id") == expected, query


@pytest.mark.parametrize("state", [State.READY, State.RUNNING, State.SUCCEEDED, State.DEAD_LETTER])
def test_workloads_are_found_by_state(state: State, world: World, secret: str) -> None:
    row = in_state(world, state)
    in_state(world, State.CANCELLED)
    assert ids(get(f"workloads?state={state}", secret), "workload_id") == [row.workload_id]


def test_workloads_are_found_by_what_they_are(world: World, secret: str) -> None:
    held = world.running(definition_id="resize", idempotency_key="order/7%")
    world.succeeded(held.worker)
    mine = [held.workload.workload_id]
    for query, expected in {
        "definition_id=resize": mine,
        f"worker={held.worker.worker_id}": mine,
        "worker=nothing": [],
        "q=order/7%25": mine,
        "q=order/7": [],
        f"q={mine[0][:20]}": mine,
        "application=documents&definition_id=resize": mine,
        "application=nothing": [],
        "created_before=2000-01-01T00:00:00Z": [],
    }.items():
        assert ids(get(f"workloads?{query}", secret), "workload_id") == expected, query


def test_grants_are_found_by_subject_and_application(world: World, secret: str) -> None:
    grant = world.grant(subject="service:billing")[0]
    world.grant()
    for query, expected in {
        "subject=service:billing": [grant.grant_id],
        "subject=service:nobody": [],
        "application=nothing": [],
    }.items():
        assert ids(get(f"grants?{query}", secret), "grant_id") == expected


def test_a_list_tells_the_claim_that_holds_the_work(world: World, secret: str) -> None:
    held = world.running()
    (row,) = get("workloads", secret).json["results"]
    attempt = Attempt.objects.get()
    assert row["current_claim"]["claim_id"] == held.claim.claim_id == attempt.claim_id
    assert row["current_claim"]["worker_id"] == held.worker.worker_id


def test_a_page_ends_before_it_is_too_heavy(
    world: World, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MAX_PAGE_BYTES", 2_500)
    made = [world.workload(input="x" * 1_000).workload_id for _ in range(5)]
    page, sizes, seen = get("workloads", secret), [], []
    while True:
        sizes.append(len(page.json["results"]))
        seen += ids(page, "workload_id")
        assert all(each["input"] == "x" * 1_000 for each in page.json["results"])
        if page.json["next"] is None:
            break
        page = follow(page.json["next"], secret)
    assert (sizes, seen) == ([2, 2, 1], made[::-1])
    back = follow(page.json["previous"], secret)
    assert ids(back, "workload_id") == made[1:3][::-1]


def test_histories_are_paged_in_order(world: World, secret: str) -> None:
    held = world.succeeded()
    path = f"workloads/{held.workload.workload_id}/history"
    events: list[Any] = get(path, secret).json["results"]
    assert [each["event"] for each in events] == [
        "workload.ready",
        "workload.claimed",
        "workload.started",
        "workload.completed",
    ]
    assert [each["sequence"] for each in events] == [1, 2, 3, 4]
    assert events[0]["from"] == "CREATED"
    first = get(f"{path}?page_size=3", secret)
    assert [each["sequence"] for each in follow(first.json["next"], secret).json["results"]] == [4]


def test_a_run_is_shown_with_as_many_outputs_as_fit_and_says_what_it_leaves_out(
    world: World, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reading, "MAX_OUTPUTS", 25)
    steps = ["one", "two", "three"]
    run = rows.make_run(world, [rows.step(name) for name in steps])
    for name in steps:
        rows.make_attempt(world, run, name)
    run.activations.update(state="SUCCEEDED", output={"name": "x"})
    run.activations.filter(step="two").update(output=None)
    said = {"outcome": "succeeded", "output": {"name": "x"}, "settled_at": run.created_at}
    run.attempts.update(**said, outcome_digest="0", source="worker", settled_by="service:ops")
    shown = get(f"runs/{run.run_id}", secret).json
    assert [(each["output"], each["output_omitted"]) for each in shown["activations"]] == [
        ({"name": "x"}, False),
        (None, False),
        (None, True),
    ]
    whole = {"kind": "succeeded", "output": {"name": "x"}}
    omitted = {"kind": "succeeded", "output_omitted": True}
    assert [each["outcome"] for each in shown["attempts"]] == [whole, omitted, omitted]
