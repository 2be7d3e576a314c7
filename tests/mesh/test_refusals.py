"""What a refusal carries is written after the rollback, once, by the outermost operation."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import transaction

from mesh import clock, history, refusals
from mesh.errors import DomainError
from mesh.models import AuditEntry, Grant
from tests.factories import World
from tests.mesh.checks import raises
from tests.mesh.checks import refused as refused_here


def write(action: str) -> None:
    history.audit(tenant_id=None, actor="service:test", action=action, target="x", at=clock.now())


def refused() -> DomainError:
    return DomainError("WORKER_BUSY", "No.", keep=partial(write, "kept"))


def operate() -> None:
    with refusals.kept(), transaction.atomic():
        write("rolled back")
        raise refused()


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))


@pytest.mark.django_db
def test_what_a_refusal_carries_survives_it_and_the_change_does_not() -> None:
    with raises("WORKER_BUSY"):
        operate()
    assert actions() == ["kept"]


@pytest.mark.django_db(transaction=True)
def test_an_operation_inside_another_leaves_the_writing_to_the_outermost() -> None:
    with raises("WORKER_BUSY"), refusals.kept(), transaction.atomic():
        with pytest.raises(DomainError) as inner:
            operate()
        assert actions() == []
        raise inner.value
    assert actions() == ["kept"]


@pytest.mark.django_db(transaction=True)
def test_it_is_written_once_however_many_boundaries_it_passes() -> None:
    with raises("WORKER_BUSY"), refusals.kept(), refusals.kept():
        operate()
    assert actions() == ["kept"]


@pytest.mark.django_db
def test_a_refusal_that_carries_nothing_goes_on_as_it_is() -> None:
    with raises("WORKER_BUSY"), refusals.kept(), transaction.atomic():
        write("rolled back")
        raise DomainError("WORKER_BUSY", "No.")
    assert actions() == []


@pytest.mark.django_db
def test_what_a_refusal_carries_is_not_told() -> None:
    assert refused().facts == {}


def refused_late(grant: Grant) -> None:
    with refused_here("WORKER_BUSY"):
        Grant.objects.filter(pk=grant.pk).update(revision=grant.revision + 1)
        raise DomainError("WORKER_BUSY", "No.")


def test_a_refusal_that_changed_a_row_is_noticed(world: World) -> None:
    grant, _ = world.grant()
    with pytest.raises(AssertionError):
        refused_late(grant)
