"""The interface between the autoscaler and the figures that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from late.errors import LateError


class MetricsError(LateError):
    """Metrics that could not be read. The size is held meanwhile."""


class Metrics(msgspec.Struct, frozen=True):
    """The newest reading; None for what is not known. `at_us` is when the CPU was measured."""

    at_us: int | None = None
    cpu: float | None = None
    measured_size: int | None = None
    cpu_24h: float | None = None
    storage_bytes: int | None = None
    cpu_total: float | None = None


class Source(Protocol):
    """Metrics of one database. Calls may block for seconds."""

    def read(self, now_us: int) -> Metrics:
        """The newest reading.

        Raises:
            MetricsError: it could not be asked for.
        """

    def past(self, from_us: int, until_us: int) -> Sequence[tuple[int, float]]:
        """(time, load) between two moments, ascending; empty where nothing is known.

        Raises:
            MetricsError: it could not be asked for.
        """
