"""Arrivals: the new workloads of one call, made in memory and inserted together.

`mesh.intake` has judged them. One statement (`submit.sql`) inserts them with their first events and
their dependencies, whatever their number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

import orjson
from django.db import connection
from django.db.models import Field

from . import dependencies, statements, workloads
from .models import ENDED_STATES, Application, Grant, State, Workload, WorkloadEvent
from .submissions import Item
from .tenancy import Caller

_COPIED: Final = (
    "environment",
    "definition_id",
    "definition_revision",
    "trigger",
    "input",
    "idempotency_key",
    "capability_snapshot",
    "priority",
    "retry_policy",
    "timeouts",
    "policy",
    "lost_policy",
    "connection_scopes",
    "session_id",
)
_APPLICATION: Final = Workload._meta.get_field("application")
_EVENT: Final = ("sequence", "event", "from_state", "to_state", "actor", "at", "evidence")


@dataclass(frozen=True, slots=True)
class Tie:
    """One dependency of new work; `pk` is not known yet where this call makes the other too."""

    workload_id: str
    pk: int | None
    required: str
    state: str

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED_STATES

    @property
    def has_failed(self) -> bool:
        return dependencies.has_failed(self.required, self.state)

    def row(self) -> dict[str, Any]:
        return {
            "depends_on": self.workload_id,
            "depends_on_id": self.pk,
            "required_state": self.required,
            "is_open": self.is_open,
        }


class Arrivals:
    """New work by application and key, and by application and id."""

    def __init__(self, caller: Caller, at: datetime) -> None:
        self.caller = caller
        self.at = at
        self.by_key: dict[tuple[int, str], Workload] = {}
        self.by_id: dict[tuple[int, str], Workload] = {}
        self._events: list[dict[str, Any]] = []
        self._ties: list[dict[str, Any]] = []
        self._applications: dict[int, Application] = {}

    def make(
        self,
        item: Item,
        application_pk: int,
        requirement_pk: int,
        proof: Grant | None,
        ties: Sequence[Tie],
    ) -> Workload:
        """New work, READY; or a dead letter if one of its dependencies ended otherwise already."""
        at, content = self.at, item.content
        available_at = max(at, item.submission.not_before or at)
        workload = statements.fresh(
            Workload,
            **{name: content[name] for name in _COPIED},
            workload_id=item.submission.workload_id(self.caller.tenant),
            tenant_id=self.caller.tenant_id,
            application_id=application_pk,
            requirement_id=requirement_pk,
            requested_by=self.caller.subject,
            grant_id=None if proof is None else proof.pk,
            grant_digest="" if proof is None else proof.token_digest,
            content_digest=item.digest,
            input_bytes=item.input_bytes,
            not_before=item.submission.not_before,
            created_at=at,
            overall_from=at,
            open_dependencies=sum(each.is_open for each in ties),
        )
        _APPLICATION.set_cached_value(
            workload, self._application(application_pk, content["application"])
        )
        self._tell(
            workload, workloads.make_ready(workload, available_at, actor=self.caller.subject, at=at)
        )
        failed = next((each for each in ties if each.has_failed), None)
        if failed is not None:
            self._tell(workload, _bury(workload, failed.workload_id, at))
        self._ties += [{"workload": workload.workload_id, **each.row()} for each in ties]
        self.by_key[application_pk, workload.idempotency_key] = workload
        self.by_id[application_pk, workload.workload_id] = workload
        return workload

    def insert(self) -> bool:
        """Insert them all; False, with some left out, where a key was taken meanwhile."""
        values = {
            "workloads": _json([_row(each) for each in self.by_key.values()]),
            "events": _json(self._events),
            "dependencies": _json(self._ties),
        }
        pks = _insert(values)
        if len(pks) < len(self.by_key):
            return False
        for workload in self.by_key.values():
            workload.pk = pks[workload.workload_id]
            workload._state.adding = False
        return True

    def _tell(self, workload: Workload, event: WorkloadEvent) -> None:
        said = vars(event)
        row = {column: said[column] for column in _EVENT}
        self._events.append({"workload": workload.workload_id, **row})

    def _application(self, pk: int, name: str) -> Application:
        if pk not in self._applications:
            self._applications[pk] = Application(pk=pk, tenant_id=self.caller.tenant_id, name=name)
        return self._applications[pk]


def _bury(workload: Workload, dependency: str, at: datetime) -> WorkloadEvent:
    """A dead letter from the start: what it waits for had ended otherwise."""
    workload.last_failure = dependencies.failure(dependency)
    evidence = {**workload.last_failure, "dependency": dependency}
    event = workloads.move(
        workload, State.DEAD_LETTER, actor=dependencies.ACTOR, at=at, evidence=evidence
    )
    workloads.set_deadline(workload)
    return event


def _insert(values: Mapping[str, str]) -> dict[str, int]:
    """The keys of those that went in, by their ids."""
    return {row["workload_id"]: row["id"] for row in statements.rows(_insertion(), values)}


@cache
def _insertion() -> str:
    """`submit.sql` with the columns of the table and their types."""
    fields = _fields()
    typed = ", ".join(f"{each.column} {each.db_type(connection)}" for each in fields)
    columns = ", ".join(str(each.column) for each in fields)
    return statements.load("submit").replace("{typed}", typed).replace("{columns}", columns)


@cache
def _fields() -> "list[Field[Any, Any]]":
    return [each for each in Workload._meta.concrete_fields if not each.primary_key]


@cache
def _names() -> list[str]:
    return [each.attname for each in _fields()]


def _row(workload: Workload) -> dict[str, Any]:
    values = vars(workload)
    return {name: values[name] for name in _names()}


def _json(rows: Sequence[Mapping[str, Any]]) -> str:
    return orjson.dumps(rows).decode()
