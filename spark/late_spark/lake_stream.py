"""`spark.readStream.format("late_lake")`: the usage of a lake as it is exported.

Spark's own source of files remembers names, and a lake puts files together: the rows of a new name
may be known. So an offset of this source is what the manifest says of each journal: its last
settlement. A batch is the rows with a `seq` between two offsets, in whatever files they are now.

Options: `folder`, the lake; `from_us` and `to_us`, a range of time: files without a row of it are
passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from late.errors import ConfigError
from late_spark.frames import USAGE

Offset = dict[str, int]
"""`SHARD/GROUP` -> its last settlement."""


class LakeSource(DataSource):
    """See the module. Spark makes and pickles it: it holds options and nothing else."""

    @classmethod
    def name(cls) -> str:
        return "late_lake"

    def schema(self) -> StructType:
        return USAGE

    def streamReader(self, schema: StructType) -> LakeStreamReader:
        options = self.options
        return LakeStreamReader(options["folder"], int(options["from_us"]), int(options["to_us"]))


class LakePartition(InputPartition):
    """A file, and the settlements that are wanted of it."""

    def __init__(self, path: str, start: Offset, end: Offset) -> None:
        super().__init__(None)
        self.path = path
        self.start = start
        self.end = end


class LakeStreamReader(DataSourceStreamReader):
    """Plans in the driver, reads in the executors; pickled in between."""

    def __init__(self, folder: str, from_us: int, to_us: int) -> None:
        self._folder = folder
        self._from_us = from_us
        self._to_us = to_us

    def initialOffset(self) -> Offset:
        return {}

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """Return the end of the lake.

        Raises:
            ConfigError: it is no lake, or it ends before `start`: it was made anew.
        """
        end = {_key(*of): last for of, last in self._manifest().after().items()}
        for key, last in start.items():
            if end.get(key, 0) < last:
                raise ConfigError(
                    f"the lake {self._folder} ends before what was read of it: it was made anew, so"
                    " begin in another folder"
                )
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start == end:
            return []
        folder = Path(self._folder)
        chosen = self._manifest().within(self._from_us, self._to_us)
        return [LakePartition(str(folder / each.path), start, end) for each in chosen]

    def read(self, partition: Any) -> Iterator[Any]:
        return rows(Path(partition.path), partition.start, partition.end)

    def _manifest(self) -> Any:
        from late_spark import lake

        found = lake.load(Path(self._folder))
        if found is None:
            raise ConfigError(f"{self._folder} is no lake: late lake export {self._folder}")
        return found


def rows(path: Path, start: Offset, end: Offset) -> Iterator[Any]:
    """Read the rows of a file that are behind `start`, up to `end`, as Arrow batches."""
    import pyarrow.parquet as pq

    from late_spark.lake_files import ROW_GROUP, widened

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROW_GROUP):
            names = ("shard_id", "consumer_group", "seq")
            found = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            wanted = [
                at
                for at, (shard, group, seq) in enumerate(found)
                if start.get(key := _key(group, shard), 0) < seq <= end.get(key, 0)
            ]
            if wanted:
                yield widened(batch.take(wanted))


def _key(group: str, shard: int) -> str:
    return f"{shard}/{group}"
