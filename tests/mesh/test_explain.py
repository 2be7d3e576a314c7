"""Why does it not run? Each state with its sentence and its facts, down to the root."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from mesh import clauses, explain, queues, workers
from mesh.explain import Explanation
from mesh.models import Dependency, Role, Tenant, Worker, Workload
from tests.factories import Member, World, in_state
from tests.mesh.checks import AT_REST, NOON, Clock, counted, ms, refused, unchanged


def why(world: World, work: Workload) -> Explanation:
    return explain.explain(caller=world.caller(Role.VIEWER), workload_id=work.workload_id)


def depend(work: Workload, *on: Workload) -> None:
    """Let `work` wait for others."""
    Dependency.objects.bulk_create(Dependency(workload=work, depends_on=each) for each in on)
    Workload.objects.filter(pk=work.pk).update(open_dependencies=len(on), claimable=False)


def claimed_lately(world: World, worker: Member, number: int) -> None:
    for _ in range(number):
        world.workload()
    worker.claim(number)


# --- Work that is not READY -----------------------------------------------------------------------

UNREADY = {
    "CLAIMED": "It is claimed by worker W since 2030-01-01 12:00:00 UTC (3 min) and not started.",
    "RUNNING": "It is RUNNING on worker W since 2030-01-01 12:00:00 UTC (3 min).",
    "CHECKPOINTED": "It is CHECKPOINTED on worker W since 2030-01-01 12:00:00 UTC (3 min).",
    "CANCELLATION_REQUESTED": "It was asked to stop 3 min ago: worker W must confirm.",
    "HELD": "It is HELD: its attempt was lost after it had started, and its worker's late report or"
    " a person must say what became of it.",
    "SUCCEEDED": "It was done 3 min ago.",
    "CANCELLED": "It was cancelled 3 min ago.",
    "DEAD_LETTER": "It was given up 3 min ago (broken: It broke): a person must retry or cancel"
    " it.",
}


@pytest.mark.parametrize("state", [each for each in AT_REST if each in UNREADY])
def test_work_that_is_not_ready_says_what_it_is(world: World, clock: Clock, state: str) -> None:
    work = in_state(world, state)
    clock.pass_(timedelta(minutes=3))
    found = why(world, work)
    holder = Worker.objects.first()
    assert found.state == "not_ready"
    assert found.sentence == UNREADY[state].replace("worker W", f"worker {holder and holder.name}")
    assert (found.survey, found.position, found.dependencies) == (None, None, ())


# --- What stands in the way -----------------------------------------------------------------------


def test_delayed_work_says_when_it_is_due(world: World, clock: Clock) -> None:
    work = world.workload(not_before=NOON + timedelta(minutes=5))
    found = why(world, work)
    assert (found.state, found.available_at) == ("delayed", NOON + timedelta(minutes=5))
    assert found.sentence == "It is not due until 2030-01-01 12:05:00 UTC, in 5 min."
    clock.pass_(timedelta(minutes=5))
    assert (why(world, work).state, why(world, work).available_at) == ("unplaceable", None)


def test_a_retry_that_waits_says_after_what(world: World) -> None:
    held = world.running(retry_policy={"retry_on": ["broken"]})
    held.worker.fail(held.claim)
    told = "It is not due until 2030-01-01 12:00:01 UTC, in 1 s; it waits after broken: It broke."
    assert why(world, held.workload).sentence == told


def test_held_work_is_held_whatever_else_there_is(world: World) -> None:
    work = world.workload(not_before=NOON + ms(5_000))
    Workload.objects.filter(pk=work.pk).update(held=True)
    world.pause()
    found = why(world, work)
    assert (found.state, found.available_at) == ("held", NOON + ms(5_000))
    assert found.sentence.startswith("It is held by its run")


def test_paused_work_is_held_and_says_by_whom_and_why(world: World, clock: Clock) -> None:
    worker = world.worker()
    work = world.workload()
    world.pause(
        definition_id="extract",
        until=NOON + timedelta(minutes=10),
        reason="bad  release\nof 9.",
    )
    world.pause()
    clock.pass_(timedelta(minutes=1))
    found = why(world, work)
    assert found.state == "held"
    assert found.sentence == (
        "It is paused with work of extract until 2030-01-01 12:10:00 UTC by service:ops,"
        " 1 min ago: bad release of 9; 1 more pause stands."
    )
    assert found.survey is not None
    assert found.survey.counts == {"PAUSED": 1}
    assert [(each.worker_id, each.reasons) for each in found.survey.candidates] == [
        (worker.worker_id, ("PAUSED",))
    ]
    assert len(found.pauses) == 2


def test_a_pause_is_told_also_where_there_is_no_worker(world: World) -> None:
    work = world.workload()
    world.pause()
    found = why(world, work)
    assert (found.state, found.survey and found.survey.counts) == ("held", {"PAUSED": 0})


def test_work_that_nobody_may_take_says_who_comes_nearest(world: World) -> None:
    work = world.workload(policy={"required_labels": {"zone": "a"}})
    assert why(world, work).sentence == ("It has nobody to run it: its application has no workers.")
    worker = world.worker(labels={"zone": "b"})
    found = why(world, work)
    assert (found.state, found.position) == ("unplaceable", None)
    assert found.sentence == (
        "It cannot be taken by the only worker (1 without a label); it lacks label zone = a"
        " (it has b)."
    )
    Worker.objects.filter(pk=world.worker(labels={}).row.pk).update(health="DEGRADED")
    assert why(world, work).sentence == (
        "It cannot be taken by any of 2 workers (1 not healthy, 2 without a label); the nearest,"
        f" {worker.row.name}, lacks label zone = a (it has b)."
    )


def test_all_that_the_nearest_lacks_is_told_but_not_in_the_sentence(world: World) -> None:
    labels = dict.fromkeys("abcde", "x")
    work = world.workload(policy={"required_labels": labels})
    world.worker()
    found = why(world, work)
    assert found.sentence.endswith("label c = x (it has none) and 2 more.")
    assert found.survey is not None
    assert found.survey.nearest is not None
    assert len(found.survey.nearest.lacks) == 5


# --- Queued ---------------------------------------------------------------------------------------


def test_the_next_in_its_queue_says_who_may_take_it(world: World, clock: Clock) -> None:
    worker = world.worker()
    worker.claim()
    clock.pass_(timedelta(minutes=1))
    found = why(world, world.workload())
    assert (found.state, found.position, found.rate_per_minute) == ("queued", 1, 0.0)
    assert found.sentence == (
        "It is next in its queue; 1 worker may take it;"
        " none of the kind was claimed in the last 5 min."
    )


def test_workers_that_do_not_ask_are_told_apart_from_a_queue_that_moves(
    world: World, clock: Clock
) -> None:
    worker = world.worker()
    work = world.workload()
    assert "1 worker may take it, but none of them has ever asked for work;" in (
        why(world, work).sentence
    )
    Worker.objects.filter(pk=worker.row.pk).update(last_poll_at=NOON)
    clock.to(NOON + clauses.DEAF_AFTER)
    assert "1 worker may take it;" in why(world, work).sentence
    clock.to(NOON + timedelta(minutes=4))
    worker.beat()
    told = "1 worker may take it, but none of them asked for work in the last 4 min;"
    assert told in why(world, work).sentence


def test_the_position_is_that_of_the_claim(world: World, clock: Clock) -> None:
    made = []
    for priority in (0, 5, 0, 9, 0):
        clock.pass_(ms(1))
        made.append(world.workload(priority=priority))
    # Of the very same moment the id decides; work of another kind is no matter.
    made += [world.workload(priority=0), world.workload(priority=0)]
    world.workload(definition_id="other", priority=99)
    worker = world.worker(concurrency=10, workload_kinds=["extract"])
    positions = {each.workload_id: why(world, each).position for each in made}
    taken = [each.workload_id for each in worker.claim(10)]
    assert [positions[each] for each in taken] == [1, 2, 3, 4, 5, 6, 7]


def test_the_position_is_counted_up_to_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queues, clauses):
        monkeypatch.setattr(module, "MAX_AHEAD", 3)
    world.worker()
    made = [world.workload(priority=each % 2) for each in range(8)]
    last = why(world, made[6])
    assert last.position == 4
    assert last.sentence.startswith("It is queued behind 3 or more others of its kind;")
    assert why(world, made[5]).sentence.startswith("It is queued behind 2 others of its kind;")


def test_full_workers_make_a_queue_and_not_a_misfit(world: World) -> None:
    worker = world.worker(concurrency=2)
    claimed_lately(world, worker, 2)
    other, work = world.workload(), world.workload()
    found = why(world, work)
    assert (found.state, found.position, found.rate_per_minute) == ("queued", 2, 0.4)
    assert found.survey is not None
    assert found.survey.counts == {"CAPACITY": 1}
    assert found.sentence == (
        "It is queued behind 1 other of its kind; the worker that could take it is full now;"
        " 0.4 of the kind are claimed a minute, so its turn comes in about 5 min."
    )
    assert why(world, other).sentence.endswith("; 0.4 of the kind are claimed a minute.")


def test_due_work_that_no_sweep_saw_yet_is_queued(world: World, clock: Clock) -> None:
    world.worker()
    work = world.workload(not_before=NOON + ms(1_000))
    clock.pass_(ms(1_000))
    found = why(world, work)
    assert (found.state, found.position) == ("queued", 1)
    assert "and the next sweep or claim makes it claimable" in found.sentence


def test_a_tenant_at_its_limit_of_live_claims_is_told(world: World) -> None:
    world.claimed(world.worker())
    work = world.workload()
    for limit, is_told in ((1, True), (2, False), (None, False)):
        Tenant.objects.update(max_live_claims=limit)
        assert ("as many live claims as it may have" in why(world, work).sentence) == is_told


# --- The rate -------------------------------------------------------------------------------------


def test_the_rate_counts_claims_of_the_kind_in_the_window(world: World, clock: Clock) -> None:
    worker = world.worker(concurrency=30, heartbeat_timeout_ms=900_000)
    claimed_lately(world, worker, 5)
    world.workload(definition_id="other")
    worker.claim(1)
    work = world.workload()
    assert why(world, work).rate_per_minute == 1.0
    clock.to(NOON + queues.WINDOW - ms(1))
    assert why(world, work).rate_per_minute == 1.0
    clock.to(NOON + queues.WINDOW)
    assert why(world, work).rate_per_minute == 0.0


def test_the_rate_of_many_claims_is_that_of_the_newest(world: World, clock: Clock) -> None:
    worker = world.worker(concurrency=50)
    claimed_lately(world, worker, 10)
    clock.pass_(timedelta(minutes=1))
    claimed_lately(world, worker, 20)
    clock.pass_(timedelta(minutes=2))
    # Only twenty are looked at: they were claimed in two minutes, whatever was before.
    assert why(world, world.workload()).rate_per_minute == 10.0


def test_the_rate_of_some_workers_stands_for_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_WORKERS", 1)
    first, _ = world.worker(concurrency=10), world.worker(concurrency=10)
    claimed_lately(world, first, 5)
    assert why(world, world.workload()).rate_per_minute == 2.0


# --- Blocked --------------------------------------------------------------------------------------


def named(work: Workload) -> str:
    return f"extract ({work.workload_id})"


def test_blocked_work_names_what_it_waits_for_and_what_that_does(
    world: World, clock: Clock
) -> None:
    held = world.running()
    work = world.workload()
    depend(work, held.workload)
    clock.pass_(timedelta(minutes=3))
    found = why(world, work)
    assert found.state == "blocked"
    assert [(each.workload_id, each.state) for each in found.dependencies] == [
        (held.workload.workload_id, "RUNNING")
    ]
    assert found.sentence == (
        f"It waits for {named(held.workload)}, which is RUNNING on worker {held.worker.row.name}"
        " since 2030-01-01 12:00:00 UTC (3 min)."
    )
    assert (found.position, found.rate_per_minute) == (None, None)


def test_blocked_work_is_followed_to_the_root_through_three_levels(world: World) -> None:
    root, second, first, work = (world.workload() for _ in range(4))
    depend(second, root)
    depend(first, second)
    depend(work, first)
    assert why(world, work).sentence == (
        f"It waits for {named(first)}, which waits for {named(second)}, which waits for"
        f" {named(root)}, which has nobody to run it: its application has no workers."
    )
    Workload.objects.filter(pk=root.pk).update(held=True, claimable=False)
    assert "which is held by its run" in why(world, work).sentence
    world.pause()
    Workload.objects.filter(pk=root.pk).update(held=False)
    assert f"{named(root)}, which is paused with all of its application" in (
        why(world, work).sentence
    )


def test_a_longer_chain_names_its_ends(world: World) -> None:
    chain = [world.workload() for _ in range(6)]
    for waiting, on in pairwise(chain):
        depend(waiting, on)
    workers.remove(caller=world.operator, worker_id=world.worker().worker_id)
    assert why(world, chain[0]).sentence == (
        f"It waits for {named(chain[1])}, which waits through 3 others for {named(chain[5])},"
        " which has nobody to run it: its application has no workers."
    )


def test_a_chain_is_followed_so_far_and_no_further(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "MAX_DEPTH", 3)
    chain = [world.workload() for _ in range(8)]
    for waiting, on in pairwise(chain):
        depend(waiting, on)
    with counted() as statements:
        told = why(world, chain[0]).sentence
    assert told == f"It waits for {named(chain[1])}, behind which 3 or more wait in a row."
    assert len(statements) < 12


def test_a_circle_which_cannot_be_ends_too(world: World) -> None:
    first, second = world.workload(), world.workload()
    depend(first, second)
    depend(second, first)
    assert "or more wait in a row" in why(world, first).sentence


def test_of_several_the_one_that_needs_a_person_comes_first(world: World) -> None:
    running, dead = world.running().workload, world.dead_letter().workload
    waiting, work = world.workload(), world.workload()
    depend(work, running, waiting, dead)
    found = why(world, work)
    assert [each.state for each in found.dependencies] == ["DEAD_LETTER", "READY", "RUNNING"]
    assert found.sentence.startswith(
        f"It waits for 3 others, among them {named(dead)}, which was given up 0 s ago (broken:"
    )


def test_only_open_dependencies_are_told(world: World) -> None:
    done, running = world.succeeded().workload, world.running().workload
    work = world.workload()
    depend(work, done, running)
    Dependency.objects.filter(depends_on=done).update(is_open=False)
    Workload.objects.filter(pk=work.pk).update(open_dependencies=1)
    assert [each.pk for each in why(world, work).dependencies] == [running.pk]


def test_dependencies_are_listed_up_to_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "MAX_DEPENDENCIES", 2)
    work = world.workload()
    depend(work, *(world.workload() for _ in range(4)))
    found = why(world, work)
    assert len(found.dependencies) == 2
    assert found.sentence.startswith("It waits for 4 others, among them")


def test_work_that_is_not_due_and_blocked_is_delayed_first(world: World) -> None:
    work = world.workload(not_before=NOON + ms(5_000))
    depend(work, world.workload())
    found = why(world, work)
    assert (found.state, len(found.dependencies)) == ("delayed", 1)


def test_work_that_is_blocked_and_paused_is_blocked_first(world: World) -> None:
    world.worker()
    work = world.workload()
    depend(work, world.running().workload)
    world.pause()
    found = why(world, work)
    assert (found.state, len(found.pauses)) == ("blocked", 1)
    assert found.survey is not None
    assert found.survey.counts["PAUSED"] == 2


# --- Asking ---------------------------------------------------------------------------------------


def test_asking_needs_a_viewer_and_work_of_the_tenant(world: World) -> None:
    work, worker = world.workload(), world.worker()
    with refused("PERMISSION_DENIED"):
        explain.explain(caller=worker.caller, workload_id=work.workload_id)
    with refused("WORKLOAD_NOT_FOUND"):
        explain.explain(caller=World().caller(Role.VIEWER), workload_id=work.workload_id)


def test_asking_changes_nothing(world: World) -> None:
    world.worker()
    work = world.workload()
    with unchanged():
        assert why(world, work).state == "queued"


def test_asking_costs_few_statements(world: World) -> None:
    for _ in range(5):
        world.worker()
        work = world.workload()
    with counted() as statements:
        assert why(world, work).state == "queued"
    # The work, pauses, the survey, the position (two), the rate, the tenant's limit.
    assert len(statements) == 7
