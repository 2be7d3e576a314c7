"""Fixtures for every test: what the surroundings offer, or a reason why a test is skipped."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from mesh import lobby, workers


def missing(what: str) -> NoReturn:
    """Skip the test with this reason, or fail it where everything has to be there."""
    if os.environ.get("FENCEPOST_REQUIRE_ALL"):
        pytest.fail(f"{what} (FENCEPOST_REQUIRE_ALL is set)", pytrace=False)
    pytest.skip(what)


def _server(variable: str, default: str) -> str:
    """The URL of an outside server that accepts connections."""
    url = os.environ.get(variable, default)
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 0), 2).close()
    except OSError as error:
        missing(f"no server for {variable}: {error.strerror or error}")
    return url


@pytest.fixture
def outside_postgres() -> Iterator[str]:
    """The URL of a new, empty database on a PostgreSQL server that is not ours."""
    server = _server("FENCEPOST_TEST_POSTGRES_URL", "postgres://postgres@127.0.0.1:5432/postgres")
    name = f"fencepost_test_{uuid.uuid4().hex[:12]}"
    try:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
    except psycopg.OperationalError as error:
        missing(f"PostgreSQL does not let us in: {error}")
    yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"drop database if exists {name} with (force)".encode())


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    """Whoever waited for work in this test is gone after it, and who looked out for them too."""
    yield
    lobby.empty()
    # Each test begins with rows of its own.
    workers._heard.clear()


@pytest.fixture
def outside_redis() -> str:
    """The URL of a Redis or Valkey server that is not ours."""
    return _server("FENCEPOST_TEST_REDIS_URL", "redis://127.0.0.1:6379/15")


@pytest.fixture
def outside_rabbitmq() -> str:
    """The URL of a RabbitMQ server that is not ours."""
    return _server("FENCEPOST_TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium to drive."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    missing("no Chromium on PATH")
