"""Rows of runs for reading: found within the caller's reach, with all that their answers name."""

from itertools import accumulate
from typing import Any, Final, TypeVar

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast, Coalesce, Length

from mesh.models import Application, Role
from mesh.tenancy import Caller

from ..models import Activation, Definition, Handoff, ResourceLease, Run, RunAttempt, RunEvent

Owner = TypeVar("Owner", Activation, RunAttempt)
MAX_ATTEMPTS: Final = 200
MAX_LEASES: Final = 1_000
# Of the outputs in one answer, of the steps and of the attempts each.
MAX_OUTPUTS: Final = 4 * 1024 * 1024


def definitions(caller: Caller) -> "QuerySet[Definition]":
    caller.require(Role.VIEWER)
    return Definition.objects.select_related("application").visible_to(caller)


def runs(caller: Caller) -> "QuerySet[Run]":
    """The runs that the caller may list, without their inputs and steps."""
    caller.require(Role.VIEWER)
    rows = Run.objects.select_related("application", "definition")
    return rows.defer("input", "definition__steps").visible_to(caller)


def of_definition(caller: Caller, definition_id: str) -> Q:
    """Whether a run is of any version of it; by keys, for a join would be gone through row by row,
    the newest run first, until a page is full."""
    found = Definition.objects.visible_to(caller).filter(definition_id=definition_id)
    return Q(definition__in=list(found.values_list("pk", flat=True)))


def of_application(caller: Caller, application: str) -> Q:
    """Whether a run is of that application; by its key, for the same reason."""
    found = Application.objects.filter(tenant_id=caller.tenant_id, name=application)
    return Q(application__in=list(found.values_list("pk", flat=True)))


def activations(run: Run) -> list[Activation]:
    """All steps in the order of the definition; a definition has at most 1 000.

    Outputs are read as far as they fit into one answer; those of later steps stay deferred.
    """
    return _with_outputs(run.activations.order_by("position"))


def attempts(run: Run) -> list[RunAttempt]:
    """The latest attempts, the latest first; their outputs as those of `activations`."""
    rows = RunAttempt.objects.filter(run=run).select_related("activation", "workload")
    rows = rows.defer("workload__input", "activation__output")
    return _with_outputs(rows.order_by("-id"), MAX_ATTEMPTS)


def attempt(pk: int) -> RunAttempt:
    """An attempt as an operation returned it, with what its answer names."""
    rows = RunAttempt.objects.select_related("activation", "workload", "run")
    return rows.defer("workload__input", "run__input", "activation__output").get(pk=pk)


def leases(run: Run) -> list[ResourceLease]:
    rows = ResourceLease.objects.filter(run=run).select_related("attempt__activation")
    return list(rows.order_by("resource", "id")[:MAX_LEASES])


def handoffs(run: Run) -> "QuerySet[Handoff]":
    return Handoff.objects.filter(run=run).select_related("receipt")


def events(run: Run) -> "QuerySet[RunEvent]":
    return RunEvent.objects.filter(run=run)


def is_omitted(row: Activation | RunAttempt) -> bool:
    """Whether its output was left out, because the answer would have become too long."""
    return "output" in row.get_deferred_fields()


def _with_outputs(rows: "QuerySet[Owner]", at_most: int | None = None) -> list[Owner]:
    """The rows in their order, with outputs as long as there is room for them."""
    length = Coalesce(Length(Cast("output", TextField())), 0)
    lean: list[Any] = list(rows.defer("output").annotate(output_length=length)[:at_most])
    sums = accumulate(each.output_length for each in lean)
    fitting = [each for each, read in zip(lean, sums, strict=True) if read <= MAX_OUTPUTS]
    pks = [each.pk for each in fitting]
    found = dict(rows.model._default_manager.filter(pk__in=pks).values_list("pk", "output"))
    for each in fitting:
        each.output = found.get(each.pk)
    return lean
