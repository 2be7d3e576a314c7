"""Starts: the work of many claims of one worker begins in one call.

Guarantees: each start is judged by itself, in order, by the rules of `mesh.leases.start`: only the
current claim whose lease is not over is told "go", a repeat too. The later of two on one claim is
a repeat of the first.

Locks: the worker, then the workloads, by key; those that are locked are passed over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from django.db import transaction

from . import leases, workers
from .dockets import Docket, Judged, judged
from .errors import DomainError
from .giving import require_worker
from .models import Attempt
from .tenancy import Caller

MAX_STARTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Start:
    """One claim that its worker wants to begin with, as it presents it."""

    claim_id: str
    token: int


def start(*, caller: Caller, worker_id: str, said: Sequence[Start]) -> list[Judged]:
    """Say that the work of these claims begins; no effect of one may happen before its "go".

    A constant number of statements, however many they are. A claim whose workload another call
    holds at this moment is answered STORAGE_BUSY and holds up nobody; otherwise a start is refused
    with the codes that it would be refused with alone. A repeat of the call repeats each start.
    Refuses as a whole with REQUEST_INVALID (none, or over 1 000), WORKER_NOT_FOUND,
    PERMISSION_DENIED (no worker, or another one).
    """
    require_worker(caller)
    if not 1 <= len(said) <= MAX_STARTS:
        raise DomainError("REQUEST_INVALID", f"From 1 to {MAX_STARTS} starts.")
    with transaction.atomic():
        worker = workers.lock_for(caller, worker_id)
        docket = Docket(caller, worker, [each.claim_id for each in said], skip_locked=True)
        started = [judged(each.claim_id, partial(_start, docket, each)) for each in said]
        docket.write()
    return started


def _start(docket: Docket, said: Start) -> Attempt:
    shown = docket.present(said.claim_id)
    event = leases.begin(shown, said.token, actor=workers.subject_of(docket.worker))
    if event is not None:
        docket.begin(shown, event)
    return shown.attempt
