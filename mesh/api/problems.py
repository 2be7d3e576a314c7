"""The one place that turns refusals into answers (RFC 9457, `application/problem+json`).

Views raise; nothing else in this package catches. A refusal of the domain keeps its code, its
status and its facts. What Django and REST framework refuse is told in the same words. Anything
unforeseen is logged and answered without its insides.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from django.core.exceptions import (
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response

from ..errors import DomainError
from ..locking import busy_error
from .renderers import FastJSONRenderer, dumps

CONTENT_TYPE: Final = "application/problem+json"
API_PREFIX: Final = "/api/"
_MAX_ERRORS: Final = 50
_MAX_FIELD: Final = 200
_RENDERER: Final = FastJSONRenderer()
_log = logging.getLogger(__name__)


def handle(exc: Exception, context: Mapping[str, Any]) -> Response:
    """REST framework's exception handler: every exception becomes a problem."""
    # Whatever the view renders (the docs page renders HTML), a problem is JSON.
    request = context["request"]
    request.accepted_renderer, request.accepted_media_type = _RENDERER, _RENDERER.media_type
    refusal = as_refusal(exc)
    if refusal is None:
        _log.error("unforeseen error in the API", exc_info=exc)
        return Response(unforeseen(), HTTPStatus.INTERNAL_SERVER_ERROR, content_type=CONTENT_TYPE)
    if not isinstance(exc, DomainError) and refusal.code == "STORAGE_BUSY":
        # Callers only wait; an operator must learn whether a lock, a limit or a full disk it is.
        _log.warning("the store is busy: %s", next(iter(str(exc).splitlines()), ""))
    return Response(
        problem(refusal), refusal.status, headers=headers(refusal), content_type=CONTENT_TYPE
    )


def problem(refusal: DomainError) -> dict[str, Any]:
    """The refusal as it is sent. Facts never displace the standard members."""
    return {
        **refusal.facts,
        "type": "about:blank",
        "title": HTTPStatus(refusal.status).phrase,
        "status": refusal.status,
        "code": refusal.code,
        "kind": refusal.kind,
        "detail": refusal.detail,
    }


def unforeseen() -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": HTTPStatus.INTERNAL_SERVER_ERROR.phrase,
        "status": 500,
        "code": "INTERNAL_ERROR",
        "kind": "internal",
        "detail": "Something unforeseen went wrong; it has been logged.",
    }


def headers(refusal: DomainError) -> dict[str, str]:
    found: dict[str, str] = {}
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        found["WWW-Authenticate"] = "Bearer"
    if retry_after_ms := refusal.facts.get("retry_after_ms"):
        found["Retry-After"] = str(-(-retry_after_ms // 1000))
    return found


def as_refusal(exc: BaseException) -> DomainError | None:
    """The refusal that an exception stands for; None for what nobody foresaw."""
    if isinstance(exc, DomainError):
        return exc
    if isinstance(exc, exceptions.ValidationError):
        return invalid(exc.detail)
    if isinstance(exc, (exceptions.PermissionDenied, PermissionDenied)):
        return DomainError("PERMISSION_DENIED", str(exc) or "This is not allowed.")
    for family, code, detail in _FAMILIES:
        if isinstance(exc, family):
            return DomainError(code, detail)
    return busy_error(exc)


def invalid(detail: Any) -> DomainError:
    """REQUEST_INVALID that names each field at fault."""
    errors = [error for error, _ in zip(_named(detail, ""), range(_MAX_ERRORS), strict=False)]
    named = ", ".join(error["field"] for error in errors[:5] if error["field"])
    said = f"These fields are not as they should be: {named}." if named else errors[0]["detail"]
    return DomainError("REQUEST_INVALID", said, errors=errors)


_FAMILIES: Final[tuple[tuple[type[Exception], str, str], ...]] = (
    (
        exceptions.NotAuthenticated,
        "AUTHENTICATION_REQUIRED",
        "Send Authorization: Bearer TOKEN, or sign in.",
    ),
    (exceptions.AuthenticationFailed, "TOKEN_INVALID", "The token is not valid."),
    (exceptions.NotFound, "NOT_FOUND", "There is nothing here."),
    (Http404, "NOT_FOUND", "There is nothing here."),
    (exceptions.MethodNotAllowed, "METHOD_NOT_ALLOWED", "This method is not served here."),
    (exceptions.NotAcceptable, "NOT_ACCEPTABLE", "Answers are application/json."),
    (exceptions.UnsupportedMediaType, "CONTENT_TYPE_UNSUPPORTED", "Send application/json."),
    (exceptions.ParseError, "REQUEST_MALFORMED", "The request cannot be read."),
    (RequestDataTooBig, "BODY_TOO_LARGE", "The body is too large."),
    (SuspiciousOperation, "REQUEST_MALFORMED", "The request cannot be read."),
)


def _named(detail: Any, path: str) -> Iterator[dict[str, str]]:
    if isinstance(detail, Mapping):
        for key, each in detail.items():
            if key == "non_field_errors":
                yield from _named(each, path)
            else:
                yield from _named(each, f"{path}.{key}" if path else str(key))
    elif isinstance(detail, (list, tuple)):
        for each in detail:
            yield from _named(each, path)
    else:
        yield {"field": path[:_MAX_FIELD], "detail": str(detail)}


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's 400 page, or a problem where a program asked."""
    if not request.path.startswith(API_PREFIX):
        return defaults.bad_request(request, exception)
    return plain(DomainError("REQUEST_MALFORMED", "The request cannot be read."))


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Django's 500 page, or a problem where a program asked; a busy store is told as such."""
    if not request.path.startswith(API_PREFIX):
        return defaults.server_error(request)
    exc = sys.exception()
    refusal = None if exc is None else busy_error(exc)
    if refusal is not None:
        return plain(refusal)
    return HttpResponse(dumps(unforeseen()), status=500, content_type=CONTENT_TYPE)


def plain(refusal: DomainError) -> HttpResponse:
    """The refusal outside of REST framework's views."""
    return HttpResponse(
        dumps(problem(refusal)),
        status=refusal.status,
        headers=headers(refusal),
        content_type=CONTENT_TYPE,
    )
