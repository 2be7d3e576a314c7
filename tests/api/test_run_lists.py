"""The list of runs: what each filter leaves, and that it costs the same however many there are."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh.models import Role
from tests.factories import World, name
from tests.workflows import rows
from workflows.models import Run

from .client import assert_refused, get


@pytest.fixture
def secret(world: World) -> str:
    return world.token(Role.VIEWER)


def found(query: str, secret: str) -> list[str]:
    answer = get(f"runs?{query}", secret)
    assert answer.status == 200, answer.text
    return [each["run_id"] for each in answer.json["results"]]


def test_each_filter_leaves_the_runs_that_it_names(world: World, secret: str) -> None:
    first, second = rows.make_definition(world), rows.make_definition(world)
    newer = rows.make_definition(world, definition_id=first.definition_id, version=2)
    elsewhere = world.tenant.applications.create(name="letters")
    one = rows.make_run(world, definition=first, run_id="a-1")
    two = rows.make_run(world, definition=newer, owner=rows.authority(), run_id="a-2")
    three = rows.make_run(world, definition=second, run_id="b-1")
    Run.objects.filter(pk=three.pk).update(application=elsewhere)
    rows.make_run(World(), definition=None, run_id="a-3")
    ids = [each.run_id for each in (three, two, one)]
    for query, expected in {
        "": ids,
        f"definition_id={first.definition_id}": ids[1:],
        "definition_id=none": [],
        "application=letters": ids[:1],
        f"application=letters&definition_id={first.definition_id}": [],
        "application=none": [],
        "q=a-": ids[1:],
        "q=A-": [],
        "q=%25": [],
        "coordinator=external": ids[1:2],
        "status=OPEN": ids,
        "status=FAILED": [],
    }.items():
        assert found(query, secret) == expected, query
    assert_refused(get("runs?status=open", secret), "REQUEST_INVALID")


def test_a_page_of_runs_is_read_in_the_same_statements_however_many_there_are(
    world: World, secret: str
) -> None:
    # The first call of a token also notes that it was used.
    found("", secret)
    counts = []
    for number in (1, 5):
        for _ in range(number):
            rows.make_run(world, run_id=name("run"))
        with CaptureQueriesContext(connection) as said:
            found("", secret)
        counts.append(len(said))
    assert counts[0] == counts[1]
