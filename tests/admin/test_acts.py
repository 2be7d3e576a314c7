"""Acts: a form with a reason, the domain's answer for each row, and a report of all of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from psycopg import errors as pg

from mesh import workers
from mesh.admin import acts
from mesh.models import (
    ApiToken,
    Application,
    AuditEntry,
    Grant,
    Lifecycle,
    Result,
    Revocation,
    State,
    Tenant,
    Worker,
    WorkerEvent,
    WorkloadEvent,
)

from . import rows


@pytest.fixture
def application(tenant: Tenant) -> Application:
    return rows.application(tenant)


def url(model: str, act: str) -> str:
    return reverse(f"admin:mesh_{model}_act", args=[act])


def do(client: Client, act: str, *wanted: Any, **data: Any) -> Any:
    """Post the act's form for these rows, and follow where it leads."""
    given = {"id": [each.pk for each in wanted], "reason": "kernel update", **data}
    return client.post(url(wanted[0]._meta.model_name, act), given, follow=True)


def said(answer: Any) -> list[str]:
    return [str(each) for each in answer.context["messages"]]


ACCEPTED = [
    ("drain", Lifecycle.READY, 1, Lifecycle.DRAINING),
    ("drain", Lifecycle.READY, 0, Lifecycle.OFFLINE),
    ("undrain", Lifecycle.DRAINING, 1, Lifecycle.READY),
    ("recover", Lifecycle.OFFLINE, 0, Lifecycle.RECOVERING),
]
REFUSED = [
    ("drain", Lifecycle.OFFLINE, 0, "WORKER_TRANSITION_DENIED"),
    ("undrain", Lifecycle.READY, 0, "WORKER_TRANSITION_DENIED"),
    ("recover", Lifecycle.READY, 0, "WORKER_TRANSITION_DENIED"),
    ("remove", Lifecycle.DRAINING, 2, "WORKER_BUSY"),
]


@pytest.mark.parametrize(("act", "before", "active", "after"), ACCEPTED)
def test_an_act_on_a_worker_is_done_and_recorded_with_person_and_reason(
    operator: Client, application: Application, act: str, before: str, active: int, after: str
) -> None:
    worker = rows.worker(application, lifecycle=before, active=active)
    answer = do(operator, act, worker)
    assert "1 done, 0 refused" in said(answer)[0]
    worker.refresh_from_db()
    assert worker.lifecycle == after
    event = WorkerEvent.objects.filter(worker=worker).earliest("sequence")
    assert event.actor == "human:ben"
    assert event.evidence["reason"] == "kernel update"


@pytest.mark.parametrize(("act", "before", "active", "code"), REFUSED)
def test_a_refused_act_on_a_worker_tells_the_code_and_changes_nothing(
    operator: Client, application: Application, act: str, before: str, active: int, code: str
) -> None:
    worker = rows.worker(application, lifecycle=before, active=active)
    answer = do(operator, act, worker)
    assert f"0 done, 1 refused: {code}" in said(answer)[0]
    worker.refresh_from_db()
    assert (worker.lifecycle, worker.removed_at) == (before, None)


def test_removing_a_worker_keeps_its_page_and_takes_it_off_the_list(
    operator: Client, application: Application
) -> None:
    worker = rows.worker(application, "retired-host")
    answer = do(operator, "remove", worker)
    assert "1 done" in said(answer)[0]
    assert "REMOVED" in answer.content.decode()
    listed = operator.get(reverse("admin:mesh_worker_changelist"))
    assert "retired-host" not in listed.content.decode()
    removed = operator.get(reverse("admin:mesh_worker_changelist"), {"removed": "only"})
    assert "retired-host" in removed.content.decode()


def test_drain_takes_a_deadline_in_minutes(operator: Client, application: Application) -> None:
    worker = rows.worker(application, active=1)
    do(operator, "drain", worker, deadline_minutes=30)
    worker.refresh_from_db()
    assert worker.drain_deadline_at
    assert worker.drain_requested_at
    assert (worker.drain_deadline_at - worker.drain_requested_at).total_seconds() == 1800


def test_cancel_asks_the_worker_of_running_work(operator: Client, application: Application) -> None:
    running = rows.workload(application, State.RUNNING, rows.worker(application, active=1))
    waiting = rows.workload(application)
    answer = do(operator, "cancel", running, waiting)
    assert "2 done, 0 refused" in answer.content.decode()
    running.refresh_from_db()
    waiting.refresh_from_db()
    assert running.state == State.CANCELLATION_REQUESTED
    assert waiting.state == State.CANCELLED
    event = WorkloadEvent.objects.filter(workload=waiting).latest("sequence")
    assert (event.actor, event.evidence["reason"]) == ("human:ben", "kernel update")


