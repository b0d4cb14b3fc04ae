"""Metrics from a CSV file that another program writes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from late.autoscaler.metrics.source import Metrics, MetricsError

FILE_BYTES_MAX = 8 * 2**20
LINE_BYTES_MAX = 65_536


class FileSource:
    """CSV with the columns `at` (microseconds, or ISO 8601 with a zone) and `cpu`, and if known
    `cpu_total`, `size`, `cpu_24h`, `storage_bytes`. The last line counts; the writer appends lines,
    or replaces the file by a rename. Only the last 8 MiB of a large file are read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, now_us: int) -> Metrics:
        rows = self._lines(LINE_BYTES_MAX)
        return self._row(rows[-1]) if rows else Metrics()

    def past(self, from_us: int, until_us: int) -> Sequence[tuple[int, float]]:
        found = []
        for line in self._lines(FILE_BYTES_MAX):
            try:
                row = self._row(line)
            except MetricsError:
                continue  # one bad line among months loses its minute, not every forecast
            if row.at_us is None or row.cpu is None or row.measured_size is None:
                continue
            if from_us <= row.at_us < until_us:
                found.append((row.at_us, row.cpu * row.measured_size / 100))
        return sorted(found)

    def check(self) -> None:
        """Check the file at the start, where a problem with it is a wrong setting. An empty file is
        accepted: it may be written later.

        Raises:
            MetricsError: it cannot be read, or its first line lacks the columns.
        """
        self._lines(0)

    def _lines(self, most: int) -> list[dict[str, str]]:
        """Read the whole lines within the last `most` bytes, by column."""
        try:
            with self._path.open("rb") as file:
                head = file.readline(LINE_BYTES_MAX)
                size = file.seek(0, io.SEEK_END)
                start = max(len(head), size - most)
                # From the byte before: if it ends a line, the first line read is whole.
                file.seek(start - 1 if start else 0)
                body = file.read(most + 1) if most else b""
        except OSError as error:
            raise MetricsError(f"metrics {self._path}: {error.strerror}") from error
        columns = _fields(head.decode("utf-8-sig", errors="replace"))
        for name in ("at", "cpu") if columns else ():
            if name not in columns:
                raise MetricsError(f"metrics {self._path}: no column `{name}`")
        # The first text may lack its begin; the last one is still being written.
        texts = body.decode("utf-8", errors="replace").split("\n")[1:-1]
        return [dict(zip(columns, _fields(t), strict=False)) for t in texts if t.strip()]

    def _row(self, row: dict[str, str]) -> Metrics:
        def value(name: str, of: Callable[[str], Any]) -> Any:
            text = row.get(name)
            if not text:
                return None
            try:
                return of(text)
            except (ValueError, OverflowError) as error:
                raise MetricsError(
                    f"metrics {self._path}: {name} = {text[:40]!r}: {str(error)[:120]}"
                ) from None

        at_us, cpu = value("at", moment_us), value("cpu", _number)
        if at_us is None or cpu is None:
            raise MetricsError(f"metrics {self._path}: a line without `at` or `cpu`")
        return Metrics(
            at_us=at_us,
            cpu=cpu,
            cpu_total=value("cpu_total", _number),
            measured_size=value("size", _whole),
            cpu_24h=value("cpu_24h", _number),
            storage_bytes=value("storage_bytes", _whole),
        )


def _fields(line: str) -> list[str]:
    try:
        return [each.strip() for each in next(csv.reader([line.strip()]), [])]
    except csv.Error:  # a field of 128 KiB
        return []


def moment_us(text: str) -> int:
    """Parse a time: microseconds, or ISO 8601 with a zone. Raises ValueError."""
    if text.strip().isdigit():
        return int(text)
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return round(moment.timestamp() * 1_000_000)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not a number")
    return value


def _whole(text: str) -> int:
    return round(_number(text))
