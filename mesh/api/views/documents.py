"""The OpenAPI document, its readable form, and the answer to every other path."""

from functools import lru_cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ...errors import DomainError
from ..problems import plain


class Schema(APIView):
    """OpenAPI 3.1. It is the same for everybody, and made once per process."""

    renderer_classes = (OpenApiJsonRenderer2, OpenApiJsonRenderer)
    authentication_classes = ()
    permission_classes = ()

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        return Response(_schema())


class Docs(SpectacularSwaggerSplitView):
    """The document for reading. Its assets are served from here."""

    authentication_classes = ()
    permission_classes = ()
    url_name = "api-schema"


@csrf_exempt
def unknown(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    """No such route: a problem rather than a page, whatever the method."""
    return plain(DomainError("NOT_FOUND", "There is no such route."))


@lru_cache(maxsize=1)
def _schema() -> Any:
    return SchemaGenerator().get_schema(request=None, public=True)
