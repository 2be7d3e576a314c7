"""Rows of runs as the console reads them: with what stands beside them, in the same statement."""

from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import (
    Case,
    CharField,
    Count,
    Exists,
    OuterRef,
    QuerySet,
    Subquery,
    Value,
    When,
)

from mesh.admin.display import now
from mesh.models import State

from .. import blocks, coordinator
from ..models import (
    ENDED_STEPS,
    Activation,
    Attestation,
    ControlFailure,
    Coordinator,
    CoordinatorKind,
    RecoveryBarrier,
    Run,
    RunAttempt,
)
from ..models.runs import RunQuerySet

# How the owner of a run is.
UNKNOWN: Final = "UNKNOWN"
ALIVE: Final = "ALIVE"
LATE: Final = "LATE TO BEAT"
GONE: Final = "GONE"
RELINQUISHED: Final = "RELINQUISHED"
STOPPED: Final = frozenset({GONE, RELINQUISHED})


def with_liveness(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Each with `liveness`: a lease that is over for less than the grace is not gone yet."""
    at = now()
    liveness = Case(
        When(relinquished_at__isnull=False, then=Value(RELINQUISHED)),
        When(lease_ends_at__gt=at, then=Value(ALIVE)),
        When(lease_ends_at__gt=at - coordinator.grace(), then=Value(LATE)),
        default=Value(GONE),
        output_field=CharField(),
    )
    found: QuerySet[Any] = rows.annotate(liveness=liveness)
    return found


def with_standing(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Each with its blocks, and with what is known of its owner.

    `owner` is blank where nobody has the run; `is_attested` says that people attested lately that
    the owner has stopped.
    """
    known = Coordinator.objects.filter(
        tenant_id=OuterRef("tenant_id"), instance_id=OuterRef("instance_id")
    ).order_by()
    lately = Attestation.objects.filter(
        run_id=OuterRef("pk"),
        completed_at__gte=now() - timedelta(milliseconds=settings.EVIDENCE_MAX_AGE_MS),
        required__gte=OuterRef("tenant__attestations"),
    )
    owner = Case(
        When(instance_id__isnull=True, then=Value("")),
        default=Subquery(with_liveness(known).values("liveness")[:1]),
        output_field=CharField(),
    )
    return blocks.beside(rows).annotate(
        owner=owner,
        is_owner_builtin=Exists(known.filter(token__isnull=True)),
        is_attested=Exists(lately),
    )


def with_progress(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Each with how far its steps are and how many attempts wait for a person."""
    steps = Activation.objects.filter(run_id=OuterRef("pk")).order_by().values("run_id")
    held = RunAttempt.objects.unsettled().filter(run_id=OuterRef("pk"), workload__state=State.HELD)
    found: QuerySet[Any] = rows.annotate(
        steps_total=Subquery(steps.annotate(n=Count("pk")).values("n")),
        steps_ended=Subquery(
            steps.filter(state__in=ENDED_STEPS).annotate(n=Count("pk")).values("n")
        ),
        ambiguous=Subquery(held.order_by().values("run_id").annotate(n=Count("pk")).values("n")),
    )
    return found


def owner_of(run: Any) -> str:
    """How the owner of a run is that was read by `with_standing`; blank where nobody has it."""
    return UNKNOWN if run.owner is None else str(run.owner)


def is_driven_here(run: Any) -> bool:
    """Whether a living built-in coordinator drives it."""
    is_builtin = run.coordinator == CoordinatorKind.BUILTIN
    return is_builtin and run.is_owner_builtin and owner_of(run) == ALIVE


def is_left(run: Any) -> bool:
    """Whether its service is gone, so that nobody drives it."""
    return run.coordinator == CoordinatorKind.EXTERNAL and owner_of(run) in STOPPED


def of_owner(rows: RunQuerySet) -> RunQuerySet:
    """Only open ones; to be narrowed by instance, for which there is an index by kind."""
    return rows.open().filter(coordinator__in=CoordinatorKind.values)


# --- runs that need somebody ----------------------------------------------------------------------


def ambiguous(rows: RunQuerySet) -> RunQuerySet:
    """Open runs of which nobody knows what a step did."""
    held = RunAttempt.objects.unsettled().filter(workload__state=State.HELD)
    return rows.open().filter(pk__in=held.values("run_id"))


def stopped(rows: RunQuerySet) -> RunQuerySet:
    """Open runs that cannot go on by themselves."""
    failures = ControlFailure.objects.filter(ended_at__isnull=True)
    return rows.open().filter(pk__in=failures.values("run_id"))


def never_started(rows: RunQuerySet) -> RunQuerySet:
    """Open runs that wait until somebody cleared why a step never starts."""
    failures = ControlFailure.objects.filter(
        ended_at__isnull=True, code__in=coordinator.WAITS_FOR_A_PERSON
    )
    return rows.open().filter(pk__in=failures.values("run_id"))


def barred(rows: RunQuerySet) -> RunQuerySet:
    """Open runs in which nothing new starts until what was under way is explained."""
    barriers = RecoveryBarrier.objects.filter(ended_at__isnull=True)
    return rows.open().filter(pk__in=barriers.values("run_id"))


def left(rows: RunQuerySet) -> RunQuerySet:
    """Open runs whose service is gone: nobody takes them over by himself."""
    gone = Coordinator.objects.filter(
        tenant_id=OuterRef("tenant_id"), instance_id=OuterRef("instance_id")
    )
    stopped_ones = with_liveness(gone).filter(liveness__in=STOPPED)
    external = rows.open().filter(coordinator=CoordinatorKind.EXTERNAL)
    return external.filter(Exists(stopped_ones))


def needing(rows: RunQuerySet) -> RunQuerySet:
    """Open runs that wait for a person, or may."""
    each = (ambiguous, never_started, barred, left)
    found = [narrow(Run.objects.all()).order_by().values("pk") for narrow in each]
    return rows.filter(pk__in=found[0].union(*found[1:]))
