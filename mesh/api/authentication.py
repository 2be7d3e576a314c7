"""Who calls: a service with an API token, a worker with its credential, a person by session.

Each view finds the caller in `request.auth`. Whether that caller may do the thing is asked in the
domain function, never here.
"""

from typing import Any, Final

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from .. import tenancy, throttling, workers
from ..errors import DomainError
from ..tenancy import Caller
from .filters import text

CREDENTIAL_PREFIX: Final = "fpw_"
TENANT_PARAMETER: Final = "tenant"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def bearer(request: HttpRequest | Request) -> str | None:
    """The secret in the Authorization header, if it is a bearer's; never logged."""
    scheme, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


class BearerAuthentication(BaseAuthentication):
    """API tokens (`fpt_…`) and worker credentials (`fpw_…`).

    Each is looked up by its hash and by nothing else, so that a valid one is never refused for
    what others did. TOKEN_INVALID for every other secret; LIMIT_EXCEEDED instead where one address
    sends too many of them.
    """

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Caller] | None:
        secret = bearer(request)
        if secret is None:
            return None
        is_worker = secret.startswith(CREDENTIAL_PREFIX)
        check = tenancy.authenticate
        if is_worker:
            is_locked = getattr(request.parser_context.get("view"), "locks_its_worker", False)
            check = workers.recall if is_locked else workers.authenticate
        try:
            return AnonymousUser(), check(secret)
        except DomainError as refusal:
            if refusal.code != "TOKEN_INVALID":
                raise
            address = throttling.address_of(request._request)
            raise throttling.count_failure(address) or refusal from None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class BrowserAuthentication(SessionAuthentication):
    """People signed in to the console. Writes need the CSRF token in its header.

    Someone who belongs to several tenants names one with `?tenant=`.
    """

    def authenticate(self, request: Request) -> tuple[Any, Caller] | None:
        user = request._request.user
        if not user.is_active:
            return None
        # Looking for the CSRF token in a form would read the body, which no form may be anyhow.
        if request.method not in _SAFE_METHODS and "form" in request.content_type:
            raise DomainError("CONTENT_TYPE_UNSUPPORTED", "Send application/json.")
        # Django's request: this one would parse the body in the search for a form.
        self.enforce_csrf(request._request)  # type: ignore[arg-type]  # stubs know only the other
        name = request.query_params.get(TENANT_PARAMETER)
        if name is not None:
            text(name, TENANT_PARAMETER)
        return user, tenancy.caller_for_user(user, name)


class IsCaller(BasePermission):
    """Somebody known; everything else is asked in the domain."""

    def has_permission(self, request: Request, view: object) -> bool:
        return isinstance(request.auth, Caller)
