"""A store read in parts that are one moment of it together.

The journal is append-only, and one owner after the other writes it without a hole: so the last
`seq` of every journal, read in one transaction, **is** a snapshot, for as many readers as one
likes and without a transaction that stays open. What may be missing is the beginning, where
retention has been: a part that finds less than was promised refuses.

Tables whose rows change (`tasks`, `dead`, `timers`) are read in one part, that is in one
transaction; in more where all parts can read one exported snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import BigInteger, Connection, Select, Text, cast, func, literal, select

from late.control.rows import log_of
from late.errors import ConfigError, StoreError
from late.knobs import decode
from late.schema.engine import make_engine, parse
from late.schema.migrate import version_of
from late.schema.tables import dead, queue, settlement, timer
from late.schema.version import check
from late_spark import usage
from late_spark.bounds import TIMES, Bounds
from late_spark.fetch import batches, snapshot_of

SETTLEMENTS = 20_000
"""Of one part, about: some seconds of work for one core."""
CLOCK_BACK_US = 120_000_000
"""How much earlier than the settlement before it one may be: a database's clock is corrected."""


class JournalPruned(StoreError):
    """Settlements of the range are gone from the journal."""


@dataclass(frozen=True)
class Stretch:
    """Settlements `first`..`last` of one journal, both included."""

    group: str
    shard_id: int
    first: int
    last: int


@dataclass(frozen=True)
class Part:
    """What one task of Spark reads."""

    stretches: tuple[Stretch, ...] = ()
    shards: tuple[int, ...] | None = None
    """Of a table without a journal's order; None: all."""


@dataclass(frozen=True)
class Plan:
    parts: tuple[Part, ...]
    owners: dict[str, str]
    """Queue -> who pays for it, where it is known."""


def plan(
    url: str,
    table: str,
    bounds: Bounds,
    *,
    snapshot: str | None = None,
    after: dict[tuple[str, int], int] | None = None,
    parts: int = 0,
    gaps: list[Stretch] | None = None,
) -> Plan:
    """Divide a read into parts that are one snapshot.

    Args:
        after: (group, shard) -> the last settlement that the reader has from elsewhere.
        parts: how many there are to be at least, if there is so much to read.
        gaps: takes what is missing behind `after`, instead of an error.

    Raises:
        JournalPruned: the range begins before what is kept of a journal, or a journal no longer
            has what follows `after`.
        SchemaMismatch: the database is of another version.
    """
    engine = make_engine(url)
    try:
        with snapshot_of(engine, snapshot) as connection:
            check(version_of(connection), where=str(engine.url.database))
            owners = _owners(connection)
            if table in ("usage", "journal"):
                found = _stretches(connection, bounds, after or {}, gaps)
                return Plan(tuple(_divided(found, parts)), owners)
            shards = None
            if snapshot is not None and bounds.shards is None:
                log = log_of(connection)
                shards = sorted(connection.execute(select(log.c.shard_id).distinct()).scalars())
            if shards and table == "tasks":
                return Plan(tuple(Part(shards=(each,)) for each in shards), owners)
            return Plan((Part(),), owners)
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
) -> list[Stretch]:
    of = (settlement.c.consumer_group, settlement.c.shard_id)
    ends = select(*of, func.min(settlement.c.seq), func.max(settlement.c.seq)).group_by(*of)
    found = []
    for group, shard_id, first, last in connection.execute(ends.order_by(*of)).all():
        if not bounds.takes(group, shard_id):
            continue
        known = after.get((group, shard_id))
        if known is not None:
            first = _behind(group, shard_id, known, first, last, gaps)
        whole = Stretch(group, shard_id, first, last)
        if bounds.from_us is not None:
            kept_all = first == 1 or known is not None
            whole = _from(connection, whole, bounds.from_us, kept_all=kept_all)
        if bounds.to_us is not None:
            end = _first_at(connection, whole, bounds.to_us + CLOCK_BACK_US)
            whole = Stretch(group, shard_id, whole.first, end - 1)
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
            " journal: retention took them before they were exported"
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
    return Stretch(whole.group, whole.shard_id, first, whole.last)


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
    return connection.execute(
        select(settlement.c.settled_at_us).where(
            settlement.c.consumer_group == within.group,
            settlement.c.shard_id == within.shard_id,
            settlement.c.seq == seq,
        )
    ).scalar()


