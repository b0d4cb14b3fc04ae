"""`late lake export`: what the journal has gained since the last export, into the lake.

Needs no Spark and no Java. Each settlement is exported once: the journals are read from where the
manifest ends, and rows and the new end are committed by the same manifest (`lake.py`).
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import select

from late.errors import ConfigError
from late.schema.engine import make_engine, reading
from late.schema.tables import meta, settlement
from late_spark import lake, lake_files, live
from late_spark.bounds import Bounds
from late_spark.lake import File, Gap, Journal, Manifest
from late_spark.parts import JournalPruned, Stretch

PARTS = 25
"""Parts of the journal (`live.SETTLEMENTS` each) that are committed together: what an export that
dies has to do again at most."""


@dataclass(frozen=True)
class Exported:
    """The result of one export."""

    settlements: int
    rows: int
    files: int
    compacted: int
    """Files that were put together with others."""
    version: int


def export(
    url: str,
    folder: Path,
    *,
    accept_gaps: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Bring the lake in `folder` up to what is in the journals of `url` now.

    Args:
        accept_gaps: go on where settlements were pruned before they were exported. The lake
            remembers the gap, and reports of a range with a gap in it say so.

    Raises:
        ConfigError: the lake is another deployment's, or another export is writing to it.
        JournalPruned: there is such a gap.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        manifest = _opened(url, folder)
        _sweep(folder, manifest)
        _same(url, manifest)
        gaps: list[Stretch] | None = [] if accept_gaps else None
        plan = live.plan(
            url,
            "usage",
            Bounds(),
            after=manifest.after(),
            gaps=gaps,
            known=lake.known(url, folder, manifest),
        )
        if gaps:
            manifest = msgspec.structs.replace(
                manifest, gaps=(*manifest.gaps, *_remembered(url, manifest, gaps))
            )
        settlements = rows = files = 0
        for start in range(0, len(plan.parts), PARTS):
            parts = plan.parts[start : start + PARTS]
            stretches = [each for part in parts for each in part.stretches]
            new = lake_files.written(url, folder, parts, plan.owners)
            manifest = lake.commit(folder, _grown(url, manifest, stretches, new))
            settlements += sum(each.last - each.first + 1 for each in stretches)
            rows, files = rows + sum(each.rows for each in new), files + len(new)
            say(f"{settlements:,} settlements, {rows:,} rows of usage")
        manifest, compacted = lake_files.compacted(folder, manifest)
        return Exported(settlements, rows, files, compacted, manifest.version)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    place = folder / lake.FOLDER
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another export is writing to {folder}") from None
        yield


def _opened(url: str, folder: Path) -> Manifest:
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            found = connection.execute(
                select(meta.c.value).where(meta.c.key == "deployment")
            ).scalar()
    finally:
        engine.dispose()
    deployment = str(found or "")
    manifest = lake.load(folder)
    if manifest is None:
        if any(each.name != lake.FOLDER for each in folder.iterdir()):
            raise ConfigError(f"{folder} is not empty and is no lake")
        # Before the first file: of an export that dies, the next one must know whose they are.
        return lake.commit(folder, Manifest(deployment, version=-1))
    if manifest.deployment != deployment:
        raise ConfigError(
            f"the lake {folder} is of deployment {manifest.deployment}, the database is"
            f" {deployment}'s"
        )
    return manifest


def _sweep(folder: Path, manifest: Manifest) -> None:
    """Remove what an export that died, or a compaction, has left."""
    for draft in (folder / lake.FOLDER).glob(".manifest-*"):
        draft.unlink()
    listed = {folder / each.path for each in manifest.files}
    for path in (folder / "usage").glob("date=*/*.parquet"):
        if path not in listed:
            path.unlink()


def _same(url: str, manifest: Manifest) -> None:
    """Raises `ConfigError` where a journal is not the one that the lake has the beginning of."""
    for known in manifest.journals:
        row = _row(url, known.group, known.shard_id, known.last)
        if row is not None and row.settlement_id != known.last_id:
            raise ConfigError(
                f"the journal of {known.group}/{known.shard_id} was begun anew since the last"
                " export (its group was made again, or the database is a copy): export it into"
                " another folder"
            )


def _row(url: str, group: str, shard_id: int, seq: int, *, or_behind: bool = False) -> Any:
    """The row of a settlement; or the next one, into which compaction may have put it."""
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            return connection.execute(
                select(settlement.c.settlement_id, settlement.c.settled_at_us)
                .where(
                    settlement.c.consumer_group == group,
                    settlement.c.shard_id == shard_id,
                    settlement.c.seq >= seq if or_behind else settlement.c.seq == seq,
                )
                .order_by(settlement.c.seq)
                .limit(1)
            ).first()
    finally:
        engine.dispose()


def _remembered(url: str, manifest: Manifest, gaps: list[Stretch]) -> Iterator[Gap]:
    journals = {(each.group, each.shard_id): each for each in manifest.journals}
    for each in gaps:
        next_one = _row(url, each.group, each.shard_id, each.last + 1, or_behind=True)
        before = journals[each.group, each.shard_id]
        yield Gap(each.group, each.shard_id, each.first, each.last,
                  before.last_us, next_one.settled_at_us)  # fmt: skip


def _grown(url: str, manifest: Manifest, stretches: list[Stretch], files: list[File]) -> Manifest:
    journals = {(each.group, each.shard_id): each for each in manifest.journals}
    for each in stretches:
        key = (each.group, each.shard_id)
        last = _row(url, *key, each.last)
        if last is None:
            raise JournalPruned(f"settlement {each.last:,} of {each.group}/{each.shard_id} is gone")
        known = journals.get(key)
        first, first_us = (
            (each.first, _row(url, *key, each.first, or_behind=True).settled_at_us)
            if known is None
            else (known.first, known.first_us)
        )
        journals[key] = Journal(
            each.group, each.shard_id, first, first_us, each.last, last.settled_at_us,
            last.settlement_id,
        )  # fmt: skip
    ordered = sorted(journals.values(), key=lambda journal: (journal.group, journal.shard_id))
    return msgspec.structs.replace(
        manifest, journals=tuple(ordered), files=(*manifest.files, *files)
    )
