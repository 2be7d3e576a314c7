"""Routes under /definitions."""

from rest_framework.request import Request
from rest_framework.response import Response

from mesh.api.filters import Query
from mesh.api.paging import paginate
from mesh.api.schema import PAGING, WINDOW, operation, parameter
from mesh.api.views.base import Endpoint, answer

from ... import definitions
from .. import answers, bodies, reading, shapes

_QUERY = (parameter("application"), parameter("definition_id"), *WINDOW)
_NAMES = tuple(each.name for each in _QUERY)
_MAX_VERSION = 2**31 - 1


class Definitions(Endpoint):
    noun = "DEFINITION"

    @operation("definitions_list", answers={200: shapes.DefinitionPage}, query=(*_QUERY, *PAGING))
    def get(self, request: Request) -> Response:
        """The tenant's definitions with all their versions, newest first."""
        query = Query(request, _NAMES)
        rows = reading.definitions(self.caller).filter(query.window("created_at"))
        if (application := query.text("application")) is not None:
            rows = rows.filter(application__name=application)
        if (definition_id := query.text("definition_id")) is not None:
            rows = rows.filter(definition_id=definition_id)
        return answer(paginate(request, query, rows, order=("-id",), render=answers.definition))

    @operation(
        "definitions_store",
        body=bodies.StoreDefinition,
        answers={200: shapes.DefinitionVersion, 201: shapes.DefinitionVersion},
        refusals="APPLICATION_NOT_FOUND ADMISSION_INVALID WORKLOAD_SECRET_REJECTED",
    )
    def post(self, request: Request) -> Response:
        """Store a version for good. The same content again is the same version (200)."""
        said = self.body(bodies.StoreDefinition)
        row, created = definitions.store(caller=self.caller, **said)
        return answer(answers.definition(row), created=created)


class Definition(Endpoint):
    noun = "DEFINITION"

    @operation(
        "definitions_get",
        answers={200: shapes.DefinitionVersion},
        refusals="DEFINITION_NOT_FOUND",
    )
    def get(self, request: Request, definition_id: str, version: str) -> Response:
        """One version."""
        is_number = version.isascii() and version.isdigit() and len(version) <= 10
        number = int(version) if is_number else 0
        row = definitions.get(
            caller=self.caller,
            definition_id=definition_id,
            version=number if number <= _MAX_VERSION else 0,
        )
        return answer(answers.definition(row))
