"""The API does what its OpenAPI document says, whatever is sent to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from socketserver import StreamRequestHandler
from typing import Any

import pytest
import requests
import schemathesis
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, settings
from pytest_django.live_server_helper import LiveServer
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from mesh.models import Role
from tests.factories import World, incident
from tests.workflows import rows
from workflows import attestations
from workflows.models import HandoffMode
from workflows.transitions import Transition

DOCUMENT = SchemaGenerator().get_schema(request=None, public=True)
API = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


# The caller whom a route is for sends everything; the others send each so many-th case.
OTHERS_EVERY = 20
ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")


@dataclass
class Place:
    """A served world with rows for the ids in paths, and one connection to it."""

    url: str
    secrets: dict[str, str]
    ids: dict[str, str]
    session: requests.Session
    sent: int = 0

    def callers(self, case: Any) -> list[str | None]:
        """Whose secret the case is sent with."""
        said = [name for each in case.operation.definition.raw.get("security", ()) for name in each]
        main = next((self.secrets[name] for name in said if name in self.secrets), None)
        self.sent += 1
        others = [None, *self.secrets.values()] if self.sent % OTHERS_EVERY == 1 else []
        return [main, *(each for each in others if each != main)]


@pytest.fixture
def place(
    live_server: LiveServer, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    # Else each answer waits until the client has acknowledged its headers, 40 ms each time.
    monkeypatch.setattr(StreamRequestHandler, "disable_nagle_algorithm", True)
    world = World()
    held = world.running()
    ids = {
        "worker_id": held.worker.worker_id,
        "workload_id": held.workload.workload_id,
        "claim_id": held.claim.claim_id,
        "grant_id": world.grant()[0].grant_id,
        "pool_id": world.pool(held.worker).pool_id,
        "pause_id": world.pause(definition_id="nothing").pause_id,
        "incident_id": incident(world, held.worker).incident_id,
        **_run_ids(world),
    }
    secrets = {"apiToken": world.token(Role.ADMIN), "workerCredential": held.worker.credential}
    with requests.Session() as session:
        yield Place(live_server.url, secrets, ids, session)


def _run_ids(world: World) -> dict[str, str]:
    """A run that somebody owns, with an attempt, and what is needed to hand it over."""
    owner, after = rows.authority(), rows.authority(generation=2)
    run = rows.make_run(world, owner=owner)
    attempt = rows.make_attempt(world, run)
    stated = attestations.attest(
        caller=world.caller(Role.ADMIN, "human:ann"),
        run_id=run.run_id,
        transition=Transition(HandoffMode.RECOVERY, owner, after),
        statement="I saw it stop.",
    )
    return {
        "definition_id": run.definition.definition_id,
        "version": "1",
        "run_id": run.run_id,
        "dispatch_identity": attempt.dispatch_identity,
        "attestation_id": stated.attestation_id,
        "instance_id": rows.make_coordinator(world).instance_id,
    }


@API.parametrize()
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_documented(case: Any, place: Place) -> None:
    for name, value in (case.path_parameters or {}).items():
        if isinstance(value, str) and ID.fullmatch(value):
            case.path_parameters[name] = place.ids[name]
    for secret in place.callers(case):
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        answer = case.call(base_url=place.url, session=place.session, headers=headers)
        case.validate_response(answer, checks=CHECKS, headers=headers)
