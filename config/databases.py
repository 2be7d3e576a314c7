"""What to tell people when the database cannot be used."""

from __future__ import annotations

import psycopg
from django.conf import settings
from django.db import Error


def explain(error: Error) -> str | None:
    """One sentence with what to do, or None if the fault is not in the surroundings."""
    cause = error.__cause__
    if isinstance(cause, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return "the database is not set up for this version: run python manage.py migrate"
    if not isinstance(cause, psycopg.OperationalError) or cause.sqlstate:
        return explain_refusal(cause)
    if not settings.PRODUCTION and settings.RUN:
        # `up` starts what dies again; or it was killed itself and could not tidy up.
        return (
            f"the database in {settings.DATA_DIR} does not answer ({reason(cause)}): if up still"
            " runs there, try again in a moment; if not, start it with make run"
        )
    if not settings.PRODUCTION:
        return f"nothing runs in {settings.DATA_DIR}: start it with make run, or set DATABASE_URL"
    return f"cannot use the database: {reason(cause)}"


def explain_refusal(cause: BaseException | None) -> str | None:
    """The server answered, and said no to what the surroundings (not our code) asked for."""
    outside = (
        psycopg.errors.InvalidAuthorizationSpecification,
        psycopg.errors.InvalidPassword,
        psycopg.errors.InvalidCatalogName,
        psycopg.errors.TooManyConnections,
        psycopg.errors.CannotConnectNow,
        psycopg.errors.AdminShutdown,
        psycopg.errors.DiskFull,
    )
    return f"cannot use the database: {reason(cause)}" if isinstance(cause, outside) else None


def pool_connections() -> None:
    """Have the threads of this process share a few connections; before the first one is made."""
    facts = settings.DATABASES["default"]
    facts["CONN_MAX_AGE"] = 0
    # Asks a question; ours looks for itself (`config.postgresql`).
    facts["CONN_HEALTH_CHECKS"] = False
    facts["OPTIONS"]["pool"] = {
        "min_size": 1,
        "max_size": settings.WEB_CONNECTIONS,
        "timeout": settings.WEB_CONNECTION_PATIENCE_S,
    }


def reason(error: BaseException) -> str:
    """The telling part of libpq's message, which may have several lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].removeprefix("connection failed: ") if lines else type(error).__name__
