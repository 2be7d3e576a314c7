"""What the pages of rows and the home page tell, and that nothing on them can act by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from mesh.admin import display
from mesh.models import (
    ApiToken,
    Application,
    AttemptStatus,
    DrainCause,
    GrantStatus,
    LateReport,
    Lifecycle,
    Result,
    State,
    SweepRun,
    Tenant,
)
from mesh.words import moment

from . import rows
from .conftest import one_of_each
from .test_access import change_url, list_url

EVIL = "<script>alert('x')</script>"


@pytest.fixture
def application(tenant: Tenant) -> Application:
    return rows.application(tenant)


def text_of(client: Client, row: Any) -> str:
    answer = client.get(change_url(row))
    assert answer.status_code == 200
    return str(answer.content.decode())


def home(client: Client) -> str:
    return str(client.get(reverse("admin:index")).content.decode())


def test_a_worker_page_tells_the_three_facts_of_liveness_apart(
    viewer: Client, application: Application
) -> None:
    worker = rows.worker(
        application,
        last_seen_at=rows.ago(seconds=5),
        last_poll_at=rows.ago(minutes=7),
        last_progress_at=rows.ago(hours=3),
    )
    text = text_of(viewer, worker)
    for label in ("Beating", "Accepting", "Progressing"):
        assert label in text
    assert "7 min ago" in text
    assert "3 h ago" in text
    assert "DEAF" in text
    assert "does not ask for work" in text


def test_a_worker_page_tells_capabilities_declared_granted_and_refused(
    viewer: Client, application: Application
) -> None:
    text = text_of(viewer, rows.worker(application))
    refused = text.split("Refused", 1)[1].split("Declared", 1)[0]
    assert "documents.ocr" in refused
    assert "documents.extract" not in refused


def test_held_work_tells_since_when_why_and_what_can_be_done(
    operator: Client, application: Application
) -> None:
    held = rows.held(application, rows.worker(application), updated_at=rows.ago(minutes=9))
    text = text_of(operator, held)
    for told in ("9 min ago", "worker_failure: The worker was lost", "resolve it", "HELD"):
        assert told in text
    listed = operator.get(list_url("workload"), {"state": "HELD"}).content.decode()
    assert "waits to be resolved, after worker_failure" in listed
    assert "1 workload held for a person" in home(operator)


def test_reports_that_came_too_late_stand_on_the_pages_of_the_work_and_the_attempt(
    viewer: Client, application: Application
) -> None:
    held = rows.held(application, rows.worker(application))
    attempt = held.attempts.get()
    assert "too late" not in text_of(viewer, held)
    for digest, body in (("a", {"output": f"{EVIL}4711"}), ("b", None)):
        LateReport.objects.create(
            attempt=attempt,
            step="complete",
            code="WORKLOAD_STALE_FENCE",
            digest=digest,
            body=body,
            reported_at=rows.ago(minutes=1),
        )
    for row in (held, attempt):
        text = text_of(viewer, row)
        assert "Reports that came too late" in text
        assert "4711" in text
        assert "not kept</span>" in text
        assert EVIL not in text


def test_a_result_names_the_person_who_said_it(viewer: Client, application: Application) -> None:
    done = rows.workload(application, State.SUCCEEDED, rows.worker(application))
    stored = rows.result(done, done.attempts.get())
    assert "its worker" in text_of(viewer, done)
    Result.objects.filter(pk=stored.pk).update(author="human:ann")
    assert "human:ann" in text_of(viewer, done)


def test_a_worker_page_lists_live_claims_with_their_lease(
    viewer: Client, application: Application
) -> None:
    worker = rows.worker(application, active=1)
    workload = rows.workload(application, State.RUNNING, worker)
    live = text_of(viewer, worker).split("Live claims", 1)[1].split("Recent attempts", 1)[0]
    assert workload.workload_id in live
    assert "s left" in live


def test_a_draining_worker_tells_who_asked_why_and_until_when(
    viewer: Client, application: Application
) -> None:
    worker = rows.worker(
        application,
        lifecycle=Lifecycle.DRAINING,
        active=2,
        drain_cause=DrainCause.OPERATOR,
        drain_reason="kernel update",
        drain_deadline_at=rows.ago() + timedelta(minutes=20, seconds=30),
    )
    text = text_of(viewer, worker)
    assert "asked by operator (kernel update): 2 claims still to end; deadline" in text
    assert "in 20 min" in text


def test_a_silent_worker_is_told_from_one_that_is_offline(
    viewer: Client, application: Application
) -> None:
    silent = rows.worker(application, last_seen_at=rows.ago(minutes=2))
    offline = rows.worker(application, lifecycle=Lifecycle.OFFLINE, last_seen_at=rows.ago(hours=2))
    assert "the next sweep takes it offline" in text_of(viewer, silent)
    assert "Offline: last heard" in text_of(viewer, offline)


@pytest.mark.parametrize("end", ["revoked", "over"])
def test_a_worker_without_a_grant_in_force_is_not_said_to_take_work(
    viewer: Client, application: Application, end: str
) -> None:
    fields: dict[str, Any] = {"status": GrantStatus.REVOKED}
    if end == "over":
        fields = {"expires_at": rows.ago(hours=1)}
    worker = rows.worker(application, grant=rows.grant(application, **fields))
    text = text_of(viewer, worker)
    assert f"Its grant is {end}: it gets no work" in text
    assert "Takes work" not in text
    assert f"its grant is {end}" in viewer.get(list_url("worker")).content.decode()


def test_a_worker_that_a_revocation_drained_is_not_sent_to_recover(
    viewer: Client, application: Application
) -> None:
    worker = rows.worker(
        application, lifecycle=Lifecycle.OFFLINE, drain_cause=DrainCause.REVOCATION
    )
    assert "Registering under another grant brings it back" in text_of(viewer, worker)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (State.READY, "why it waits is told below"),
        (State.CLAIMED, "not started yet"),
        (State.RUNNING, "last progress"),
        (State.CANCELLATION_REQUESTED, "was told and must confirm"),
        (State.SUCCEEDED, "Done "),
        (State.CANCELLED, "Cancelled "),
        (State.DEAD_LETTER, "Retry puts it back"),
    ],
)
def test_a_workload_page_says_what_is_going_on(
    viewer: Client, application: Application, state: State, sentence: str
) -> None:
    on = None if state == State.READY else rows.worker(application)
    assert sentence in text_of(viewer, rows.workload(application, state, on))


def test_a_workload_page_shows_attempts_checkpoints_result_and_history(
    viewer: Client, application: Application
) -> None:
    worker = rows.worker(application)
    workload = rows.workload(application, State.SUCCEEDED, worker)
    attempt = workload.attempts.get()
    rows.checkpoint(workload, attempt)
    result = rows.result(workload, attempt)
    text = text_of(viewer, workload)
    for part in (worker.name, result.result_id, "read 3 pages", "&quot;page&quot;: 1", "claimed"):
        assert part in text, part


def test_ready_work_looks_the_same_in_its_history_as_at_the_head(
    viewer: Client, application: Application
) -> None:
    waiting = rows.workload(application)
    text = text_of(viewer, waiting)
    assert text.count(display.state_badge("READY")) == 2
    assert display.badge("READY") not in text
    listed = viewer.get(list_url("workloadevent")).content.decode()
    assert display.state_badge("READY") in listed


def test_an_attempt_that_ended_has_no_lease_that_is_still_to_end(
    viewer: Client, application: Application
) -> None:
    worker, work = rows.worker(application), rows.workload(application)
    done = AttemptStatus.SUCCEEDED
    ended = rows.attempt(work, worker, done, expires_at=rows.ago(hours=-50))
    assert "Lease ends" in text_of(viewer, ended)
    assert ">in 2 d" not in text_of(viewer, ended)


def test_only_web_addresses_of_artifacts_are_links(
    viewer: Client, application: Application
) -> None:
    workload = rows.workload(application, State.SUCCEEDED, rows.worker(application))
    rows.result(workload, workload.attempts.get())
    text = text_of(viewer, workload)
    assert 'href="https://files.example/text.txt" rel="noopener noreferrer' in text
    assert 'href="javascript:' not in text


def test_a_very_long_input_is_cut_and_says_so(viewer: Client, application: Application) -> None:
    workload = rows.workload(application, input={"text": "x" * 900_000})
    text = text_of(viewer, workload)
    assert len(text) < 400_000
    assert "the API has all" in text


def test_a_grant_page_says_in_words_what_it_allows_and_who_rests_on_it(
    viewer: Client, application: Application
) -> None:
    bound = rows.grant(application, constraints={"worker_names": ["eu-*"]})
    worker = rows.worker(application, grant=bound)
    text = text_of(viewer, bound)
    assert "Lets service:registrar register workers in application documents" in text
    assert "but only under the name eu-*" in text
    assert worker.name in text
    assert "may register any worker" not in text
    assert "may register any worker" in text_of(viewer, rows.grant(application))


def test_a_revoked_grant_tells_who_and_why(viewer: Client, application: Application) -> None:
    grant = rows.grant(
        application,
        status=GrantStatus.REVOKED,
        revoked_at=rows.ago(hours=1),
        revoked_by="human:ann",
        revoke_reason="key lost",
    )
    assert "Revoked by human:ann: key lost" in text_of(viewer, grant)


def test_times_stand_as_age_with_the_absolute_time_in_the_title(
    viewer: Client, application: Application
) -> None:
    worker = rows.worker(application, registered_at=rows.ago(hours=5))
    title = moment(worker.registered_at)
    assert f'title="{title}">5 h ago</time>' in text_of(viewer, worker)


def test_states_are_told_by_words_and_an_icon_that_is_not_read_aloud() -> None:
    badge = display.badge("DEAD_LETTER")
    assert "DEAD LETTER</span>" in badge
    assert 'aria-hidden="true"' in badge


def test_no_hash_of_a_secret_stands_on_any_page(tenant: Tenant, admin: Client) -> None:
    made = one_of_each(tenant)
    hashes = {
        *ApiToken.objects.values_list("token_hash", flat=True),
        made["run"].token_hash,
        made["worker"].credential_hash,
        made["membership"].user.password,
    }
    for model, row in made.items():
        for text in (text_of(admin, row), admin.get(list_url(model)).content.decode()):
            assert not any(each in text for each in hashes), model


def test_what_workers_and_people_wrote_is_shown_as_text(
    tenant: Tenant, admin: Client, application: Application
) -> None:
    worker = rows.worker(
        application,
        EVIL,
        labels={EVIL: EVIL},
        granted_capabilities=[EVIL],
        lifecycle=Lifecycle.DRAINING,
        drain_reason=EVIL,
        version=EVIL,
    )
    workload = rows.workload(
        application,
        State.DEAD_LETTER,
        worker,
        EVIL,
        input={EVIL: EVIL},
        idempotency_key=EVIL,
        last_failure={"kind": EVIL, "error": EVIL},
        trigger=EVIL,
    )
    rows.attempt(workload, worker, AttemptStatus.FAILED, 2, failure={"kind": EVIL, "error": EVIL})
    texts = [text_of(admin, worker), text_of(admin, workload), home(admin)]
    models = ("worker", "workload", "attempt", "requirement", "workloadevent")
    texts += [admin.get(list_url(model)).content.decode() for model in models]
    texts.append(admin.get(list_url("worker"), {"q": EVIL}).content.decode())
    texts.append(admin.get(reverse("admin:find"), {"q": EVIL}).content.decode())
    assert all(EVIL not in each for each in texts)


def _run_sweeps(seconds: float) -> None:
    at = rows.ago(seconds=seconds)
    SweepRun.objects.update_or_create(name="promote_due", defaults={"last_finished_at": at})


def test_home_with_nothing_wrong_says_so(viewer: Client, application: Application) -> None:
    _run_sweeps(1)
    rows.worker(application)
    assert "Nothing needs you." in home(viewer)


def test_home_tells_what_needs_somebody(viewer: Client, application: Application) -> None:
    _run_sweeps(600)
    worker = rows.worker(application)
    rows.incident(application, worker)
    rows.pause(application)
    rows.workload(application, State.DEAD_LETTER, worker)
    stuck = rows.workload(application, State.RUNNING, worker).attempts.get()
    stuck.last_progress_at, stuck.expires_at = rows.ago(minutes=11), rows.ago(minutes=1)
    stuck.save()
    text = home(viewer)
    assert "Nothing needs you." not in text
    for alarm in (
        "1 of 1 sweeps is late",
        "Brake incident",
        f"Too many workers of {application.name} fell silent at once",
        "1 pause in force",
        "1 workload given up in 24 h",
        "1 attempt without progress for 10 min",
        "1 attempt past lease end",
    ):
        assert alarm in text, alarm


def test_home_counts_only_what_the_person_may_see(viewer: Client) -> None:
    _run_sweeps(1)
    one_of_each(rows.tenant("other"))
    text = home(viewer)
    assert "No worker has registered yet" in text
    assert "Brake incident" not in text


def test_home_leads_to_the_filtered_lists(viewer: Client, application: Application) -> None:
    rows.worker(application, lifecycle=Lifecycle.DRAINING)
    text = home(viewer)
    for query in ("lifecycle=DRAINING", "state=RUNNING", "state=DEAD_LETTER"):
        assert query in text


def test_the_live_part_is_the_same_without_the_frame(
    viewer: Client, application: Application
) -> None:
    rows.worker(application)
    answer = viewer.get(reverse("admin:live"))
    text = answer.content.decode()
    assert "<html" not in text
    assert 'class="fp-tiles"' in text
    assert "no-store" in answer["Cache-Control"]


def test_signing_out_leads_to_the_sign_in_page(viewer: Client) -> None:
    assert viewer.post(reverse("admin:logout"))["Location"] == reverse("admin:login")
    assert viewer.get(reverse("admin:index")).status_code == 302


def test_a_wrong_password_is_answered_without_telling_which_part(
    tenant: Tenant, viewer: Client
) -> None:
    for name in ("vera", "nobody"):
        answer = Client().post(reverse("admin:login"), {"username": name, "password": "wrong"})
        assert "Please enter the correct username and password" in answer.content.decode()


def test_a_missing_page_is_answered_in_the_consoles_own_words(viewer: Client) -> None:
    answer = viewer.get(reverse("admin:mesh_worker_change", args=[987654321]))
    assert answer.status_code == 404
    assert "what it showed is not yours to see" in answer.content.decode()
