"""Handoffs: authority over a run moves from one coordinator to the next.

Guarantees: authority moves only on evidence of resolvers that the server owns, from exactly the
authority that is current to the next generation, once, by compare and set; the row of it and the
receipt stay for ever. A normal hand-over leaves nothing behind; a recovery one opens a barrier, or
takes over that of the old owner, so that nothing new starts until what was under way is explained.
It starts no work, probes no process, and who drives the run (`coordinator`) stays as it was.

Locks: the run, then its workloads where a barrier is opened. Evidence is asked before, outside the
transaction, which is durable: none may be open around it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from mesh import clock
from mesh.errors import DomainError
from mesh.history import audit, audited
from mesh.models import Role
from mesh.tenancy import Caller

from . import blocks, evidence, history, locking, runs
from .authority import COLUMNS, Authority, install, stale, terminal
from .evidence import Finding
from .models import Handoff, HandoffMode, Run
from .transitions import Transition, invalid


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a hand-over came to: its row, and the run with its authority as it is by now."""

    handoff: Handoff
    run: Run
    created: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A hand-over that is asked for, and what else is to be done in its transaction."""

    caller: Caller
    run_id: str
    mode: HandoffMode
    expected: Authority
    replacement: Authority
    also: Callable[[Run, datetime], object] | None = None

    @property
    def transition(self) -> Transition:
        return Transition(self.mode, self.expected, self.replacement)


@audited("run.handed_over", on="run_id", writes=False)
def hand_over(
    *,
    caller: Caller,
    run_id: str,
    mode: HandoffMode,
    expected: Authority,
    replacement: Authority,
) -> HandedOver:
    """Give the run from `expected` to `replacement`, which has a token; `expected` may have one.

    A repeat, also after later hand-overs, gets the stored one, with the run as it is by now.
    Refuses in this order: PERMISSION_DENIED (operator); ADMISSION_INVALID (ids, no new token);
    RUN_NOT_FOUND; TRANSITION_INVALID (no next generation, the same instance or token);
    HANDOFF_CONFLICT (that generation came by another transition); EVIDENCE_MISMATCH,
    EVIDENCE_UNKNOWN, EVIDENCE_EXPIRED; AUTHORITY_STALE; RUN_TERMINAL; in normal mode
    WORK_OUTSTANDING, LEASES_OUTSTANDING, RECOVERY_PENDING (a barrier stands); in recovery mode
    BARRIER_FOREIGN.
    """
    return move(Asked(caller, run_id, mode, expected, replacement))


def move(asked: Asked) -> HandedOver:
    """As `hand_over`, for operations that do more in the same transaction."""
    asked.caller.require(Role.OPERATOR)
    asked.expected.require_sound()
    asked.replacement.require_whole()
    run = _read(asked)
    asked.transition.require_step()
    _require_other_token(asked, run)
    stored = _stored(asked, run)
    if stored is not None:
        return stored
    finding = evidence.resolve(run, asked.transition)
    with transaction.atomic(durable=True):
        run = locking.lock_run(asked.caller, asked.run_id)
        at = clock.now()
        # Somebody may have been faster than the evidence.
        stored = _stored(asked, run)
        if stored is not None:
            return stored
        evidence.require_fresh(finding, at)
        _require_movable(asked, run)
        handoff = _change(asked, run, finding, at)
    return HandedOver(handoff, run, created=True)


def _read(asked: Asked) -> Run:
    found = Run.objects.select_related("tenant", "application").defer("input")
    run = found.filter(tenant_id=asked.caller.tenant_id, run_id=asked.run_id).first()
    if run is None:
        raise locking.not_found()
    return run


def _require_other_token(asked: Asked, run: Run) -> None:
    """The old owner must not know the new token. Its own may be known from the run alone."""
    is_current = asked.expected.without_token().is_of(run)
    if asked.replacement.has_token_like(asked.expected) or (
        is_current and asked.replacement.has_token_of(run)
    ):
        raise invalid("A run is handed over with another fencing token.")


def _stored(asked: Asked, run: Run) -> HandedOver | None:
    """The hand-over to that generation, if it was made; HANDOFF_CONFLICT if it was another one.

    While the generation is current the new token must be its token too: another process of the same
    name must not believe that it was given the run.
    """
    generation = asked.replacement.generation
    handoff = Handoff.objects.select_related("receipt").filter(run=run, generation=generation)
    found = handoff.first()
    if found is None:
        return None
    if (run.generation or 0) < generation:
        # It was made after the run was read, which nobody has locked.
        run = _read(asked)
    is_current = run.generation == generation
    is_same = asked.transition.is_that_of(found)
    if not is_same or (is_current and not asked.replacement.has_token_of(run)):
        raise DomainError("HANDOFF_CONFLICT", "That generation came by another hand-over.")
    return HandedOver(found, run, created=False)


def _require_movable(asked: Asked, run: Run) -> None:
    """The rules about the run itself, which is locked."""
    if not asked.expected.is_of(run):
        raise stale(run)
    _require_other_token(asked, run)
    if not run.is_open:
        raise terminal(run)
    barrier = blocks.standing(run.pk).recovery
    if asked.mode == HandoffMode.NORMAL:
        if refusal := runs.outstanding(run):
            raise refusal
        if barrier is not None:
            raise DomainError("RECOVERY_PENDING", "A recovery is not finished.")
    elif barrier is not None and not blocks.is_owned(barrier, asked.expected):
        raise DomainError("BARRIER_FOREIGN", "The barrier belongs to another authority.")


def _change(asked: Asked, run: Run, finding: Finding, at: datetime) -> Handoff:
    """Compare and set, and everything that goes with it."""
    caller, before, after = asked.caller, asked.expected, asked.replacement
    _compare_and_set(run, before, after)
    handoff = Handoff.objects.create(
        run=run,
        generation=after.generation,
        mode=asked.mode,
        expected_artifact_id=before.target_artifact_id,
        expected_instance_id=before.instance_id,
        replacement_artifact_id=after.target_artifact_id,
        replacement_instance_id=after.instance_id,
        receipt=evidence.receipt(run, asked.transition, finding),
        verified_at=finding.at,
        by=caller.subject,
        at=at,
    )
    _tell(asked, run, handoff)
    if asked.mode == HandoffMode.RECOVERY:
        reason = f"handed over from {before.instance_id}"
        blocks.open_barrier(run, owner=after, by=caller.subject, reason=reason)
    if asked.also is not None:
        asked.also(run, at)
    runs.wake(run)
    return handoff


def _tell(asked: Asked, run: Run, handoff: Handoff) -> None:
    """What the histories of the run and of people's acts say of it."""
    said = {**asked.transition.shown(), "receipt_id": handoff.receipt.receipt_id}
    history.record(run, "handed_over", actor=handoff.by, at=handoff.at, evidence=said)
    audit(
        tenant_id=run.tenant_id,
        actor=handoff.by,
        action="run.handed_over",
        target=run.run_id,
        at=handoff.at,
        evidence=said,
    )


def _compare_and_set(run: Run, before: Authority, after: Authority) -> None:
    """Last line: under the lock the row cannot have changed, and only that row may change."""
    as_compared = Run.objects.open().filter(
        pk=run.pk,
        target_artifact_id=before.target_artifact_id,
        instance_id=before.instance_id,
        generation=before.generation,
        token_hash=run.token_hash,
    )
    install(run, after)
    if as_compared.update(**{name: getattr(run, name) for name in COLUMNS}) != 1:
        raise stale(Run.objects.get(pk=run.pk))
