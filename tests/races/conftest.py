"""What every race starts from."""

from __future__ import annotations

import pytest

from tests.factories import World


@pytest.fixture
def world(transactional_db: None) -> World:
    """A tenant in a database where transactions are real."""
    return World()