def test_cancel_of_finished_work_is_refused(operator: Client, application: Application) -> None:
    done = rows.workload(application, State.SUCCEEDED, rows.worker(application))
    answer = do(operator, "cancel", done)
    assert "0 done, 1 refused: WORKLOAD_TRANSITION_DENIED" in said(answer)[0]


def test_retry_puts_a_dead_letter_back_with_more_attempts(
    operator: Client, application: Application
) -> None:
    dead = rows.workload(application, State.DEAD_LETTER)
    do(operator, "retry", dead, extra_attempts=2)
    dead.refresh_from_db()
    assert (dead.state, dead.extra_attempts) == (State.READY, 2)


def test_retry_of_waiting_work_is_refused(operator: Client, application: Application) -> None:
    answer = do(operator, "retry", rows.workload(application), extra_attempts=1)
    assert "refused: WORKLOAD_TRANSITION_DENIED" in said(answer)[0]


def test_held_work_is_resolved_with_what_the_person_says(
    operator: Client, application: Application
) -> None:
    worker = rows.worker(application)
    sent, lost = rows.held(application, worker), rows.held(application, worker)
    do(operator, "resolve", sent, resolution="succeeded", output='{"sent": true}')
    do(operator, "resolve", lost, resolution="requeue")
    stored = Result.objects.get(workload=sent)
    assert (stored.output, stored.author) == ({"sent": True}, "human:ben")
    sent.refresh_from_db()
    lost.refresh_from_db()
    assert (sent.state, lost.state) == (State.SUCCEEDED, State.READY)
    event = WorkloadEvent.objects.filter(workload=lost).latest("sequence")
    assert (event.event, event.actor) == ("workload.resolved", "human:ben")
    assert event.evidence["reason"] == "kernel update"


@pytest.mark.parametrize(
    "output",
    ["{", "NaN", '"a\\u0000"', '"\\ud800"', "1e999", str(2**63), "[" * 65 + "]" * 65, "[" * 90_000],
)
def test_an_output_that_cannot_be_stored_is_not_taken(
    operator: Client, application: Application, output: str
) -> None:
    held = rows.held(application, rows.worker(application))
    answer = do(operator, "resolve", held, resolution="succeeded", output=output)
    assert answer.context["form"].errors.keys() == {"output"}
    held.refresh_from_db()
    assert held.state == State.HELD


def test_resolving_refuses_a_secret_and_work_that_is_not_held(
    operator: Client, application: Application
) -> None:
    held = rows.held(application, rows.worker(application))
    answer = do(operator, "resolve", held, resolution="succeeded", output='{"token": 1}')
    assert "refused: WORKLOAD_SECRET_REJECTED" in said(answer)[0]
    answer = do(operator, "resolve", rows.workload(application), resolution="failed")
    assert "refused: WORKLOAD_TRANSITION_DENIED" in said(answer)[0]


def test_reclaim_takes_work_from_its_worker(operator: Client, application: Application) -> None:
    worker = rows.worker(application, active=1)
    running = rows.workload(application, State.RUNNING, worker)
    assert "1 done" in said(do(operator, "reclaim", running))[0]
    running.refresh_from_db()
    worker.refresh_from_db()
    assert (running.state, worker.active) == (State.READY, 0)
    answer = do(operator, "reclaim", running)
    assert "refused: WORKLOAD_TRANSITION_DENIED" in said(answer)[0]


def test_revoking_a_grant_drains_its_workers(admin: Client, application: Application) -> None:
    worker = rows.worker(application, active=1)
    do(admin, "revoke", worker.grant)
    worker.refresh_from_db()
    assert worker.lifecycle == Lifecycle.DRAINING
    grant = Grant.objects.get(pk=worker.grant_id)
    assert (grant.status, grant.revoked_by) == ("REVOKED", "human:ann")
    assert grant.revoke_reason == "kernel update"
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.actor) == ("grant.revoked", "human:ann")


def test_the_form_to_revoke_a_grant_says_first_how_many_workers_will_drain(
    admin: Client, application: Application
) -> None:
    grant = rows.grant(application)
    for lifecycle in (Lifecycle.READY, Lifecycle.BUSY, Lifecycle.OFFLINE):
        rows.worker(application, grant=grant, lifecycle=lifecycle)
    answer = admin.get(url("grant", "revoke"), {"id": grant.pk})
    assert "2 workers will drain." in answer.content.decode()


