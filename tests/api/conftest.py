"""What tests of the API share."""

from __future__ import annotations

import pytest

from tests.factories import World


@pytest.fixture
def world(db: None) -> World:
    return World()


@pytest.fixture
def elsewhere(db: None) -> World:
    """Another tenant, whose rows nobody of `world` may see."""
    return World()
