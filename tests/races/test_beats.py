"""A beat beside other calls of its worker: what it tells is true while it holds the lock."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import transaction

from mesh import beats, locking
from mesh.models import Health
from tests.factories import World

from .checks import assert_sound
from .steering import Actor

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_beat_that_waits_for_a_claim_tells_of_it(world: World) -> None:
    held = world.running()
    world.workload()
    with transaction.atomic():
        claim = held.worker.claim()[0]
        beating = Actor(partial(held.worker.beat, held.claim.claim_id))
        beating.wait_until_blocked()
    answer = beating.value()
    assert [each.claim_id for each in answer.renewed] == [held.claim.claim_id]
    assert [each.claim_id for each in answer.assigned_claims] == [claim.claim_id]
    assert_sound()


def test_a_usual_beat_leaves_a_worker_alone_that_was_written_since_it_began(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims are seen as they were before, so their number proves nothing."""
    held, other = world.running(), world.workload()
    row = held.worker.row
    said = beats.Said(
        row.version,
        row.capability_version,
        Health.HEALTHY,
        row.last_seen_at,
        [held.claim.claim_id],
        None,
    )
    # It does not wait for the lock; here it must, for the other call to get in between.
    monkeypatch.setattr(beats, "_BEAT", beats._BEAT.replace("skip locked", ""))
    with transaction.atomic():
        locking.lock_worker(row.pk)
        beating = Actor(partial(beats.hear, held.worker.caller, said))
        beating.wait_until_blocked()
        held.worker.complete(held.claim)
        assert [each.workload_id for each in held.worker.claim()] == [other.workload_id]
    assert beating.value() is None
    assert_sound()
