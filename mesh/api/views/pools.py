"""Routes under /pools."""

from rest_framework.request import Request
from rest_framework.response import Response

from ... import pools
from .. import answers, bodies, reading, shapes
from ..filters import Query
from ..paging import paginate
from ..schema import PAGING, operation, parameter
from .base import Endpoint, answer

_QUERY = (parameter("application"),)
_NAMES = tuple(each.name for each in _QUERY)


class Pools(Endpoint):
    noun = "POOL"

    @operation("pools_list", answers={200: shapes.PoolPage}, query=(*_QUERY, *PAGING))
    def get(self, request: Request) -> Response:
        """The tenant's pools, newest first. A page ends early where it would be too heavy."""
        query = Query(request, _NAMES)
        rows = reading.pools(self.caller)
        if (application := query.text("application")) is not None:
            rows = rows.filter(application__name=application)
        trim = reading.with_members
        page = paginate(request, query, rows, order=("-id",), render=answers.pool, trim=trim)
        return answer(page)

    @operation(
        "pools_create",
        body=bodies.CreatePool,
        answers={201: shapes.Pool},
        refusals="APPLICATION_NOT_FOUND WORKER_INVALID WORKER_POOL_EXISTS WORKER_NOT_FOUND",
    )
    def post(self, request: Request) -> Response:
        """Make a pool of workers of one application."""
        said = self.body(bodies.CreatePool)
        application, pool_id = said.pop("application"), said.pop("pool_id")
        made = pools.create(
            caller=self.caller,
            application=application,
            pool_id=pool_id,
            content=said,  # type: ignore[arg-type]  # the body has these members and types
        )
        return answer(answers.pool(reading.pool(self.caller, made.pool_id)), created=True)


class Pool(Endpoint):
    noun = "POOL"

    @operation("pools_get", answers={200: shapes.Pool}, refusals="POOL_NOT_FOUND")
    def get(self, request: Request, pool_id: str) -> Response:
        """One pool, with all its members; those that fail its tests do not count."""
        return answer(answers.pool(reading.pool(self.caller, pool_id)))

    @operation(
        "pools_change",
        body=bodies.ChangePool,
        answers={200: shapes.Pool},
        refusals="POOL_NOT_FOUND WORKER_INVALID WORKER_NOT_FOUND",
    )
    def patch(self, request: Request, pool_id: str) -> Response:
        """Change what is sent; `worker_ids` are all members from then on."""
        said = self.body(bodies.ChangePool)
        pools.change(
            caller=self.caller,
            pool_id=pool_id,
            change=said,  # type: ignore[arg-type]  # the body has these members and types
        )
        return answer(answers.pool(reading.pool(self.caller, pool_id)))

    @operation("pools_delete", answers={204: None}, refusals="POOL_NOT_FOUND")
    def delete(self, request: Request, pool_id: str) -> Response:
        """Take a pool away. Work that names it waits until there is one of its id again."""
        pools.delete(caller=self.caller, pool_id=pool_id)
        return Response(status=204)
