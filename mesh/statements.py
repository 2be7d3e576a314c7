"""Hand-written SQL of the hot path, one `.sql` file each beside the module that uses it.

The ORM sends each statement with its values written in, to be planned anew every time. These few
are sent with their values apart, so that PostgreSQL keeps them prepared on each connection (after
`prepare_threshold` uses) and their planning, about half of a claim, is saved.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.backends.postgresql.base import ServerBindingCursor
from django.db.backends.utils import CursorWrapper

HERE = Path(__file__).parent


def load(name: str) -> str:
    """The statement in `<name>.sql`."""
    return (HERE / f"{name}.sql").read_text()


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
    wrapped: CursorWrapper = backend._prepare_cursor(bare(backend.connection))
    return wrapped
