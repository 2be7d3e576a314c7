"""Django's PostgreSQL backend, with health checks that cost no round trip.

A connection that its server ended has something to read while nobody asked for anything: the last
message, or the end. Django's own check asks a question, before each call of each worker.
"""

from __future__ import annotations

import select
from typing import Any

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """A new connection; from a pool one that still stands."""
        while True:
            found = super().get_new_connection(conn_params)
            if self.pool is None or not is_ended(found):
                return found
            found.close()
            self.pool.putconn(found)

    def is_usable(self) -> bool:
        return self.connection is not None and not is_ended(self.connection)


def is_ended(connection: Any) -> bool:
    """Whether an idle connection is broken; one with anything to read counts as such."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
