"""`spark.read.format("late")`: any store as a frame.

    spark.dataSource.register(late_spark.source.LateSource)
    spark.read.format("late").option("url", URL).option("table", "usage").load()

Options: `url`; `table` (`usage`, `tasks`, `dead`, `timers`, `journal`); `parts`, how many tasks of
Spark are to read at least; `snapshot`, the name of an exported PostgreSQL snapshot, by which
several reads see one moment (`late_spark.snapshot.exported`); on Spanner `asOf`, a time that has
passed, for the same, and `dataBoost` (`true`); `after`, for a tail behind a lake.

Columns: those of a schema that is given (`.schema("queue string, count long")`), else all; what is
not asked for is not read. Filters on time, shard, queue and group are pushed down, for which Spark
wants `spark.sql.python.filterPushdown.enabled` to be true; `session.start()` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from late.errors import ConfigError
from late.model.time_text import duration_us
from late_spark.frames import TABLES
from late_spark.source_options import after_of, known_of
from late_spark.times import micros

if TYPE_CHECKING:
    from late_spark.fetch import Moment

OPTIONS = ("url", "table", "parts", "snapshot", "asOf", "dataBoost", "after", "known")

_KNOWN = frozenset(name.lower() for name in OPTIONS)


class LateSource(DataSource):
    """See the module. Spark makes and pickles it: it holds options and nothing else."""

    @classmethod
    def name(cls) -> str:
        return "late"

    def schema(self) -> StructType:
        return TABLES[self._table()]

    def reader(self, schema: StructType) -> LateReader:
        table = self._table()
        for field in schema:
            if field.name not in TABLES[table].names:
                raise ConfigError(f"{table} has no column {field.name!r}")
            known = TABLES[table][field.name].dataType
            if field.dataType != known:
                raise ConfigError(f"{table}.{field.name} is {known.simpleString()}")
        return LateReader(dict(self.options), table, schema.names)

    def _table(self) -> str:
        unknown = sorted(name for name in self.options if name.lower() not in _KNOWN)
        if unknown:
            raise ConfigError(f"no option {unknown[0]!r}: there are {', '.join(OPTIONS)}")
        if not self.options.get("url"):
            raise ConfigError('which database? .option("url", "postgresql://…")')
        table = self.options.get("table", "usage")
        if table not in TABLES:
            raise ConfigError(f"no table {table[:64]!r}: there are {', '.join(TABLES)}")
        options = {name.lower(): value for name, value in self.options.items()}
        moment_of(options)
        parts_of(options)
        return table


class LatePartition(InputPartition):
    """One part of the plan, and what is needed to read it."""

    def __init__(self, part: Any, owners: dict[str, str], moment: Any) -> None:
        super().__init__(None)
        self.part = part
        self.owners = owners
        self.moment = moment


class LateReader(DataSourceReader):
    """Plans in a process of the driver, reads in the executors; pickled in between."""

    def __init__(self, options: dict[str, str], table: str, columns: Sequence[str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._table = table
        self._columns = list(columns)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from late_spark import pushdown

        self._filters = filters
        # What is returned here Spark looks at again; the others are in its plan as pushed down.
        return [each for each in filters if not pushdown.exact(each)]

    def partitions(self) -> Sequence[InputPartition]:
        from late_spark import live, pushdown
        from late_spark.parts import Part

        found = live.plan(
            self._options["url"],
            self._table,
            pushdown.of(self._table, self._filters),
            columns=self._columns,
            moment=moment_of(self._options),
            after=after_of(self._options.get("after")),
            known=known_of(self._options.get("known")),
            parts=parts_of(self._options),
        )
        # Spark takes a plan without partitions for one partition of None.
        parts = found.parts or (Part(),)
        return [LatePartition(part, found.owners, found.moment) for part in parts]

    def read(self, partition: Any) -> Iterator[Any]:
        from late_spark import parts, pushdown

        return parts.read(
            self._options["url"],
            self._table,
            partition.part,
            self._columns,
            pushdown.of(self._table, self._filters),
            partition.owners,
            moment=partition.moment,
        )


def moment_of(options: Mapping[str, str]) -> Moment:
    """Return the moment of the read that the options ask for.

    Args:
        options: their names in small letters.

    Raises:
        ConfigError: not a time with a zone, or neither true nor false.
    """
    from late_spark.fetch import Moment

    as_of, as_of_us, age_us = options.get("asof"), None, None
    if as_of is not None:
        try:
            as_of_us = micros(datetime.fromisoformat(as_of))
        except (ValueError, TypeError):  # TypeError: it has no zone
            age_us = _age_us(as_of)
    boost = options.get("databoost", "false").lower()
    if boost not in ("true", "false"):
        raise ConfigError(f"dataBoost {boost[:64]!r}: true or false")
    return Moment(options.get("snapshot"), as_of_us, age_us, boost == "true")


def _age_us(as_of: str) -> int:
    wrong = ConfigError(
        f"asOf {as_of[:64]!r}: expected a time such as 2026-03-01T12:00:00Z, or an age such as 15s"
    )
    try:
        found = duration_us(as_of, "asOf")
    except ConfigError:
        raise wrong from None
    if found < 0:
        raise wrong
    return found


def parts_of(options: Mapping[str, str]) -> int:
    """Return the least number of Spark tasks that read. Raises `ConfigError`."""
    parts = options.get("parts", "0")
    if not (parts.isascii() and parts.isdigit()):
        raise ConfigError(f"parts {parts[:64]!r}: a whole number")
    return int(parts)
