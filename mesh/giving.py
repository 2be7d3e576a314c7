"""Claims: what one tells its worker, and giving work to a locked worker.

Guarantees: a workload has one live claim; its fencing token rises at every claim. Which work is
given is the caller's choice: `mesh.claims` (pull) and `mesh.placing` (push).

Locks: the workloads that are given, with skip-locked; the caller has locked the worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson
from django.db.models import Sum

from . import statements
from .errors import DomainError
from .models import Attempt, AttemptStatus, Checkpoint, Worker, Workload
from .tenancy import Caller

LEASE_MS: Final = range(1_000, 900_001)
MAX_CLAIMS: Final = 100
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_RETRY_AFTER_MS: Final = 1_000
_CLAIM: Final = statements.load("claim")
_NEXT: Final = _CLAIM.replace("{picking}", statements.load("claim_next"))
_CHOSEN: Final = _CLAIM.replace("{picking}", statements.load("claim_chosen"))


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to act on one workload, with all that the worker needs to do it."""

    claim_id: str
    attempt_id: str
    workload_id: str
    worker_id: str
    fencing_token: int
    capability_snapshot: list[str]
    issued_at: datetime
    expires_at: datetime
    definition_id: str
    definition_revision: str
    input: Any
    environment: str
    attempt_number: int
    timeouts: Mapping[str, int | None]
    connection_scopes: list[str]
    checkpoint: tuple[int, Any] | None
    lost_policy: str

    @property
    def lease_id(self) -> str:
        return f"lease_{self.attempt_id}"

    @property
    def execution_context_id(self) -> str:
        return f"context_{self.claim_id}"

    @property
    def runtime_policy(self) -> dict[str, int | None] | None:
        """Limits for the executor, or None where the work sets none."""
        limit = self.timeouts["execution_ms"]
        if limit is None:
            return None
        return {"max_duration_ms": limit, "max_cpu_millis": None, "max_memory_bytes": None}


class Run(NamedTuple):
    """One run of `claim.sql`: what it gave, and whether it is worth asking again."""

    claims: list[Claim]
    # The requirements of what was given, in no order.
    requirement_ids: list[int]
    bytes: int
    seen: int
    # More could be had, but not within the bytes.
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """How claims are given: to which locked worker, for how long, by whom and when."""

    worker: Worker
    lease_ms: int
    at: datetime
    actor: str
    is_placed: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes of input and checkpoint fit into the answer, but for the first `at_least`."""

    bytes: int = MAX_ANSWER_BYTES
    at_least: int = 1

    def after(self, run: Run) -> "Room":
        """What is left once these claims are in the answer."""
        return Room(self.bytes - run.bytes, 0 if run.claims else self.at_least)


@dataclass(frozen=True, slots=True)
class Choice:
    """Work that was chosen: keys with their requirements in order, and how many of each may go."""

    ids: list[int]
    requirement_ids: list[int]
    quotas: Mapping[int, int]


def lease_length(worker: Worker, lease_ms: int | None) -> int:
    """The length of a lease in ms; refuses with WORKLOAD_INVALID outside its bounds."""
    if lease_ms is None:
        return max(30_000, 3 * worker.heartbeat_interval_ms)
    if lease_ms not in LEASE_MS:
        raise DomainError("WORKLOAD_INVALID", "A lease lasts from 1 000 to 900 000 ms.")
    return lease_ms


def require_worker(caller: Caller) -> None:
    """Refuse with PERMISSION_DENIED anybody but a worker."""
    if not caller.is_worker:
        raise DomainError("PERMISSION_DENIED", "Only a worker with its credential may do this.")


def claims_left(tenant_pk: int, limit: int) -> int:
    """How many more live claims a tenant with this limit may have now; never below 0."""
    workers = Worker.objects.filter(tenant_id=tenant_pk)
    live = workers.aggregate(live=Sum("active"))["live"] or 0
    return max(limit - live, 0)


def limit_exceeded() -> DomainError:
    """The refusal at a tenant's limit of live claims."""
    return DomainError(
        "LIMIT_EXCEEDED",
        "The tenant has as many live claims as it may have.",
        retry_after_ms=_RETRY_AFTER_MS,
    )


def unstarted(worker: Worker, *, but: frozenset[UUID]) -> list[Claim]:
    """The worker's claims that it did not start, in full; they stop at 8 MiB."""
    return in_full(read_unstarted(worker, but=but), worker)


def read_unstarted(
    worker: Worker, *, placed_only: bool = False, but: frozenset[UUID] = frozenset()
) -> list[Attempt]:
    """The worker's claims that it did not start, without inputs; they stop at 8 MiB."""
    attempts = (
        Attempt.objects.filter(worker=worker, status=AttemptStatus.CLAIMED)
        .select_related("workload")
        # Read once it is known which of them fit into the answer.
        .defer("workload__input")
        .order_by("pk")[: worker.concurrency + MAX_CLAIMS]
    )
    found: list[Attempt] = []
    total = 0
    for attempt in attempts:
        if (placed_only and not attempt.is_placed) or attempt.uid in but:
            continue
        total += bytes_of(attempt)
        if found and total > MAX_ANSWER_BYTES:
            break
        found.append(attempt)
    return found