def test_revoking_a_token_ends_it_once(admin: Client, tenant: Tenant) -> None:
    token = rows.token(tenant)
    assert "1 done" in said(do(admin, "revoke", token))[0]
    assert ApiToken.objects.get(pk=token.pk).revoked_at
    assert "1 refused: REQUEST_INVALID" in said(do(admin, "revoke", token))[0]


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501, "a\0b"])
def test_an_act_without_a_proper_reason_is_not_done(
    operator: Client, application: Application, reason: str
) -> None:
    worker = rows.worker(application)
    answer = do(operator, "drain", worker, reason=reason)
    assert answer.context["form"].errors["reason"]
    assert f'name="id" value="{worker.pk}"' in answer.content.decode()
    worker.refresh_from_db()
    assert worker.lifecycle == Lifecycle.READY


def test_the_report_tells_what_became_of_each_row(
    operator: Client, application: Application
) -> None:
    ready = [rows.worker(application) for _ in range(3)]
    busy = rows.worker(application, "busy-host", active=1)
    answer = do(operator, "remove", *ready, busy)
    text = answer.content.decode()
    assert "3 done, 1 refused: WORKER_BUSY" in text
    outcomes = answer.context["report"].outcomes
    assert [each.code for each in outcomes] == ["", "", "", "WORKER_BUSY"]
    assert all(str(each) in text for each in [*ready, busy])


def test_a_row_that_is_gone_is_reported_and_not_skipped(
    operator: Client, application: Application
) -> None:
    worker = rows.worker(application)
    given = {"id": [worker.pk, 987654321], "reason": "x"}
    answer = operator.post(url("worker", "drain"), given)
    assert "1 done, 1 refused: NOT_FOUND" in answer.content.decode()


def test_choosing_an_act_in_the_list_asks_first_and_does_nothing(
    operator: Client, application: Application
) -> None:
    chosen = [rows.worker(application) for _ in range(2)]
    given = {"action": "drain", "_selected_action": [each.pk for each in chosen], "index": 0}
    answer = operator.post(reverse("admin:mesh_worker_changelist"), given)
    assert "2 workers meant" in answer.content.decode()
    assert not Worker.objects.exclude(lifecycle=Lifecycle.READY).exists()


def test_rows_that_leave_the_filter_meanwhile_are_still_acted_on(
    operator: Client, application: Application
) -> None:
    worker = rows.worker(application, active=1)
    listed = f"{reverse('admin:mesh_worker_changelist')}?lifecycle=READY"
    given = {"action": "drain", "_selected_action": worker.pk, "index": 0}
    asked = operator.post(listed, given)
    Worker.objects.update(lifecycle=Lifecycle.BUSY, concurrency=1)
    answer = operator.post(
        asked.context["action_url"], {"id": worker.pk, "reason": "x"}, follow=True
    )
    assert "1 done" in said(answer)[0]


@pytest.mark.parametrize("wanted", [[], ["x"], ["-1"], ["9" * 30], ["1' or 1=1"]])
def test_an_act_on_no_rows_leads_back_to_the_list(operator: Client, wanted: list[str]) -> None:
    answer = operator.post(url("worker", "drain"), {"id": wanted, "reason": "x"}, follow=True)
    assert "No such rows" in said(answer)[0]


