"""`late lake export`: what the journal has gained since the last export, into the lake.

Needs no Spark and no Java. Each settlement is exported once: the journals are read from where the
manifest ends, and rows and the new end are committed by the same manifest (`lake.py`).
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, func, select

from late.errors import ConfigError, StoreError
from late.schema.engine import make_engine, shown
from late.schema.tables import settlement
from late_spark import lake, lake_files, live
from late_spark.bounds import Bounds
from late_spark.fetch import NOW, Moment, settled, snapshot_of
from late_spark.lake import File, Gap, Journal, Manifest
from late_spark.live import Plan
from late_spark.parts import JournalPruned, Part, Stretch

PARTS = 25
"""Parts of the journal (`live.SETTLEMENTS` each) that are committed together: what an export that
dies has to do again at most."""
PASS_S = 1_800.0
"""The longest use of one timestamp of Spanner, which keeps versions for an hour if nobody has set
it. What is left then is read at a new one."""


@dataclass(frozen=True)
class Exported:
    """The result of one export."""

    settlements: int
    rows: int
    files: int
    compacted: int
    """Files that were put together with others."""
    version: int


@dataclass(frozen=True)
class Source:
    """A place and a moment of one pass over the journals."""

    url: str
    moment: Moment = NOW
    """On Spanner the one read timestamp of the pass, or an age, from which the pass takes it."""


class ReplicaBehind(StoreError):
    """A replica has not heard of what the lake has already."""


def export(
    url: str,
    folder: Path,
    *,
    accept_gaps: bool = False,
    say: Callable[[str], None] = lambda _: None,
    near: Source | None = None,
) -> Exported:
    """Bring the lake in `folder` up to what is in the journals of `url` now.

    Args:
        accept_gaps: go on where settlements were pruned before they were exported. The lake
            remembers the gap, and reports of a range with a gap in it say so.
        near: a replica, which is read as far as it goes. What fails there is read from `url`.

    Raises:
        ConfigError: the lake is another deployment's, or another export is writing to it.
        JournalPruned: there is such a gap.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        manifest = _opened(url, folder)
        _sweep(folder, manifest)
        run = _Run(folder, manifest, say, accept_gaps)
        if near is None or not _read_near(run, near):
            run.take(Source(url))
        manifest, compacted = lake_files.compacted(folder, run.manifest)
        return Exported(run.settlements, run.rows, run.files, compacted, manifest.version)


def _read_near(run: _Run, near: Source) -> bool:
    """Return False, and say why, if the database has to be asked for the rest."""
    try:
        run.take(near, behind_is_late=True)
    except (StoreError, ConfigError) as error:
        run.say(f"read from the database, not from {shown(near.url)}: {error}")
        return False
    run.say(f"read from {shown(near.url)}")
    return True


@dataclass
class _Run:
    """One export. What a pass has committed stays, whatever comes of the rest."""

    folder: Path
    manifest: Manifest
    say: Callable[[str], None]
    accept_gaps: bool
    settlements: int = 0
    rows: int = 0
    files: int = 0

    def take(self, source: Source, *, behind_is_late: bool = False) -> None:
        """Read until nothing is left.

        Args:
            behind_is_late: a journal that ends before the lake does is one of a replica.

        Raises:
            ReplicaBehind: there is such a journal.
        """
        while not self._pass(_settled(source), behind_is_late=behind_is_late):
            pass

    def _pass(self, source: Source, *, behind_is_late: bool) -> bool:
        """Read what one moment has; False: its time is over, and there is more."""
        until_s = time.monotonic() + PASS_S
        _same(source, self.manifest)
        if behind_is_late:
            _reached(source, self.manifest)
        gaps: list[Stretch] | None = [] if self.accept_gaps else None
        plan = live.plan(
            source.url,
            "usage",
            Bounds(),
            moment=source.moment,
            after=self.manifest.after(),
            gaps=gaps,
            known=lake.known(source.url, self.folder, self.manifest, source.moment),
        )
        if gaps:
            remembered = _remembered(source, self.manifest, gaps)
            self.manifest = replace(self.manifest, gaps=(*self.manifest.gaps, *remembered))
        for start in range(0, len(plan.parts), PARTS):
            if source.moment.at_ns is not None and time.monotonic() > until_s:
                return False
            self._commit(source, plan, plan.parts[start : start + PARTS])
        return True

    def _commit(self, source: Source, plan: Plan, parts: tuple[Part, ...]) -> None:
        stretches = [each for part in parts for each in part.stretches]
        new = lake_files.written(source.url, self.folder, parts, plan)
        self.manifest = lake.commit(self.folder, _grown(source, self.manifest, stretches, new))
        self.settlements += sum(each.last - each.first + 1 for each in stretches)
        self.rows, self.files = self.rows + sum(each.rows for each in new), self.files + len(new)
        self.say(f"{self.settlements:,} settlements, {self.rows:,} rows of usage")


