"""Django's middleware for people, which calls with a token go past: they have no session.

A call that shows a bearer's token is judged by that alone (`mesh.api.authentication`), so nothing
is lost; what such a call would have these do for nothing is a fifth of the work of a short one.
Everything that watches, limits or hardens stands beside them and sees every call.
"""

from collections.abc import Awaitable

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.deprecation import MiddlewareMixin

from mesh.api.authentication import bearer
from mesh.api.problems import API_PREFIX


class _ForPeople(MiddlewareMixin):
    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if request.path_info.startswith(API_PREFIX) and bearer(request) is not None:
            return self.get_response(request)
        return super().__call__(request)


class Session(_ForPeople, SessionMiddleware):
    """Finds the session of a cookie."""


class Csrf(_ForPeople, CsrfViewMiddleware):
    """Keeps the secret against forged forms; views of the API ask for it themselves."""


class Authentication(_ForPeople, AuthenticationMiddleware):
    """Knows the person of a session."""


class Message(_ForPeople, MessageMiddleware):
    """Carries messages from one page to the next."""