def in_full(attempts: list[Attempt], worker: Worker) -> list[Claim]:
    """Such attempts as claims with all that the worker needs."""
    if not attempts:
        return []
    pks = [each.workload_id for each in attempts]
    inputs = dict(Workload.objects.filter(pk__in=pks).values_list("pk", "input"))
    latest = _latest_checkpoints(pks)
    for each in attempts:
        each.workload.input = inputs[each.workload_id]
    return [_claim_of(each, worker, latest.get(each.workload_id)) for each in attempts]


def bytes_of(attempt: Attempt) -> int:
    """What a claim weighs in an answer."""
    return attempt.workload.input_bytes + attempt.workload.checkpoint_bytes


def look_for(slots: int) -> int:
    """How many candidates to look at: some times the slots, in steps of a power of two.

    The number stands in the statement itself, for PostgreSQL plans well with a limit that it
    knows; the steps keep the number of prepared statements small.
    """
    return 1 << max(5, (4 * slots + 15).bit_length())


def give_next(terms: Terms, slots: int, look: int, room: Room) -> Run:
    """Give the most urgent of all that the worker may take, by its eligible set."""
    statement = _NEXT.replace("%(look)s", str(look))
    return _run(statement, terms, room, {"slots": slots})


def give_chosen(terms: Terms, choice: Choice, room: Room = Room()) -> Run:  # frozen
    """Give of the chosen work what neighbours have not locked, within the quotas."""
    values = {
        "ids": choice.ids,
        "requirements": choice.requirement_ids,
        "quota_of": list(choice.quotas),
        "quotas": list(choice.quotas.values()),
    }
    return _run(_CHOSEN, terms, room, values)


def _run(statement: str, terms: Terms, room: Room, picking: Mapping[str, Any]) -> Run:
    values = {
        "worker": terms.worker.pk,
        "worker_id": terms.worker.worker_id,
        "incarnation": terms.worker.incarnation,
        "is_placed": terms.is_placed,
        "lease_ms": terms.lease_ms,
        "at": terms.at,
        "actor": terms.actor,
        "max_bytes": room.bytes,
        "at_least": room.at_least,
        **picking,
    }
    rows = statements.rows(statement, values)
    given = [row for row in rows if row["uid"] is not None]
    return Run(
        claims=[_claim(row, terms.worker, terms.at) for row in given],
        requirement_ids=[row["requirement_id"] for row in given],
        bytes=sum(row["bytes"] for row in given),
        seen=rows[0]["seen"],
        is_cut=rows[0]["found"] > len(given),
    )


def _claim(row: Mapping[str, Any], worker: Worker, at: datetime) -> Claim:
    sequence = row["checkpoint_sequence"]
    return Claim(
        claim_id=f"claim_{row['uid'].hex}",
        attempt_id=f"attempt_{row['uid'].hex}",
        workload_id=row["workload_id"],
        worker_id=worker.worker_id,
        fencing_token=row["fencing_token"],
        capability_snapshot=row["capability_snapshot"],
        issued_at=at,
        expires_at=row["expires_at"],
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        input=row["input"],
        environment=row["environment"],
        attempt_number=row["number"],
        # `jsonb` comes as text.
        timeouts=orjson.loads(row["timeouts"]),
        connection_scopes=row["connection_scopes"],
        checkpoint=None if sequence is None else (sequence, row["checkpoint_state"]),
        lost_policy=row["lost_policy"],
    )


def _claim_of(attempt: Attempt, worker: Worker, latest: Checkpoint | None) -> Claim:
    work = attempt.workload
    return Claim(
        claim_id=attempt.claim_id,
        attempt_id=attempt.attempt_id,
        workload_id=work.workload_id,
        worker_id=worker.worker_id,
        fencing_token=attempt.fencing_token,
        capability_snapshot=work.capability_snapshot,
        issued_at=attempt.claimed_at,
        expires_at=attempt.expires_at,
        definition_id=work.definition_id,
        definition_revision=work.definition_revision,
        input=work.input,
        environment=work.environment,
        attempt_number=attempt.number,
        timeouts=work.timeouts,
        connection_scopes=work.connection_scopes,
        checkpoint=None if latest is None else (latest.sequence, latest.state),
        lost_policy=work.lost_policy,
    )


def _latest_checkpoints(workload_pks: list[int]) -> dict[int, Checkpoint]:
    latest = Checkpoint.objects.filter(workload_id__in=workload_pks)
    ordered = latest.order_by("workload_id", "-sequence").distinct("workload_id")
    return {each.workload_id: each for each in ordered}
