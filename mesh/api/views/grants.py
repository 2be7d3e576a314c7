"""Routes under /grants, and the public keys that verify them."""

from rest_framework.request import Request
from rest_framework.response import Response

from ... import clock, grants, revocations, signing
from ...models import Grant as GrantRow
from .. import answers, bodies, reading, shapes
from ..filters import Query
from ..paging import paginate
from ..schema import NOBODY, PAGING, WINDOW, operation, parameter
from .base import Endpoint, answer

_QUERY = (parameter("application"), parameter("subject"), *WINDOW)
_NAMES = tuple(each.name for each in _QUERY)


class Grants(Endpoint):
    noun = "GRANT"

    @operation("grants_list", answers={200: shapes.GrantPage}, query=(*_QUERY, *PAGING))
    def get(self, request: Request) -> Response:
        """The tenant's grants, newest first."""
        query = Query(request, _NAMES)
        rows = reading.grants(self.caller).filter(query.window("issued_at"))
        if (application := query.text("application")) is not None:
            rows = rows.filter(application__name=application)
        if (subject := query.text("subject")) is not None:
            rows = rows.filter(subject=subject)
        at = clock.now()

        def render(row: GrantRow) -> dict[str, object]:
            return answers.grant(row, row.status_at(at))

        return answer(paginate(request, query, rows, order=("-id",), render=render))

    @operation(
        "grants_issue",
        body=bodies.Issue,
        answers={201: shapes.Issued},
        refusals="APPLICATION_NOT_FOUND GRANT_NOT_FOUND GRANT_REVOKED",
    )
    def post(self, request: Request) -> Response:
        """Issue a grant. Its token is sent only here; each call makes a new grant."""
        said = self.body(bodies.Issue)
        row, token = grants.issue(caller=self.caller, **said)
        return answer({"grant": _shown(row), "token": token}, created=True)


class Grant(Endpoint):
    noun = "GRANT"

    @operation("grants_get", answers={200: shapes.Grant}, refusals="GRANT_NOT_FOUND")
    def get(self, request: Request, grant_id: str) -> Response:
        """One grant, without its token."""
        return answer(_shown(reading.grant(self.caller, grant_id)))


class Delegate(Endpoint):
    noun = "GRANT"

    @operation(
        "grants_delegate",
        body=bodies.Delegate,
        answers={201: shapes.Issued},
        refusals="GRANT_NOT_FOUND GRANT_EXPIRED GRANT_REVOKED GRANT_DELEGATION_INVALID",
    )
    def post(self, request: Request, grant_id: str) -> Response:
        """Derive a grant within this one. Its token is sent only here; each call makes a new."""
        said = self.body(bodies.Delegate)
        row, token = grants.delegate(caller=self.caller, grant_id=grant_id, **said)
        return answer({"grant": _shown(row), "token": token}, created=True)


class Revoke(Endpoint):
    noun = "GRANT"

    @operation(
        "grants_revoke",
        body=bodies.Reasoned,
        answers={200: shapes.Grant},
        refusals="GRANT_NOT_FOUND",
    )
    def post(self, request: Request, grant_id: str) -> Response:
        """End a grant at once; the workers that rest on it are drained."""
        said = self.body(bodies.Reasoned)
        row = revocations.revoke_grant(caller=self.caller, grant_id=grant_id, **said)
        return answer(_shown(row))


class Revocations(Endpoint):
    @operation(
        "revocations_make",
        body=bodies.Revoke,
        answers={201: shapes.Revocation},
        refusals="GRANT_NOT_FOUND APPLICATION_NOT_FOUND",
    )
    def post(self, request: Request) -> Response:
        """End grants at once: one, or all of a subject, an application or this tenant.

        What was derived from them ends too; grants that are issued later are good. Each call is
        recorded.
        """
        said = self.body(bodies.Revoke)
        done = revocations.revoke(caller=self.caller, target=said.pop("id"), **said)
        return answer(answers.revocation(done.revocation, done.grants), created=True)


class Keys(Endpoint):
    open_methods = frozenset({"GET", "HEAD"})

    @operation("keys", answers={200: shapes.KeySet}, who=NOBODY)
    def get(self, request: Request) -> Response:
        """The public keys that verify grants, as a JSON Web Key Set."""
        found = answer(signing.jwks())
        found["Cache-Control"] = "public, max-age=300"
        return found


def _shown(row: GrantRow) -> dict[str, object]:
    return answers.grant(row, row.status_at(clock.now()))