def test_one_run_takes_at_most_500_rows(
    operator: Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rows.worker(application)
    given = {"id": [worker.pk, *range(10_000, 10_500)], "reason": "x"}
    answer = operator.post(url("worker", "drain"), given, follow=True)
    assert "At most 500 rows" in said(answer)[0]
    assert Worker.objects.get(pk=worker.pk).lifecycle == Lifecycle.READY
    assert acts.MAX_ROWS == 500


def test_a_busy_store_is_a_refusal_of_that_row(
    operator: Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = rows.worker(application), rows.worker(application)
    real = workers.drain

    def drain(*, worker_id: str, **given: Any) -> Worker:
        if worker_id == first.worker_id:
            raise OperationalError from pg.LockNotAvailable()
        return real(worker_id=worker_id, **given)

    monkeypatch.setattr(workers, "drain", drain)
    answer = do(operator, "drain", first, second)
    assert "1 done, 1 refused: STORAGE_BUSY" in answer.content.decode()


def test_a_row_that_breaks_does_not_hide_what_became_of_the_others(
    operator: Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = rows.worker(application), rows.worker(application)
    real = workers.drain

    def drain(*, worker_id: str, **given: Any) -> Worker:
        if worker_id == second.worker_id:
            raise RuntimeError("secret detail")
        return real(worker_id=worker_id, **given)

    monkeypatch.setattr(workers, "drain", drain)
    text = do(operator, "drain", first, second).content.decode()
    assert "1 done, 1 refused: INTERNAL_ERROR" in text
    assert "secret detail" not in text


def test_the_page_offers_legal_moves_and_says_why_not_for_the_others(
    operator: Client, application: Application
) -> None:
    worker = rows.worker(application, lifecycle=Lifecycle.OFFLINE)
    answer = operator.get(reverse("admin:mesh_worker_change", args=[worker.pk]))
    offered = {each.act.name: each.why_not for each in answer.context["buttons"]}
    assert offered["recover"] == ""
    assert offered["drain"] == "A worker that is OFFLINE takes no work anyway."
    assert offered["undrain"] == "Only a draining worker can be undrained."
    assert "Only a draining worker can be undrained." in answer.content.decode()


def test_a_viewer_sees_the_buttons_with_the_role_they_need(
    viewer: Client, application: Application
) -> None:
    worker = rows.worker(application)
    answer = viewer.get(reverse("admin:mesh_worker_change", args=[worker.pk]))
    assert {each.why_not for each in answer.context["buttons"]} == {"Needs the role operator."}


def test_an_unknown_act_does_not_exist(operator: Client) -> None:
    assert operator.get(url("worker", "explode")).status_code == 404
    assert operator.post(url("worker", "retry")).status_code == 404


def _foretold(client: Client, row: Any, act: str) -> None:
    """A button that is offered is accepted; one that is not would be refused, or change nothing."""
    before = type(row).objects.filter(pk=row.pk).values().get()
    page = client.get(reverse(f"admin:mesh_{row._meta.model_name}_change", args=[row.pk]))
    why_not = next(each.why_not for each in page.context["buttons"] if each.act.name == act)
    done = "1 done" in said(do(client, act, row, extra_attempts=1))[0]
    is_same = type(row).objects.filter(pk=row.pk).values().get() == before
    assert done if not why_not else is_same, why_not


@pytest.mark.parametrize("act", ["drain", "undrain", "recover", "remove"])
@pytest.mark.parametrize("lifecycle", list(Lifecycle))
def test_buttons_of_a_worker_foretell_the_answer(
    operator: Client, application: Application, lifecycle: Lifecycle, act: str
) -> None:
    _foretold(operator, rows.worker(application, lifecycle=lifecycle, active=0), act)


@pytest.mark.parametrize("act", ["cancel", "retry"])
@pytest.mark.parametrize(
    "state",
    [
        State.READY,
        State.CLAIMED,
        State.RUNNING,
        State.CHECKPOINTED,
        State.CANCELLATION_REQUESTED,
        State.SUCCEEDED,
        State.CANCELLED,
        State.DEAD_LETTER,
    ],
)
def test_buttons_of_a_workload_foretell_the_answer(
    operator: Client, application: Application, state: State, act: str
) -> None:
    on = None if state == State.READY else rows.worker(application, active=1)
    _foretold(operator, rows.workload(application, state, on), act)


def test_an_incident_is_resumed_with_person_and_reason(
    operator: Client, viewer: Client, application: Application
) -> None:
    worker = rows.worker(application, last_seen_at=rows.ago(minutes=2))
    incident = rows.incident(application, worker)
    assert do(viewer, "resume", incident).status_code == 403
    answer = do(operator, "resume", incident)
    assert "1 done, 0 refused" in said(answer)[0]
    incident.refresh_from_db()
    assert (incident.resumed_by, incident.resume_reason) == ("human:ben", "kernel update")
    worker.refresh_from_db()
    assert worker.lifecycle == Lifecycle.OFFLINE
    assert "It is closed" in answer.content.decode()


@pytest.mark.parametrize(
    ("name", "kept"), [("revoke-subject", {"other"}), ("revoke-application", set())]
)
def test_all_grants_of_a_subject_or_application_are_revoked_at_once(
    admin: Client, application: Application, name: str, kept: set[str]
) -> None:
    one = rows.grant(application, subject="service:one")
    rows.grant(application, subject="service:one", parent=one, depth=2)
    rows.grant(application, subject="other")
    page = admin.get(url("grant", name), {"id": one.pk}).content.decode()
    assert ("2 grants end" if kept else "3 grants end") in page
    do(admin, name, one, reason="its key got out")
    active = Grant.objects.filter(status="ACTIVE").values_list("subject", flat=True)
    assert set(active) == kept
    told = Revocation.objects.get()
    assert (told.kind, told.reason) == (name.removeprefix("revoke-"), "its key got out")
