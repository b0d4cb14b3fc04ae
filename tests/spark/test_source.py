"""`spark.read.format("late")`, through Spark itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from late_spark import pushdown
from late_spark.bounds import Bounds
from late_spark.fetch import NOW, Moment
from late_spark.frames import TABLES
from late_spark.source import LateSource, moment_of
from late_spark.source_options import after_of, after_text
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual

from late.errors import ConfigError
from tests.conformance.backends import BACKENDS
from tests.spark.kit import SECOND, START_US, done, settled, write

SQLITE = next(each for each in BACKENDS if not each.network)
START = datetime.fromtimestamp(START_US // SECOND, UTC)


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return SQLITE.create(tmp_path)


def load(spark: SparkSession, url: str, table: str = "usage", **options: str) -> DataFrame:
    reader = spark.read.format("late").option("url", url).option("table", table)
    return reader.options(**options).load()


def test_a_store_is_a_frame(spark: SparkSession, url: str) -> None:
    rows = [settled(seq, [done(seq), done(1, queue="p")], shard=shard)
            for shard in (0, 1) for seq in (1, 2, 3)]  # fmt: skip
    write(url, rows)
    usage = load(spark, url, parts="2")
    assert usage.schema == TABLES["usage"]
    found = usage.groupBy("queue").agg(F.sum("count").alias("n"), F.sum("busy_us").alias("busy"))
    assert {row.queue: (row.n, row.busy) for row in found.collect()} == {
        "q": (12, 1200), "p": (6, 600)}  # fmt: skip
    # Filters that are pushed down to the seq of each journal, and checked again by Spark.
    late = usage.where(F.col("settled_at") >= START + timedelta(seconds=2)).where("shard_id = 1")
    first = late.where("queue in ('q')").first()
    assert first is not None
    assert (first.seq, first["count"], first.waiting_hist) == (3, 3, {36: 3})


def test_only_columns_that_are_named_are_read(spark: SparkSession, file_url: str) -> None:
    write(file_url, [settled(1, [done(2)])])
    reader = spark.read.format("late").option("url", file_url)
    found = reader.schema("queue string, count long").load()
    assert [tuple(row) for row in found.collect()] == [("q", 2)]
    assert load(spark, file_url).count() == 1


@pytest.mark.parametrize("table", sorted(TABLES))
def test_an_empty_table_is_an_empty_frame(spark: SparkSession, file_url: str, table: str) -> None:
    found = load(spark, file_url, table)
    assert (found.schema, found.count()) == (TABLES[table], 0)


def test_an_error_of_a_read_names_its_cause(spark: SparkSession, file_url: str) -> None:
    write(file_url, [settled(2, [done(2)])])
    with pytest.raises(PySparkException, match="the journal of default/0 was pruned"):
        load(spark, file_url).where(F.col("settled_us") >= START_US).collect()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "which database"),
        ({"url": "sqlite:///x.db", "tabel": "usage"}, "no option 'tabel'"),
        ({"url": "sqlite:///x.db", "asOf": "2026-03-01"}, "asOf '2026-03-01': expected a time"),
        ({"url": "sqlite:///x.db", "asof": "noon"}, "asOf 'noon': expected a time"),
        ({"url": "sqlite:///x.db", "dataBoost": "yes"}, "dataBoost 'yes': true or false"),
        ({"url": "sqlite:///x.db", "parts": "many"}, "parts 'many': a whole number"),
        ({"url": "sqlite:///x.db", "table": "bills"}, "no table 'bills': there are usage, tasks"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LateSource(options).schema()


def test_options_say_when_a_store_is_read() -> None:
    options = {"asof": "2026-01-02T01:00:00+01:00", "databoost": "TRUE"}
    assert moment_of(options) == Moment(None, 1_767_312_000 * SECOND, boost=True)
    assert moment_of({"asof": "15s"}) == Moment(age_us=15 * SECOND)
    assert moment_of({}) == NOW
    assert moment_of({"snapshot": "00000003-1"}) == Moment("00000003-1")


def test_a_column_that_is_not_there_is_refused() -> None:
    from pyspark.sql.types import LongType, StructType

    source = LateSource({"url": "sqlite:///x.db"})
    with pytest.raises(ConfigError, match="usage has no column 'price'"):
        source.reader(StructType().add("price", LongType()))
    with pytest.raises(ConfigError, match=r"usage\.queue is string"):
        source.reader(StructType().add("queue", LongType()))


def test_filters_become_bounds() -> None:
    late = datetime(2026, 1, 2, tzinfo=UTC)
    found = pushdown.of(
        "usage",
        [
            GreaterThan(("settled_us",), 10),
            GreaterThan(("settled_us",), 4),
            LessThanOrEqual(("settled_at",), late),
            In(("queue",), ("a", "b")),
            EqualTo(("queue",), "b"),
            EqualTo(("shard_id",), 3),
            EqualTo(("worker",), "w"),
            GreaterThan(("settled_at",), datetime(2026, 1, 1)),
        ],
    )
    us = 1_767_312_000 * SECOND
    assert found == Bounds(11, us + 1, frozenset({3}), frozenset({"b"}), None)


def test_spark_looks_again_at_what_bounds_leave_in() -> None:
    reader = LateSource({"url": "sqlite:///x.db"}).reader(TABLES["usage"])
    ours = [
        In(("queue",), ("a", None)),
        EqualTo(("shard_id",), 3),
        EqualTo(("consumer_group",), "g"),
    ]
    again = [
        GreaterThan(("settled_us",), 10),
        GreaterThan(("shard_id",), 1),
        EqualTo(("name",), "n"),
    ]
    assert list(reader.pushFilters([*ours, *again])) == again
    found = pushdown.of("usage", [*ours, *again])
    assert found == Bounds(11, None, frozenset({3}), frozenset({"a"}), frozenset({"g"}))


def test_what_a_tail_goes_on_from_survives_the_option() -> None:
    after = {("default", 0): 7, ('a"b', 12): 2**40}
    assert after_of(after_text(after)) == after
    assert after_of(None) == {}
