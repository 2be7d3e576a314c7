"""Resources that attempts reserve: what conflicts, and who waits behind a writer.

Guarantees: a read conflicts with a write on the same resource and a write with anything, within
the run and, where both are of scope `application`, within the application. Whatever the number of
resources it is one query (`conflicts.sql`).

A writer that was refused is remembered, for each resource that it found busy, for 60 s after its
last ask; readers that come later wait behind it, those that hold already go on. A writer never
waits behind a refused one. An attempt that both reads and writes waits only behind writers that
asked before it did, so no two wait for each other.

Locks: none here but the run of a writer that is remembered. An admission has locked its run and the
keys of scope `application` (`locking.lock_resources`) before it asks what conflicts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from mesh import clock, statements
from mesh.errors import DomainError
from mesh.models import Role
from mesh.tenancy import Caller

from . import runs
from .locking import lock_runs
from .models import Access, LeaseScope, RefusedWriter, Run, RunAttempt
from .names import require_name
from .steps import MAX_RESOURCES, Resource, Step, normalized

WAITS: Final = timedelta(seconds=60)
_CONFLICTS: Final = Path(__file__).with_name("conflicts.sql").read_text()


@dataclass(frozen=True, slots=True)
class Conflict:
    """A resource that cannot be had now, and one who is in the way."""

    wanted: Resource
    run_id: str
    # Empty of a writer that waits.
    step: str
    dispatch_identity: str
    # A writer that was refused and still asks; else the holder of a lease.
    is_waiting: bool

    def refusal(self) -> DomainError:
        does = "waits for" if self.is_waiting else "holds"
        return DomainError(
            "RESOURCE_BUSY",
            f"An attempt of the run {self.run_id} {does} the resource {self.wanted.resource}.",
            resource=self.wanted.resource,
            access=self.wanted.access,
            scope=self.wanted.scope,
            holder=self.shown(),
        )

    def shown(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "step": self.step,
            "dispatch_identity": self.dispatch_identity,
            "waiting": self.is_waiting,
        }


@dataclass(slots=True)
class Busy:
    """What was found busy while the steps of a run were gone through once.

    A further step that wants the same would be refused for the same reason, so it is not asked
    for: of a thousand that wait for one resource the first keeps their place. A step that writes
    may have asked before the writer that others wait behind, so it asks for itself.
    """

    held: set[Resource] = field(default_factory=set)
    awaited: set[Resource] = field(default_factory=set)

    def learn(self, refusal: DomainError) -> None:
        """Remember a RESOURCE_BUSY; others say nothing about resources."""
        facts = refusal.facts
        if refusal.code == "RESOURCE_BUSY":
            found = self.awaited if facts["holder"]["waiting"] else self.held
            found.add(Resource(facts["resource"], facts["access"], facts["scope"]))

    def keeps_out(self, step: Step) -> bool:
        if not self.held.isdisjoint(step.resources):
            return True
        writes = any(each.access == Access.WRITE for each in step.resources)
        return not writes and not self.awaited.isdisjoint(step.resources)


def normalize(asked: Iterable[Resource]) -> tuple[Resource, ...]:
    """Each resource once in each scope, a write before a read, sorted.

    Refuses with ADMISSION_INVALID more than 1 000 of them, and what is no name, access or scope.
    """
    whole = list(asked)
    for each in whole:
        _require_sound(each)
    kept = normalized(whole)
    if len(kept) > MAX_RESOURCES:
        raise DomainError(
            "ADMISSION_INVALID",
            f"A step reserves at most {MAX_RESOURCES} resources.",
            field="resources",
        )
    return kept


def conflicts(
    run: Run, wanted: Sequence[Resource], at: datetime, *, dispatch_identity: str = ""
) -> list[Conflict]:
    """What is in the way of these resources at `at`, at most one for each; holders come first."""
    if not wanted:
        return []
    values = {
        "run": run.pk,
        "application": run.application_id,
        "identity": dispatch_identity,
        "since": at - WAITS,
        "resources": [each.resource for each in wanted],
        "accesses": [each.access for each in wanted],
        "scopes": [each.scope for each in wanted],
    }
    return [_conflict(row) for row in statements.rows(_CONFLICTS, values)]


def conflicting_resource(
    *, caller: Caller, run_id: str, resource: str, access: str, scope: str
) -> Conflict | None:
    """Who would be in the way of an attempt of the run that reserves this now, if anybody.

    By the predicate that an admission uses. It locks and reserves nothing, so the answer may be out
    of date at once. Refuses with PERMISSION_DENIED (viewer), ADMISSION_INVALID (no name, access or
    scope) and RUN_NOT_FOUND.
    """
    caller.require(Role.VIEWER)
    wanted = normalize([Resource(resource, access, scope)])
    run = runs.get(caller=caller, run_id=run_id)
    return next(iter(conflicts(run, wanted, clock.now())), None)


def remember(run_pk: int, dispatch_identity: str, busy: Sequence[Resource], at: datetime) -> None:
    """Have later readers wait behind an attempt that would write these and was refused at `at`.

    What the attempt was refused earlier, at most 60 s ago, counts from this ask too. In a
    transaction of its own, after the refusal: where the attempt was admitted meanwhile by a repeat,
    nothing is remembered.
    """
    run = lock_runs([run_pk]).get(run_pk)
    if run is None or RunAttempt.objects.filter(
        tenant_id=run.tenant_id, dispatch_identity=dispatch_identity
    ):
        return
    mine = RefusedWriter.objects.filter(run=run, dispatch_identity=dispatch_identity)
    mine.filter(asked_at__lte=at - WAITS).delete()
    mine.update(asked_at=at)
    RefusedWriter.objects.bulk_create(
        [
            RefusedWriter(
                run=run,
                application_id=run.application_id,
                resource=each.resource,
                scope=each.scope,
                dispatch_identity=dispatch_identity,
                first_asked_at=at,
                asked_at=at,
            )
            for each in busy
        ],
        ignore_conflicts=True,
    )


def forget(run: Run, dispatch_identity: str) -> None:
    """Let readers go on: the attempt that was refused is admitted."""
    RefusedWriter.objects.filter(run=run, dispatch_identity=dispatch_identity).delete()


def _conflict(row: Mapping[str, Any]) -> Conflict:
    return Conflict(
        Resource(row["resource"], row["access"], row["scope"]),
        row["run_id"],
        row["step"],
        row["dispatch_identity"],
        row["is_waiting"],
    )


def _require_sound(asked: Resource) -> None:
    require_name(asked.resource, "resource")
    if asked.access not in Access.values or asked.scope not in LeaseScope.values:
        raise DomainError(
            "ADMISSION_INVALID",
            f"A resource is reserved to {' or '.join(Access.values)}, within a scope"
            f" {' or '.join(LeaseScope.values)}.",
            field="resources",
        )
