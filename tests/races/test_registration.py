"""A worker registers while its earlier process, a sweep or another machine acts for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mesh import claims, leases, liveness, placing, pools, requirements, settlement, workers
from mesh.models import Health, Lifecycle, State, Worker, WorkerEvent
from mesh.pools import Change
from mesh.registration import Registered
from mesh.tenancy import Caller
from tests.factories import Held, Member, World, name

from .checks import assert_sound
from .steering import Actor, Gate, answers, at_once, codes, hold


def _again(world: World, member: Member, **members: Any) -> Callable[[], Registered]:
    """Register anew as the machine that knows the worker's credential."""
    said = world.registration(name=member.row.name, **members)
    return partial(liveness.register, registration=said, credential=member.credential)


def _reconcile(member: Member, caller: Caller, *known: str) -> liveness.Reconciliation:
    return liveness.reconcile(
        caller=caller,
        worker_id=member.worker_id,
        worker_version=member.row.version,
        capability_version=member.row.capability_version,
        known_claims=list(known),
        running_attempts=[],
        completed_attempts=[],
        failed_attempts=[],
        timestamp=member.row.last_seen_at,
    )


def _calls_of_the_earlier_process(held: Held, caller: Caller) -> dict[str, Callable[[], Any]]:
    shown = {**held.presenting, "caller": caller}
    worker_id = held.worker.worker_id
    row = held.worker.row
    return {
        "claim": partial(claims.claim, caller=caller, worker_id=worker_id, maximum=1),
        "heartbeat": partial(
            liveness.heartbeat,
            caller=caller,
            worker_id=worker_id,
            version=row.version,
            capability_version=row.capability_version,
            health=Health.HEALTHY.value,
            timestamp=row.last_seen_at,
            running_claims=[],
        ),
        "start": partial(leases.start, **shown),
        "renew": partial(leases.renew, **shown),
        "checkpoint": partial(leases.checkpoint, **shown, state={}),
        "complete": partial(settlement.complete, **shown, result_id="r", output=1),
        "release": partial(settlement.release, **shown),
        "drain": partial(workers.drain, caller=caller, worker_id=worker_id),
        "reconcile": partial(_reconcile, held.worker, caller),
    }


CALLS = ["claim", "heartbeat", "start", "renew", "checkpoint", "complete", "release", "drain"]


@pytest.mark.parametrize("call", [*CALLS, "reconcile"])
def test_a_call_of_the_earlier_process_that_waited_for_the_register_is_locked_out(
    world: World, call: str
) -> None:
    """It was let in by a credential that is replaced by the time it acts."""
    held = world.claimed()
    world.workload()
    earlier = workers.authenticate(held.worker.credential)
    again = _again(world, held.worker)
    with hold(held.worker.row):
        register = Actor(again)
        register.wait_until_blocked()
        late = Actor(_calls_of_the_earlier_process(held, earlier)[call])
        late.wait_until_blocked(by=register)
    registered = register.value()
    assert registered.reconcile_required
    assert late.code() == "TOKEN_INVALID"
    assert Worker.objects.get(pk=registered.worker.pk).is_unreconciled
    assert held.refresh().state == State.CLAIMED
    assert_sound()


def test_a_stalled_start_of_the_earlier_process_is_locked_out_after_the_reconcile_too(
    world: World,
) -> None:
    """Else both processes would be told to go."""
    held = world.claimed()
    earlier = workers.authenticate(held.worker.credential)
    registered = _again(world, held.worker)()
    new = workers.authenticate(registered.credential)
    _reconcile(held.worker, new, held.claim.claim_id)
    start = _calls_of_the_earlier_process(held, earlier)["start"]
    assert Actor(start).code() == "TOKEN_INVALID"
    leases.start(**{**held.presenting, "caller": new})
    assert Actor(start).code() == "TOKEN_INVALID"


@pytest.mark.parametrize("call", ["claim", "heartbeat", "start", "complete"])
def test_a_register_that_waits_for_a_call_of_the_earlier_process_sees_what_it_did(
    world: World, call: str
) -> None:
    held = world.running() if call == "complete" else world.claimed()
    earlier = workers.authenticate(held.worker.credential)
    again = _again(world, held.worker)
    with hold(held.worker.row):
        first = Actor(_calls_of_the_earlier_process(held, earlier)[call])
        first.wait_until_blocked()
        register = Actor(again)
        register.wait_until_blocked(by=first)
    first.value()
    assert register.value().reconcile_required is (call != "complete")
    assert_sound()


