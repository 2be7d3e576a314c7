"""Evidence: what resolvers say, how long it holds, and that bad ones never permit anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from pytest_django import Settings

from mesh import tenancy
from mesh.models import Role
from mesh.tenancy import Caller
from tests.factories import World
from tests.mesh.checks import MICRO, Clock, ms, raises
from workflows import attestations, coordinators, evidence, handoffs
from workflows import authority as authorities
from workflows.evidence import Finding
from workflows.models import Coordinator, HandoffMode, Run, Verdict
from workflows.transitions import Transition

from . import resolvers, rows

GRACE = ms(5_000)
AGE = ms(60_000)


@pytest.fixture
def run(world: World) -> Run:
    return rows.make_run(world, owner=rows.authority("old"))


@pytest.fixture
def step() -> Transition:
    return Transition(HandoffMode.RECOVERY, rows.authority("old"), rows.authority("new", 2))


@pytest.fixture
def asking(settings: Settings) -> Iterator[Callable[..., None]]:
    """Has these resolvers asked, by name of their class, and nobody else."""

    def use(*names: str, says: Callable[[], object] = resolvers.unknown) -> None:
        settings.EVIDENCE_RESOLVERS = [
            name if "." in name else f"tests.workflows.resolvers.{name}" for name in names
        ]
        resolvers.Outside.says = staticmethod(says)

    settings.EVIDENCE_TIMEOUT_MS = 2_000
    resolvers.asked.clear()
    resolvers.released.clear()
    yield use
    resolvers.released.set()


SHIPPED = ("workflows.evidence.CoordinatorEvidence", "workflows.evidence.AttestationEvidence")


def attest(world: World, run: Run, step: Transition) -> None:
    attestations.attest(
        caller=world.caller(Role.ADMIN), run_id=run.run_id, transition=step, statement="gone"
    )


# --- The coordinator -----------------------------------------------------------------------------


def test_an_old_coordinator_that_relinquished_has_stopped(
    world: World, run: Run, step: Transition, clock: Clock
) -> None:
    rows.make_coordinator(world, "old", relinquished_at=clock.at)
    rows.make_coordinator(world, "new")
    found = evidence.resolve(run, step)
    assert (found.verdict, found.resolver, found.at) == (
        Verdict.CONFIRMED,
        "coordinator",
        clock.at,
    )
    assert found.saw["old"] == "old"
    assert found.saw["new"] == "new"


def test_an_ended_lease_counts_after_the_grace(
    world: World, run: Run, step: Transition, clock: Clock, settings: Settings
) -> None:
    old = rows.make_coordinator(world, "old")
    rows.make_coordinator(world, "new", lease_ends_at=clock.at + ms(600_000))
    for at in (clock.at, old.lease_ends_at, old.lease_ends_at + GRACE - MICRO):
        clock.to(at)
        with raises("EVIDENCE_UNKNOWN"):
            evidence.resolve(run, step)
    clock.to(old.lease_ends_at + GRACE)
    assert evidence.resolve(run, step).resolver == "coordinator"
    settings.COORDINATOR_GRACE_MS = 6_000
    with raises("EVIDENCE_UNKNOWN"):
        evidence.resolve(run, step)


def test_what_the_coordinator_resolver_does_not_know_is_unknown(
    world: World, run: Run, step: Transition, clock: Clock
) -> None:
    elsewhere = World()
    cases: list[tuple[dict[str, Any] | None, dict[str, Any] | None]] = [
        (None, {}),
        ({"relinquished_at": clock.at}, None),
        ({"relinquished_at": clock.at}, {"relinquished_at": clock.at}),
        ({"relinquished_at": clock.at}, {"lease_ends_at": clock.at}),
        ({}, {}),
    ]
    rows.make_coordinator(elsewhere, "old", relinquished_at=clock.at)
    rows.make_coordinator(elsewhere, "new")
    for old, new in cases:
        world.tenant.coordinators.all().delete()
        if old is not None:
            rows.make_coordinator(world, "old", **old)
        if new is not None:
            rows.make_coordinator(world, "new", **new)
        with raises("EVIDENCE_UNKNOWN"):
            evidence.resolve(run, step)


def register(service: Caller, lease: int = 1_000) -> None:
    coordinators.register(
        caller=service, instance_id="old", artifact="coordinator:1.0", lease_ms=lease
    )


def test_an_instance_that_was_registered_after_it_got_the_run_says_nothing_of_its_owner(
    world: World, run: Run, step: Transition, clock: Clock
) -> None:
    clock.pass_(MICRO)
    register(tenancy.authenticate(world.token()))
    clock.pass_(ms(60_000))
    rows.make_coordinator(world, "new")
    with raises("EVIDENCE_UNKNOWN"):
        evidence.resolve(run, step)


@pytest.mark.parametrize("lead", [ms(0), ms(500)])
def test_an_instance_that_was_registered_before_it_claimed_the_run_speaks_for_it(
    world: World, step: Transition, clock: Clock, lead: timedelta
) -> None:
    run = rows.make_run(world)
    clock.pass_(ms(60_000))
    service = tenancy.authenticate(world.token())
    register(service)
    clock.pass_(lead)
    authorities.claim(caller=service, run_id=run.run_id, authority=rows.authority("old"))
    clock.pass_(ms(60_000))
    rows.make_coordinator(world, "new")
    assert evidence.resolve(run, step).resolver == "coordinator"


def test_who_got_the_run_by_a_hand_over_had_to_be_registered_by_then(
    world: World, clock: Clock, settings: Settings
) -> None:
    first, old = rows.authority("first"), rows.authority("old", 2)
    run = rows.make_run(world, owner=first)
    attest(world, run, Transition(HandoffMode.RECOVERY, first, old))
    done = handoffs.hand_over(
        caller=world.operator,
        run_id=run.run_id,
        mode=HandoffMode.RECOVERY,
        expected=first,
        replacement=old,
    )
    step = Transition(HandoffMode.RECOVERY, old, rows.authority("new", 3))
    clock.pass_(MICRO)
    register(tenancy.authenticate(world.token()))
    clock.pass_(ms(60_000))
    rows.make_coordinator(world, "new")
    with raises("EVIDENCE_UNKNOWN"):
        evidence.resolve(run, step)
    Coordinator.objects.filter(instance_id="old").update(registered_at=done.handoff.at)
    assert evidence.resolve(run, step).resolver == "coordinator"


# --- Attestations --------------------------------------------------------------------------------


def test_an_attestation_of_this_very_step_confirms_it_for_a_minute(
    world: World, run: Run, step: Transition, clock: Clock
) -> None:
    attest(world, run, step)
    made = clock.at
    clock.pass_(AGE)
    found = evidence.resolve(run, step)
    assert (found.resolver, found.at) == ("attestation", made)
    clock.pass_(MICRO)
    with raises("EVIDENCE_EXPIRED"):
        evidence.resolve(run, step)


@pytest.mark.parametrize(
    "other",
    [
        {"replacement": rows.authority("third", 2)},
        {"replacement": rows.authority("new", 2, target_artifact_id="other:2")},
        {"expected": rows.authority("older")},
        {"mode": HandoffMode.NORMAL},
    ],
)
def test_a_fresh_attestation_of_another_step_from_there_wins_over_all(
    world: World, run: Run, step: Transition, clock: Clock, other: dict[str, Any]
) -> None:
    attest(world, run, step)
    attest(world, run, replace(step, **other))
    rows.make_coordinator(world, "old", relinquished_at=clock.at)
    rows.make_coordinator(world, "new", lease_ends_at=clock.at + ms(600_000))
    clock.pass_(AGE)
    with raises("EVIDENCE_MISMATCH"):
        evidence.resolve(run, step)
    clock.pass_(MICRO)
    assert evidence.resolve(run, step).resolver == "coordinator"


def test_attestations_of_other_runs_and_generations_say_nothing(
    world: World, run: Run, step: Transition
) -> None:
    attest(world, rows.make_run(world), step)
    attest(
        world,
        run,
        replace(step, expected=rows.authority("new", 2), replacement=rows.authority("old", 3)),
    )
    with raises("EVIDENCE_UNKNOWN"):
        evidence.resolve(run, step)


# --- All of them ---------------------------------------------------------------------------------


def test_the_first_that_confirms_and_is_fresh_is_taken(
    world: World, run: Run, step: Transition, asking: Callable[..., None]
) -> None:
    attest(world, run, step)
    asking("Outside", *SHIPPED, says=resolvers.confirmed(AGE))
    assert evidence.resolve(run, step).resolver == "outside"
    asking("Outside", *SHIPPED, says=resolvers.confirmed(AGE + MICRO))
    assert evidence.resolve(run, step).resolver == "attestation"
    asking("Outside", says=resolvers.confirmed(AGE + MICRO))
    with raises("EVIDENCE_EXPIRED"):
        evidence.resolve(run, step)


def test_another_transition_wins_also_when_it_is_said_last(
    world: World, run: Run, step: Transition, asking: Callable[..., None]
) -> None:
    attest(world, run, step)
    asking(*SHIPPED, "Outside", says=resolvers.other)
    with raises("EVIDENCE_MISMATCH") as caught:
        evidence.resolve(run, step)
    assert caught.value.facts == {"resolver": "outside"}


def test_without_any_resolver_nothing_is_known(
    run: Run, step: Transition, asking: Callable[..., None]
) -> None:
    asking()
    with raises("EVIDENCE_UNKNOWN"):
        evidence.resolve(run, step)


def test_a_resolver_is_told_what_it_needs_and_no_token(
    world: World, run: Run, asking: Callable[..., None]
) -> None:
    asking("Outside", says=resolvers.confirmed(host="gone"))
    old = rows.authority("old", fencing_token="s3cret-old")
    step = Transition(HandoffMode.NORMAL, old, rows.authority("new", 2, fencing_token="s3cret-new"))
    found = evidence.resolve(run, step)
    assert found.saw == {"host": "gone"}
    (question,) = resolvers.asked
    assert (question.tenant, question.application) == (world.tenant.name, world.application)
    assert (question.run_id, question.transition) == (run.run_id, step)
    for authority in (question.transition.expected, question.transition.replacement):
        assert authority.fencing_token is None


# --- Bad ones ------------------------------------------------------------------------------------


def _saying(**members: Any) -> Callable[[], object]:
    return lambda: replace(resolvers.confirmed()(), **members)


@pytest.mark.parametrize(
    "says",
    [
        lambda: None,
        lambda: True,
        lambda: "CONFIRMED",
        lambda: Verdict.CONFIRMED,
        _saying(verdict="certainly"),
        _saying(at=None),
        _saying(at=datetime(2030, 1, 1, 12)),  # noqa: DTZ001  # that is the fault
        lambda: resolvers.confirmed(-ms(5_000) - MICRO)(),
        _saying(saw=None),
        _saying(saw={"what": object()}),
        _saying(saw={"what": "a\0b"}),
        _saying(saw={"what": "\ud800"}),
        _saying(saw={"token": "t"}),
        _saying(saw={"what": "x" * 70_000}),
    ],
)
def test_nonsense_is_unknown(
    says: Callable[[], object], run: Run, step: Transition, asking: Callable[..., None]
) -> None:
    asking("Outside", says=says)
    with raises("EVIDENCE_UNKNOWN"):
        evidence.resolve(run, step)


def test_a_number_that_json_has_none_for_is_stored_as_null(
    run: Run, step: Transition, asking: Callable[..., None]
) -> None:
    asking("Outside", says=_saying(saw={"load": float("nan")}))
    assert evidence.resolve(run, step).saw == {"load": None}


def test_one_outside_names_no_receipt_and_no_other_resolver(
    run: Run, step: Transition, asking: Callable[..., None]
) -> None:
    asking("Outside", says=_saying(receipt_id="mine", resolver="coordinator"))
    found = evidence.resolve(run, step)
    assert (found.resolver, found.receipt_id) == ("outside", None)


@pytest.mark.parametrize("bad", ["Broken", "Exiting", "Reading"])
def test_one_that_raises_is_unknown_and_keeps_its_words(
    bad: str,
    world: World,
    run: Run,
    step: Transition,
    asking: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    asking(bad)
    with raises("EVIDENCE_UNKNOWN"):
        evidence.resolve(run, step)
    assert f"Evidence resolver {bad.lower()} failed" in caplog.text
    assert "hunter2" not in caplog.text
    attest(world, run, step)
    asking(bad, *SHIPPED)
    assert evidence.resolve(run, step).resolver == "attestation"


def test_one_that_hangs_is_unknown_in_time_and_is_not_asked_for_ever(
    world: World,
    run: Run,
    step: Transition,
    asking: Callable[..., None],
    settings: Settings,
) -> None:
    attest(world, run, step)
    asking("Hanging", *SHIPPED)
    settings.EVIDENCE_TIMEOUT_MS = 20
    for _ in range(6):
        began = time.monotonic()
        assert evidence.resolve(run, step).resolver == "attestation"
        assert time.monotonic() - began < 2
    assert len(resolvers.asked) == 4
    hanging = [each for each in threading.enumerate() if each.name == "evidence Hanging"]
    assert len(hanging) == 4
    # Such threads do not keep the process from ending.
    assert all(each.daemon for each in hanging)
    resolvers.released.set()
    for each in hanging:
        each.join(10)
    resolvers.released.clear()
    evidence.resolve(run, step)
    assert len(resolvers.asked) == 5


def test_one_that_reads_the_database_for_too_long_is_unknown(
    run: Run, step: Transition, asking: Callable[..., None], settings: Settings
) -> None:
    asking("Slow")
    settings.EVIDENCE_TIMEOUT_MS = 20
    with raises("EVIDENCE_UNKNOWN"):
        evidence.resolve(run, step)
    with connection.cursor() as cursor:
        cursor.execute("set local statement_timeout = '15s'")


@pytest.mark.parametrize(
    "path", ["nowhere.Nothing", "workflows.evidence.resolve", "json.JSONDecoder"]
)
def test_a_setting_that_leads_to_no_resolver_is_told_at_once(
    path: str, asking: Callable[..., None]
) -> None:
    asking(path)
    with pytest.raises(ImproperlyConfigured, match="FENCEPOST_EVIDENCE_RESOLVERS"):
        evidence.resolvers()


def test_a_finding_is_not_evidence_by_itself(run: Run, step: Transition, clock: Clock) -> None:
    found = Finding(Verdict.CONFIRMED, clock.at)
    evidence.require_fresh(found, clock.at + AGE)
    with raises("EVIDENCE_EXPIRED"):
        evidence.require_fresh(found, clock.at + AGE + MICRO)
