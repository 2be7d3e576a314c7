"""A JSON column that gives back exactly what was put in."""

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.json import Json


class ExactJSONField(models.JSONField):
    """JSON stored as written (`json`, not `jsonb`).

    `jsonb` turns 1e300 into a number of 301 digits, which no longer fits what clients may send.
    What workers and clients exchange (input, output, checkpoints) is only carried, never queried.
    The column cannot be compared, grouped or indexed; JSON null is stored as SQL NULL.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "json"

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        return value if value is None or isinstance(value, Json) else Json(value)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return value
