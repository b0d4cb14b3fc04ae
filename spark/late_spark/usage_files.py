"""Files of usage that are given instead of a store: looked at before an engine is started: Spark
explains a damaged file with a page of Java."""

from __future__ import annotations

from pathlib import Path

from late.errors import ConfigError
from late_spark import schema


def check(path: Path | str) -> list[Path]:
    """Look at the end of each file, which says what is in it, and return the files; those of an
    object store are left to Spark.

    Raises:
        ConfigError: nothing is there, a file is no Parquet or only a part of one, a column is
            missing, or a count of it is below zero. The message names the file.
    """
    if "://" in str(path):
        return []
    place = Path(path)
    if not place.exists():
        raise ConfigError(f"--usage {path}: no such file or folder")
    files = [place] if place.is_file() else sorted(_data(place))
    if not files:
        raise ConfigError(f"--usage {path} has no files: give the folder with the Parquet files")
    for each in files:
        _checked(each)
    return files


def _data(folder: Path) -> list[Path]:
    """Return the files of a folder: names that begin with `.` or `_` are Spark's own notes."""
    return [
        each
        for each in folder.rglob("*")
        if each.is_file() and not any(part[0] in "._" for part in each.relative_to(folder).parts)
    ]


def _checked(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.stat().st_size:
        raise ConfigError(f"--usage {path} is empty: export it again, or take it away")
    try:
        with pq.ParquetFile(path) as file:
            metadata, names = file.metadata, file.schema_arrow.names
    except (pa.ArrowException, OSError):
        raise ConfigError(
            f"--usage {path} is no Parquet file, or the end of it is missing: export it again"
        ) from None
    missing = [each for each in schema.USAGE if each not in {*names, *schema.LATER}]
    if missing:
        raise ConfigError(f"--usage {path} has no column {missing[0]!r}: is it of late?")
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            found = metadata.row_group(group).column(column)
            statistics = found.statistics
            if found.path_in_schema not in _COUNTS or statistics is None:
                continue
            if statistics.has_min_max and statistics.min < 0:
                raise ConfigError(
                    f"--usage {path} has a negative {found.path_in_schema}: work that was never "
                    "done would be paid back; export it again"
                )


_COUNTS = frozenset({"count", "attempts", "retries", "busy_us", "waiting_us", "bytes"})
