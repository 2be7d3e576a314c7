"""How the OpenAPI document is made: what each route says of itself, and that it is strict."""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

from drf_spectacular.extensions import OpenApiSerializerExtension, OpenApiSerializerFieldExtension
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
)

from ..errors import CODES
from .examples import EXAMPLES
from .fields import AnyValue, Body, Variants
from .filters import CREATED_AFTER, CREATED_BEFORE, CURSOR, PAGE_SIZE
from .paging import DEFAULT_SIZE, MAX_SIZE
from .problems import CONTENT_TYPE
from .shapes import Problem, Shape

# Requirement objects, as the document has them: any one of them is enough.
Callers = tuple[dict[str, list[str]], ...]
SERVICES: Final[Callers] = ({"apiToken": []}, {"session": []})
WORKERS: Final[Callers] = ({"workerCredential": []},)
ANYBODY: Final[Callers] = (*SERVICES, *WORKERS)
NOBODY: Final[Callers] = ()
_KNOWN_CALLER: Final = (
    "AUTHENTICATION_REQUIRED TOKEN_INVALID PERMISSION_DENIED REQUEST_INVALID LIMIT_EXCEEDED"
)
_WITH_BODY: Final = "REQUEST_MALFORMED REQUEST_INVALID BODY_TOO_LARGE CONTENT_TYPE_UNSUPPORTED"
_ALWAYS: Final = "NOT_ACCEPTABLE STORAGE_BUSY"
View = TypeVar("View", bound=Callable[..., Any])


def parameter(
    name: str, kind: Any = str, *, words: Sequence[str] = (), said: str = "", many: bool = False
) -> OpenApiParameter:
    """One parameter of a query."""
    return OpenApiParameter(name, kind, description=said, enum=tuple(words) or None, many=many)


TENANT: Final = parameter("tenant", said="Which tenant, for people who belong to several.")
WINDOW: Final = (
    parameter(CREATED_AFTER, {"type": "string", "format": "date-time"}),
    parameter(CREATED_BEFORE, {"type": "string", "format": "date-time"}),
)
PAGING: Final = (
    parameter(CURSOR, said="From `next` or `previous`."),
    parameter(
        PAGE_SIZE,
        {"type": "integer", "minimum": 1, "maximum": MAX_SIZE, "default": DEFAULT_SIZE},
    ),
)


def operation(
    name: str,
    *,
    answers: Mapping[int, type[Shape] | None],
    refusals: str = "",
    body: type[Body] | None = None,
    query: Sequence[OpenApiParameter] = (),
    who: Callers = SERVICES,
) -> Callable[[View], View]:
    """Describe one route: its answers, and every code it refuses with by status."""
    codes = f"{refusals} {_ALWAYS}"
    codes += f" {_KNOWN_CALLER}" if who else ""
    codes += f" {_WITH_BODY}" if body or query else ""
    said: dict[Any, Any] = {
        status: OpenApiResponse(shape, description=HTTPStatus(status).phrase)
        for status, shape in answers.items()
    }
    for status, named in sorted(_by_status(codes).items()):
        said[status, CONTENT_TYPE] = OpenApiResponse(Problem, description=", ".join(named))
    tenant = (TENANT,) if SERVICES[1] in who else ()
    return extend_schema(
        operation_id=name,
        request=body,
        responses=said,
        parameters=[*query, *tenant],
        examples=[OpenApiExample("Begin with", EXAMPLES[body], request_only=True)] if body else [],
        auth=list(who),  # type: ignore[arg-type]  # requirement objects, as the document has them
    )


def _by_status(codes: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for code in sorted(set(codes.split())):
        found.setdefault(CODES[code].status, []).append(code)
    return found


class StrictBody(OpenApiSerializerExtension):
    """Bodies have no members but those that are declared."""

    target_class = Body
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        found: dict[str, Any] = auto_schema._map_serializer(
            self.target, direction, bypass_extensions=True
        )
        return {**found, "additionalProperties": False}


class Anything(OpenApiSerializerFieldExtension):
    """Any JSON value, null among them."""

    target_class = AnyValue

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        return {}


class OneOfSeveral(OpenApiSerializerFieldExtension):
    """A list of objects, each of one of several shapes."""

    target_class = Variants

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        shapes = self.target.shapes
        named = {
            word: auto_schema.resolve_serializer(shape, direction).ref
            for word, shape in shapes.items()
        }
        mapping = {word: ref["$ref"] for word, ref in named.items()}
        return {
            "type": "array",
            "minItems": 1,
            "maxItems": self.target.max_length,
            "items": {
                "oneOf": list(named.values()),
                "discriminator": {"propertyName": self.target.key, "mapping": mapping},
            },
        }
