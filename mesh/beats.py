"""Beats: what a heartbeat answers, and the usual one, heard in a single statement.

Guarantees: a beat heard here does to the rows, and answers, exactly what `mesh.liveness` does at
length; it is heard here only where there is nothing to refuse, to move or to tell.

Locks: the worker, without waiting for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from . import clock, leases, statements
from .giving import Claim
from .models import Application, Grant, Health, Tenant, Worker, uid_of
from .tenancy import Caller

# How far the time that a worker reports may go back.
CLOCK_LEEWAY: Final = timedelta(seconds=5)
# What an answer does not tell of the worker, and a usual beat does not look at.
_UNTOLD: Final = [
    "credential_hash",
    "registered_by",
    "removed_at",
    "is_unreconciled",
    "reported_at",
    "recovering_since",
    "drain_cause",
    "drain_passed_at",
    "drain_reason",
    "event_sequence",
    "sweep_after",
]
_WORKER: Final = statements.Reader(Worker, but=_UNTOLD)
_WIDTH: Final = len(_WORKER.names)
_BEAT: Final = (
    statements.load("beat")
    .replace("{renewal}", leases.RENEWAL.replace("{at}", "u.at"))
    .replace("{worker}", _WORKER.columns("w"))
)


class Renewed(NamedTuple):
    """A claim whose lease was renewed."""

    claim_id: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Said:
    """What a worker says in a heartbeat."""

    version: str
    capability_version: int
    health: Health
    timestamp: datetime
    running_claims: Sequence[str]
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat; claims by their ids, except those that are told in full."""

    worker: Worker
    renewed: list[Renewed]
    fenced_claims: list[str]
    cancel_claims: list[str]
    missing_claims: list[str]
    assigned_claims: list[Claim]
    grant_ends_at: datetime


def hear(caller: Caller, said: Said) -> Beat | None:
    """Hear the worker that calls, if its beat is a usual one; else None, and nothing was changed.

    Usual is: it rests where it is (READY, or BUSY when full), under a grant that is not revoked,
    and lists all of its live claims and nothing else; no lease is over, and no cancel requested.
    """
    uids = [uid_of(each, "claim") for each in said.running_claims]
    if None in uids or len(set(uids)) != len(uids):
        return None
    values = {
        "worker": caller.worker_pk,
        "incarnation": caller.incarnation,
        "version": said.version,
        "capability_version": said.capability_version,
        "concurrency": said.concurrency,
        "health": said.health,
        "timestamp": said.timestamp,
        "leeway": CLOCK_LEEWAY,
        "uids": uids,
        "fixed": clock.fixed(),
    }
    row = statements.first(_BEAT, values)
    return None if row is None else _answer(caller, said, row)


def _answer(caller: Caller, said: Said, row: Sequence[Any]) -> Beat:
    worker = _WORKER.read(row[:_WIDTH])
    application, grant_id, grant_ends_at, ends = row[_WIDTH:]
    worker.tenant = _tenant(worker.tenant_id, caller.tenant)
    worker.application = _application(worker.application_id, application)
    worker.grant = _grant(worker.grant_id, grant_id, grant_ends_at)
    return Beat(
        worker=worker,
        renewed=[*map(Renewed, said.running_claims, ends or ())],
        fenced_claims=[],
        cancel_claims=[],
        missing_claims=[],
        assigned_claims=[],
        grant_ends_at=grant_ends_at,
    )


# Rows for their names alone, which all beats share: making one takes as long as reading the worker.
@lru_cache(1_000)
def _tenant(pk: int, name: str) -> Tenant:
    return Tenant(pk=pk, name=name)


@lru_cache(1_000)
def _application(pk: int, name: str) -> Application:
    return Application(pk=pk, name=name)


@lru_cache(1_000)
def _grant(pk: int, grant_id: str, expires_at: datetime) -> Grant:
    return Grant(pk=pk, grant_id=grant_id, expires_at=expires_at)
