"""What all views share: who calls, ids from the path, bodies, and that nothing is cached."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar, Final, cast

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ...errors import DomainError
from ...tenancy import Caller
from .. import parsers, plain
from ..authentication import CREDENTIAL_PREFIX, bearer
from ..fields import Body
from ..turns import RequestLine, Turns

ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_TURNS: Final = Turns()
_UTF8: Final = re.compile(r'application/json\s*(;\s*charset\s*=\s*"?utf-?8"?\s*)?', re.IGNORECASE)


class Endpoint(APIView):
    """A view of the API. `noun` gives the code for ids in the path that name nothing."""

    http_method_names = ["get", "head", "post", "patch", "delete"]
    noun: ClassVar[str] = ""
    # Where a path holds several ids: the noun of each that is not of `noun`.
    nouns: ClassVar[Mapping[str, str]] = MappingProxyType({})
    body_limit: ClassVar[int] = parsers.MAX_BODY
    # It begins with the lock of the worker that calls, which looks at the credential again.
    locks_its_worker: ClassVar[bool] = False
    open_methods: ClassVar[frozenset[str]] = frozenset()

    def get_authenticators(self) -> list[BaseAuthentication]:
        return [] if self._is_open else super().get_authenticators()

    def get_permissions(self) -> Sequence[Any]:
        return [] if self._is_open else super().get_permissions()

    @property
    def _is_open(self) -> bool:
        """Whether this call needs nobody to be known."""
        # There is no request while the OpenAPI document is made.
        return bool(self.request) and self.request.method in self.open_methods

    @property
    def caller(self) -> Caller:
        """Who calls; views without authentication do not ask."""
        return cast(Caller, self.request.auth)

    @property
    def line(self) -> RequestLine:
        """The way to the caller."""
        return self._line

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        secret = bearer(request)
        is_worker = secret is not None and secret.startswith(CREDENTIAL_PREFIX)
        self._line = RequestLine(_TURNS, secret if is_worker else None, request.META)
        return super().initialize_request(request, *args, **kwargs)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return super().dispatch(request, *args, **kwargs)
        finally:
            self.line.step_aside()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self.line.step_up()
        super().initial(request, *args, **kwargs)
        for name, each in kwargs.items():
            if not ID.fullmatch(each):
                noun = self.nouns.get(name, self.noun)
                raise DomainError(f"{noun}_NOT_FOUND", "There is nothing of that id.")

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        # Some answers hold secrets and the rest is no business of shared caches either.
        response.headers.setdefault("Cache-Control", "no-store")
        return super().finalize_response(request, response, *args, **kwargs)

    def body(self, shape: type[Body]) -> dict[str, Any]:
        """The members of the JSON object that was sent; of none where all may be left out."""
        request = self.request._request
        raw = parsers.read(request, self.body_limit)
        if not raw:
            if any(field.required for field in shape.instance().fields.values()):
                raise DomainError("REQUEST_MALFORMED", "A body is needed.")
            return {}
        if not _UTF8.fullmatch(request.META.get("CONTENT_TYPE", "")):
            raise DomainError("CONTENT_TYPE_UNSUPPORTED", "Send application/json in UTF-8.")
        return plain.check(shape, parsers.loads(raw))


def answer(data: dict[str, Any], *, created: bool = False) -> Response:
    """200 with the data, or 201 where something was made."""
    return Response(data, HTTPStatus.CREATED if created else HTTPStatus.OK)