def _settled(source: Source) -> Source:
    engine = make_engine(source.url)
    try:
        return Source(source.url, settled(engine, source.moment, changing=False))
    finally:
        engine.dispose()


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
    deployment = live.deployment_of(url)
    manifest = lake.load(folder)
    if manifest is None:
        if any(each.name != lake.FOLDER for each in folder.iterdir()):
            raise ConfigError(f"{folder} is not empty and is no lake")
        # Before the first file: of an export that dies, the next one must know whose they are.
        return lake.commit(folder, Manifest(deployment, version=-1))
    lake.check_deployment(folder, manifest, deployment)
    return manifest


def _sweep(folder: Path, manifest: Manifest) -> None:
    """Remove what an export that died, or a compaction, has left."""
    for draft in (folder / lake.FOLDER).glob(".manifest-*"):
        draft.unlink()
    listed = {folder / each.path for each in manifest.files}
    for path in (folder / "usage").glob("date=*/*.parquet"):
        if path not in listed:
            path.unlink()


def _same(source: Source, manifest: Manifest) -> None:
    """Raises `ConfigError` where a journal is not the one that the lake has the beginning of."""
    for known in manifest.journals:
        row = _row(source, known.group, known.shard_id, known.last)
        if row is not None and row.settlement_id != known.last_id:
            raise ConfigError(
                f"the journal of {known.group}/{known.shard_id} was begun anew since the last"
                " export (its group was made again, or the database is a copy): export it into"
                " another folder"
            )


def _reached(source: Source, manifest: Manifest) -> None:
    """Raises `ReplicaBehind` where a journal ends before the lake does.

    One that is not there at all loses nothing: the next export reads it from its beginning, or
    from where the lake ends.
    """
    of = settlement.c.consumer_group, settlement.c.shard_id
    with _reading(source) as connection:
        rows = connection.execute(select(*of, func.max(settlement.c.seq)).group_by(*of)).all()
    ends = {(group, shard_id): last for group, shard_id, last in rows}
    for (group, shard_id), known in manifest.after().items():
        last = ends.get((group, shard_id), known)
        if last < known:
            raise ReplicaBehind(
                f"it is behind the last export ({group}/{shard_id} ends with settlement {last:,},"
                f" the lake has {known:,})"
            )


@contextmanager
def _reading(source: Source) -> Iterator[Connection]:
    engine = make_engine(source.url)
    try:
        with snapshot_of(engine, source.moment) as connection:
            yield connection
    finally:
        engine.dispose()


def _row(source: Source, group: str, shard_id: int, seq: int, *, or_behind: bool = False) -> Any:
    """The row of a settlement; or the next one, into which compaction may have put it."""
    with _reading(source) as connection:
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


def _remembered(source: Source, manifest: Manifest, gaps: list[Stretch]) -> Iterator[Gap]:
    journals = {(each.group, each.shard_id): each for each in manifest.journals}
    for each in gaps:
        next_one = _row(source, each.group, each.shard_id, each.last + 1, or_behind=True)
        before = journals[each.group, each.shard_id]
        yield Gap(each.group, each.shard_id, each.first, each.last,
                  before.last_us, next_one.settled_at_us)  # fmt: skip


def _grown(
    source: Source, manifest: Manifest, stretches: list[Stretch], files: list[File]
) -> Manifest:
    journals = {(each.group, each.shard_id): each for each in manifest.journals}
    for each in stretches:
        key = (each.group, each.shard_id)
        last = _row(source, *key, each.last)
        if last is None:
            raise JournalPruned(f"settlement {each.last:,} of {each.group}/{each.shard_id} is gone")
        known = journals.get(key)
        first, first_us = (
            (each.first, _row(source, *key, each.first, or_behind=True).settled_at_us)
            if known is None
            else (known.first, known.first_us)
        )
        journals[key] = Journal(
            each.group, each.shard_id, first, first_us, each.last, last.settled_at_us,
            last.settlement_id,
        )  # fmt: skip
    ordered = sorted(journals.values(), key=lambda journal: (journal.group, journal.shard_id))
    return replace(manifest, journals=tuple(ordered), files=(*manifest.files, *files))
