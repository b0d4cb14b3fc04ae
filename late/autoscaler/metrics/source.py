"""The interface between the autoscaler and the figures that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from late.errors import LateError


class MetricsError(LateError):
    """The metrics could not be read. The size is held meanwhile."""


class Metrics(msgspec.Struct, frozen=True):
    """The newest reading; None for an unknown figure. `at_us` is when the CPU was measured."""

    at_us: int | None = None
    cpu: float | None = None
    measured_size: int | None = None
    cpu_24h: float | None = None
    storage_bytes: int | None = None
    cpu_total: float | None = None


class Source(Protocol):
    """Metrics of one database. Calls may block for seconds."""

    def read(self, now_us: int) -> Metrics:
        """Read the newest figures.

        Raises:
            MetricsError: the source does not answer.
        """

    def past(self, from_us: int, until_us: int) -> Sequence[tuple[int, float]]:
        """Read (time, load) between two moments, ascending; empty if nothing is known.

        Raises:
            MetricsError: the source does not answer.
        """