def _divided(found: list[Stretch], least: int) -> Iterator[Part]:
    """Parts of about `SETTLEMENTS`: long stretches are cut, short ones put together."""
    total = sum(each.last - each.first + 1 for each in found)
    size = max(1, min(SETTLEMENTS, -(-total // least) if least else SETTLEMENTS))
    part: list[Stretch] = []
    room = size
    for each in found:
        first = each.first
        while first <= each.last:
            last = min(each.last, first + room - 1)
            part.append(Stretch(each.group, each.shard_id, first, last))
            room -= last - first + 1
            first = last + 1
            if room == 0:
                yield Part(tuple(part))
                part, room = [], size
    if part:
        yield Part(tuple(part))


# ---------------------------------------------------------------------- reading a part


def read(
    url: str,
    table: str,
    part: Part,
    columns: list[str],
    bounds: Bounds,
    owners: dict[str, str],
    *,
    snapshot: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one part as Arrow batches of `columns`, which are those of `schema.TABLES`.

    Raises:
        JournalPruned: retention has taken settlements of the part meanwhile.
    """
    if table not in ("usage", "journal"):
        yield from _table(url, table, part, columns, bounds, snapshot)
        return
    for each in part.stretches:
        seen = 0
        for batch in _journal(url, each, table, columns, snapshot):
            seen += batch.num_rows
            if table == "journal":
                yield usage.placed(batch, columns)
            else:
                yield usage.rows(batch, columns, bounds.queues, owners)
        missing = each.last - each.first + 1 - seen
        if missing:
            raise JournalPruned(
                f"{missing:,} of the settlements {each.first:,}..{each.last:,} of {each.group}/"
                f"{each.shard_id} are gone from the journal: it was pruned while it was read"
            )


def _journal(
    url: str, stretch: Stretch, table: str, columns: list[str], snapshot: str | None
) -> Iterator[pa.RecordBatch]:
    wanted = usage.NEEDED if table == "usage" else usage.sources(columns)
    schema = pa.schema([usage.RAW.field(name) for name in wanted])
    statement = (
        select(*(settlement.c[name] for name in wanted))
        .where(
            settlement.c.consumer_group == stretch.group,
            settlement.c.shard_id == stretch.shard_id,
            settlement.c.seq.between(stretch.first, stretch.last),
        )
        .order_by(settlement.c.seq)
    )
    return batches(url, statement, schema, snapshot=snapshot)


def _table(
    url: str, table: str, part: Part, columns: list[str], bounds: Bounds, snapshot: str | None
) -> Iterator[pa.RecordBatch]:
    wanted = usage.sources(columns) or ["shard_id"]
    schema = pa.schema([usage.RAW.field(name) for name in wanted])
    statement = _selected(url, table, wanted)
    source = statement.selected_columns
    rows = _columns(url, table)
    shards = part.shards if part.shards is not None else bounds.shards
    if shards is not None:
        statement = statement.where(rows["shard_id"].in_(sorted(shards)))
    if bounds.queues is not None:
        statement = statement.where(rows["queue"].in_(sorted(bounds.queues)))
    if bounds.from_us is not None:
        statement = statement.where(rows[TIMES[table]] >= bounds.from_us)
    if bounds.to_us is not None:
        statement = statement.where(rows[TIMES[table]] < bounds.to_us)
    assert len(source) == len(wanted)
    for batch in batches(url, statement, schema, snapshot=snapshot):
        yield usage.placed(batch, columns)


def _columns(url: str, table: str) -> dict[str, Any]:
    if table != "tasks":
        chosen = {"dead": dead, "timers": timer}.get(table)
        if chosen is None:
            raise ConfigError(f"no table {table!r}: usage, tasks, dead, timers or journal")
        return dict(chosen.c)
    engine = make_engine(url)
    log = log_of(_Named(engine.dialect))  # type: ignore[arg-type]
    found: dict[str, Any] = dict(log.c)
    if "xid" in found:
        found["position"] = cast(cast(found["xid"], Text), BigInteger)
    elif "seq" in found:
        found["position"] = found["seq"]
    elif "position" not in found:
        found["position"] = literal(0)
    return found


def _selected(url: str, table: str, wanted: list[str]) -> Select[Any]:
    columns = _columns(url, table)
    if parse(url).get_backend_name() == "postgresql" and "task_id" in columns:
        # As the server says it: Arrow has no type for a uuid that all drivers agree on.
        columns["task_id"] = cast(columns["task_id"], Text)
    return select(*(columns[name].label(name) for name in wanted))


@dataclass(frozen=True)
class _Named:
    """What `log_of` asks of a connection."""

    dialect: Any
