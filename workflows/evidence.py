"""Evidence that the old owner of a run has stopped: what the server's own resolvers say.

Guarantees: nothing that a caller sends is evidence. All resolvers that the setting
`EVIDENCE_RESOLVERS` names are asked, in its order and each within `EVIDENCE_TIMEOUT_MS`. "Another
transition" from any of them wins over all; otherwise the first that confirms, while its word is
not older than `EVIDENCE_MAX_AGE_MS`. One that raises, hangs or talks nonsense does not know, and
"does not know" never permits a change.

To be called outside a transaction: an answer from outside may take its time. While one is waited
for, the call holds no database connection.

Resolvers of your own: a class with a `name` and a method `ask(question)` that answers a `Finding`.
Each call is made in a thread of its own, which has no database and does not keep the process from
ending; while `_AT_ONCE` calls of a resolver hang, it is not asked again.

Locks nothing.
"""

import logging
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final, Protocol

import orjson
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.utils.module_loading import import_string

from mesh import clock
from mesh.errors import DomainError
from mesh.screening import require_no_secrets

from . import attestations, coordinators
from .models import Receipt, Run, Verdict
from .transitions import Transition

_AT_ONCE: Final = 4
_MAX_SAW_BYTES: Final = 65_536
_MAX_NAME: Final = 64
# A clock outside may be ahead of the database's by so much.
_AHEAD: Final = timedelta(seconds=5)
# As JSON writes it; no database text holds it.
_NUL: Final = rb"\u0000"
_slots: dict[type, threading.BoundedSemaphore] = {}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """What a resolver is asked: has the old owner of this run stopped, for this transition?"""

    tenant: str
    application: str
    run_id: str
    transition: Transition
    tenant_pk: int
    run_pk: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What a resolver says, when it knew that, and what it saw. `saw` is stored and shown."""

    verdict: Verdict
    at: datetime
    saw: Mapping[str, Any] = field(default_factory=dict)
    # Filled in here.
    resolver: str = ""
    receipt_id: str | None = None


class Resolver(Protocol):
    """Somebody who may know whether an old owner has stopped."""

    name: ClassVar[str]

    def ask(self, question: Question) -> Finding: ...


class Local:
    """Of resolvers that read this database and nothing else: asked right here."""


class CoordinatorEvidence(Local):
    """The old coordinator relinquished, or its lease ended and a grace passed; and the new lives.

    An old instance that was never registered is not known, nor one that was only registered after
    the run was its owner's (`coordinators.speaks_for`).
    """

    name: ClassVar[str] = "coordinator"

    def ask(self, question: Question) -> Finding:
        at = clock.now()
        step = question.transition
        ids = (step.expected.instance_id, step.replacement.instance_id)
        rows = coordinators.known(question.tenant_pk, ids)
        old, new = (rows.get(each) for each in ids)
        grace = timedelta(milliseconds=settings.COORDINATOR_GRACE_MS)
        if old is None or new is None or not new.is_alive(at):
            return Finding(Verdict.UNKNOWN, at)
        if not coordinators.has_stopped(old, at, grace=grace):
            return Finding(Verdict.UNKNOWN, at)
        if not coordinators.speaks_for(old, question.run_pk, step.expected):
            return Finding(Verdict.UNKNOWN, at)
        ended = old.relinquished_at
        saw = {
            "old": old.instance_id,
            "relinquished_at": None if ended is None else ended.isoformat(),
            "lease_ended_at": old.lease_ends_at.isoformat(),
            "new": new.instance_id,
            "new_lease_ends_at": new.lease_ends_at.isoformat(),
        }
        return Finding(Verdict.CONFIRMED, at, saw)


class AttestationEvidence(Local):
    """As many people as the tenant asks for stated it, of exactly this transition."""

    name: ClassVar[str] = attestations.RESOLVER

    def ask(self, question: Question) -> Finding:
        at = clock.now()
        step = question.transition
        other = attestations.of_another(question.run_pk, step, at - attestations.max_age())
        if other is not None:
            return Finding(Verdict.OTHER, at, {"attestation_id": other.attestation_id})
        found = attestations.complete(question.run_pk, question.tenant_pk, step)
        if found is None or found.completed_at is None:
            return Finding(Verdict.UNKNOWN, at)
        saw = attestations.saw(found)
        return Finding(Verdict.CONFIRMED, found.completed_at, saw, receipt_id=found.receipt_id)


def resolve(run: Run, transition: Transition) -> Finding:
    """The finding that confirms the transition.

    Refuses in this order: EVIDENCE_MISMATCH (one says another transition); EVIDENCE_UNKNOWN (none
    confirms); EVIDENCE_EXPIRED (all that confirm are too old).
    """
    question = Question(
        tenant=run.tenant.name,
        application=run.application.name,
        run_id=run.run_id,
        transition=transition,
        tenant_pk=run.tenant_id,
        run_pk=run.pk,
    )
    found = [_ask(each, question) for each in resolvers()]
    for each in found:
        if each.verdict == Verdict.OTHER:
            raise DomainError(
                "EVIDENCE_MISMATCH",
                "The evidence is of another transition.",
                resolver=each.resolver,
            )
    confirming = [each for each in found if each.verdict == Verdict.CONFIRMED]
    if not confirming:
        raise DomainError("EVIDENCE_UNKNOWN", "Nobody knows that the old owner has stopped.")
    at = clock.now()
    best = next((each for each in confirming if is_fresh(each, at)), confirming[0])
    require_fresh(best, at)
    return best


def is_fresh(finding: Finding, at: datetime) -> bool:
    return at - finding.at <= attestations.max_age()


def require_fresh(finding: Finding, at: datetime) -> None:
    """Refuse with EVIDENCE_EXPIRED what was known too long ago."""
    if not is_fresh(finding, at):
        raise DomainError("EVIDENCE_EXPIRED", "The evidence is too old.", resolver=finding.resolver)


def receipt(run: Run, transition: Transition, finding: Finding) -> Receipt:
    """The stored receipt of a finding: that which it names, or a new one."""
    if finding.receipt_id is not None:
        return Receipt.objects.get(receipt_id=finding.receipt_id)
    return Receipt.objects.create(
        tenant_id=run.tenant_id,
        run=run,
        receipt_id=f"receipt_{uuid.uuid4().hex}",
        resolver=finding.resolver,
        verdict=finding.verdict,
        transition=transition.shown(),
        saw=dict(finding.saw),
        at=finding.at,
    )


def resolvers() -> list[type[Resolver]]:
    """Those that the setting names; ImproperlyConfigured where a path leads to none."""
    try:
        found = [import_string(path) for path in settings.EVIDENCE_RESOLVERS]
    except ImportError as error:
        raise ImproperlyConfigured(f"FENCEPOST_EVIDENCE_RESOLVERS: {error}") from error
    for each in found:
        if not isinstance(each, type) or not callable(getattr(each, "ask", None)):
            raise ImproperlyConfigured(f"FENCEPOST_EVIDENCE_RESOLVERS: {each!r} is no resolver")
    return found


def _ask(kind: type[Resolver], question: Question) -> Finding:
    """What it says; whatever cannot be used counts as not known."""
    name = str(getattr(kind, "name", kind.__name__))[:_MAX_NAME]
    is_local = issubclass(kind, Local)
    ask = _ask_here if is_local else _ask_outside
    try:
        said = _usable(ask(kind, question), clock.now())
    except Exception as error:
        # Its text may hold what the resolver keeps to itself.
        _log.warning("Evidence resolver %s failed: %s", name, type(error).__name__)
        return Finding(Verdict.UNKNOWN, clock.now(), resolver=name)
    return replace(said, resolver=name, receipt_id=said.receipt_id if is_local else None)


def _ask_here(kind: type[Resolver], question: Question) -> object:
    with transaction.atomic():
        with connection.cursor() as cursor:
            limit = f"{settings.EVIDENCE_TIMEOUT_MS}ms"
            cursor.execute("select set_config('statement_timeout', %s, true)", [limit])
        return kind().ask(question)


def _ask_outside(kind: type[Resolver], question: Question) -> object:
    """Ask in a thread that may be left behind. Raises what it raised, or TimeoutError."""
    slot = _slots.setdefault(kind, threading.BoundedSemaphore(_AT_ONCE))
    if not slot.acquire(blocking=False):
        raise TimeoutError("earlier calls still hang")
    if not connection.in_atomic_block:
        connection.close()
    answers: SimpleQueue[object] = SimpleQueue()

    def ask() -> None:
        try:
            _take_database_away()
            answers.put(kind().ask(question))
        except BaseException as error:
            answers.put(error)
        finally:
            slot.release()

    try:
        threading.Thread(target=ask, name=f"evidence {kind.__name__}", daemon=True).start()
    except RuntimeError:
        slot.release()
        raise
    try:
        return answers.get(timeout=settings.EVIDENCE_TIMEOUT_MS / 1000)
    except Empty:
        raise TimeoutError from None


def _take_database_away() -> None:
    """Let this thread open no database connection, which it would keep for as long as it hangs."""

    def refuse() -> None:
        raise RuntimeError("a resolver that asks outside has no database")

    for each in connections.all():
        each.connect = refuse  # type: ignore[method-assign]


def _usable(said: object, at: datetime) -> Finding:
    """The finding, with what it saw as it will be stored; raises where that cannot be."""
    if isinstance(said, BaseException):
        raise said if isinstance(said, Exception) else RuntimeError(type(said).__name__)
    if not isinstance(said, Finding):
        raise TypeError("no finding")
    if said.at.tzinfo is None or said.at > at + _AHEAD:
        raise ValueError("no time that can be")
    saw = orjson.dumps(dict(said.saw))
    if len(saw) > _MAX_SAW_BYTES or _NUL in saw:
        raise ValueError("nothing that can be stored")
    require_no_secrets(saw=orjson.loads(saw))
    return replace(said, verdict=Verdict(said.verdict), saw=orjson.loads(saw))
