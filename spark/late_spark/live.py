"""A store read in parts that are one moment of it together.

The journal is append-only, and one owner after the other writes it without a hole: so the last
`seq` of every journal, read in one transaction, **is** a snapshot, for as many readers as one
likes and without a transaction that stays open. What may be missing is the beginning, where
retention has been: a part that finds less than was promised refuses.

Tables whose rows change (`tasks`, `dead`, `timers`) are read in one part, that is in one
transaction; in more where all parts can read one moment: an exported snapshot of PostgreSQL, a
timestamp of Spanner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, func, select

from late.control.sql.rows import log_of
from late.model.queue_settings import decode
from late.model.task import Usage
from late.schema.engine import make_engine
from late.schema.migrate import version_of
from late.schema.tables import meta, queue, settlement
from late.schema.version import check
from late_spark.bounds import Bounds
from late_spark.fetch import NOW, Moment, settled, snapshot_of
from late_spark.parts import JournalPruned, Part, Stretch, statement

SETTLEMENTS = 20_000
"""The approximate size of one part: some seconds of work for one core."""
CLOCK_BACK_US = 120_000_000
"""The time by which a settlement may lie before its predecessor: database clocks are corrected."""


Known = Mapping[tuple[str, int], tuple[int, tuple[Usage, ...]]]
"""(group, shard) -> the first settlement of a row, and the counts in it that are not wanted."""


@dataclass(frozen=True)
class Crossing:
    """A row of the journal that has settlements `begins`..`last`, which are known, and others."""

    group: str
    shard_id: int
    begins: int
    last: int
    settled_at_us: int


@dataclass(frozen=True)
class Plan:
    parts: tuple[Part, ...]
    owners: dict[str, str]
    """Queue -> who pays for it, where it is known."""
    moment: Moment = NOW
    """The moment at which all parts are to be read."""

    def settlements(self) -> int:
        """Return how many settlements of journals are in it."""
        return sum(s.last - s.first + 1 for part in self.parts for s in part.stretches)


def plan(
    url: str,
    table: str,
    bounds: Bounds,
    *,
    columns: Sequence[str] = (),
    moment: Moment = NOW,
    after: dict[tuple[str, int], int] | None = None,
    parts: int = 0,
    gaps: list[Stretch] | None = None,
    known: Known | None = None,
) -> Plan:
    """Divide a read into parts that are one snapshot.

    Args:
        columns: that will be read of the parts; Spanner's are parts of one query.
        moment: when, if not now.
        after: (group, shard) -> the last settlement that the reader has from elsewhere.
        parts: how many there are to be at least, if there is so much to read.
        gaps: takes what is missing behind `after`, instead of an error.
        known: the counts of settlements up to `after` that compaction has put into one row with
            later ones; see `crossings`.

    Raises:
        JournalPruned: the range begins before what is kept of a journal, or a journal no longer
            has what follows `after`.
        SchemaMismatch: the database is of another version.
        ConfigError: a moment that this database cannot read.
    """
    engine = make_engine(url)
    try:
        journal = table in ("usage", "journal")
        moment = settled(engine, moment, changing=not journal)
        with snapshot_of(engine, moment) as connection:
            check(version_of(connection), where=str(engine.url.database))
            owners = _owners(connection)
            if journal:
                found = _stretches(connection, bounds, after or {}, gaps, known or {})

                def cut(stretch: Stretch, seq: int) -> int:
                    row = _row_at(connection, stretch, seq)
                    return stretch.last if row is None else min(stretch.last, row.seq)

                return Plan(tuple(_divided(found, parts, cut)), owners, moment)
            if moment.at_ns is not None:
                from late_spark import spanner

                query = statement(url, table, list(columns), bounds)
                tokens = spanner.divided(url, query, moment.at_ns)
                return Plan(tuple(Part(token=each) for each in tokens), owners, moment)
            shards = None
            if moment.snapshot is not None and bounds.shards is None:
                log = log_of(connection)
                shards = sorted(connection.execute(select(log.c.shard_id).distinct()).scalars())
            if shards and table == "tasks":
                return Plan(tuple(Part(shards=(each,)) for each in shards), owners, moment)
            return Plan((Part(),), owners, moment)
    finally:
        engine.dispose()


def _owners(connection: Connection) -> dict[str, str]:
    found = {}
    for name, knobs in connection.execute(select(queue.c.name, queue.c.knobs)):
        owner = decode(knobs).owner
        if owner is not None:
            found[name] = owner
    return found


def _stretches(
    connection: Connection,
    bounds: Bounds,
    after: dict[tuple[str, int], int],
    gaps: list[Stretch] | None,
    counted: Known,
) -> list[Stretch]:
    of = (settlement.c.consumer_group, settlement.c.shard_id)
    begins = func.coalesce(settlement.c.first_seq, settlement.c.seq)
    ends = select(*of, func.min(begins), func.max(settlement.c.seq)).group_by(*of)
    found = []
    for group, shard_id, first, last in connection.execute(ends.order_by(*of)).all():
        if not bounds.takes(group, shard_id):
            continue
        known = after.get((group, shard_id))
        if known is not None:
            first = _behind(group, shard_id, known, first, last, gaps)
        whole = Stretch(group, shard_id, first, last)
        if known is not None and whole.first <= whole.last:
            whole = _without_known(connection, whole, counted)
        if bounds.from_us is not None:
            kept_all = first == 1 or known is not None
            whole = _from(connection, whole, bounds.from_us, kept_all=kept_all)
        if bounds.to_us is not None:
            end = _first_at(connection, whole, bounds.to_us + CLOCK_BACK_US)
            whole = replace(whole, last=end - 1)
        if whole.first <= whole.last:
            found.append(whole)
    return found


def _behind(
    group: str, shard_id: int, known: int, first: int, last: int, gaps: list[Stretch] | None
) -> int:
    """The first settlement that is not known, of a journal that has `first`..`last`."""
    if last < known:
        raise JournalPruned(
            f"the journal of {group}/{shard_id} ends with settlement {last:,}, and {known:,} is"
            " known: it was begun anew, because its group was made again or the database restored"
        )
    if first <= known + 1:
        return known + 1
    if gaps is None:
        raise JournalPruned(
            f"settlements {known + 1:,}..{first - 1:,} of {group}/{shard_id} are gone from the"
            " journal: retention took them before they were exported; late lake export"
            " --accept-gaps goes on without them, and remembers the gap"
        )
    gaps.append(Stretch(group, shard_id, known + 1, first - 1))
    return first


def _from(connection: Connection, whole: Stretch, from_us: int, *, kept_all: bool) -> Stretch:
    begins_us = _settled_at(connection, whole, whole.first)
    if not kept_all and begins_us is not None and begins_us > from_us:
        from late_spark.times import shown

        raise JournalPruned(
            f"the journal of {whole.group}/{whole.shard_id} was pruned: it begins at"
            f" {shown(begins_us)}, the range at {shown(from_us)}; read the lake, or a later range"
        )
    first = _first_at(connection, whole, from_us - CLOCK_BACK_US)
    return (
        whole if first == whole.first else Stretch(whole.group, whole.shard_id, first, whole.last)
    )


def _first_at(connection: Connection, within: Stretch, at_us: int) -> int:
    """The first `seq` that was settled at `at_us` or later; `last` + 1 if none was."""
    low, high = within.first, within.last + 1
    while low < high:
        middle = (low + high) // 2
        settled_us = _settled_at(connection, within, middle)
        if settled_us is not None and settled_us >= at_us:
            high = middle
        else:
            low = middle + 1
    return low


def _settled_at(connection: Connection, within: Stretch, seq: int) -> int | None:
    """When the row was settled that has the usage of settlement `seq`."""
    row = _row_at(connection, within, seq)
    return None if row is None else int(row.settled_at_us)


def _row_at(connection: Connection, within: Stretch, seq: int) -> Any:
    """The first row at or behind `seq`: compaction may have put a settlement into a later row."""
    of = settlement.c
    return connection.execute(
        select(of.seq, of.first_seq, of.settled_at_us)
        .where(of.consumer_group == within.group, of.shard_id == within.shard_id, of.seq >= seq)
        .order_by(of.seq)
        .limit(1)
    ).first()


def deployment_of(url: str) -> str:
    """Return the name of a database that a copy keeps, and one that is made anew does not."""
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            name = select(meta.c.value).where(meta.c.key == "deployment")
            return str(connection.execute(name).scalar() or "")
    finally:
        engine.dispose()


def crossings(
    url: str, after: Mapping[tuple[str, int], int], moment: Moment = NOW
) -> Iterator[Crossing]:
    """Find rows into which compaction has put settlements of before and of behind `after`."""
    engine = make_engine(url)
    try:
        with snapshot_of(engine, moment) as connection:
            for (group, shard_id), last in after.items():
                row = _row_at(connection, Stretch(group, shard_id, 0, 0), last + 1)
                if row is not None and row.first_seq is not None and row.first_seq <= last:
                    yield Crossing(group, shard_id, row.first_seq, last, row.settled_at_us)
    finally:
        engine.dispose()


def _without_known(connection: Connection, whole: Stretch, counted: Known) -> Stretch:
    """Say what is to be taken out of the first row, if settlements before `first` are in it."""
    row = _row_at(connection, whole, whole.first)
    if row is None or row.first_seq is None or row.first_seq >= whole.first:
        return whole
    begins, usage = counted.get((whole.group, whole.shard_id), (None, ()))
    if begins != row.first_seq:
        raise JournalPruned(
            f"settlements {row.first_seq:,}..{row.seq:,} of {whole.group}/{whole.shard_id} were put"
            f" together, and those up to {whole.first - 1:,} are known: read it again"
        )
    return replace(whole, known=usage, begins=begins)


def _divided(
    found: list[Stretch], least: int, cut: Callable[[Stretch, int], int] = lambda _, seq: seq
) -> Iterator[Part]:
    """Parts of about `SETTLEMENTS`: long stretches are cut, short ones put together.

    Args:
        cut: says at which `seq` at or behind the one that is given a row ends.
    """
    total = sum(each.last - each.first + 1 for each in found)
    size = max(1, min(SETTLEMENTS, -(-total // least) if least else SETTLEMENTS))
    part: list[Stretch] = []
    room = size
    for each in found:
        first = each.first
        while first <= each.last:
            last = each.last
            if last > first + room - 1:
                last = cut(each, first + room - 1)
            part.append(
                replace(each, last=last)
                if first == each.first
                else Stretch(each.group, each.shard_id, first, last)
            )
            room -= last - first + 1
            first = last + 1
            if room <= 0:
                yield Part(tuple(part))
                part, room = [], size
    if part:
        yield Part(tuple(part))
