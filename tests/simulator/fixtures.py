"""What a test of worlds needs around them. Registered in `tests/conftest.py`."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quick_worlds() -> Iterator[None]:
    """Every world ends with a collection, which must not go over all that other tests have left.
    Workers warn of every fault, and what is logged keeps the frames that it came from."""
    gc.collect()
    gc.freeze()
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
