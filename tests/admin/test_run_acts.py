"""Acts on runs: each accepted and refused, with its reason, and foretold by its button."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from mesh import tenancy
from mesh.models import AuditEntry, Role, State, Tenant
from tests.workflows.checks import PEM
from workflows import instances
from workflows.authority import Authority
from workflows.models import (
    Attestation,
    CancellationRequest,
    ControlFailure,
    Coordinator,
    Handoff,
    HandoffMode,
    RecoveryBarrier,
    Run,
    RunEvent,
    RunStatus,
    UserPause,
)

from . import rows, run_rows
from .test_access import act_url, change_url
from .test_acts import said

SignIn = Callable[[User | None], Client]
ACTS = ["pause", "resume", "clear", "adopt", "attest", "cancel"]


@pytest.fixture
def builtin(tenant: Tenant) -> Coordinator:
    return run_rows.builtin(tenant)


@pytest.fixture
def run(tenant: Tenant, builtin: Coordinator) -> Run:
    """An open run of a living built-in coordinator."""
    return run_rows.owned(tenant, builtin)


@pytest.fixture
def unseen(tenant: Tenant, builtin: Coordinator) -> Run:
    """An open run of a service that lives, as far as the server can see."""
    return run_rows.owned(tenant, run_rows.service(tenant))


@pytest.fixture
def attester(tenant: Tenant, as_: SignIn) -> Client:
    """A viewer with the permission to attest."""
    person = rows.person(tenant, Role.VIEWER, "walt")
    person.user_permissions.add(Permission.objects.get(codename="attest_handoff"))
    return as_(person)


def do(client: Client, act: str, *wanted: Any, reason: str = "seen at the site") -> Any:
    given = {"id": [each.pk for each in wanted], "reason": reason}
    model = wanted[0]._meta.model_name
    return client.post(act_url(model, act), given, follow=True)


def buttons(client: Client, row: Any) -> dict[str, str]:
    shown = client.get(change_url(row)).context["buttons"]
    return {each.act.name: each.why_not for each in shown}


def test_pause_and_resume_are_done_and_recorded_with_person_and_reason(
    operator: Client, run: Run
) -> None:
    assert "1 done, 0 refused" in said(do(operator, "pause", run))[0]
    pause = UserPause.objects.get(run=run)
    assert (pause.by, pause.reason) == ("human:ben", "seen at the site")
    assert "Paused" in str(operator.get(change_url(run)).context["page"].sentence)
    do(operator, "resume", run, reason="rebuilt")
    pause.refresh_from_db()
    assert (pause.ended_by, pause.end_reason) == ("human:ben", "rebuilt")
    told = RunEvent.objects.filter(run=run).values_list("event", "actor")
    assert list(told) == [("run.paused", "human:ben"), ("run.resumed", "human:ben")]
    noted = AuditEntry.objects.get(action="run.paused", target=run.run_id)
    assert (noted.actor, noted.reason) == ("human:ben", "seen at the site")


def test_cancel_asks_that_the_run_ends(operator: Client, run: Run) -> None:
    do(operator, "cancel", run, reason="wrong document")
    asked = CancellationRequest.objects.get(run=run)
    assert (asked.by, asked.reason) == ("human:ben", "wrong document")
    run.refresh_from_db()
    assert run.status == RunStatus.OPEN


def test_clear_ends_the_control_failure(operator: Client, run: Run) -> None:
    failure = run_rows.failing(run)
    run.activations.filter(step="count").update(unstarted=21, last_number=21)
    do(operator, "clear", run, reason="the worker is back")
    failure.refresh_from_db()
    assert (failure.ended_by, failure.end_reason) == ("human:ben", "the worker is back")
    assert run.activations.get(step="count").unstarted == 0


@pytest.mark.parametrize("act", ["pause", "resume", "clear", "adopt", "attest", "cancel"])
def test_acts_on_a_run_that_ended_are_refused(
    admin: Client, tenant: Tenant, builtin: Coordinator, act: str
) -> None:
    gone = run_rows.service(tenant, **run_rows.gone())
    run = run_rows.ended(run_rows.owned(tenant, gone), "COMPLETED")
    assert "0 done, 1 refused: RUN_TERMINAL" in said(do(admin, act, run))[0]
    assert buttons(admin, run)[act] == "It has ended."
    assert not RunEvent.objects.filter(run=run).exists()


def test_a_run_that_its_service_left_is_adopted_on_evidence(
    operator: Client, tenant: Tenant, builtin: Coordinator
) -> None:
    run = run_rows.owned(tenant, run_rows.service(tenant, **run_rows.gone()))
    run_rows.attempt(run, state=State.CANCELLATION_REQUESTED)
    assert buttons(operator, run)["adopt"] == ""
    assert "1 done" in said(do(operator, "adopt", run))[0]
    run.refresh_from_db()
    assert (run.coordinator, run.instance_id) == ("builtin", builtin.instance_id)
    handoff = Handoff.objects.get(run=run)
    assert (handoff.mode, handoff.by) == (HandoffMode.RECOVERY, "human:ben")
    assert RecoveryBarrier.objects.filter(run=run, ended_at__isnull=True).exists()
    assert buttons(operator, run)["adopt"] == "The built-in coordinator drives it already."


def test_a_run_that_nobody_has_is_adopted_at_once(operator: Client, tenant: Tenant) -> None:
    run = run_rows.run(tenant, coordinator="external")
    assert buttons(operator, run)["adopt"] == ""
    do(operator, "adopt", run)
    run.refresh_from_db()
    assert (run.coordinator, run.generation) == ("builtin", 1)


def test_a_run_whose_owner_may_be_at_work_is_not_adopted(operator: Client, unseen: Run) -> None:
    assert "Its coordinator is alive" in buttons(operator, unseen)["adopt"]
    assert "refused: EVIDENCE_UNKNOWN" in said(do(operator, "adopt", unseen))[0]
    unseen.refresh_from_db()
    assert unseen.generation == 1


def test_an_owner_that_was_never_registered_is_to_be_attested(
    admin: Client, tenant: Tenant
) -> None:
    run = run_rows.run(tenant, owner=Authority("importer:1", "unknown", 1, "token"))
    assert "attest it first" in buttons(admin, run)["adopt"]
    page = admin.get(f"{act_url('run', 'attest')}?id={run.pk}").content.decode()
    assert "It was never registered" in page


def test_a_late_owner_is_not_taken_for_gone(operator: Client, tenant: Tenant) -> None:
    late = run_rows.service(tenant, lease_ends_at=rows.ago(seconds=1))
    run = run_rows.owned(tenant, late)
    assert "counts as gone within seconds" in buttons(operator, run)["adopt"]
    assert "EVIDENCE_UNKNOWN" in said(do(operator, "adopt", run))[0]


def test_an_attested_stop_lets_the_run_be_adopted(
    admin: Client, operator: Client, unseen: Run
) -> None:
    do(admin, "attest", unseen, reason="its host burnt down")
    attested = Attestation.objects.get(run=unseen)
    statement = attested.statements.get()
    assert (statement.by, statement.statement) == ("human:ann", "its host burnt down")
    assert attested.completed_at
    assert buttons(operator, unseen)["adopt"] == ""
    assert "1 done" in said(do(operator, "adopt", unseen))[0]
    handoff = Handoff.objects.get(run=unseen)
    assert handoff.receipt.receipt_id == attested.receipt_id
    assert handoff.receipt.resolver == "attestation"


def test_adopting_takes_the_owner_that_was_named_by_who_attested(
    admin: Client, unseen: Run, builtin: Coordinator, tenant: Tenant
) -> None:
    do(admin, "attest", unseen)
    run_rows.builtin(tenant, heartbeat_at=rows.ago(seconds=-1))
    assert "1 done" in said(do(admin, "adopt", unseen))[0]
    unseen.refresh_from_db()
    assert unseen.instance_id == builtin.instance_id


def test_an_attested_owner_that_died_meanwhile_takes_nothing(
    admin: Client, unseen: Run, builtin: Coordinator
) -> None:
    do(admin, "attest", unseen)
    Coordinator.objects.filter(pk=builtin.pk).update(relinquished_at=rows.ago())
    assert "refused: EVIDENCE_MISMATCH" in said(do(admin, "adopt", unseen))[0]


def test_only_who_may_attest_can(
    operator: Client, viewer: Client, attester: Client, unseen: Run
) -> None:
    for client in (operator, viewer):
        assert "permission of its own" in buttons(client, unseen)["attest"]
        assert client.get(f"{act_url('run', 'attest')}?id={unseen.pk}").status_code == 403
        assert do(client, "attest", unseen).status_code == 403
    assert not Attestation.objects.exists()
    assert buttons(attester, unseen)["attest"] == ""
    assert buttons(attester, unseen)["pause"] == "Needs the role operator."
    do(attester, "attest", unseen)
    assert Attestation.objects.get().statements.get().by == "human:walt"


def test_the_permission_to_attest_reaches_no_other_tenants_run(
    attester: Client, builtin: Coordinator
) -> None:
    other = rows.tenant("other")
    run = run_rows.owned(other, run_rows.service(other))
    assert "1 refused: NOT_FOUND" in do(attester, "attest", run).content.decode()
    assert not Attestation.objects.exists()


def test_a_run_of_a_living_builtin_coordinator_is_not_attested(
    admin: Client, tenant: Tenant, run: Run
) -> None:
    run_rows.builtin(tenant, heartbeat_at=rows.ago(seconds=-1))
    assert buttons(admin, run)["attest"] == "The built-in coordinator drives it already."
    assert "refused: TRANSITION_INVALID" in said(do(admin, "attest", run))[0]


def test_a_run_that_nobody_has_is_not_attested(admin: Client, tenant: Tenant) -> None:
    run = run_rows.run(tenant, coordinator="external")
    assert buttons(admin, run)["attest"] == "Nobody has it: adopt it."
    assert "refused: AUTHORITY_STALE" in said(do(admin, "attest", run))[0]


def test_one_run_is_attested_at_a_time(admin: Client, unseen: Run, run: Run) -> None:
    answer = do(admin, "attest", unseen, run)
    assert "At most 1 row" in said(answer)[0]
    assert not Attestation.objects.exists()


def _two_people(tenant: Tenant) -> None:
    tenancy.create_tenant(name=tenant.name, applications=[], actor="system:test", attestations=2)
    tenant.refresh_from_db()


def test_a_second_person_confirms_where_the_tenant_asks_for_two(
    admin: Client, attester: Client, tenant: Tenant, unseen: Run
) -> None:
    _two_people(tenant)
    page = admin.get(f"{act_url('run', 'attest')}?id={unseen.pk}").content.decode()
    assert "A second person must confirm it." in page
    do(admin, "attest", unseen)
    run_rows.builtin(tenant, heartbeat_at=rows.ago(seconds=-1))
    do(admin, "attest", unseen)
    row = Attestation.objects.get()
    assert row.completed_at is None
    assert "EVIDENCE_UNKNOWN" in said(do(admin, "adopt", unseen))[0]
    assert "another person confirms it" in buttons(admin, row)["confirm"]
    assert "refused: PERMISSION_DENIED" in said(do(admin, "confirm", row))[0]
    assert buttons(attester, row)["confirm"] == ""
    form = attester.get(f"{act_url('attestation', 'confirm')}?id={row.pk}").content.decode()
    assert str(unseen.instance_id) in form
    assert "1 done" in said(do(attester, "confirm", row, reason="I was there"))[0]
    row.refresh_from_db()
    assert row.completed_at
    assert list(row.statements.values_list("by", "statement"))[1] == ("human:walt", "I was there")
    assert "complete" in buttons(attester, row)["confirm"]
    assert "1 done" in said(do(admin, "adopt", unseen))[0]


def test_an_operator_confirms_nothing(operator: Client, unseen: Run) -> None:
    row = run_rows.attestation(unseen, required=2)
    assert "permission of its own" in buttons(operator, row)["confirm"]
    assert do(operator, "confirm", row).status_code == 403
    assert row.statements.count() == 1


def test_held_work_of_a_run_is_resolved_on_the_page_it_leads_to(operator: Client, run: Run) -> None:
    held = run_rows.ambiguous(run)
    assert change_url(held.workload) in operator.get(change_url(run)).content.decode()
    given = {"id": held.workload_id, "reason": "it was sent", "resolution": "succeeded"}
    operator.post(act_url("workload", "resolve"), given)
    page = operator.get(change_url(run))
    assert "publish done, and about to be settled" in str(page.context["page"].sentence)


def test_an_act_on_several_runs_reports_each(operator: Client, tenant: Tenant, run: Run) -> None:
    over = run_rows.ended(run_rows.run(tenant), "CANCELLED")
    text = do(operator, "pause", run, over).content.decode()
    assert "1 done, 1 refused: RUN_TERMINAL" in text


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("reason", ["", " ", "x" * 1_001, PEM])
def test_an_act_on_a_run_without_a_proper_reason_is_not_done(
    admin: Client, unseen: Run, act: str, reason: str
) -> None:
    run_rows.failing(unseen)
    before = Run.objects.filter(pk=unseen.pk).values().get()
    answer = do(admin, act, unseen, reason=reason)
    if "form" in (answer.context or {}):
        assert answer.context["form"].errors["reason"]
    else:
        assert "0 done, 1 refused" in said(answer)[0]
    assert Run.objects.filter(pk=unseen.pk).values().get() == before
    assert ControlFailure.objects.get(run=unseen).ended_at is None


STATES: dict[str, Callable[[Run], object]] = {
    "plain": lambda run: None,
    "paused": run_rows.paused,
    "cancelling": run_rows.cancelling,
    "failing": run_rows.failing,
    "barred": run_rows.barred,
    "ended": lambda run: run_rows.ended(run, "COMPLETED"),
}
OWNERS: dict[str, Callable[[Tenant], Run]] = {
    "nobody": lambda of: run_rows.run(of, coordinator="external"),
    "builtin": lambda of: run_rows.owned(of, run_rows.builtin(of)),
    "service": lambda of: run_rows.owned(of, run_rows.service(of)),
    "gone": lambda of: run_rows.owned(of, run_rows.service(of, **run_rows.gone())),
}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("state", STATES)
def test_buttons_of_a_run_foretell_the_answer(
    admin: Client, tenant: Tenant, state: str, owner: str
) -> None:
    run = OWNERS[owner](tenant)
    STATES[state](run)
    for act in ("resume", "clear", "adopt"):
        before = Run.objects.filter(pk=run.pk).values().get()
        why_not = buttons(admin, run)[act]
        done = "1 done" in said(do(admin, act, run))[0]
        is_same = Run.objects.filter(pk=run.pk).values().get() == before
        if (act, state, owner) == ("adopt", "barred", "gone"):
            continue  # a barrier that belongs to nobody: no run comes to it by the domain
        assert done if not why_not else is_same, (act, why_not)


def test_showing_a_form_registers_no_coordinator(admin: Client, tenant: Tenant) -> None:
    run = run_rows.owned(tenant, run_rows.service(tenant))
    for act in ("adopt", "attest"):
        assert admin.get(f"{act_url('run', act)}?id={run.pk}").status_code == 200
    assert not Coordinator.objects.filter(token__isnull=True).exists()
    assert instances.own_instance() is None
