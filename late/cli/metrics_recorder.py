"""`late metrics --record`: the server's own counters as a file that the cost report reads.

PostgreSQL's counters are written as they are (since a reset), as `late report cost --metrics` takes
them. CockroachDB's are written as its own dump has them. The others have levels only, in the plain
form. A sample that could not be taken is a hole in the series and not a zero.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from late.control.status.cockroach_nodes import series_of
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.autoscaler.metrics.source import Metrics
    from late.control.status.cockroach_nodes import Sample
    from late.control.status.server import Server

COUNTERS = ("at", "datname", "xact_commit", "tup_fetched", "tup_inserted", "tup_updated",
            "tup_deleted", "storage_bytes")  # fmt: skip
LEVELS = ("at", "metric", "value")
Row = tuple[str | int | float, ...]


def of_server(seen: Server) -> tuple[tuple[str, ...], list[Row]]:
    """Return header and rows of one look.

    Raises:
        ConfigError: this database does not tell its load by SQL.
    """
    at = _at(seen.at_us)
    if seen.commits is not None:
        counted = (seen.commits, seen.rows_read, seen.rows_inserted, seen.rows_updated,
                   seen.rows_deleted, seen.size_bytes)  # fmt: skip
        return COUNTERS, [(at, seen.name, *(value or 0 for value in counted))]
    if seen.size_bytes is not None:
        return LEVELS, [(at, "storage_bytes", seen.size_bytes)]
    raise ConfigError(
        "this database does not tell its load by SQL: on Spanner give --instance "
        "projects/P/instances/I (Cloud Monitoring), on CockroachDB --status-vars "
        "http://NODE:8080 for each node"
    )


def of_monitoring(seen: Metrics) -> tuple[tuple[str, ...], list[Row]]:
    """Return those of a Spanner instance; no rows if it has no newer minute."""
    if seen.at_us is None:
        return LEVELS, []
    known = {
        "nodes": seen.measured_size,
        "cpu": None if seen.cpu is None else seen.cpu / 100,
        "storage_bytes": seen.storage_bytes,
    }
    at = _at(seen.at_us)
    return LEVELS, [(at, name, value) for name, value in known.items() if value is not None]


def of_nodes(samples: Iterable[Sample], at_us: int) -> tuple[tuple[str, ...], list[Row]]:
    """Return those of CockroachDB's nodes; its dump has no header."""
    at = _at(at_us)
    return (), [(name, at, source, value) for name, source, value in series_of(samples)]


def _at(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat()


class Recorder:
    """A file to which looks are appended; it is made if there is none.

    Raises:
        ConfigError: the file is there and is something else, or cannot be written.
    """

    def __init__(self, path: Path, look: Callable[[], tuple[tuple[str, ...], list[Row]]]) -> None:
        self._path, self._look = path, look
        self._last = ""

    def once(self) -> int:
        """Look once, and return how many rows that added."""
        header, rows = self._look()
        time = 0 if header else 1
        rows = [row for row in rows if str(row[time]) != self._last]
        if rows:
            self._last = str(rows[0][time])
            self._append(header, rows)
        return len(rows)

    def _append(self, header: tuple[str, ...], rows: Iterable[Row]) -> None:
        try:
            with self._path.open("a+", newline="", encoding="utf-8") as file:
                file.seek(0)
                first = file.readline().strip()
                known = first == ",".join(header) if header else first.startswith("cr.")
                if first and not known:
                    told = ", ".join(header) or "a dump of CockroachDB's"
                    raise ConfigError(f"{self._path} has other columns than {told}")
                writer = csv.writer(file)
                if header and not first:
                    writer.writerow(header)
                writer.writerows(rows)
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}") from None
