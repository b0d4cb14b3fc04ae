"""Where the figures come from: a file that others write, or Cloud Monitoring (`monitoring`)."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from late.autoscaler.policy import Units
from late.errors import ConfigError, LateError

FILE_BYTES_MAX = 8 * 2**20


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


class FileSource:
    """CSV with the columns `at` (microseconds, or ISO 8601 with a zone) and `cpu`, and if known
    `cpu_total`, `size`, `cpu_24h`, `storage_bytes`. The last line counts; whoever writes it appends
    lines, or replaces the file by renaming. Of a large file the last 8 MiB are read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, now_us: int) -> Metrics:
        rows = self._rows()
        return rows[-1] if rows else Metrics()

    def past(self, from_us: int, until_us: int) -> Sequence[tuple[int, float]]:
        found = []
        for row in self._rows():
            if row.at_us is None or row.cpu is None or row.measured_size is None:
                continue
            if from_us <= row.at_us < until_us:
                found.append((row.at_us, row.cpu * row.measured_size / 100))
        return sorted(found)

    def _rows(self) -> list[Metrics]:
        try:
            with self._path.open("rb") as file:
                head = file.readline()
                size = file.seek(0, io.SEEK_END)
                file.seek(max(len(head), size - FILE_BYTES_MAX))
                body = file.read(FILE_BYTES_MAX)
        except OSError as error:
            raise MetricsError(f"metrics {self._path}: {error.strerror}") from error
        if size - len(head) > FILE_BYTES_MAX:
            body = body.partition(b"\n")[2]
        # A line without its end is being written.
        body = body[: body.rfind(b"\n") + 1]
        text = (head + body).decode("utf-8", errors="replace")
        return [self._row(row) for row in csv.DictReader(io.StringIO(text))]

    def _row(self, row: dict[str, str]) -> Metrics:
        try:
            return Metrics(
                at_us=_moment_us(row["at"]),
                cpu=_number(row["cpu"]),
                cpu_total=_number(row.get("cpu_total")),
                measured_size=_whole(row.get("size")),
                cpu_24h=_number(row.get("cpu_24h")),
                storage_bytes=_whole(row.get("storage_bytes")),
            )
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise MetricsError(
                f"metrics {self._path}: a line that cannot be read: {error}"
            ) from None


def _moment_us(text: str) -> int:
    if text.strip().isdigit():
        return int(text)
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        raise ValueError(f"{text[:40]!r} has no time zone")
    return round(moment.timestamp() * 1_000_000)


def _number(text: str | None) -> float | None:
    if not text:
        return None
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is not a number")
    return value


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None else round(value)


def source_of(text: str, instance: str | None, units: Units, *, total: bool = False) -> Source:
    """The source that a command line names: a path, or `monitoring` of the instance, with the CPU
    of all priorities where it is asked for.

    Raises:
        ConfigError: no such file, monitoring of nothing, or Google's client is not installed.
    """
    if text != "monitoring":
        if not Path(text).exists():
            raise ConfigError(f"no metrics {text[:200]!r}: neither a file nor `monitoring`")
        return FileSource(Path(text))
    if instance is None:
        raise ConfigError("metrics from Cloud Monitoring need --spanner INSTANCE")
    if re.fullmatch(r"projects/[^/]+/instances/[^/]+", instance) is None:
        raise ConfigError(f"a Spanner instance is projects/P/instances/I, got {instance[:80]!r}")
    try:
        from late.autoscaler.monitoring import MonitoringSource
    except ImportError:
        raise ConfigError("Cloud Monitoring takes pip install 'late[spanner]'") from None
    return MonitoringSource(instance, units, total=total)
