"""Why is it not running? The panel on the page of a workload, and the list of pauses."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from mesh import explain
from mesh.models import (
    Application,
    AuditEntry,
    Decision,
    Dependency,
    Pause,
    State,
    Tenant,
    Worker,
    Workload,
)

from . import rows


@pytest.fixture
def application(tenant: Tenant) -> Application:
    return rows.application(tenant)


def text_of(client: Client, row: Any) -> str:
    url = reverse(f"admin:mesh_{row._meta.model_name}_change", args=[row.pk])
    answer = client.get(url)
    assert answer.status_code == 200
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())).split())


def lead(work: Workload) -> str:
    """The sentence as the API would tell it."""
    return explain.about(Workload.objects.select_related("requirement").get(pk=work.pk)).sentence


def test_queued_work_shows_its_place_and_who_may_take_it(
    application: Application, viewer: Client
) -> None:
    rows.worker(application, "free-1", granted_capabilities=["documents.extract"])
    rows.workload(application)
    shown = text_of(viewer, rows.workload(application))
    assert "Why is it not running?" in shown
    assert "It is queued behind 1 other of its kind; 1 worker may take it" in shown
    assert "Place in its queue 2" in shown
    assert "May take it 1 of 1 workers" in shown


def test_work_that_nobody_may_take_shows_the_nearest_and_what_it_lacks(
    application: Application, viewer: Client
) -> None:
    near = rows.worker(application, "near-1", granted_capabilities=[])
    work = rows.workload(application)
    shown = text_of(viewer, work)
    assert lead(work) in shown
    assert "UNPLACEABLE" in shown
    assert "It lacks capability documents.extract (it declares it, but its grant does not" in shown
    assert f"Nearest worker {near.name}" in shown
    assert "1 without a capability" in shown
    assert "CAPABILITY" not in shown


def test_paused_work_shows_the_pause(application: Application, viewer: Client) -> None:
    pause = rows.pause(application)
    work = rows.workload(application)
    shown = text_of(viewer, work)
    assert f"Paused by {pause.pause_id} by human:ben: release 9 loses pages" in shown
    assert "PAUSED" in shown
    assert lead(work) in shown


def test_blocked_work_shows_what_it_waits_for(application: Application, viewer: Client) -> None:
    worker = rows.worker(application, "busy-1")
    other = rows.workload(application, State.RUNNING, worker, "documents.ocr")
    work = rows.workload(application, open_dependencies=1, claimable=False)
    Dependency.objects.create(workload=work, depends_on=other)
    shown = text_of(viewer, work)
    assert f"It waits for documents.ocr ({other.workload_id}), which is RUNNING on worker" in shown
    assert "Waits for documents.ocr" in shown


@pytest.mark.parametrize("state", [State.RUNNING, State.SUCCEEDED, State.DEAD_LETTER])
def test_work_that_does_not_wait_shows_no_panel(
    application: Application, viewer: Client, state: State
) -> None:
    work = rows.workload(application, state, rows.worker(application))
    assert "Why is it not running?" not in text_of(viewer, work)


def test_the_panel_names_some_workers_and_counts_the_rest(
    application: Application, viewer: Client
) -> None:
    grant = rows.grant(application)
    for number in range(60):
        rows.worker(application, f"w-{number:02}", grant=grant, granted_capabilities=[])
    shown = text_of(viewer, rows.workload(application))
    assert "Those that fail the fewest tests come first; 48 more." in shown
    assert "60 without a capability" in shown


def test_placements_that_were_asked_for_are_listed(
    application: Application, viewer: Client
) -> None:
    worker = rows.worker(application, "chosen-1")
    work = rows.workload(application, State.RUNNING, worker)
    given: dict[str, Any] = {"workload": work, "actor": "human:ben", "at": rows.ago(minutes=1)}
    assert "Placements asked for" not in text_of(viewer, work)
    Decision.objects.create(
        **given,
        code="MESH_NO_ELIGIBLE_WORKER",
        considered=1,
        counts={"LABEL": 1},
        nearest={"worker_id": worker.worker_id, "lacks": ["label a = b (it has none)"]},
    )
    Decision.objects.create(**given, chosen=worker, considered=2)
    shown = text_of(viewer, work)
    assert (
        "refused MESH_NO_ELIGIBLE_WORKER 1 worker looked at 1 without a label label a = b" in shown
    )
    assert "placed chosen-1" in shown


# --- Pauses ---------------------------------------------------------------------------------------


def make(client: Client, application: Application, **data: Any) -> Any:
    given = {"application": application.pk, "definition_id": "", "reason": "r", "minutes": ""}
    return client.post(reverse("admin:mesh_pause_maker"), {**given, **data})


def test_an_operator_pauses_work_for_a_while(application: Application, operator: Client) -> None:
    answer = make(operator, application, definition_id="documents.ocr", minutes=10)
    assert answer.status_code == 200
    pause = Pause.objects.get()
    assert (pause.definition_id, pause.reason, pause.created_by) == (
        "documents.ocr",
        "r",
        "human:ben",
    )
    assert pause.until is not None
    assert round((pause.until - pause.created_at).total_seconds()) == 600
    assert AuditEntry.objects.filter(action="pause.created", actor="human:ben").exists()


def test_a_refusal_stands_on_the_form(application: Application, operator: Client) -> None:
    answer = make(operator, application, reason=" ")
    assert answer.status_code == 200
    assert not Pause.objects.exists()


def test_a_viewer_pauses_nothing(application: Application, viewer: Client) -> None:
    assert make(viewer, application).status_code == 403


def test_an_operator_lifts_a_pause_with_a_reason(
    application: Application, operator: Client
) -> None:
    pause = rows.pause(application)
    url = reverse("admin:mesh_pause_act", args=["lift"])
    operator.post(url, {"id": pause.pk, "reason": "fixed"})
    pause.refresh_from_db()
    assert pause.lifted_by == "human:ben"
    assert AuditEntry.objects.filter(action="pause.lifted", reason="fixed").exists()
    shown = text_of(operator, pause)
    assert "It holds nothing back any more." in shown
    again = operator.post(url, {"id": pause.pk, "reason": "again"}, follow=True)
    assert "PAUSE_NOT_FOUND" in again.content.decode()


def test_a_pause_says_how_much_it_holds_back(application: Application, viewer: Client) -> None:
    pause = rows.pause(application, definition_id="documents.ocr")
    for definition in ("documents.ocr", "documents.ocr", "documents.extract"):
        rows.workload(application, definition=definition)
    assert "Holds back 2 workloads that could be claimed now" in text_of(viewer, pause)
    Worker.objects.all().delete()
    everything = rows.pause(application)
    assert "Holds back 3 workloads that could be claimed now" in text_of(viewer, everything)


def test_the_list_of_pauses_tells_those_that_stand(
    application: Application, viewer: Client
) -> None:
    rows.pause(application, reason="standing one")
    rows.pause(application, reason="over one", until=rows.ago(minutes=1))
    rows.pause(application, reason="lifted one", lifted_at=rows.ago(minutes=1), lifted_by="x")
    url = reverse("admin:mesh_pause_changelist")
    for status in ("STANDING", "OVER", "LIFTED"):
        shown = viewer.get(url, {"status": status}).content.decode()
        found = [each for each in ("standing", "over", "lifted") if f"{each} one" in shown]
        assert found == [status.lower()]
