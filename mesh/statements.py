"""Hand-written SQL of the hot path, one `.sql` file each beside the module that uses it.

The ORM sends each statement with its values written in, to be planned anew every time. These few
are sent with their values apart, so that PostgreSQL keeps them prepared on each connection (after
`prepare_threshold` uses) and their planning, about half of a claim, is saved.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.backends.postgresql.base import ServerBindingCursor
from django.db.backends.utils import CursorWrapper
from django.db.models import JSONField, Model
from django.db.models.base import ModelState
from psycopg.types.datetime import TimestamptzLoader

from .models.fields import ExactJSONField

M = TypeVar("M", bound=Model)
HERE = Path(__file__).parent


class Reader(Generic[M]):
    """Reads rows of a model from a hand-written statement that names its columns.

    The same as the ORM does, without making the statement anew each time. Columns named in `but`
    are left out and, as with `defer`, fetched when asked for.
    """

    def __init__(self, model: type[M], *, but: Sequence[str] = ()) -> None:
        fields = [each for each in model._meta.concrete_fields if each.column not in but]
        self.model = model
        self.names = [each.attname for each in fields]
        # `jsonb` comes as text, and as an object where it is kept exactly (`json`).
        self._json = [
            place
            for place, each in enumerate(fields)
            if isinstance(each, JSONField) and not isinstance(each, ExactJSONField)
        ]

    def columns(self, alias: str) -> str:
        """What stands between `select` and `from`."""
        return ", ".join(f"{alias}.{name}" for name in self.names)

    def read(self, values: Sequence[Any]) -> M:
        """The instance with these values, in the order of `columns`."""
        row = list(values)
        for place in self._json:
            if row[place] is not None:
                row[place] = orjson.loads(row[place])
        # What `Model.from_db` comes to where no model sees to its own making: a column that was
        # read stands in the instance, one that was not is fetched when it is asked for.
        made = self.model.__new__(self.model)
        made.__dict__.update(zip(self.names, row, strict=True))
        made._state = ModelState()
        made._state.adding, made._state.db = False, DEFAULT_DB_ALIAS
        return made


@cache
def _defaults(model: type[Model]) -> Mapping[str, Any]:
    return {name: each for name, each in vars(model()).items() if name != "_state"}


def fresh(model: type[M], **values: Any) -> M:
    """A new row, not yet stored, with these columns and else the defaults of the model.

    The same as `model(...)`, which works them out anew each time; a call makes a thousand. A
    default that can be changed in place is shared: give a value where it may be.
    """
    made = model.__new__(model)
    made.__dict__.update(_defaults(model), _state=ModelState())
    made.__dict__.update(values)
    return made


def load(name: str) -> str:
    """The statement in `<name>.sql`, without its comments.

    psycopg remembers what it has read in a statement only up to 4 096 bytes of it.
    """
    lines = (HERE / f"{name}.sql").read_text().splitlines()
    told = (each.partition("--")[0].strip() for each in lines)
    return "\n".join(each for each in told if each)


def first(statement: str, values: Mapping[str, Any]) -> Sequence[Any] | None:
    """Run a statement that answers at most one row."""
    with _cursor() as cursor:
        cursor.execute(statement, values)
        found: Sequence[Any] | None = cursor.fetchone()
        return found


def all_rows(statement: str, values: Mapping[str, Any]) -> list[Sequence[Any]]:
    """Run a statement that answers rows, to be read by a `Reader`."""
    with _cursor() as cursor:
        cursor.execute(statement, values)
        found: list[Sequence[Any]] = cursor.fetchall()
        return found


def rows(statement: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a statement that answers rows; `jsonb` columns come as text."""
    with _cursor() as cursor:
        cursor.execute(statement, values)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def change(statement: str, values: Mapping[str, Any]) -> int:
    """Run a statement that answers nothing; how many rows it changed."""
    with _cursor() as cursor:
        cursor.execute(statement, values)
        changed: int = cursor.rowcount
        return changed


def _cursor() -> CursorWrapper:
    """A cursor that binds on the server, with all that Django wraps around its own."""
    connection.ensure_connection()
    # Neither is in the stubs: how this backend makes its own server-side binding cursors.
    backend: Any = connection
    bare: Any = ServerBindingCursor
    cursor = bare(backend.connection)
    # Times are UTC on the connection. The driver's own reader is compiled, Django's is not.
    cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
    wrapped: CursorWrapper = backend._prepare_cursor(cursor)
    return wrapped
