"""Fixtures of the unit tests."""

from __future__ import annotations

from tests.unit.cli_kit import cli

__all__ = ["cli"]
