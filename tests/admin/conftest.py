"""A tenant with one row of every kind, and people who look at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client
from pytest_django import Settings

from mesh.models import (
    AttemptStatus,
    AuditEntry,
    Membership,
    Role,
    State,
    SweepRun,
    Tenant,
    WorkloadEvent,
)

from . import rows, run_rows


@pytest.fixture
def tenant(db: None) -> Tenant:
    return rows.tenant("acme")


@pytest.fixture
def as_() -> Callable[[User | None], Client]:
    """A browser in which that person is signed in; anonymous for None."""

    def signed_in(person: User | None) -> Client:
        client = Client()
        if person is not None:
            client.force_login(person)
        return client

    return signed_in


@pytest.fixture
def admin(tenant: Tenant, as_: Callable[[User | None], Client]) -> Client:
    return as_(rows.person(tenant, Role.ADMIN, "ann"))


@pytest.fixture
def operator(tenant: Tenant, as_: Callable[[User | None], Client]) -> Client:
    return as_(rows.person(tenant, Role.OPERATOR, "ben"))


@pytest.fixture
def viewer(tenant: Tenant, as_: Callable[[User | None], Client]) -> Client:
    return as_(rows.person(tenant, Role.VIEWER, "vera"))


@pytest.fixture
def grant_key(tmp_path: Path, settings: Settings) -> None:
    """A key of this test that signs grants."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = tmp_path / "grant_key.pem"
    path.write_bytes(pem)
    settings.GRANT_KEY_FILE = str(path)


def one_of_each(tenant: Tenant) -> dict[str, Any]:
    """A row of every model in the console, all of that tenant, by model name."""
    application = rows.application(tenant)
    worker = rows.worker(application)
    workload = rows.workload(application, State.RUNNING, worker)
    made: list[Model] = [
        tenant,
        application,
        worker,
        workload,
        workload.requirement,
        worker.grant,
        rows.pool(application, worker),
        rows.pause(application),
        rows.attempt(workload, worker, AttemptStatus.FAILED, 7),
        rows.token(tenant),
        rows.revocation(tenant),
        Membership.objects.get(user=rows.person(tenant, Role.VIEWER), tenant=tenant),
        WorkloadEvent.objects.filter(workload=workload).latest("pk"),
        rows.worker_event(worker, 1, "ready", "REGISTERED", "READY"),
        AuditEntry.objects.filter(tenant=tenant).latest("pk"),
        rows.incident(application, worker),
        SweepRun.objects.get_or_create(name="promote_due")[0],
        *run_rows.one_of_each(tenant),
    ]
    return {each._meta.model_name or "": each for each in made}
