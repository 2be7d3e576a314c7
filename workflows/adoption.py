"""Adoption: an operator turns a run over to the server's own coordinator.

Guarantees: nothing is taken that claim or hand-over would not give: a run that nobody has is
claimed; one that somebody has moves on evidence, by a normal hand-over when it is quiescent and no
barrier stands, else by a recovery one. From then on the run is driven by the built-in coordinator.

Locks: those of the two. A hand-over is durable: no transaction may be open around it.
"""

from datetime import datetime

from django.db import transaction

from mesh import clock
from mesh.history import audit, audited
from mesh.models import Role
from mesh.tenancy import Caller

from . import authority as authorities
from . import blocks, coordinators, handoffs, history, locking, runs
from .authority import Authority
from .models import CoordinatorKind, HandoffMode, Run
from .transitions import Transition, invalid


@audited("run.adopted", on="run_id", writes=False)
def adopt(*, caller: Caller, run_id: str, reason: str, replacement: Authority) -> Run:
    """Turn the run over to `replacement`, an instance of the built-in coordinator.

    Its generation is the next one (`next_generation`). A run that is driven by a living built-in
    coordinator stays as it is. Refuses PERMISSION_DENIED (operator), ADMISSION_INVALID and
    WORKLOAD_SECRET_REJECTED (reason); then as `authority.claim` where nobody has the run, else as
    `handoffs.hand_over`, whose EVIDENCE_UNKNOWN says that the old owner may be at work still.
    """
    caller.require(Role.OPERATOR)
    blocks.require_reason(reason)
    replacement.require_whole()
    run = Run.objects.filter(tenant_id=caller.tenant_id, run_id=run_id).defer("input").first()
    if run is None:
        raise locking.not_found()
    if _is_adopted(run, replacement):
        return run
    current = Authority.of(run)
    if current is None:
        return _claim(caller, run_id, reason, replacement)
    asked = handoffs.Asked(
        caller,
        run_id,
        mode(run),
        current,
        replacement,
        also=lambda run, at: _turn_over(run, caller, reason, at),
    )
    return handoffs.move(asked).run


def transition(run: Run, replacement: Authority) -> Transition:
    """The step by which `adopt` would move an owned run to `replacement`, as it stands now.

    Refuses in this order: AUTHORITY_STALE (nobody has the run, so there is nobody to hand it over);
    RUN_TERMINAL; TRANSITION_INVALID (a living built-in coordinator drives it).
    """
    current = Authority.of(run)
    if current is None:
        raise authorities.stale(run)
    if not run.is_open:
        raise authorities.terminal(run)
    if _is_adopted(run, replacement):
        raise invalid("The built-in coordinator drives the run already.")
    return Transition(mode(run), current, replacement)


def next_generation(run: Run) -> int:
    """The generation that an authority must have to be the run's next one."""
    return (run.generation or 0) + 1


def _is_adopted(run: Run, replacement: Authority) -> bool:
    """Whether the built-in coordinator drives it already: this instance, or another that lives."""
    if run.coordinator != CoordinatorKind.BUILTIN or run.instance_id is None:
        return False
    if replacement.is_of(run):
        return True
    owner = coordinators.known(run.tenant_id, (run.instance_id,)).get(run.instance_id)
    return owner is not None and owner.is_builtin and owner.is_alive(clock.now())


def mode(run: Run) -> HandoffMode:
    """Normal where there is nothing to be explained, else for recovery."""
    is_quiet = runs.is_quiescent(run) and blocks.standing(run.pk).recovery is None
    return HandoffMode.NORMAL if is_quiet else HandoffMode.RECOVERY


def _claim(caller: Caller, run_id: str, reason: str, replacement: Authority) -> Run:
    with transaction.atomic():
        run = authorities.claim(caller=caller, run_id=run_id, authority=replacement)
        _turn_over(run, caller, reason, clock.now())
        runs.wake(run)
    return run


def _turn_over(run: Run, caller: Caller, reason: str, at: datetime) -> None:
    """From now on the built-in coordinator drives the run, which is locked."""
    run.coordinator = CoordinatorKind.BUILTIN
    run.save(update_fields=["coordinator"])
    history.record(run, "adopted", actor=caller.subject, at=at, evidence={"reason": reason})
    audit(
        tenant_id=caller.tenant_id,
        actor=caller.subject,
        action="run.adopted",
        target=run.run_id,
        reason=reason,
        at=at,
    )
