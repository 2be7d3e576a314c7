"""After a restore: what workers hold from before it is worth nothing."""

from __future__ import annotations

import pytest

from mesh import invariants, leases, restore, settlement
from mesh.models import AuditEntry, State, Workload
from tests.factories import World, in_state
from tests.mesh.checks import AT_REST, Clock, events, refused, worker_events
from tests.mesh.test_liveness import reconcile


def after_restore() -> restore.Restored:
    done = restore.after_restore(actor="system:after_restore")
    assert invariants.broken() == {}
    return done


def mesh_part(done: restore.Restored) -> tuple[int, int, int]:
    return done.tokens_raised, done.attempts_ended, done.workers_to_reconcile


@pytest.mark.parametrize("state", AT_REST)
def test_every_token_is_raised(world: World, state: State) -> None:
    work = in_state(world, state)
    before = work.fencing_token
    assert after_restore().tokens_raised == 1
    assert Workload.objects.get(pk=work.pk).fencing_token == before + 1_000_000


def test_an_old_token_is_stale_after_a_restore(world: World, clock: Clock) -> None:
    held = world.running(retry_policy={"initial_delay_ms": 0})
    after_restore()
    with refused("WORKLOAD_CLAIM_INVALID"):
        leases.start(**held.presenting)
    other = world.worker()
    (again,) = other.claim()
    assert again.fencing_token == held.claim.fencing_token + 1_000_001
    with refused("WORKLOAD_STALE_FENCE"):
        settlement.complete(**held.presenting, result_id="r", output=None)


def test_live_attempts_end_as_lost(world: World) -> None:
    started, claimed, cancelling = world.running(), world.claimed(), world.cancelling()
    done = after_restore()
    assert (done.attempts_ended, done.workers_to_reconcile) == (3, 3)
    assert {each.attempt.status for each in (started, claimed, cancelling)} == {"WORKER_LOST"}
    states = [each.refresh().state for each in (started, claimed, cancelling)]
    assert states == ["READY", "READY", "CANCELLED"]
    assert events(started.workload)[-2:] == ["recovered", "ready"]


def test_every_worker_must_reconcile_before_it_takes_work(world: World) -> None:
    worker = world.worker()
    world.workload()
    after_restore()
    assert worker_events(worker.row)[-1] == "restored"
    for call in (worker.claim, worker.beat):
        with refused("WORKER_RECOVERY_REQUIRED"):
            call()
    unknown = "claim_" + "0" * 32
    assert reconcile(worker, known_claims=[unknown]).fenced_claims == [unknown]
    worker.beat()
    assert len(worker.claim()) == 1


def test_pages_follow_each_other_and_a_repeat_does_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "PAGE", 2)
    for _ in range(5):
        world.running()
    assert mesh_part(after_restore()) == (5, 5, 5)
    assert mesh_part(after_restore()) == (5, 0, 5)
    assert {each.fencing_token for each in Workload.objects.all()} == {2_000_001}
    assert AuditEntry.objects.filter(action="database.restored").count() == 2


def test_what_stands_above_goes_first_and_its_number_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_others", {})
    held = world.running()
    seen: list[tuple[str, bool]] = []

    def distrust(actor: str) -> int:
        seen.append((actor, held.attempt.is_live))
        return 2

    restore.also("letters_burnt", distrust)
    assert after_restore().shown()["letters_burnt"] == 2
    assert seen == [("system:after_restore", True)]
    assert AuditEntry.objects.get(action="database.restored").evidence["letters_burnt"] == 2
