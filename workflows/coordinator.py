"""The built-in coordinator: drives the runs that ask for it, as an ordinary client of the rules.

It takes runs that nobody has, admits what is due, settles what ended, withdraws what a block keeps
from starting, ends what is done. Whatever it does goes through the functions that a service calls
by the API, under the authority of its own instance; so it may die at any moment, and do anything
twice. Runs of an instance that is gone are taken over by a hand-over with evidence.

Which instance this process acts as stands in `workflows.instances`.

Locks nothing itself. Asks outside of transactions; every step is a transaction of its own.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog
from django.conf import settings

from mesh import clock, workloads
from mesh.errors import DomainError
from mesh.history import audited
from mesh.models import CLAIMED_STATES, Role, State
from mesh.tenancy import Caller, system_caller

from . import (
    admission,
    adoption,
    attestations,
    blocks,
    coordinators,
    ending,
    handoffs,
    instances,
    recovery,
    runs,
    settlement,
    steering,
)
from . import authority as authorities
from .admission import Admitted
from .authority import Authority
from .models import (
    Attestation,
    CoordinatorKind,
    HandoffMode,
    Run,
    RunAttempt,
    StepState,
)
from .models.runs import RunQuerySet
from .resources import Busy
from .steps import Steps

logger = structlog.get_logger(__name__)
WHAT: Final = "coordinator"
# Refusals of an admission that pass by themselves, or that somebody else has to answer for.
_PASSING: Final = frozenset(
    {
        "STORAGE_BUSY",
        "LIMIT_EXCEEDED",
        "CONCURRENCY_FULL",
        "AUTHORITY_STALE",
        "RUN_TERMINAL",
        "RUN_PAUSED",
        "RUN_CANCELLING",
        "RUN_CONTROL_FAILURE",
        "RUN_RECOVERING",
        "RUN_NOT_FOUND",
    }
)
# The next step may be luckier.
_OF_THIS_STEP: Final = frozenset({"RESOURCE_BUSY", "STEP_NOT_DUE"})
# A person can put right what stopped the run, so it waits to be cleared instead of failing.
WAITS_FOR_A_PERSON: Final = frozenset({steering.NEVER_STARTED})


@dataclass(slots=True)
class Driven:
    """What one drive of a run changed."""

    run_id: str = ""
    done: dict[str, int] = field(default_factory=dict)

    def count(self, what: str, number: int = 1) -> None:
        if number:
            self.done[what] = self.done.get(what, 0) + number


@audited("run.adopted", on="run_id", writes=False)
def adopt(*, caller: Caller, run_id: str, reason: str) -> Run:
    """Turn a run over to the built-in coordinator, as `adoption.adopt` says; RUN_NOT_FOUND."""
    caller.require(Role.OPERATOR)
    run = runs.get(caller=caller, run_id=run_id)
    return adoption.adopt(caller=caller, run_id=run_id, reason=reason, replacement=_heir(run))


@audited("run.handoff_attested", on="run_id", writes=False)
def attest(*, caller: Caller, run_id: str, statement: str) -> Attestation:
    """State that the run's owner has stopped, so that `adopt` may turn the run over.

    Refuses in this order: PERMISSION_DENIED (no attester); RUN_NOT_FOUND; what
    `adoption.transition` refuses; what `attestations.attest` does.
    """
    attestations.require_attester(caller)
    run = runs.get(caller=caller, run_id=run_id)
    step = adoption.transition(run, _heir(run))
    return attestations.attest(caller=caller, run_id=run_id, transition=step, statement=statement)


def _heir(run: Run) -> Authority:
    """Who would adopt the run: whom people named when they attested, while it lives; else any.

    Another one than they named could not use what they stated.
    """
    at = clock.now()
    name = attestations.named(run, at)
    named = coordinators.known(run.tenant_id, (name,)).get(name)
    if named is not None and named.is_builtin and named.is_alive(at):
        heir = instances.Instance(name)
    else:
        heir = instances.instance_for(run.tenant)
    return heir.authority(run, adoption.next_generation(run))


def drive(run_pk: int) -> Driven:
    """Bring a run as far as it goes now. A repeat goes on from where it stands; nothing happens to
    a run that ended, that another coordinator is to drive, or whose owner is alive elsewhere."""
    driven = Driven()
    run = _rows().filter(pk=run_pk).first()
    if run is None or not run.is_open or run.coordinator != CoordinatorKind.BUILTIN:
        return driven
    driven.run_id = run.run_id
    with _under_way(run_pk):
        drive = _Drive(run, driven)
        if drive.own():
            drive.settle()
            drive.finish_recovery()
            if not drive.end():
                drive.admit()
    return driven


# How many threads of this process drive a run just now.
_drives: Final[Counter[int]] = Counter()
_drives_lock: Final = threading.Lock()


def is_under_way(run_pk: int) -> bool:
    """Whether this process is driving the run just now: another would wait for its locks."""
    return _drives[run_pk] > 0


@contextmanager
def _under_way(run_pk: int) -> Iterator[None]:
    with _drives_lock:
        _drives[run_pk] += 1
    try:
        yield
    finally:
        with _drives_lock:
            _drives[run_pk] -= 1
            if not _drives[run_pk]:
                del _drives[run_pk]


def _rows() -> RunQuerySet:
    """Runs as a drive needs them: without what may be long."""
    rows = Run.objects.select_related("tenant", "definition")
    return rows.defer("input", "definition__steps")


class _Drive:
    """One run, for the length of one drive. Refusals that pass by themselves end a step early."""

    def __init__(self, run: Run, driven: Driven) -> None:
        self.run = run
        self.driven = driven
        self.caller: Caller = system_caller(run.tenant, WHAT)
        self.instance = instances.instance_for(run.tenant)
        self.authority: Authority

    def own(self) -> bool:
        """Whether the run is this instance's, by a claim or a hand-over if need be."""
        current = Authority.of(self.run)
        if current is None:
            return self._take(self.instance.authority(self.run, 1), self._claim, "claimed")
        if current.instance_id == self.instance.instance_id:
            self.authority = self.instance.authority(self.run, current.generation)
            return self.authority.has_token_of(self.run)
        if not is_gone(self.run):
            return False
        mine = self.instance.authority(self.run, current.generation + 1)
        return self._take(mine, self._take_over, "taken_over")

    def _take(self, mine: Authority, take: Callable[[Authority], object], what: str) -> bool:
        try:
            take(mine)
        except DomainError as refusal:
            # Another was quicker, or nobody knows what became of the owner.
            logger.info("run not taken", run_id=self.run.run_id, code=refusal.code)
            return False
        self.driven.count(what)
        self.authority = mine
        self._look_again()
        return True

    def _claim(self, mine: Authority) -> None:
        authorities.claim(caller=self.caller, run_id=self.run.run_id, authority=mine)

    def _take_over(self, mine: Authority) -> None:
        expected = Authority.of(self.run)
        if expected is None:
            raise authorities.stale(self.run)
        # Who fell silent may have been in the middle of something.
        mode = adoption.mode(self.run) if self._was_left() else HandoffMode.RECOVERY
        handoffs.hand_over(
            caller=self.caller,
            run_id=self.run.run_id,
            mode=mode,
            expected=expected,
            replacement=mine,
        )

    def _was_left(self) -> bool:
        """Its owner said that it stops."""
        owner = self.run.instance_id or ""
        row = coordinators.known(self.run.tenant_id, (owner,)).get(owner)
        return row is not None and row.relinquished_at is not None

    def _look_again(self) -> None:
        self.run = _rows().get(pk=self.run.pk)

    def settle(self) -> None:
        """Settle what ended; withdraw what a block keeps from starting; ask the rest to stop."""
        standing = blocks.standing(self.run.pk)
        is_withdrawing = bool(standing.cancelled or standing.control_failure or standing.recovery)
        for attempt in self._unsettled():
            state = attempt.workload.state
            if standing.cancelled is not None and state in CLAIMED_STATES:
                self._stop(attempt, standing.cancelled.reason)
            if state == State.READY and not is_withdrawing:
                continue
            outcome = settlement.outcome_of(attempt)
            if outcome is not None:
                self._settle(attempt, outcome)

    def _unsettled(self) -> Iterable[RunAttempt]:
        found = RunAttempt.objects.unsettled().filter(run=self.run)
        # Of work only what moves: inputs may be long, and every wake-up comes by here.
        return found.select_related("workload").defer("workload__input").order_by("pk")

    def _settle(self, attempt: RunAttempt, outcome: settlement.Outcome) -> None:
        # It moved meanwhile: the next drive sees how it stands.
        with _unless_refused("WORK_OUTSTANDING", "OUTCOME_CONFLICT"):
            settlement.settle(
                caller=self.caller,
                run_id=self.run.run_id,
                authority=self.authority,
                dispatch_identity=attempt.dispatch_identity,
                outcome=outcome,
            )
            self.driven.count("settled")

    def _stop(self, attempt: RunAttempt, reason: str) -> None:
        if attempt.workload.state == State.CANCELLATION_REQUESTED:
            return
        with _unless_refused("WORKLOAD_TRANSITION_DENIED"):
            workloads.cancel(
                caller=self.caller,
                workload_id=attempt.workload.workload_id,
                reason=reason or "The run is being cancelled.",
                if_claimed=True,
            )
            self.driven.count("stopping")

    def finish_recovery(self) -> None:
        if blocks.standing(self.run.pk).recovery is None:
            return
        self._look_again()
        if runs.is_quiescent(self.run):
            with _unless_refused("WORK_OUTSTANDING"):
                recovery.finish(
                    caller=self.caller, run_id=self.run.run_id, authority=self.authority
                )
                self.driven.count("recovered")

    def end(self) -> bool:
        """End the run if it is done; whether it is ended."""
        self._look_again()
        if not self.run.is_open:
            return True
        if not self._is_to_end() or not runs.is_quiescent(self.run):
            return False
        with _unless_refused("WORK_OUTSTANDING", "RECOVERY_PENDING"):
            ending.terminalize(caller=self.caller, run_id=self.run.run_id, authority=self.authority)
            self.driven.count("ended")
            return True
        return False

    def _is_to_end(self) -> bool:
        standing = blocks.standing(self.run.pk)
        failure = standing.control_failure
        if standing.cancelled is not None or runs.is_failed(self.run):
            return True
        if failure is not None:
            return failure.code not in WAITS_FOR_A_PERSON
        return runs.are_exits_done(self.run)

    def admit(self) -> None:
        """Admit what is due, in the order of the definition, as far as there is room."""
        if blocks.standing(self.run.pk).any:
            return
        due = self.run.activations.filter(state=StepState.READY).order_by("position")
        steps, busy = Steps.of(self.run.definition), Busy()
        for step, last in list(due.values_list("step", "last_number")):
            if busy.keeps_out(steps[step]):
                continue
            try:
                admitted = self._admit(step, last + 1)
                self.driven.count("admitted", int(admitted.created))
            except DomainError as refusal:
                if refusal.code in _OF_THIS_STEP:
                    busy.learn(refusal)
                    continue
                if refusal.code not in _PASSING:
                    self._give_up(step, refusal)
                return

    def _admit(self, step: str, number: int) -> Admitted:
        return admission.admit(
            caller=self.caller,
            run_id=self.run.run_id,
            authority=self.authority,
            step=step,
            attempt=number,
        )

    def _give_up(self, step: str, refusal: DomainError) -> None:
        """An admission that can never succeed stops the run, instead of being tried for ever."""
        code = str(refusal.facts.get("cause") or refusal.code)
        if code == "LIMIT_REACHED" and self._is_late():
            code = steering.DEADLINE_ELAPSED
        with _unless_refused():
            steering.fail(
                caller=self.caller,
                run_id=self.run.run_id,
                authority=self.authority,
                code=code,
                message=refusal.detail[: blocks.MAX_REASON],
                step=step,
            )
            self.driven.count("failed")
            logger.warning("run cannot go on", run_id=self.run.run_id, code=code, step=step)

    def _is_late(self) -> bool:
        return self.run.deadline is not None and clock.now() >= self.run.deadline


@contextmanager
def _unless_refused(*codes: str) -> Iterator[None]:
    """Let these refusals, and those that pass by themselves, end a step early."""
    try:
        yield
    except DomainError as refusal:
        if refusal.code not in _PASSING and refusal.code not in codes:
            raise


def is_gone(run: Run) -> bool:
    """Whether the run's owner is known to have relinquished, or to be past its lease and grace."""
    owner = Authority.of(run)
    if owner is None:
        return False
    row = coordinators.known(run.tenant_id, (owner.instance_id,)).get(owner.instance_id)
    if row is None or not coordinators.has_stopped(row, clock.now(), grace=grace()):
        return False
    return coordinators.speaks_for(row, run.pk, owner)


def grace() -> timedelta:
    """How long after the end of its lease a coordinator is taken for gone."""
    return timedelta(milliseconds=settings.COORDINATOR_GRACE_MS)
