"""What tests of the API share."""

from __future__ import annotations

import pytest
from django.core.cache import cache

from tests.factories import World


@pytest.fixture
def world(db: None) -> World:
    return World()


@pytest.fixture
def elsewhere(db: None) -> World:
    """Another tenant, whose rows nobody of `world` may see."""
    return World()


@pytest.fixture(autouse=True)
def _no_failures_before() -> None:
    """Refused calls of other tests are not counted against this one."""
    cache.clear()
