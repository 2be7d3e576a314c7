"""What conflicts, and who waits behind a refused writer."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import clock
from mesh.errors import DomainError
from mesh.models import Role
from tests.factories import World
from workflows import resources
from workflows.models import RefusedWriter, ResourceLease
from workflows.resources import Conflict
from workflows.steps import Resource

from .admitting import Driven, driven, read, settle, write

pytestmark = pytest.mark.django_db
ACCESSES = ("read", "write")
SCOPES = ("run", "application")
MINUTE = timedelta(seconds=60)


def _conflicts(one: Driven, *wanted: Resource) -> list[Conflict]:
    return resources.conflicts(one.run, resources.normalize(wanted), clock.now())


def _code(one: Driven, *, at: datetime | None = None, attempt: int = 1) -> str:
    """What the admission comes to, at that time: `admitted` or the code of the refusal."""
    with clock.set_to(at or clock.now()):
        try:
            one.admit(attempt=attempt)
        except DomainError as refused:
            return refused.code
    return "admitted"


def test_normalized_is_each_once_in_each_scope_write_before_read_and_sorted() -> None:
    asked = [read("b"), write("a", "run"), read("a", "run"), write("b"), read("a"), read("a")]
    assert resources.normalize(asked) == (read("a"), write("a", "run"), write("b"))
    assert resources.normalize(reversed(asked)) == resources.normalize(asked)


def test_a_thousand_keys_are_as_many_as_an_attempt_may_reserve() -> None:
    most = [read(str(n)) for n in range(1_000)]
    assert len(resources.normalize([*most, *most])) == 1_000
    with pytest.raises(DomainError, match="ADMISSION_INVALID"):
        resources.normalize([*most, read("one more")])


@pytest.mark.parametrize(
    "wrong",
    [
        Resource("", "read", "run"),
        Resource(" a", "read", "run"),
        Resource("é" * 257, "read", "run"),
        Resource("a", "append", "run"),
        Resource("a", "read", "tenant"),
    ],
)
def test_what_is_no_resource_is_refused(wrong: Resource) -> None:
    with pytest.raises(DomainError, match="ADMISSION_INVALID"):
        resources.normalize([wrong])


def test_a_write_conflicts_with_anything_within_the_run_or_the_application() -> None:
    world = World()
    holder = driven(world)
    holder.admit()
    askers = {"same run": holder, "other run": driven(world)}
    for held, asked, who in product(
        product(ACCESSES, SCOPES), product(ACCESSES, SCOPES), askers.items()
    ):
        lease = _lease(holder, Resource("r", *held))
        reach, asker = who
        is_near = reach == "same run" or (held[1], asked[1]) == ("application", "application")
        found = _conflicts(asker, Resource("r", *asked))
        is_write = "write" in (held[0], asked[0])
        assert bool(found) == (is_near and is_write), (held, asked, reach)
        lease.delete()


def test_a_conflict_names_the_key_and_the_holder() -> None:
    world = World()
    holder, asker = driven(world, write("ledger")), driven(world)
    holder.admit()
    assert _conflicts(asker, read("a"), read("ledger")) == [
        Conflict(read("ledger"), holder.run.run_id, "one", holder.identity(), is_waiting=False)
    ]


def test_other_applications_and_other_resources_do_not_conflict() -> None:
    world = World()
    driven(world, write("ledger")).admit()
    elsewhere = World(tenant=world.tenant, application="mail")
    world.tenant.applications.get_or_create(name="mail")
    for asker in (driven(elsewhere), driven(World())):
        assert _conflicts(asker, write("ledger")) == []
    assert _conflicts(driven(world), write("ledger2")) == []


def test_all_keys_are_asked_for_in_one_statement() -> None:
    world = World()
    driven(world, *[write(f"r{n}") for n in range(20)]).admit()
    asker = driven(world)
    wanted = [each for n in range(500) for each in (write(f"r{n}"), read(f"r{n}", "run"))]
    at = clock.now()
    with CaptureQueriesContext(connection) as queries:
        found = resources.conflicts(asker.run, wanted, at)
    assert len(queries) == 1
    assert len(found) == 20
    assert len({each.wanted for each in found}) == 20


def test_a_refused_writer_is_remembered_though_the_admission_left_nothing() -> None:
    world = World()
    driven(world, read("r")).admit()
    writer = driven(world, write("r"), write("free"))
    assert _code(writer) == "RESOURCE_BUSY"
    row = RefusedWriter.objects.get()
    assert (row.resource, row.dispatch_identity) == ("r", writer.identity())
    assert row.run.run_id == writer.run.run_id


def test_a_refused_reader_is_not_remembered() -> None:
    world = World()
    driven(world, write("r")).admit()
    assert _code(driven(world, read("r"))) == "RESOURCE_BUSY"
    assert not RefusedWriter.objects.exists()


def test_later_readers_wait_behind_a_refused_writer_that_is_named_to_them() -> None:
    world = World()
    early, writer = driven(world, read("r")), driven(world, write("r"))
    held = early.admit().attempt
    assert _code(writer) == "RESOURCE_BUSY"
    late = driven(world, read("r"))
    with pytest.raises(DomainError) as refused:
        late.admit()
    assert refused.value.code == "RESOURCE_BUSY"
    assert refused.value.facts == {
        "resource": "r",
        "access": "read",
        "scope": "application",
        "holder": {
            "run_id": writer.run.run_id,
            "step": "",
            "dispatch_identity": writer.identity(),
            "waiting": True,
        },
    }
    # Those that hold already go on, and readers within other runs are not concerned.
    assert ResourceLease.objects.filter(attempt=held).exists()
    assert not early.admit().created
    assert _code(driven(world, read("r", "run"))) == "admitted"


def test_a_writer_that_is_admitted_after_all_is_waited_for_no_more() -> None:
    world = World()
    reader, writer = driven(world, read("r")), driven(world, write("r"))
    held = reader.admit().attempt
    assert _code(writer) == "RESOURCE_BUSY"
    settle(held)
    assert _code(writer) == "admitted"
    assert not RefusedWriter.objects.exists()
    settle(writer.admit().attempt)
    assert _code(driven(world, read("r"))) == "admitted"


@pytest.mark.parametrize("asks_again", [False, True])
def test_a_writer_that_stopped_asking_blocks_nobody_after_a_minute(asks_again: bool) -> None:
    world = World()
    driven(world, read("r")).admit()
    writer, last = driven(world, write("r")), clock.now()
    assert _code(writer, at=last) == "RESOURCE_BUSY"
    if asks_again:
        last += MINUTE - timedelta(seconds=1)
        assert _code(writer, at=last) == "RESOURCE_BUSY"
    just_before = last + MINUTE - timedelta(milliseconds=1)
    assert _code(driven(world, read("r")), at=just_before) == "RESOURCE_BUSY"
    assert _code(driven(world, read("r")), at=last + MINUTE) == "admitted"


def test_of_two_refused_writers_neither_waits_for_the_other() -> None:
    world = World()
    reader = driven(world, read("r"))
    one, two = driven(world, write("r")), driven(world, write("r"))
    held = reader.admit().attempt
    assert [_code(one), _code(two)] == ["RESOURCE_BUSY", "RESOURCE_BUSY"]
    settle(held)
    assert _code(two) == "admitted"
    settle(two.admit().attempt)
    assert _code(one) == "admitted"


def test_of_two_that_read_what_the_other_would_write_the_first_to_come_goes_first() -> None:
    world = World()
    holder = driven(world, read("a"), read("b"))
    one = driven(world, write("a"), read("b"))
    two = driven(world, write("b"), read("a"))
    held = holder.admit().attempt
    at = clock.now()
    assert _code(one, at=at) == "RESOURCE_BUSY"
    assert _code(two, at=at + timedelta(seconds=1)) == "RESOURCE_BUSY"
    settle(held)
    assert _code(two, at=at + timedelta(seconds=2)) == "RESOURCE_BUSY"
    assert _code(one, at=at + timedelta(seconds=3)) == "admitted"
    settle(one.admit().attempt)
    assert _code(two, at=at + timedelta(seconds=4)) == "admitted"


def test_a_writer_of_two_resources_keeps_its_place_at_both() -> None:
    """Else readers of the one would come in while the other is busy, for ever."""
    world = World()
    first, second = driven(world, read("a")), driven(world, read("b"))
    writer = driven(world, write("a"), write("b"))
    at = clock.now()
    held = first.admit().attempt
    assert _code(writer, at=at) == "RESOURCE_BUSY"
    settle(held)
    second.admit()
    assert _code(writer, at=at + MINUTE / 2) == "RESOURCE_BUSY"
    assert _code(driven(world, read("a")), at=at + MINUTE) == "RESOURCE_BUSY"


def test_a_refusal_that_is_written_after_a_repeat_was_admitted_is_not_remembered() -> None:
    writer = driven(World(), write("r"))
    writer.admit()
    resources.remember(writer.run.pk, writer.identity(), [write("r")], clock.now())
    assert not RefusedWriter.objects.exists()


def test_anyone_who_reads_may_ask_who_is_in_the_way() -> None:
    world = World()
    holder, asker = driven(world, write("r")), driven(world)
    holder.admit()
    asked: dict[str, Any] = {
        "caller": world.caller(Role.VIEWER),
        "run_id": asker.run.run_id,
        "resource": "r",
    }
    found = resources.conflicting_resource(**asked, access="read", scope="application")
    assert found is not None
    assert found.dispatch_identity == holder.identity()
    assert resources.conflicting_resource(**asked, access="read", scope="run") is None
    with pytest.raises(DomainError, match="ADMISSION_INVALID"):
        resources.conflicting_resource(**asked, access="x", scope="run")
    asked["caller"] = World().operator
    with pytest.raises(DomainError, match="RUN_NOT_FOUND"):
        resources.conflicting_resource(**asked, access="read", scope="run")


def _lease(of: Driven, held: Resource) -> ResourceLease:
    """A lease of the run's attempt, beside those that the step reserves."""
    return ResourceLease.objects.create(
        run=of.run,
        attempt=of.run.attempts.get(),
        application_id=of.run.application_id,
        generation=1,
        acquired_at=clock.now(),
        **held.shown(),
    )
