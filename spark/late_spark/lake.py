"""A lake: the usage of a deployment as Parquet files, and the manifest that says which.

    DIR/_late/manifest-000007.json      what is in the lake; the highest number counts
    DIR/usage/date=2026-11-21/*.parquet rows of `schema.USAGE`, by the UTC date of their settlement

A file is in the lake if the manifest lists it. A new manifest is one step, for it is made whole
and then given its name, which must not exist: so an export that dies has changed nothing, two
exports cannot both count, and a settlement is in the lake exactly if its `seq` is not above what
the manifest has of its journal. Files that no manifest lists are removed by the next export.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from late.errors import ConfigError
from late.model.task import Usage
from late.model.usage_sums import summed
from late_spark.fetch import NOW, Moment
from late_spark.parts import JournalPruned
from late_spark.source_options import after_text, known_text
from late_spark.times import shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from late_spark.live import Crossing, Known

FORMAT = 1
FOLDER = "_late"
"""Spark passes over folders whose name begins with an underscore."""
_NAME = re.compile(r"manifest-(\d+)\.json\Z")


class Journal(msgspec.Struct, frozen=True):
    """The part of one journal in the lake: settlements `first`..`last`."""

    group: str
    shard_id: int
    first: int
    first_us: int
    last: int
    last_us: int
    last_id: str
    """`settlement_id` of `last`: whether a journal that goes on is the same one."""


class Gap(msgspec.Struct, frozen=True):
    """Settlements that were pruned before they were exported, and which somebody said may lack."""

    group: str
    shard_id: int
    first: int
    last: int
    from_us: int
    to_us: int

    def said(self) -> str:
        """Name the settlements and the times around them."""
        return (
            f"settlements {self.first:,}..{self.last:,} of {self.group}/{self.shard_id},"
            f" between {shown(self.from_us)} and {shown(self.to_us)}"
        )


class File(msgspec.Struct, frozen=True):
    """`path` is relative to the lake; times are those of its rows, both included."""

    path: str
    date: str
    rows: int
    size_bytes: int
    from_us: int
    to_us: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The list of everything in the lake."""

    deployment: str
    version: int = 0
    format: int = FORMAT
    journals: tuple[Journal, ...] = ()
    gaps: tuple[Gap, ...] = ()
    files: tuple[File, ...] = ()

    def after(self) -> dict[tuple[str, int], int]:
        """(group, shard) -> the last settlement that is in the lake."""
        return {(each.group, each.shard_id): each.last for each in self.journals}

    def within(self, from_us: int | None, to_us: int | None) -> list[File]:
        """Return the files that have a row of a range."""
        return [
            each
            for each in self.files
            if (from_us is None or each.to_us >= from_us)
            and (to_us is None or each.from_us < to_us)
        ]

    def covers(self, from_us: int, to_us: int | None, *, accept_gaps: bool = False) -> None:
        """Refuse a range of which the lake misses something.

        Args:
            accept_gaps: pass over the gaps that an export has remembered.

        Raises:
            JournalPruned: with the journal and the times.
        """
        for each in self.journals:
            if each.first > 1 and each.first_us > from_us:
                raise JournalPruned(
                    f"the lake has {each.group}/{each.shard_id} from {shown(each.first_us)} on:"
                    f" what was before was pruned; the range begins at {shown(from_us)}"
                )
        for gap in () if accept_gaps else self.gaps:
            if gap.to_us >= from_us and (to_us is None or gap.from_us < to_us):
                raise JournalPruned(
                    f"{gap.said()}, were pruned before an export. Report on the time before or"
                    " after, or have cost, impact or close pass over it with --accept-gaps"
                )


def is_lake(folder: Path | str) -> bool:
    """Return True if there is a lake in `folder`."""
    return Path(folder, FOLDER).is_dir()


def load(folder: Path) -> Manifest | None:
    """The manifest that counts; None where there is no lake yet.

    Raises:
        ConfigError: it cannot be read; the message names the file.
    """
    found = _versions(folder)
    if not found:
        return None
    path = folder / FOLDER / _file(max(found))
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise ConfigError(f"{path} has format {manifest.format}; this version knows {FORMAT}")
    return manifest


