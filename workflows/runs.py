"""Runs: how one begins, what is due in it, and when it is done.

Guarantees: a run id stands for one run of its tenant for ever, and for equal content; every step
of its definition has one activation from the start. What is due follows from the states of the
activations alone, so that it can be worked out anew at any time, in the same few statements
whatever the number of steps.

Locks: `start` none; whoever calls `make_due` has locked the run.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import transaction

from mesh import clock
from mesh.canonical import digest, secret_hash, size
from mesh.errors import DomainError
from mesh.history import audit, audited
from mesh.models import Application, Role
from mesh.screening import require_no_secrets
from mesh.submissions import is_near, is_text
from mesh.tenancy import Caller, get_application
from mesh.workloads import MAX_INPUT

from . import definitions, history, inputs, names, signals
from .authority import COLUMNS, Authority, install
from .locking import not_found
from .models import (
    ENDED_STEPS,
    WAITING_STEPS,
    Activation,
    CoordinatorKind,
    Definition,
    Run,
    StepState,
)
from .steps import Step, Steps

CONCURRENCY: Final = range(1, 1_001)
EXECUTIONS: Final = range(1, 100_001)
LIMITS: Final[Mapping[str, Any]] = {"concurrency": 8, "step_executions": 1_000, "deadline": None}
# Ended, and not as it should.
_FAILED: Final = frozenset({StepState.FAILED, StepState.CANCELLED})


@audited("run.started", on="run_id", writes=False)
def start(
    *,
    caller: Caller,
    application: str,
    run_id: str,
    definition_id: str,
    version: int,
    input: Any,  # noqa: A002  # the contract's word
    environment: str = "production",
    limits: Mapping[str, Any] | None = None,
    coordinator: str | None = None,
    authority: Authority | None = None,
) -> tuple[Run, bool]:
    """Begin a run of a stored definition; the answer says whether it is new.

    `limits` are `concurrency` (8), `step_executions` (1 000) and `deadline` (none). The server's
    own coordinator drives it, unless `coordinator` is `external`; with an authority it is external
    and owned from the start. The same content again, after defaults, is the run as it stands by
    now, whoever owns it, and leaves no audit row.

    Refuses in this order: PERMISSION_DENIED (operator); ADMISSION_INVALID (`run_id`);
    APPLICATION_NOT_FOUND; DEFINITION_NOT_FOUND (not of that application); WORKLOAD_SECRET_REJECTED
    (input); ADMISSION_INVALID (the run id stands for other content; then what is out of bounds:
    `fields`; then the authority's ids or a missing token); TRANSITION_INVALID (generation not 1).
    """
    caller.require(Role.OPERATOR)
    names.require_id(run_id, "run_id")
    found = get_application(caller, application)
    definition = _definition(caller, found, definition_id, version)
    require_no_secrets(input=input)
    asked = _Asked(
        run_id,
        definition,
        input,
        environment,
        {**LIMITS, **(limits or {})},
        coordinator or (CoordinatorKind.EXTERNAL if authority else CoordinatorKind.BUILTIN),
        authority,
    )
    with transaction.atomic():
        run = _known(caller, run_id)
        created = False
        if run is None:
            at = clock.now()
            asked.require_sound(at)
            run, created = _insert(caller, asked, at)
        if not created and not hmac.compare_digest(run.content_digest, asked.digest()):
            raise DomainError(
                "ADMISSION_INVALID", "This run id stands for other content.", run_id=run_id
            )
        if created:
            _begin(run, asked, caller)
    return run, created


def get(*, caller: Caller, run_id: str) -> Run:
    """The run, with its definition and application. PERMISSION_DENIED, RUN_NOT_FOUND."""
    caller.require(Role.VIEWER)
    run = _known(caller, run_id)
    if run is None:
        raise not_found()
    return run


def pk_for(*, caller: Caller, run_id: str) -> int:
    """The key of the caller's run. PERMISSION_DENIED, RUN_NOT_FOUND."""
    caller.require(Role.VIEWER)
    runs = Run.objects.visible_to(caller).filter(run_id=run_id)
    pk = runs.values_list("pk", flat=True).first()
    if pk is None:
        raise not_found()
    return pk


def make_due(run: Run, at: datetime) -> None:
    """Let the steps of a locked run begin whose needs have all ended as they should.

    A step counts as ended when it succeeded, or ended otherwise and the run goes on without it.
    Once a step failed without which the run cannot go on, nothing new begins: what waits is
    skipped, also what waits for another attempt. To be called after every end of a step.
    """
    stand = _Progress.of(run)
    if stand.failed:
        waiting = run.activations.filter(state__in=WAITING_STEPS)
        waiting.update(state=StepState.SKIPPED, updated_at=at)
    elif due := stand.due():
        pending = run.activations.filter(step__in=due, state=StepState.PENDING)
        pending.update(state=StepState.READY, updated_at=at)


def is_failed(run: Run) -> bool:
    """Whether a step ended otherwise than it should, without which the run cannot go on."""
    return bool(_Progress.of(run).failed)


def are_exits_done(run: Run) -> bool:
    """Whether all is done: each step that no other needs counts as ended."""
    stand = _Progress.of(run)
    return all(stand.is_done(each) for each in stand.steps.exits())


def is_quiescent(run: Run) -> bool:
    """Whether nothing is under way in a locked run: nothing active, unsettled or reserved."""
    return outstanding(run) is None


def outstanding(run: Run) -> DomainError | None:
    """The refusal while a run is not quiescent: WORK_OUTSTANDING, LEASES_OUTSTANDING."""
    if run.active_attempts or run.attempts.unsettled().exists():
        return DomainError("WORK_OUTSTANDING", "Attempts of the run are not settled.")
    if run.leases.exists():
        return DomainError("LEASES_OUTSTANDING", "The run still reserves resources.")
    return None


def step_input(run: Run, step: Step) -> Any:
    """The input of a step that is due, with what it refers to put in.

    Raises `inputs.Unresolved` for what is not there, and `inputs.TooLong`. A step that ended
    without an output (failed, and the run goes on) has the output null.
    """
    sources = {each.source for each in inputs.references(step.input)}
    ended = run.activations.filter(step__in=sources, state__in=ENDED_STEPS)
    outputs = dict(ended.values_list("step", "output")) if sources - {inputs.RUN} else {}
    # Whoever locks a run does not read its input, which may be long.
    return inputs.resolve(step.input, run.input if inputs.RUN in sources else None, outputs)


def wake(run: Run) -> None:
    """Tell whoever drives the run, once the transaction is committed, that something changed."""
    transaction.on_commit(partial(signals.run_changed.send_robust, Run, pk=run.pk))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A run as it was asked for, with defaults."""

    run_id: str
    definition: Definition
    input: Any
    environment: str
    limits: Mapping[str, Any]
    coordinator: str
    authority: Authority | None

    def digest(self) -> str:
        """By it the same content is known. The definition says which application it is."""
        deadline = self.limits["deadline"]
        authority = self.authority and {
            **self.authority.public(),
            "token": secret_hash(self.authority.fencing_token or ""),
        }
        content = {
            "run_id": self.run_id,
            "definition": [self.definition.definition_id, self.definition.version],
            "input": self.input,
            "environment": self.environment,
            "limits": {**self.limits, "deadline": deadline and deadline.timestamp()},
            "coordinator": self.coordinator,
            "authority": authority,
        }
        return digest(content)

    def require_sound(self, at: datetime) -> None:
        """Refuse what is out of bounds at `at`, then an authority that cannot be a first one."""
        rules = {
            "environment": is_text(self.environment),
            "input": size(self.input) <= MAX_INPUT,
            "limits.concurrency": self.limits["concurrency"] in CONCURRENCY,
            "limits.step_executions": self.limits["step_executions"] in EXECUTIONS,
            "limits.deadline": is_near(self.limits["deadline"], at),
            "coordinator": self.coordinator in CoordinatorKind.values
            and (self.authority is None or self.coordinator == CoordinatorKind.EXTERNAL),
        }
        broken = [name for name, holds in rules.items() if not holds]
        if broken:
            raise DomainError(
                "ADMISSION_INVALID", f"Out of bounds: {', '.join(broken)}.", fields=broken
            )
        if self.authority is None:
            return
        self.authority.require_whole()
        if self.authority.generation != 1:
            raise DomainError("TRANSITION_INVALID", "A first authority has generation 1.")


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the steps of a run are, as of one statement."""

    steps: Steps
    states: Mapping[str, str]

    @classmethod
    def of(cls, run: Run) -> "_Progress":
        states = dict(run.activations.values_list("step", "state"))
        return cls(Steps.of(run.definition), states)

    @property
    def failed(self) -> list[str]:
        """The steps that ended otherwise than they should and fail the run."""
        return [
            name
            for name, step in self.steps.items()
            if self.states[name] in _FAILED and step.fails_the_run
        ]

    def is_done(self, step: Step) -> bool:
        """Whether the step counts as ended for those that need it."""
        state = self.states[step.step]
        return state == StepState.SUCCEEDED or (state in _FAILED and not step.fails_the_run)

    def due(self) -> list[str]:
        """The steps that wait for nothing any more and do not know it yet."""
        done = {name for name, step in self.steps.items() if self.is_done(step)}
        return [
            name
            for name, step in self.steps.items()
            if self.states[name] == StepState.PENDING and done.issuperset(step.needs)
        ]


def _definition(
    caller: Caller, application: Application, definition_id: str, version: int
) -> Definition:
    found = definitions.get(caller=caller, definition_id=definition_id, version=version)
    if found.application_id != application.pk:
        raise definitions.not_found()
    return found


def _known(caller: Caller, run_id: str) -> Run | None:
    runs = Run.objects.visible_to(caller).select_related("definition", "application", "tenant")
    return runs.defer("definition__steps").filter(run_id=run_id).first()


def _insert(caller: Caller, asked: _Asked, at: datetime) -> tuple[Run, bool]:
    """The new run, or the one that another call made at the same moment."""
    definition = asked.definition
    owned = Run()
    if asked.authority is not None:
        install(owned, asked.authority)
    runs = Run.objects.select_related("definition", "application", "tenant")
    return runs.get_or_create(
        tenant_id=caller.tenant_id,
        run_id=asked.run_id,
        defaults={
            "application": definition.application,
            "definition": definition,
            "environment": asked.environment,
            "input": asked.input,
            "content_digest": asked.digest(),
            "coordinator": asked.coordinator,
            "max_concurrency": asked.limits["concurrency"],
            "max_executions": asked.limits["step_executions"],
            "deadline": asked.limits["deadline"],
            "requested_by": caller.subject,
            "created_at": at,
            "updated_at": at,
            **{column: getattr(owned, column) for column in COLUMNS},
        },
    )


def _begin(run: Run, asked: _Asked, caller: Caller) -> None:
    """The activations of a new run, and its first rows of history."""
    at = run.created_at
    Activation.objects.bulk_create(
        Activation(
            run=run,
            step=each.step,
            position=each.position,
            activation_id=names.activation_id(run.run_id, each.step),
            state=StepState.PENDING if each.needs else StepState.READY,
            updated_at=at,
        )
        for each in Steps.of(asked.definition).values()
    )
    told = {
        "definition_id": asked.definition.definition_id,
        "version": asked.definition.version,
        "coordinator": asked.coordinator,
        "authority": asked.authority and asked.authority.public(),
    }
    history.record(run, "started", actor=caller.subject, at=at, evidence=told)
    audit(
        tenant_id=caller.tenant_id,
        actor=caller.subject,
        action="run.started",
        target=run.run_id,
        at=at,
        evidence={"application": run.application.name, **told},
    )
    wake(run)
