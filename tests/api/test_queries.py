"""How many statements calls take: those of the domain, and hardly more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mesh import claims, clock, intake, settlement, tenancy
from mesh.models import ApiToken, Role
from tests.factories import Held, World, name

from .client import Answer, get, post
from .routes import beat_body, submit_body


def statements(act: Callable[[], Any]) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        done = act()
    assert not isinstance(done, Answer) or done.status < 300, done.text
    return len([each for each in captured if "SAVEPOINT" not in str(each["sql"])])


@pytest.mark.parametrize("number", [1, 20])
def test_claims_take_the_domains_statements_and_one_for_the_credential(
    number: int, world: World
) -> None:
    member = world.worker(concurrency=100)
    for _ in range(2 * number + 1):
        world.workload()
    member.claim(1)  # works out what the worker may take, once
    path = f"workers/{member.worker_id}/claims"
    body = {"max": number}
    domain = statements(
        lambda: claims.claim(caller=member.caller, worker_id=member.worker_id, maximum=number)
    )
    assert statements(lambda: post(path, body, member.credential)) == domain + 1


@pytest.mark.parametrize("number", [0, 1, 20])
def test_beats_take_no_statement_more_than_the_domain(number: int, world: World) -> None:
    member = world.worker(concurrency=100)
    for _ in range(number):
        world.workload()
    running = [each.claim_id for each in member.claim(20)]
    body = beat_body(member, running_claims=running)
    del body["capacity"]
    at = clock.now()
    domain = statements(lambda: member.beat(*running, timestamp=at))
    path = f"workers/{member.worker_id}/heartbeat"
    post(path, body, member.credential)  # from now on the credential is known
    assert statements(lambda: post(path, body, member.credential)) == domain


def used_token(world: World, role: Role = Role.OPERATOR) -> str:
    """A token whose use was noted just now, which is done once a minute."""
    secret = world.token(role)
    get("workers", secret)
    return secret


def present(held: Held, action: str, **members: Any) -> Answer:
    body = {"fencing_token": held.claim.fencing_token, **members}
    return post(f"claims/{held.claim.claim_id}/{action}", body, held.worker.credential)


def test_start_and_complete_take_no_statement_more_than_the_domain(world: World) -> None:
    one, two = world.claimed(), world.claimed()
    three = world.claimed(two.worker)
    domain = statements(lambda: one.worker.start(one.claim))
    present(two, "start")  # from now on the credential is known
    assert statements(lambda: present(three, "start")) == domain
    result: dict[str, Any] = {"result_id": "r", "output": 1}
    domain = statements(lambda: settlement.complete(**one.presenting, **result))
    assert statements(lambda: present(two, "complete", **result)) == domain


def test_submit_takes_one_statement_more_than_the_domain(world: World) -> None:
    world.workload()
    token = used_token(world)
    domain = statements(
        lambda: intake.submit(caller=world.operator, submission=world.submission(), grant=None)
    )
    body = submit_body(world, idempotency_key=name("key"), policy={})
    assert statements(lambda: post("workloads", body, token)) == domain + 1


@pytest.mark.parametrize(("path", "most"), [("workers", 2), ("workloads", 4), ("grants", 3)])
def test_lists_take_as_many_statements_for_many_rows(path: str, most: int, world: World) -> None:
    secret = used_token(world, Role.ADMIN)
    world.running()
    few = statements(lambda: get(path, secret))
    for _ in range(5):
        world.running()
    assert statements(lambda: get(path, secret)) == few <= most


def test_a_detail_takes_as_many_statements_for_many_attempts(world: World) -> None:
    secret, worker = used_token(world), world.worker()
    held = world.claimed(worker)
    path = f"workloads/{held.workload.workload_id}"
    few = statements(lambda: get(path, secret))
    settlement.release(**held.presenting)
    (again,) = worker.claim()
    settlement.release(**worker.presenting(again))
    assert len(get(path, secret).json["attempts"]) == 2
    assert statements(lambda: get(path, secret)) == few <= 4


def test_a_token_is_looked_up_in_one_statement_and_its_use_noted_once_a_minute(
    world: World,
) -> None:
    secret = world.token()
    assert statements(lambda: tenancy.authenticate(secret)) == 2
    assert statements(lambda: tenancy.authenticate(secret)) == 1
    ApiToken.objects.update(last_used_at=clock.now() - timedelta(seconds=61))
    assert statements(lambda: tenancy.authenticate(secret)) == 2
