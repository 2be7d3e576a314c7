"""Django's migrate, for one process at a time and without the limits that requests have."""

from typing import Any

import pglock
from django.core.management.commands import migrate
from django.db import connections


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        """Waits until no other process migrates; a long statement is not cut off."""
        alias = options["database"]
        with connections[alias].cursor() as cursor:
            cursor.execute("set statement_timeout = 0; set idle_in_transaction_session_timeout = 0")
        try:
            # Without `timeout` the limit for locks would end the wait, and it would go on unlocked.
            with pglock.advisory("fencepost.migrate", using=alias, timeout=None):
                super().handle(*args, **options)
        finally:
            with connections[alias].cursor() as cursor:
                cursor.execute("reset statement_timeout; reset idle_in_transaction_session_timeout")
