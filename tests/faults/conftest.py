"""What tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from verl_core.testing import disk


@pytest.fixture
def without_syncs() -> Iterator[None]:
    """A killed process loses nothing that the kernel has, so syncs would only cost time."""
    with disk.without_syncs():
        yield
