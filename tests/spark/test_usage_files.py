"""Usage that reports take: every outcome is known, and damaged files are one line."""

from __future__ import annotations

from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from late_spark import schema
from late_spark.calendar import Calendar
from late_spark.place import Source
from late_spark.spark_errors import explained
from pyspark.errors import PySparkException

from late.errors import ConfigError, StoreError
from late.model.task import ENQUEUED, Final, Kind

DAYS = Calendar.of("2026-03", "2026-04", ZoneInfo("UTC"))


def test_every_outcome_is_in_one_group() -> None:
    # What usage may say (`late.model.task.Usage.outcome`): ends, and attempts that go on.
    named = {*get_args(Final), *get_args(Kind), "retried", "stalled", "snoozed", ENQUEUED}
    # These say how an attempt ended; usage has what became of its task instead.
    named -= {"failed", "snooze", "discard"}
    groups = [*schema.ENDS, *schema.GOES_ON, schema.ENQUEUED]
    assert sorted(named) == sorted(groups)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "--usage .*usage has no files: give the folder"),
        (b"", r"--usage .*part.parquet is empty: export it again"),
        (b"PAR1 and no more", r"--usage .*part.parquet is no Parquet file"),
        ({"price": [1]}, r"--usage .*part.parquet has no column 'settled_at'"),
        ({name: [-1] for name in schema.USAGE}, r"part.parquet has a negative count"),
    ],
)
def test_damaged_usage_is_one_line_that_names_the_file(
    tmp_path: Path, content: bytes | dict[str, list[int]] | None, said: str
) -> None:
    place = tmp_path / "usage"
    place.mkdir()
    (place / "_SUCCESS").touch()
    if isinstance(content, bytes):
        (place / "part.parquet").write_bytes(content)
    elif content is not None:
        pq.write_table(pa.table(content), place / "part.parquet")
    with pytest.raises(ConfigError, match=said):
        Source(usage=place).check(DAYS)


def test_what_spark_says_is_one_line_too() -> None:
    text = (
        "An error occurred while calling o1.collect\n at java.x\nCaused by: java.io.EOF: p.parquet"
    )
    said = r"^Spark: Caused by: java.io.EOF: p.parquet$"
    with pytest.raises(StoreError, match=said), explained():
        raise PySparkException(text)
