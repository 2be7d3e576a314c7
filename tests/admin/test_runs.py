"""What the pages of workflows tell: how a run stands, what it waits for, and who drives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from mesh.models import State, Tenant
from workflows.models import (
    Coordinator,
    LeaseScope,
    OutcomeKind,
    OutcomeSource,
    Run,
    StepState,
)

from . import rows, run_rows
from .test_access import change_url, list_url
from .test_lists import listed, queries
from .test_pages import EVIL, home, text_of

Prepare = Callable[[Run], object]


@pytest.fixture
def builtin(tenant: Tenant) -> Coordinator:
    return run_rows.builtin(tenant)


@pytest.fixture
def run(tenant: Tenant, builtin: Coordinator) -> Run:
    """An open run of a living built-in coordinator."""
    return run_rows.owned(tenant, builtin)


def sentence(client: Client, row: Any) -> str:
    return str(client.get(change_url(row)).context["page"].sentence)


def _resources_busy(run: Run) -> None:
    run.activations.update(state=StepState.READY)
    run_rows.refused(run)


def _all_done(run: Run) -> None:
    run.activations.update(state=StepState.SUCCEEDED)


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (run_rows.ambiguous, "Waits for a person: publish had begun when its worker was lost"),
        (run_rows.failing, "It waits for a person: put right what kept it from starting"),
        (
            lambda run: run_rows.failing(run, "input_unresolved"),
            "so it ends as FAILED when its coordinator looks next",
        ),
        (run_rows.cancelling, "by human:ben: nothing is under way any more"),
        (
            lambda run: (run_rows.cancelling(run), run_rows.attempt(run)),
            "once check is settled, it ends as CANCELLED",
        ),
        (
            lambda run: (run_rows.barred(run), run_rows.attempt(run)),
            "once check is settled, the barrier ends",
        ),
        (run_rows.paused, "by human:ben (the index is rebuilt): nothing new starts"),
        (
            lambda run: (run_rows.paused(run), run_rows.attempt(run, state=State.SUCCEEDED)),
            "1 attempt that had begun may go on to the end",
        ),
        (lambda run: None, "Due next: check."),
        (_resources_busy, "Waits for catalogue, which other attempts reserve"),
        (run_rows.attempt, "Goes on: check waiting for a worker."),
        (_all_done, "Its steps have all ended"),
    ],
)
def test_the_sentence_of_an_open_run_says_what_it_waits_for(
    viewer: Client, run: Run, prepare: Prepare, told: str
) -> None:
    prepare(run)
    assert told in sentence(viewer, run)


def _a_step_failed(run: Run) -> None:
    run.activations.filter(step="check").update(state=StepState.FAILED)


@pytest.mark.parametrize(
    ("status", "prepare", "told"),
    [
        ("COMPLETED", lambda run: None, "nothing is left to do"),
        ("CANCELLED", run_rows.cancelling, "as human:ben asked"),
        ("FAILED", _a_step_failed, "check did not succeed"),
        ("FAILED", run_rows.failing, "never_started: withdrawn 21 times in a row"),
    ],
)
def test_the_sentence_of_an_ended_run_says_how_it_ended(
    viewer: Client, run: Run, status: str, prepare: Prepare, told: str
) -> None:
    prepare(run)
    run_rows.ended(run, status)
    assert told in sentence(viewer, run)
    assert "NO</span>" in text_of(viewer, run)


def test_a_run_that_nobody_drives_says_so(viewer: Client, tenant: Tenant) -> None:
    said = {
        "Waits for a built-in coordinator": run_rows.run(tenant),
        "Waits for its service to claim it": run_rows.run(tenant, coordinator="external"),
        "is gone. Have the service hand it over": run_rows.owned(
            tenant, run_rows.service(tenant, **run_rows.gone())
        ),
        "relinquished; another one takes it over": run_rows.owned(
            tenant, run_rows.builtin(tenant, relinquished_at=rows.ago(seconds=1))
        ),
    }
    for told, row in said.items():
        assert told in sentence(viewer, row)
    assert viewer.get(list_url("run")).content.decode().count("LEFT</span>") == 1


def test_a_lease_that_has_just_ended_does_not_make_an_owner_gone(
    viewer: Client, tenant: Tenant
) -> None:
    late = run_rows.builtin(tenant, lease_ends_at=rows.ago(seconds=1))
    assert "LEFT" not in viewer.get(list_url("run")).content.decode()
    assert "LATE TO BEAT" in text_of(viewer, run_rows.owned(tenant, late))
    assert "counts as gone within seconds" in sentence(viewer, late)


def test_the_page_of_a_run_shows_steps_attempts_leases_and_the_work(
    viewer: Client, run: Run
) -> None:
    done = run_rows.settled(run)
    run_rows.settled(
        run,
        "count",
        outcome=OutcomeKind.ABANDONED,
        source=OutcomeSource.OPERATOR,
        settled_by="human:ann",
        message="the file is gone",
    )
    held = run_rows.ambiguous(run)
    run_rows.lease(held)
    text = text_of(viewer, run)
    for part in ("4711", "ABANDONED", "the file is gone", "A worker&#x27;s report", "1 of 3"):
        assert part in text, part
    assert text.count("AMBIGUOUS") == 1
    assert f'{change_url(held.workload)}">resolve its workload' in text
    assert change_url(done) in text
    leases = text.split("Resource leases", 1)[1].split("Hand-overs", 1)[0]
    assert "publish no. 1" in leases
    assert "3 min ago" in leases
    assert str(LeaseScope.RUN) in leases


def test_the_page_of_a_run_shows_each_block_with_since_by_and_why(viewer: Client, run: Run) -> None:
    for block in (run_rows.paused, run_rows.cancelling, run_rows.failing, run_rows.barred):
        block(run)
    text = text_of(viewer, run).split('id="blocks"', 1)[1].split("</section>", 1)[0]
    for why in ("the index is rebuilt", "wrong document", "handed over from builtin-1"):
        assert why in text
    assert "never_started: count: withdrawn 21 times in a row" in text
    assert text.count("7 min ago") == text.count("human:ben") == text.count("YES") == 4


def test_an_ended_block_stands_no_more(viewer: Client, run: Run) -> None:
    run_rows.paused(run, ended_at=rows.ago(minutes=1), ended_by="human:ben")
    text = text_of(viewer, run)
    assert "YES" not in text
    assert "the index is rebuilt" not in text


def test_the_page_of_a_run_shows_who_has_it_and_how_authority_moved(
    viewer: Client, run: Run, builtin: Coordinator
) -> None:
    handoff = run_rows.handoff(run)
    run_rows.event(run, 1, "handed_over", mode="recovery")
    text = text_of(viewer, run)
    assert change_url(builtin) in text
    assert "ALIVE" in text
    for part in ("builtin-1", "builtin-2", handoff.receipt.receipt_id, "lease_ended_at"):
        assert part in text, part
    assert "handed over" in text


def test_a_run_without_anything_says_so_in_words(viewer: Client, tenant: Tenant) -> None:
    text = text_of(viewer, run_rows.run(tenant, input=None))
    for told in (
        "Nothing was tried yet.",
        "It reserves nothing.",
        "Authority never moved.",
        "Nothing is recorded yet.",
        "nobody yet",
    ):
        assert told in text
    assert "Attested stops" not in text
    assert "Waits for</h3>" not in text


def test_no_secret_of_an_authority_stands_on_a_page(viewer: Client, run: Run) -> None:
    assert run.token_hash
    shown = text_of(viewer, run) + viewer.get(list_url("run")).content.decode()
    assert run.token_hash not in shown


def test_an_ambiguous_attempt_leads_to_its_workload(viewer: Client, run: Run) -> None:
    held = run_rows.ambiguous(run)
    text = text_of(viewer, held)
    assert "nobody knows what it did" in text
    assert change_url(held.workload) in text
    assert change_url(run) in text
    assert "about to be settled" not in text


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ({}, "Its work waits for a worker"),
        ({"state": State.CANCELLATION_REQUESTED}, "with a worker"),
        (
            {"state": State.CANCELLED, "ended_at": rows.ago},
            "the coordinator of the run has yet to settle it",
        ),
    ],
)
def test_the_page_of_an_unsettled_attempt_says_where_its_work_is(
    viewer: Client, run: Run, work: dict[str, Any], told: str
) -> None:
    said = {key: value() if callable(value) else value for key, value in work.items()}
    assert told in sentence(viewer, run_rows.attempt(run, **said))


def test_a_definition_shows_its_steps_versions_and_runs(viewer: Client, tenant: Tenant) -> None:
    first = run_rows.definition(tenant, definition_id="pipeline")
    second = run_rows.definition(tenant, definition_id="pipeline", version=2)
    run = run_rows.run(tenant, definition=second)
    text = text_of(viewer, second)
    assert "3 steps; 1 of them waits for a person when lost." in text
    assert "write catalogue (application)" in text
    assert "then the run goes on" in text
    assert change_url(first) in text
    assert change_url(run) in text
    assert "Nobody started one." in text_of(viewer, first)


def test_a_coordinator_shows_whether_it_lives_and_what_it_has(
    viewer: Client, tenant: Tenant, run: Run, builtin: Coordinator
) -> None:
    gone = run_rows.service(tenant, **run_rows.gone())
    assert sentence(viewer, builtin) == "Alive; it has 1 open run."
    assert change_url(run) in text_of(viewer, builtin)
    assert "it never comes back. It has no open run." in sentence(viewer, gone)
    run_rows.owned(tenant, gone)
    assert "or you adopt them" in sentence(viewer, gone)
    text = viewer.get(list_url("coordinator")).content.decode()
    assert "GONE" in text
    assert f"owner={builtin.pk}&amp;status=OPEN" in text
    assert listed(viewer, "run", owner=builtin.pk) == {run.pk}


def test_an_attestation_shows_who_stated_what_and_what_is_missing(
    viewer: Client, tenant: Tenant
) -> None:
    run = run_rows.owned(tenant, run_rows.service(tenant))
    waiting = run_rows.attestation(run, required=2)
    text = text_of(viewer, waiting)
    assert "Waits for another person" in text
    assert "its host burnt down" in text
    assert "human:ann" in text
    fresh = run_rows.attestation(run, completed_at=rows.ago(seconds=5))
    old = run_rows.attestation(run, completed_at=rows.ago(minutes=5))
    assert "may be taken over on it" in sentence(viewer, fresh)
    assert fresh.receipt_id in text_of(viewer, fresh)
    assert "too old" in sentence(viewer, old)
    assert "adopt it within a minute" in text_of(viewer, run)


def test_what_people_and_services_wrote_about_runs_is_shown_as_text(
    viewer: Client, run: Run
) -> None:
    run_rows.paused(run, reason=EVIL, by=EVIL)
    run_rows.failing(run, EVIL, reason=EVIL, step=EVIL)
    run_rows.lease(run_rows.ambiguous(run), EVIL)
    run_rows.settled(run, output={EVIL: EVIL}, message=EVIL)
    run_rows.event(run, 1, EVIL, note=EVIL)
    attested = run_rows.attestation(run, by=EVIL)
    attested.statements.update(statement=EVIL)
    for row in (run, attested, run.attempts.latest("pk")):
        assert EVIL not in text_of(viewer, row)
    for model in ("run", "runattempt", "attestation"):
        assert EVIL not in viewer.get(list_url(model)).content.decode()


def test_each_kind_of_attention_has_its_filter(
    viewer: Client, tenant: Tenant, builtin: Coordinator
) -> None:
    made: dict[str, Prepare] = {
        "ambiguous": run_rows.ambiguous,
        "never_started": run_rows.failing,
        "barred": run_rows.barred,
        "paused": run_rows.paused,
        "cancelling": run_rows.cancelling,
        "stopped": lambda run: run_rows.failing(run, "deadline_elapsed"),
        "fine": lambda run: run_rows.paused(run, ended_at=rows.ago()),
    }
    found: dict[str, int] = {}
    for focus, prepare in made.items():
        run = run_rows.owned(tenant, builtin)
        prepare(run)
        found[focus] = run.pk
    gone = run_rows.service(tenant, **run_rows.gone())
    found["left"] = run_rows.owned(tenant, gone).pk
    over = run_rows.owned(tenant, gone)
    run_rows.cancelling(over)
    run_rows.ended(over, "CANCELLED")
    for focus in ("ambiguous", "never_started", "barred", "paused", "cancelling", "left"):
        assert listed(viewer, "run", focus=focus) == {found[focus]}, focus
    assert listed(viewer, "run", focus="stopped") == {found["stopped"], found["never_started"]}
    needing = {found[each] for each in ("ambiguous", "never_started", "barred", "left")}
    assert listed(viewer, "run", focus="person") == needing
    told = "Runs need a person: 1 ambiguous, 1 never started, 1 recovering, 1 left"
    assert told in home(viewer)


def test_home_is_silent_while_no_run_needs_a_person(
    viewer: Client, run: Run, tenant: Tenant
) -> None:
    run_rows.one_of_each(rows.tenant("other"))
    run_rows.paused(run)
    assert "need a person" not in home(viewer)


def test_runs_are_found_by_id_definition_kind_and_status(
    viewer: Client, tenant: Tenant, run: Run
) -> None:
    other = run_rows.run(tenant, run_id="import:2026", coordinator="external")
    assert listed(viewer, "run", q="import:") == {other.pk}
    assert listed(viewer, "run", q="%") == set()
    assert listed(viewer, "run", coordinator="builtin") == {run.pk}
    assert listed(viewer, "run", definition=other.definition_id) == {other.pk}
    run_rows.ended(other, "COMPLETED")
    assert listed(viewer, "run", status="OPEN") == {run.pk}
    answer = viewer.get(reverse("admin:find"), {"q": "import:2026"})
    assert answer["Location"] == change_url(other)
    page = viewer.get(reverse("admin:workflows_run_change", args=["import:2026"]))
    assert page.status_code == 200


def test_nothing_of_another_tenants_runs_is_found_or_offered(viewer: Client) -> None:
    other = rows.tenant("other")
    run = run_rows.owned(other, run_rows.service(other))
    for text in (run.run_id, str(run.instance_id)):
        for url, name in (("find", "q"), ("search", "s")):
            answer = viewer.get(reverse(f"admin:{url}"), {name: text, "extended": "1"})
            assert "/change/" not in answer.content.decode()
    text = viewer.get(list_url("run")).content.decode()
    assert run.definition.definition_id not in text
    asked = viewer.get(list_url("run"), {"definition": run.definition_id})
    assert run.definition.definition_id not in asked.content.decode()
    owner = Coordinator.objects.get(tenant=other)
    asked = viewer.get(list_url("run"), {"owner": owner.pk})
    assert owner.instance_id not in asked.content.decode()


def test_attempts_and_coordinators_have_filters_of_their_state(
    viewer: Client, tenant: Tenant, run: Run, builtin: Coordinator
) -> None:
    done, held = run_rows.settled(run), run_rows.ambiguous(run)
    waiting = run_rows.attempt(run, "count")
    assert listed(viewer, "runattempt", outcome="ambiguous") == {held.pk}
    assert listed(viewer, "runattempt", outcome="unsettled") == {held.pk, waiting.pk}
    assert listed(viewer, "runattempt", outcome="succeeded") == {done.pk}
    assert listed(viewer, "runattempt", q=done.dispatch_identity) == {done.pk}
    gone = run_rows.service(tenant, **run_rows.gone())
    assert listed(viewer, "coordinator", liveness="alive") == {builtin.pk}
    assert listed(viewer, "coordinator", liveness="stopped") == {gone.pk}
    assert listed(viewer, "coordinator", kind="external") == {gone.pk}


def test_the_page_of_a_run_asks_no_more_for_more_around_it(viewer: Client, run: Run) -> None:
    run_rows.lease(run_rows.attempt(run))
    run_rows.handoff(run)
    run_rows.attestation(run)
    run_rows.event(run, 1)
    run_rows.paused(run)
    few = queries(viewer, change_url(run))
    run_rows.lease(run_rows.ambiguous(run), "other")
    run_rows.settled(run, "count")
    for i in range(3):
        run_rows.handoff(run, 3 + i)
        run_rows.attestation(run)
        run_rows.event(run, 2 + i)
    assert queries(viewer, change_url(run)) == few <= 25


def test_a_page_of_a_run_reads_neither_all_its_steps_outputs_nor_all_attempts(
    viewer: Client, run: Run
) -> None:
    run_rows.settled(run, output={"text": "x" * 100_000})
    with CaptureQueriesContext(connection) as seen:
        answer = viewer.get(change_url(run))
    assert len(answer.content) < 200_000
    steps = next(each["sql"] for each in seen if 'FROM "workflows_activation"' in each["sql"])
    assert "LEFT(" in steps
    tried = [each["sql"] for each in seen if 'FROM "workflows_runattempt"' in each["sql"]]
    assert all("LIMIT" in each for each in tried)
