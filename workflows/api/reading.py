"""Rows of runs for reading: found within the caller's reach, with all that their answers name."""

from typing import Final

from django.db.models import QuerySet

from mesh.models import Role
from mesh.tenancy import Caller

from ..models import Activation, Definition, Handoff, ResourceLease, Run, RunAttempt, RunEvent

MAX_ATTEMPTS: Final = 200
MAX_LEASES: Final = 1_000


def definitions(caller: Caller) -> "QuerySet[Definition]":
    caller.require(Role.VIEWER)
    return Definition.objects.select_related("application").visible_to(caller)


def runs(caller: Caller) -> "QuerySet[Run]":
    """The runs that the caller may list, without their inputs and steps."""
    caller.require(Role.VIEWER)
    rows = Run.objects.select_related("application", "definition")
    return rows.defer("input", "definition__steps").visible_to(caller)


def activations(run: Run) -> list[Activation]:
    """All steps in the order of the definition; a definition has at most 1 000."""
    return list(run.activations.order_by("position"))


def attempts(run: Run) -> list[RunAttempt]:
    """The latest attempts, the latest first."""
    rows = RunAttempt.objects.filter(run=run).select_related("activation", "workload")
    # An output may be a mebibyte; that of the step is among the activations.
    rows = rows.defer("workload__input", "activation__output")
    return list(rows.order_by("-id")[:MAX_ATTEMPTS])


def attempt(pk: int) -> RunAttempt:
    """An attempt as an operation returned it, with what its answer names."""
    rows = RunAttempt.objects.select_related("activation", "workload", "run")
    return rows.defer("workload__input", "run__input").get(pk=pk)


def leases(run: Run) -> list[ResourceLease]:
    rows = ResourceLease.objects.filter(run=run).select_related("attempt__activation")
    return list(rows.order_by("resource", "id")[:MAX_LEASES])


def handoffs(run: Run) -> "QuerySet[Handoff]":
    return Handoff.objects.filter(run=run).select_related("receipt")


def events(run: Run) -> "QuerySet[RunEvent]":
    return RunEvent.objects.filter(run=run)
