"""Submit, cancel and retry."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from mesh import intake, recovery, submissions, workloads
from mesh.models import AttemptStatus, Role, State, Workload, WorkloadEvent
from mesh.workloads import retry_delay
from tests.factories import Held, World, in_state, name
from tests.mesh.checks import AT_REST, MICRO, NOON, Clock, events, ms, refused, unchanged

KIB = 1024
CREATE = ["workload:create"]


def submit(world: World, grant: str | None = None, **members: Any) -> Workload:
    said = world.submission(**members)
    return intake.submit(caller=world.operator, submission=said, grant=grant).workload


# --- Submit: identity and idempotency -------------------------------------------------------------


def test_identity_is_a_hash_over_tenant_application_and_key(world: World) -> None:
    work = submit(world, idempotency_key="straße-1")
    parts = f'["{world.tenant.name}","documents","straße-1"]'
    assert work.workload_id == "workload_" + sha256(parts.encode()).hexdigest()[:24]


def test_submit_makes_ready_work_with_its_first_event(world: World) -> None:
    work = submit(world)
    event = WorkloadEvent.objects.get(workload=work)
    assert (work.state, work.claimable, work.attempt_count) == (State.READY, True, 0)
    assert (event.event, event.sequence) == ("workload.ready", 1)
    assert (event.from_state, event.to_state) == ("CREATED", "READY")
    assert (event.actor, event.at) == ("service:ops", NOON)


def test_same_key_and_content_is_the_same_workload(world: World) -> None:
    said = world.submission()
    first = intake.submit(caller=world.operator, submission=said)
    with unchanged():
        again = intake.submit(caller=world.operator, submission=said)
    assert (first.created, again.created) == (True, False)
    assert again.workload.pk == first.workload.pk


def test_same_key_after_the_work_ended_is_still_that_workload(world: World) -> None:
    held = world.succeeded()
    said = world.submission(idempotency_key=held.workload.idempotency_key)
    with unchanged():
        again = intake.submit(caller=world.operator, submission=said)
    assert (again.created, again.workload.state) == (False, State.SUCCEEDED)


@pytest.mark.parametrize(
    "members",
    [
        {"retry_policy": {"max_attempts": 3, "initial_delay_ms": 1_000, "max_delay_ms": 300_000}},
        {"retry_policy": {"backoff": "exponential", "jitter": 0, "max_unstarted": 10}},
        {"retry_policy": {"retry_on": ["transient_connection", "worker_failure", "timeout"]}},
        {"timeouts": {"cancel_grace_ms": 60_000, "queue_ms": None, "overall_ms": None}},
        {"policy": {"required_labels": {}, "affinity": {}}},
        {"priority": 0, "lost_policy": "requeue", "session_id": "", "not_before": None},
        {"connection_scopes": []},
    ],
)
def test_what_equals_the_defaults_is_the_same_content(
    world: World, members: dict[str, Any]
) -> None:
    first = submit(world, idempotency_key="k")
    assert submit(world, idempotency_key="k", **members).pk == first.pk


def test_content_does_not_depend_on_the_order_of_keys(world: World) -> None:
    first = submit(world, idempotency_key="k", input={"a": 1, "b": [{"c": 2, "d": 3}]})
    again = submit(world, idempotency_key="k", input={"b": [{"d": 3, "c": 2}], "a": 1})
    assert again.pk == first.pk


@pytest.mark.parametrize(
    "members",
    [
        {"input": {"document": "b.pdf"}},
        {"environment": "test"},
        {"definition_id": "other"},
        {"definition_revision": "2"},
        {"trigger": "cron"},
        {"capability_snapshot": []},
        {"priority": 1},
        {"retry_policy": {"max_attempts": 4}},
        {"timeouts": {"queue_ms": 1}},
        {"policy": {"required_labels": {"zone": "a"}}},
        {"not_before": NOON},
        {"connection_scopes": ["db"]},
        {"session_id": "s"},
    ],
)
def test_same_key_with_other_content_is_refused(world: World, members: dict[str, Any]) -> None:
    submit(world, idempotency_key="k")
    with refused("WORKLOAD_IDEMPOTENCY_MISMATCH"):
        submit(world, idempotency_key="k", **members)


def test_the_grant_is_no_part_of_the_content(world: World) -> None:
    first = submit(world, idempotency_key="k")
    assert submit(world, idempotency_key="k", grant="not even a grant").pk == first.pk


def test_the_same_key_in_two_applications_and_two_tenants_is_different_work(world: World) -> None:
    first = submit(world, idempotency_key="k")
    other = World()
    second = submit(other, idempotency_key="k")
    assert first.workload_id != second.workload_id


# --- Submit: checks in their order ----------------------------------------------------------------


BAD_GRANT = "no.grant.atall"
STORED = "stored"
FAULTS: list[tuple[str, dict[str, Any], str | None]] = [
    ("APPLICATION_NOT_FOUND", {"application": "nowhere"}, None),
    ("WORKLOAD_SECRET_REJECTED", {"input": {"password": "x"}}, None),
    ("WORKLOAD_INVALID", {"environment": ""}, None),
    ("WORKLOAD_IDEMPOTENCY_MISMATCH", {"idempotency_key": STORED, "trigger": "x"}, None),
    ("GRANT_INVALID", {}, BAD_GRANT),
    ("LIMIT_EXCEEDED", {"definition_id": "new kind"}, None),
]


@pytest.mark.parametrize("first", range(len(FAULTS) - 1))
def test_submit_tells_the_earlier_of_two_faults(
    world: World, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(world, idempotency_key=STORED)
    monkeypatch.setattr("mesh.requirements.MAX_IN_USE", 1)
    code, one, grant = FAULTS[first]
    _, two, later_grant = FAULTS[first + 1]
    with refused(code):
        submit(world, grant=grant or later_grant, **{**two, **one})


def test_submit_past_the_grant_meets_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(world)
    monkeypatch.setattr("mesh.requirements.MAX_IN_USE", 1)
    _, grant = world.grant(subject="service:ops", capabilities=CREATE)
    with refused("LIMIT_EXCEEDED"):
        submit(world, grant=grant, definition_id="new kind")


@pytest.mark.parametrize(
    ("key", "is_taken"),
    [("run:x", False), ("run:", False), ("", False), ("  ", False), ("Run:x", True), ("x", True)],
)
def test_clients_take_no_blank_key_and_none_of_a_run(
    world: World, key: str, is_taken: bool
) -> None:
    if is_taken:
        assert submit(world, idempotency_key=key).state == State.READY
        return
    with refused("WORKLOAD_INVALID") as caught:
        submit(world, idempotency_key=key)
    assert caught.value.facts["fields"] == ["idempotency_key"]


def labels(number: int, key: int = 3, value: int = 1) -> dict[str, str]:
    return {f"{index:0{key}d}": "v" * value for index in range(number)}


def json_of(size: int) -> str:
    """A string of `size` bytes as JSON."""
    return "x" * (size - 2)


BOUNDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"input": json_of(1024 * KIB)}, {"input": json_of(1024 * KIB + 1)}),
    ({"idempotency_key": "k" * 255}, {"idempotency_key": "k" * 256}),
    ({"definition_id": "d" * 200}, {"definition_id": "d" * 201}),
    ({"environment": "e" * 200}, {"environment": "e" * 201}),
    ({"session_id": "s" * 200}, {"session_id": "s" * 201}),
    (
        {"connection_scopes": [f"s{n}" for n in range(256)]},
        {"connection_scopes": [f"s{n}" for n in range(257)]},
    ),
    (
        {"capability_snapshot": [f"c{n}" for n in range(256)]},
        {"capability_snapshot": [f"c{n}" for n in range(257)]},
    ),
    ({"policy": {"affinity": labels(64)}}, {"policy": {"affinity": labels(65)}}),
    (
        {"policy": {"required_labels": labels(1, key=63)}},
        {"policy": {"required_labels": labels(1, key=64)}},
    ),
    (
        {"policy": {"anti_affinity": labels(1, value=255)}},
        {"policy": {"anti_affinity": labels(1, value=256)}},
    ),
    (
        {"retry_policy": {"retry_on": [f"k{n}" for n in range(256)]}},
        {"retry_policy": {"retry_on": [f"k{n}" for n in range(257)]}},
    ),
    ({"retry_policy": {"max_attempts": 1}}, {"retry_policy": {"max_attempts": 0}}),
    ({"retry_policy": {"initial_delay_ms": 0}}, {"retry_policy": {"initial_delay_ms": -1}}),
    ({"retry_policy": {"jitter": 1}}, {"retry_policy": {"jitter": 1.01}}),
    ({"retry_policy": {"backoff": "fixed"}}, {"retry_policy": {"backoff": "linear"}}),
    ({"timeouts": {"claim_ms": 1}}, {"timeouts": {"claim_ms": 0}}),
    ({"timeouts": {"cancel_grace_ms": 1}}, {"timeouts": {"cancel_grace_ms": None}}),
    ({"priority": 2**31 - 1}, {"priority": 2**31}),
    ({"priority": -(2**31)}, {"priority": -(2**31) - 1}),
]


@pytest.mark.parametrize(("within", "beyond"), BOUNDS)
def test_submit_takes_the_bound_and_refuses_one_over(
    world: World, within: dict[str, Any], beyond: dict[str, Any]
) -> None:
    assert submit(world, **within).state == State.READY
    with refused("WORKLOAD_INVALID") as caught:
        submit(world, **beyond)
    assert len(caught.value.facts["fields"]) == 1


def test_the_size_of_an_input_counts_bytes_and_not_characters(world: World) -> None:
    with refused("WORKLOAD_INVALID"):
        submit(world, input="ß" * (512 * KIB))


@pytest.mark.parametrize("name", ["queue_ms", "claim_ms", "execution_ms", "heartbeat_ms"])
def test_work_with_the_longest_timeout_can_be_claimed_and_started(world: World, name: str) -> None:
    held = world.running(timeouts={name: 10 * 365 * 86_400_000})
    assert held.refresh().state == State.RUNNING


def test_a_worker_submits_no_work(world: World) -> None:
    worker = world.worker().caller
    with refused("PERMISSION_DENIED"):
        intake.submit(caller=worker, submission=world.submission())


# --- Submit: under a grant ------------------------------------------------------------------------


def test_a_viewer_submits_only_under_a_grant_that_names_it(world: World) -> None:
    viewer = world.caller(Role.VIEWER, "service:reader")
    _, token = world.grant(subject="service:reader", capabilities=CREATE)
    with refused("PERMISSION_DENIED"):
        intake.submit(caller=viewer, submission=world.submission())
    made = intake.submit(caller=viewer, submission=world.submission(), grant=token).workload
    assert made.grant is not None
    assert (made.grant.subject, made.grant_digest) == (
        "service:reader",
        sha256(token.encode()).hexdigest(),
    )


def test_submit_judges_whose_the_grant_is_before_its_time(world: World, clock: Clock) -> None:
    grant, token = world.grant(subject="service:other", capabilities=CREATE)
    clock.to(grant.expires_at)
    with refused("WORKLOAD_UNAUTHORIZED"):
        submit(world, grant=token)


def test_submit_under_a_grant_of_another_tenant_is_unauthorized(world: World) -> None:
    _, token = World().grant(subject="service:ops", capabilities=CREATE)
    with refused("WORKLOAD_UNAUTHORIZED"):
        submit(world, grant=token)


def test_submit_under_a_grant_without_the_right_is_unauthorized(world: World) -> None:
    _, token = world.grant(subject="service:ops", capabilities=["workload:read"])
    with refused("WORKLOAD_UNAUTHORIZED"):
        submit(world, grant=token)


@pytest.mark.parametrize(
    ("resources", "is_covered"),
    [
        ([], True),
        ([{"kind": "APPLICATION", "uri": "flow://documents"}], True),
        ([{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/workloads"}], True),
        ([{"kind": "WORKLOAD", "uri": "flow://documents/workloads"}], True),
        ([{"kind": "WORKLOAD", "uri": "flow://documents"}], False),
        ([{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/work"}], False),
        ([{"kind": "RESOURCE_PREFIX", "uri": "flow://documents/workers"}], False),
    ],
)
def test_submit_asks_for_the_scope_of_workloads(
    world: World, resources: list[dict[str, str]], is_covered: bool
) -> None:
    _, token = world.grant(subject="service:ops", capabilities=CREATE, resources=resources)
    if is_covered:
        assert submit(world, grant=token).state == State.READY
        return
    with refused("GRANT_SCOPE_DENIED"):
        submit(world, grant=token)


def test_submit_under_a_grant_for_worker_names_is_refused(world: World) -> None:
    _, token = world.grant(
        subject="service:ops", capabilities=CREATE, constraints={"worker_names": ["*"]}
    )
    with refused("GRANT_SCOPE_DENIED"):
        submit(world, grant=token)


# --- Not before -----------------------------------------------------------------------------------


def test_work_that_is_not_due_is_ready_and_not_claimable(world: World) -> None:
    work = submit(world, not_before=NOON + MICRO)
    assert (work.state, work.claimable, work.available_at) == (State.READY, False, NOON + MICRO)


def test_work_due_at_this_very_moment_is_claimable(world: World) -> None:
    assert submit(world, not_before=NOON).claimable
    assert submit(world, not_before=NOON - timedelta(days=1)).available_at == NOON


# --- Cancel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.READY, State.DEAD_LETTER])
def test_unclaimed_work_and_a_dead_letter_are_cancelled_at_once(world: World, state: str) -> None:
    work = in_state(world, state)
    workloads.cancel(caller=world.operator, workload_id=work.workload_id, reason="no need")
    work.refresh_from_db()
    assert (work.state, work.claimable, work.ended_at) == (State.CANCELLED, False, NOON)
    last = WorkloadEvent.objects.filter(workload=work).latest("sequence")
    assert (last.event, last.evidence["reason"]) == ("workload.cancelled", "no need")


@pytest.mark.parametrize("state", [State.CLAIMED, State.RUNNING, State.CHECKPOINTED])
def test_claimed_work_is_asked_to_stop(world: World, state: str) -> None:
    work = in_state(world, state)
    workloads.cancel(caller=world.operator, workload_id=work.workload_id)
    work.refresh_from_db()
    assert (work.state, work.cancel_requested_at) == (State.CANCELLATION_REQUESTED, NOON)
    assert work.attempts.live().count() == 1


@pytest.mark.parametrize("state", [State.CANCELLED, State.CANCELLATION_REQUESTED])
def test_cancelling_again_changes_nothing(world: World, state: str) -> None:
    work = in_state(world, state)
    with unchanged():
        again = workloads.cancel(caller=world.operator, workload_id=work.workload_id)
    assert again.state == state


def test_work_that_succeeded_is_not_cancelled(world: World) -> None:
    work = in_state(world, State.SUCCEEDED)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        workloads.cancel(caller=world.operator, workload_id=work.workload_id)


def cancelling(world: World, clock: Clock, grace: int) -> Held:
    held = world.running(timeouts={"cancel_grace_ms": grace})
    clock.pass_(ms(1_000))
    workloads.cancel(caller=world.operator, workload_id=held.workload.workload_id)
    return held


def test_after_the_grace_the_sweep_cancels(world: World, clock: Clock) -> None:
    held = cancelling(world, clock, 5_000)
    end = clock.at + ms(5_000)
    clock.to(end - MICRO)
    assert recovery.run("enforce_deadlines").changed == []
    assert held.refresh().state == State.CANCELLATION_REQUESTED
    clock.to(end)
    assert recovery.run("enforce_deadlines").changed == [held.workload.workload_id]
    assert (held.refresh().state, held.attempt.status) == (
        State.CANCELLED,
        AttemptStatus.CANCELLED,
    )
    assert held.worker.refresh().active == 0


def test_the_default_grace_is_a_minute(world: World, clock: Clock) -> None:
    held = world.cancelling()
    assert held.refresh().deadline_at == NOON + ms(60_000)


# --- Retry ----------------------------------------------------------------------------------------


def test_retry_makes_a_dead_letter_ready_with_one_more_attempt(world: World) -> None:
    held = world.dead_letter()
    who = world.caller(Role.OPERATOR, "human:ann")
    workloads.retry(caller=who, workload_id=held.workload.workload_id, reason="fixed")
    work = held.refresh()
    assert (work.state, work.claimable, work.extra_attempts) == (State.READY, True, 1)
    last = WorkloadEvent.objects.filter(workload=work).latest("sequence")
    assert (last.event, last.actor) == ("workload.retried", "human:ann")
    assert (last.evidence["reason"], last.evidence["extra_attempts"]) == ("fixed", 1)


@pytest.mark.parametrize("extra", [1, 2])
def test_extra_attempts_are_all_that_a_retry_gives(world: World, extra: int) -> None:
    held = world.dead_letter(retry_policy={"max_attempts": 1, "retry_on": ["broken"]})
    workloads.retry(
        caller=world.operator, workload_id=held.workload.workload_id, extra_attempts=extra
    )
    failures = 0
    while held.refresh().state == State.READY:
        Workload.objects.filter(pk=held.workload.pk).update(available_at=NOON)
        claim = held.worker.claim()[0]
        held.worker.start(claim)
        held.worker.fail(claim)
        failures += 1
    assert (failures, held.workload.state) == (extra, State.DEAD_LETTER)


@pytest.mark.parametrize("extra", [0, 101])
def test_retry_refuses_extra_attempts_out_of_bounds(world: World, extra: int) -> None:
    work = in_state(world, State.DEAD_LETTER)
    with refused("REQUEST_INVALID"):
        workloads.retry(caller=world.operator, workload_id=work.workload_id, extra_attempts=extra)


@pytest.mark.parametrize(
    "state",
    sorted(set(AT_REST) - {"DEAD_LETTER"}),
)
def test_only_a_dead_letter_is_retried(world: World, state: str) -> None:
    work = in_state(world, state)
    with refused("WORKLOAD_TRANSITION_DENIED"):
        workloads.retry(caller=world.operator, workload_id=work.workload_id)


def test_retry_starts_the_overall_time_and_the_delays_anew(world: World, clock: Clock) -> None:
    held = world.dead_letter(
        timeouts={"overall_ms": 10_000},
        retry_policy={"max_attempts": 1, "retry_on": ["broken"], "initial_delay_ms": 1_000},
    )
    clock.pass_(ms(60_000))
    workloads.retry(caller=world.operator, workload_id=held.workload.workload_id, extra_attempts=2)
    assert held.refresh().deadline_at == clock.at + ms(10_000)
    held.worker.beat()
    claim = held.worker.claim()[0]
    held.worker.start(claim)
    held.worker.fail(claim)
    assert held.refresh().available_at == clock.at + ms(1_000)


@pytest.mark.parametrize("act", [workloads.cancel, workloads.retry])
def test_a_viewer_neither_cancels_nor_retries(world: World, act: Any) -> None:
    work = in_state(world, State.DEAD_LETTER)
    with refused("PERMISSION_DENIED"):
        act(caller=world.caller(Role.VIEWER), workload_id=work.workload_id)


@pytest.mark.parametrize("act", [workloads.cancel, workloads.retry])
def test_work_of_another_tenant_is_not_found(world: World, act: Any) -> None:
    work = in_state(world, State.DEAD_LETTER)
    with refused("WORKLOAD_NOT_FOUND"):
        act(caller=World().operator, workload_id=work.workload_id)


# --- Delays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "n", "expected"),
    [
        ("exponential", 1, 1_000),
        ("exponential", 2, 2_000),
        ("exponential", 5, 16_000),
        ("exponential", 9, 256_000),
        ("exponential", 10, 300_000),
        ("exponential", 1_000, 300_000),
        ("fixed", 1, 1_000),
        ("fixed", 7, 1_000),
    ],
)
def test_delay_before_a_retry(backoff: str, n: int, expected: int) -> None:
    assert retry_delay({**submissions.RETRY_DEFAULTS, "backoff": backoff}, n) == ms(expected)


def test_a_fixed_delay_is_at_most_the_maximum() -> None:
    policy = {**submissions.RETRY_DEFAULTS, "backoff": "fixed", "max_delay_ms": 10}
    assert retry_delay(policy, 1) == ms(10)


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, 1_000), (0.5, 750), (0.999, 500.5)])
def test_jitter_takes_a_random_part_off(
    drawn: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.workloads.random.random", lambda: drawn)
    delay = retry_delay({**submissions.RETRY_DEFAULTS, "jitter": 0.5}, 1)
    assert abs(delay - ms(expected)) <= MICRO


def test_defaults_are_the_documented_ones(world: World) -> None:
    work = submit(world)
    assert work.retry_policy == {
        "max_attempts": 3,
        "initial_delay_ms": 1_000,
        "max_delay_ms": 300_000,
        "backoff": "exponential",
        "retry_on": ["timeout", "transient_connection", "worker_failure"],
        "jitter": 0,
        "max_unstarted": 10,
    }
    assert work.timeouts == {
        "queue_ms": None,
        "claim_ms": None,
        "execution_ms": None,
        "heartbeat_ms": None,
        "overall_ms": None,
        "cancel_grace_ms": 60_000,
    }
    assert (work.priority, work.lost_policy) == (0, "requeue")


def test_workload_ids_are_of_one_form(world: World) -> None:
    assert re.fullmatch(
        r"workload_[0-9a-f]{24}", submit(world, idempotency_key=name("k")).workload_id
    )


def test_an_operator_submits_without_a_grant(world: World) -> None:
    said = replace(world.submission(), priority=5)
    made = intake.submit(caller=world.operator, submission=said).workload
    assert (made.grant, made.requested_by, made.priority) == (None, "service:ops", 5)
    assert events(made) == ["ready"]