def commit(folder: Path, manifest: Manifest) -> Manifest:
    """Make `manifest` the one that counts, as the next version of the one that it was made of.

    Raises:
        ConfigError: somebody else has committed meanwhile; nothing has changed.
    """
    new = msgspec.structs.replace(manifest, version=manifest.version + 1)
    final = folder / FOLDER / _file(new.version)
    final.parent.mkdir(parents=True, exist_ok=True)
    draft = final.with_name(f".{final.name}.{os.getpid()}")
    with draft.open("wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(new)))
        out.flush()
        os.fsync(out.fileno())
    try:
        # Unlike a rename, a link does not replace what is there.
        os.link(draft, final)
    except FileExistsError:
        raise ConfigError(f"another export has written to {folder} meanwhile") from None
    finally:
        draft.unlink()
    for version in _versions(folder):
        if version < new.version - 1:
            (folder / FOLDER / _file(version)).unlink(missing_ok=True)
    return new


def _versions(folder: Path) -> list[int]:
    names = (each.name for each in (folder / FOLDER).glob("manifest-*.json"))
    return [int(match[1]) for name in names if (match := _NAME.match(name))]


def _file(version: int) -> str:
    return f"manifest-{version:06d}.json"


BUCKET_US = 3_720_000_000
"""An hour is the widest bucket of a compacted row, and database clocks are corrected."""


def check_deployment(folder: Path, manifest: Manifest, deployment: str) -> None:
    """Refuse a lake of another database, such as one that was made anew, or that of a rehearsal.

    Raises:
        ConfigError: it is of another one.
    """
    if manifest.deployment != deployment:
        raise ConfigError(
            f"the lake {folder} is of deployment {manifest.deployment}, the database is"
            f" {deployment}'s"
        )


def known(url: str, folder: Path, manifest: Manifest, moment: Moment = NOW) -> Known:
    """Add up what the lake has of rows of the journal that go on behind its end.

    Args:
        moment: of the read of the journal; it is `settled`.

    Raises:
        ConfigError: the lake is of another database.
        JournalPruned: the lake has not all of the settlements before its end that such a row has.
    """
    from late_spark import live

    check_deployment(folder, manifest, live.deployment_of(url))
    found = {}
    for row in live.crossings(url, manifest.after(), moment):
        key = (row.group, row.shard_id)
        begun = any(
            (j.group, j.shard_id) == key and j.first <= row.begins for j in manifest.journals
        )
        if not begun or any(
            (g.group, g.shard_id) == key and g.first <= row.last and g.last >= row.begins
            for g in manifest.gaps
        ):
            raise JournalPruned(
                f"settlements {row.begins:,}..{row.last:,} of {row.group}/{row.shard_id} were put"
                " together with later ones, and the lake has not all of them: export into another"
                " folder"
            )
        files = [
            folder / each.path
            for each in manifest.files
            if each.from_us <= row.settled_at_us + BUCKET_US
            and each.to_us >= row.settled_at_us - BUCKET_US
        ]
        counts = (usage for file in files for usage in _counts(file, row))
        found[key] = (row.begins, summed(counts))
    return found


def _counts(file: Path, of: Crossing) -> Iterator[Usage]:
    import pyarrow.parquet as pq

    chosen = [
        ("consumer_group", "=", of.group),
        ("shard_id", "=", of.shard_id),
        ("seq", ">=", of.begins),
        ("seq", "<=", of.last),
    ]
    for row in pq.read_table(file, filters=chosen, partitioning=None).to_pylist():
        yield Usage(
            row["queue"],
            row["name"],
            row["target"],
            row["outcome"],
            row["count"],
            row["attempts"],
            row["busy_us"],
            row["waiting_us"],
            row["bytes"],
            row["retries"],
            row["lateness_us"],
            row["delayed"],
            tuple(row["waiting_hist"] or ()),
            tuple(row["busy_hist"] or ()),
            row["tenant"],
            tuple(sorted(row.get("counts") or ())),
        )


def frame(
    spark: SparkSession,
    folder: Path | str,
    *,
    url: str | None = None,
    from_us: int | None = None,
    to_us: int | None = None,
) -> DataFrame:
    """Usage of the lake, and with a `url` of the store's journal behind it: no row twice, for the
    store is read from where the manifest ends.

    Args:
        from_us, to_us: files without a row of this range are passed over, and what the journal has
            outside of it is not read; rows of the files are not filtered.

    Raises:
        ConfigError: no lake there.
        JournalPruned: the lake misses something of the range. Of the live part, Spark says it.
    """
    from late_spark import frames

    folder = Path(folder)
    manifest = load(folder)
    if manifest is None:
        raise ConfigError(f"{folder} is no lake: late lake export {folder}")
    if from_us is not None:
        manifest.covers(from_us, to_us)
    # A path alone would be looked for in the cluster's default file system.
    paths = [f"file://{folder.absolute() / each.path}" for each in manifest.within(from_us, to_us)]
    found = spark.createDataFrame([], frames.USAGE)
    if paths:
        found = spark.read.schema(frames.USAGE).parquet(*paths).select(*frames.USAGE.names)
    if url is None:
        return found
    behind = tail(
        spark,
        url,
        manifest.after(),
        from_us=from_us,
        to_us=to_us,
        counted=known(url, folder, manifest),
    )
    return found.unionByName(behind)


def tail(
    spark: SparkSession,
    url: str,
    after: Mapping[tuple[str, int], int] | None = None,
    *,
    from_us: int | None = None,
    to_us: int | None = None,
    counted: Known | None = None,
) -> DataFrame:
    """Usage of the store's journal behind `after`, settled in the range: read once and kept, for a
    report goes over it several times, and each of them must see the same moment.

    Args:
        counted: see `known`.
    """
    from pyspark import StorageLevel

    reader = spark.read.format("late").option("url", url).option("table", "usage")
    reader = reader.option("known", known_text(counted or {}))
    found = reader.option("after", after_text(after or {})).load()
    if from_us is not None:
        found = found.where(found["settled_us"] >= from_us)
    if to_us is not None:
        found = found.where(found["settled_us"] < to_us)
    return found.persist(StorageLevel.MEMORY_AND_DISK)
