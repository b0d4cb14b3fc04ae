"""The usage as a table that a report asks by SQL, on DuckDB or on Spark.

A statement is text that both speak, over the table `usage` with the columns of `schema.USAGE` and
parameters such as `:queue`. Sums are whole numbers, so both find the same to the last digit; what
comes back has as many rows as there are days and keys, and Python goes on with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from late.errors import StoreError
from late_spark import schema
from late_spark.calendar import DAY_US, Calendar

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame

Columns = dict[str, list[Any]]
"""The rows of an answer, by column."""


class Relation(Protocol):
    """A table `usage`, and the engine that reads it."""

    def ask(self, sql: str, **values: Any) -> Columns:
        """Return the rows of a statement over `usage`."""
        ...


class OnSpark:
    """A frame of usage, which may be as large as a cluster takes."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def ask(self, sql: str, **values: Any) -> Columns:
        self._frame.createOrReplaceTempView("usage")
        found: Columns = self._frame.sparkSession.sql(sql, args=values).toArrow().to_pydict()
        return found


class OnDuckDB:
    """A connection with a table `usage`: one machine, no Java, and ready at once."""

    def __init__(self, connection: DuckDBPyConnection) -> None:
        self._connection = connection
        # Spark's name for the rows of a list.
        connection.execute("create macro explode(list) as unnest(list)")

    def ask(self, sql: str, **values: Any) -> Columns:
        """Return the rows of a statement over `usage`.

        Raises:
            StoreError: what DuckDB says, in one line.
        """
        named = re.sub(r":(?=[a-z])", "$", sql)
        with explained():
            answer = self._connection.sql(named, params=values or None)
            found: Columns = answer.to_arrow_table().to_pydict()
        return found


@contextmanager
def explained() -> Iterator[None]:
    """Raise in one line what DuckDB says.

    Raises:
        StoreError: a file is gone or damaged, or there is no room on disk.
    """
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise StoreError(f"DuckDB: {str(error).partition(chr(10))[0][:400]}") from error


def total(amount: str) -> str:
    """Return the sum of an expression as a whole number: DuckDB's own is of 128 bits."""
    return f"cast(sum({amount}) as bigint)"


def counted(*outcomes: str) -> str:
    """Return the sum of `count` under some outcomes."""
    return total(f"case when {among(outcomes)} then count else 0 end")


def among(outcomes: Iterable[str]) -> str:
    """Return the condition on rows of some outcomes."""
    return f"outcome in ({', '.join(repr(each) for each in outcomes)})"


def part_of(us: str, length_us: int) -> str:
    """Return the number of the stretch of some length in which a time lies.

    The remainder goes first, so that what is divided is a whole number of times the length, which
    has no rounding in any engine.
    """
    return f"cast(({us} - mod({us}, {length_us})) / {length_us} as bigint)"


def day(calendar: Calendar) -> str:
    """Return the local day of a row in days since the epoch: integer arithmetic, for converting
    time zones row by row would be most of the report's time."""
    offset = str(calendar.spans[0][1])
    for start, shift in calendar.spans[1:]:
        offset = f"case when settled_us >= {start} then {shift} else {offset} end"
    return part_of(f"(settled_us + {offset})", DAY_US)


def within(calendar: Calendar) -> str:
    """Return the condition on rows that were settled in the range."""
    return f"settled_us >= {calendar.from_us} and settled_us < {calendar.to_us}"


def entries(kind: str) -> str:
    """Return the entries of a histogram, a row each, with `key` (the bucket) and `value`."""
    return f"explode(map_entries({kind}_hist))"


UNRECORDED = "attempts > 0 and coalesce(cardinality(waiting_hist), 1) = 0"
"""Rows that were written by a version which recorded no histograms, retries and lateness. Every
attempt is in both histograms, so attempts without one say it."""
ENDED = f"case when {among(schema.ENDS)} then count else 0 end"
"""The tasks that ended with a row."""
