"""The place of the usage, and the engine that reads it.

DuckDB is ready at once and needs no Java; Spark takes many seconds to start, and then as many
cores and machines as there are. What there is to read is known before it is read, so its size
decides, unless somebody says which.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from late.errors import ConfigError
from late_spark import calendar, java, usage_files
from late_spark.calendar import Calendar
from late_spark.relation import OnSpark, Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from late_spark.live import Plan

Engine = Literal["auto", "duckdb", "spark"]
ENGINES: tuple[str, ...] = get_args(Engine)
FILES_MAX = 16 * 2**30
"""Bytes of Parquet up to which DuckDB reads them."""
SETTLEMENTS_MAX = 1_000_000
"""Settlements of a journal up to which one process reads them; Spark has many read at once."""


class Found(NamedTuple):
    """What there is to read, looked at before any of it is read."""

    files: tuple[Path, ...] = ()
    file_bytes: int = 0
    behind: Plan | None = None
    """The plan of the read of the journal, or of what it has behind a lake."""

    @property
    def settlements(self) -> int:
        """Return the number of settlements to read of the journal."""
        return 0 if self.behind is None else self.behind.settlements()

    def said(self) -> str:
        """Say how much it is."""
        parts = []
        if self.files:
            parts.append(f"{self.file_bytes / 2**20:,.1f} MiB of Parquet")
        if self.behind is not None:
            parts.append(f"{self.settlements:,} settlements")
        return " and ".join(parts) or "no files of the range"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The place of the usage: a store, a lake (with the store's tail if there is a `url`), or plain
    Parquet files of usage rows."""

    url: str | None = None
    lake: Path | None = None
    usage: Path | str | None = None
    engine: Engine = "auto"
    accept_gaps: bool = False
    """Pass over what was pruned before an export to the lake; `said` names it."""

    def said(self, until_us: int | None = None) -> str:
        """Name the source. A lake says what it lacks, and alone where it ends, if that is before
        `until_us`."""
        if self.usage is not None:
            return f"the files {self.usage}"
        if self.lake is None:
            return "the database"
        from late_spark import lake

        manifest = lake.load(self.lake)
        lacks = [each.said() for each in manifest.gaps] if manifest and self.accept_gaps else []
        without = f" WITHOUT {'; '.join(lacks[:5])} ({len(lacks):,} gaps)" if lacks else ""
        if self.url is not None:
            return f"the lake {self.lake} and the database behind it{without}"
        # Days after its end look like days without work; whoever reads the report has to know.
        ends = max((each.last_us for each in manifest.journals), default=0) if manifest else 0
        if until_us is not None and ends >= until_us:
            return f"the lake {self.lake}{without}"
        return f"the lake {self.lake}, which ends at {calendar.iso(ends)}{without}"

    def check(self, days: Calendar) -> Found:
        """Look at what there is of a range; see `look`."""
        return look(self, days.from_us, days.to_us)


def look(source: Source, from_us: int | None, to_us: int) -> Found:
    """Look at what there is of a range, before an engine is started, which takes longer.

    Args:
        from_us: None begins with what is kept.

    Raises:
        ConfigError: no source, or two of them, or it is not there.
        JournalPruned: the journal or the lake misses something of the range.
    """
    if (source.url is None and source.lake is None) == (source.usage is None):
        raise ConfigError("where is the usage? Give a database (--url, --lake) or --usage FILES")
    if source.usage is not None:
        return _files(source.usage)
    from late_spark import lake, live
    from late_spark.bounds import Bounds

    bounds = Bounds(from_us=from_us, to_us=to_us)
    if source.lake is None:
        assert source.url is not None
        return Found(behind=live.plan(source.url, "usage", bounds))
    manifest = lake.load(source.lake)
    if manifest is None:
        raise ConfigError(f"--lake {source.lake} is no lake: late lake export {source.lake}")
    if from_us is not None:
        manifest.covers(from_us, to_us, accept_gaps=source.accept_gaps)
    chosen = manifest.within(from_us, to_us)
    files = tuple(source.lake.absolute() / each.path for each in chosen)
    size = sum(each.size_bytes for each in chosen)
    if source.url is None:
        return Found(files, size)
    known = lake.known(source.url, source.lake, manifest)
    plan = live.plan(source.url, "usage", bounds, after=manifest.after(), known=known)
    return Found(files, size, plan)


def _files(usage: Path | str) -> Found:
    from late_spark import lake

    for place in (Path(usage), *Path(usage).parents):
        if lake.is_lake(place):
            # Files that a compaction has replaced are still there: they would count twice.
            raise ConfigError(f"--usage {usage}: {place} is a lake: give it as --lake")
    found = tuple(usage_files.check(usage))
    return Found(found, sum(each.stat().st_size for each in found))


def chosen(
    source: Source, found: Found, *, submitted: bool
) -> tuple[Literal["duckdb", "spark"], str]:
    """Choose the engine, and say why.

    Args:
        submitted: whether `spark-submit` runs this.

    Raises:
        ConfigError: DuckDB was asked for what it cannot read.
    """
    remote = "://" in str(source.usage)
    if source.engine == "duckdb" and remote:
        raise ConfigError(f"--engine duckdb reads local files, not {source.usage}: take spark")
    if source.engine != "auto":
        return source.engine, "it was asked for"
    if submitted:
        return "spark", "spark-submit runs this"
    if remote:
        return "spark", "the files are on another machine"
    large = found.file_bytes > FILES_MAX or found.settlements > SETTLEMENTS_MAX
    return ("spark" if large else "duckdb"), found.said()


def opened(source: Source, from_us: int | None, to_us: int, say: Callable[[str], None]) -> Relation:
    """Open the usage of a range by the engine for its size, and say which.

    Raises:
        ConfigError, JournalPruned: see `look`; or Spark is needed and there is none, or no Java.
    """
    found = look(source, from_us, to_us)
    engine, why = chosen(source, found, submitted=java.submitted())
    if engine == "spark":
        try:
            import pyspark  # noqa: F401
        except ModuleNotFoundError:
            raise ConfigError(
                f'Spark is needed and not installed: pip install "late-queue[spark]" ({why})'
            ) from None
        say(f"starting Spark: {why}")
        return OnSpark(_frame(source, from_us, to_us))
    say(f"reading by DuckDB: {why}")
    from late_spark import duck

    return duck.opened(found.files, source.url, found.behind)


def _frame(source: Source, from_us: int | None, to_us: int) -> DataFrame:
    """The usage as a frame of the shape `frames.USAGE`."""
    from pyspark.sql import SparkSession

    from late_spark import frames, lake, schema, session

    if SparkSession.getActiveSession() is None:
        # At the end and not after each report: whoever makes several pays for one start.
        atexit.register(_stop)
    spark = session.start(progress=sys.stderr.isatty())
    if source.lake is not None:
        return lake.frame(spark, source.lake, url=source.url, from_us=from_us, to_us=to_us)
    if source.url is not None:
        return lake.tail(spark, source.url, from_us=from_us, to_us=to_us)
    found = spark.read.parquet(str(source.usage))
    missing = [name for name in schema.USAGE if name not in found.columns]
    if missing and schema.LATER.issuperset(missing):
        return spark.read.schema(frames.USAGE).parquet(str(source.usage))
    if missing:
        raise ConfigError(f"--usage {source.usage} has no column {missing[0]!r}: is it of late?")
    return found


def _stop() -> None:
    from pyspark.sql import SparkSession

    from late_spark import session

    spark = SparkSession.getActiveSession()
    if spark is not None:
        session.stop(spark)
