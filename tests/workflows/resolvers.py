"""Resolvers as an operator might bring them, good and bad."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, cast

from mesh import clock
from mesh.models import Tenant
from workflows.evidence import Finding, Local, Question
from workflows.models import Verdict

# Lets the hanging ones go.
released = threading.Event()
asked: list[Question] = []


class Outside:
    """Says what a test wants it to say; it asks no database, so the time comes from the test."""

    name: ClassVar[str] = "outside"
    says: ClassVar[Callable[[], object]]

    def ask(self, question: Question) -> Finding:
        asked.append(question)
        return cast(Finding, type(self).says())


class Hanging:
    name: ClassVar[str] = "hanging"

    def ask(self, question: Question) -> Finding:
        asked.append(question)
        released.wait()
        raise RuntimeError("nobody listens any more")


class Slow(Local):
    """Reads the database for too long."""

    name: ClassVar[str] = "slow"

    def ask(self, question: Question) -> Finding:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("select pg_sleep(10)")
        return Finding(Verdict.CONFIRMED, clock.now())


class Broken:
    name: ClassVar[str] = "broken"

    def __init__(self) -> None:
        raise ConnectionError("password=hunter2")

    def ask(self, question: Question) -> Finding:
        raise NotImplementedError


class Exiting:
    name: ClassVar[str] = "exiting"

    def ask(self, question: Question) -> Finding:
        raise SystemExit(1)


class Reading:
    """Asks the database, which it has none of."""

    name: ClassVar[str] = "reading"

    def ask(self, question: Question) -> Finding:
        Tenant.objects.count()
        return Finding(Verdict.CONFIRMED, clock.now())


def confirmed(age: timedelta = timedelta(), **saw: Any) -> Callable[[], Finding]:
    """That it is so, known that long ago, by the clock that a test has stopped."""
    return lambda: Finding(Verdict.CONFIRMED, _now() - age, saw)


def other() -> Finding:
    return Finding(Verdict.OTHER, _now())


def unknown() -> Finding:
    return Finding(Verdict.UNKNOWN, _now())


def _now() -> Any:
    at = clock.fixed()
    assert at is not None
    return at
