"""What tests with real transactions leave is gone after them."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection

from tests.factories import World

pytestmark = pytest.mark.django_db(transaction=True)


def tables_with_rows() -> set[str]:
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    with connection.cursor() as cursor:
        asked = " union all ".join(
            f"(select '{table}' from {connection.ops.quote_name(table)} limit 1)"
            for table in tables
        )
        cursor.execute(asked)
        return {name for (name,) in cursor.fetchall()}


def test_every_row_goes_history_too_and_only_what_models_say_stays() -> None:
    World().succeeded()
    permissions = set(Permission.objects.values_list("pk", flat=True))
    assert {"mesh_workload", "mesh_workloadevent", "mesh_auditentry"} <= tables_with_rows()
    call_command("flush", interactive=False, verbosity=0)
    assert tables_with_rows() == {"auth_permission", "django_content_type"}
    assert set(Permission.objects.values_list("pk", flat=True)) == permissions


def test_the_rules_of_the_store_hold_again_after_it() -> None:
    call_command("flush", interactive=False, verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("show session_replication_role")
        assert cursor.fetchone() == ("origin",)
