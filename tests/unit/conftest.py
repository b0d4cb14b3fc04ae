"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from tests.support.celery_state import forget_at_the_end
from tests.unit.cli_kit import cli

__all__ = ["cli"]


@pytest.fixture(autouse=True)
def _own_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's tasks, apps and receivers of Celery and of `late.celery` end with it."""
    forget_at_the_end(monkeypatch)
