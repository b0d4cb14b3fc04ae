"""The tables of `schema.py` as frames of Spark."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from late_spark import schema

_KINDS: dict[str, DataType] = {
    each.simpleString(): each
    for each in (
        BinaryType(), IntegerType(), LongType(), StringType(), TimestampType(),
        MapType(IntegerType(), LongType()), MapType(StringType(), LongType()),
    )
}  # fmt: skip


def _frame(columns: schema.Columns) -> StructType:
    # All nullable, as Spark reads every Parquet file, so that lake and store are of one type.
    return StructType([StructField(name, _KINDS[kind]) for name, kind in columns.items()])


TABLES = {table: _frame(columns) for table, columns in schema.TABLES.items()}
USAGE = TABLES["usage"]


def unrecorded() -> Column:
    """A condition on usage rows: written by a version that recorded no histograms, retries and
    lateness. Every attempt is in both histograms, so attempts without one say it."""
    return (F.col("attempts") > 0) & (F.size("waiting_hist") == 0)