def test_two_registers_of_one_new_name_at_once_make_one_worker(world: World) -> None:
    for _ in range(5):
        said = world.registration(name=name("twin"))
        ended = at_once(*[partial(liveness.register, registration=said, credential=None)] * 4)
        assert [each.created for each in answers(ended)] == [True]
        assert codes(ended) == ["WORKER_UNAUTHORIZED"] * 3
        row = Worker.objects.get(name=said.name)
        assert row.incarnation == 1
        assert WorkerEvent.objects.filter(worker=row).count() == row.event_sequence == 1


def test_registers_with_a_grant_for_the_name_displace_each_other_one_by_one(world: World) -> None:
    _, token = world.grant(constraints={"worker_names": ["w"]})
    said = world.registration(name="w", grant=token)
    register = partial(liveness.register, registration=said, credential=None)
    ended = answers(at_once(*[register] * 5))
    assert sorted(each.worker.incarnation for each in ended) == [1, 2, 3, 4, 5]
    assert sum(each.created for each in ended) == 1
    last = max(ended, key=lambda each: each.worker.incarnation)
    workers.authenticate(last.credential)
    assert WorkerEvent.objects.filter(event="worker.displaced").count() == 4


def test_of_two_registers_over_a_silent_worker_at_once_one_wins(world: World) -> None:
    for _ in range(5):
        member = world.worker()
        Worker.objects.filter(pk=member.row.pk).update(last_seen_at="2020-01-01T00:00:00Z")
        said = world.registration(name=member.row.name)
        register = partial(liveness.register, registration=said, credential=None)
        ended = at_once(*[register] * 3)
        assert len(answers(ended)) == 1
        assert codes(ended) == ["WORKER_UNAUTHORIZED"] * 2
        assert member.refresh().incarnation == 2


@pytest.mark.parametrize("register_first", [True, False])
def test_a_register_that_abandons_against_a_complete(world: World, register_first: bool) -> None:
    held = world.running(retry_policy={"initial_delay_ms": 0})
    register = _again(world, held.worker, abandon_claims=True)
    complete = partial(settlement.complete, **held.presenting, result_id="r", output=1)
    calls: list[Callable[[], Any]] = [register, complete]
    with hold(held.worker.row):
        first: Actor[Any] = Actor(calls[0 if register_first else 1])
        first.wait_until_blocked()
        second: Actor[Any] = Actor(calls[1 if register_first else 0])
        second.wait_until_blocked(by=first)
    first.value()
    if register_first:
        assert second.code() == "WORKLOAD_CLAIM_INVALID"
    else:
        second.value()
    assert held.refresh().state == (State.READY if register_first else State.SUCCEEDED)
    assert held.worker.refresh().active == 0
    assert held.worker.row.lifecycle == Lifecycle.READY
    assert_sound()


def test_a_pool_changes_while_its_member_registers_anew(world: World) -> None:
    member, other = world.worker(), world.worker()
    world.pool(other, pool_id="gpu")
    change: Change = {"worker_ids": [member.worker_id, other.worker_id]}
    with Gate(requirements, "forget") as gate:
        register = Actor(_again(world, member))
        gate.wait_for_arrival()
        join = Actor(partial(pools.change, caller=world.operator, pool_id="gpu", change=change))
        join.wait_until_blocked(by=register)
        gate.let_through()
        assert not register.value().created
        assert join.value().workers.count() == 2
    assert_sound()


def test_remove_against_claim_leaves_no_work_with_a_removed_worker(world: World) -> None:
    for _ in range(5):
        member = world.worker()
        work = world.workload()
        ended = at_once(
            partial(workers.remove, caller=world.operator, worker_id=member.worker_id),
            partial(claims.claim, caller=member.caller, worker_id=member.worker_id, maximum=1),
        )
        row = member.refresh()
        assert row.is_removed is (row.active == 0)
        assert codes(ended) in (["WORKER_BUSY"], ["WORKER_NOT_FOUND"])
        if row.is_removed:
            placing.place(
                caller=world.operator,
                workload_id=work.workload_id,
                worker_id=world.worker().worker_id,
            )
    assert_sound()
