"""The part of a store that one task of Spark reads. `live.py` makes the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlalchemy import BigInteger, Select, Text, cast, func, literal, select

from late.control.sql.rows import SPANNER, log_table_of
from late.errors import ConfigError, StoreError
from late.model.task import Usage
from late.schema.engine import make_engine, parse
from late.schema.tables import dead, settlement, timer
from late_spark import usage
from late_spark.bounds import TIMES, Bounds
from late_spark.fetch import NOW, Moment, batches

if TYPE_CHECKING:
    from late_spark.spanner import Token


class JournalPruned(StoreError):
    """Settlements of the range are gone from the journal."""


@dataclass(frozen=True)
class Stretch:
    """Settlements `first`..`last` of one journal, both included."""

    group: str
    shard_id: int
    first: int
    last: int
    known: tuple[Usage, ...] = ()
    """Usage of settlements before `first` that compaction has put into the first row: the reader
    has it from elsewhere, and it is taken out."""
    begins: int | None = None
    """The first settlement in that row; None: nothing before `first` is in it."""


@dataclass(frozen=True)
class Part:
    """The read of one task of Spark."""

    stretches: tuple[Stretch, ...] = ()
    shards: tuple[int, ...] | None = None
    """Shards of a table that has no journal's order; None: all."""
    token: Token | None = None
    """A partition of the query that Spanner made."""


def read(
    url: str,
    table: str,
    part: Part,
    columns: list[str],
    bounds: Bounds,
    owners: dict[str, str],
    *,
    moment: Moment = NOW,
) -> Iterator[pa.RecordBatch]:
    """The rows of one part as Arrow batches of `columns`, which are those of `schema.TABLES`.

    Raises:
        JournalPruned: retention has taken settlements of the part meanwhile.
    """
    if table not in ("usage", "journal"):
        chosen = statement(url, table, columns, bounds, part.shards)
        schema = _schema(usage.sources(columns))
        for batch in batches(url, chosen, schema, moment=moment, token=part.token):
            yield usage.placed(batch, columns)
        return
    for each in part.stretches:
        known = each.known
        for batch in _checked(each, _journal(url, each, table, columns, moment)):
            if table == "journal":
                yield usage.placed(batch, columns)
            else:
                yield usage.rows(batch, columns, bounds.queues, owners, known)
            known = ()


def _checked(stretch: Stretch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches on that have each settlement of a stretch, and each of them once.

    Raises:
        JournalPruned: one is missing, or is in a row that has others of before the stretch.
    """
    name = f"{stretch.group}/{stretch.shard_id}"
    reached, seen = stretch.first - 1, 0
    for batch in batches:
        ends = (batch.column("first_seq").to_pylist(), batch.column("seq").to_pylist())
        for first_seq, seq in zip(*ends, strict=True):
            begins = seq if first_seq is None else first_seq
            if begins <= reached and (seen or begins != stretch.begins):
                raise JournalPruned(
                    f"settlements {begins:,}..{seq:,} of {name} were put together, and the read"
                    f" begins behind {reached:,}: read it again"
                )
            seen += seq - max(reached, begins - 1)
            reached = seq
        yield batch
    missing = stretch.last - stretch.first + 1 - seen
    if missing:
        raise JournalPruned(
            f"{missing:,} of the settlements {stretch.first:,}..{stretch.last:,} of {name} are gone"
            " from the journal: it was pruned, or compacted, while it was read"
        )


def _journal(
    url: str, stretch: Stretch, table: str, columns: list[str], moment: Moment
) -> Iterator[pa.RecordBatch]:
    found = usage.NEEDED if table == "usage" else usage.sources(columns)
    wanted = list(dict.fromkeys([*found, "seq", "first_seq"]))
    chosen = (
        select(*(settlement.c[name] for name in wanted))
        .where(
            settlement.c.consumer_group == stretch.group,
            settlement.c.shard_id == stretch.shard_id,
            settlement.c.seq.between(stretch.first, stretch.last),
        )
        .order_by(settlement.c.seq)
    )
    rows = batches(url, chosen, _schema(wanted), moment=moment)
    return _in_order(rows) if moment.by_partitions else rows


def _in_order(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort the rows of a stretch, which is short enough to be in memory, as a journal has them."""
    whole = list(found)
    if whole:
        yield from pa.Table.from_batches(whole).sort_by("seq").to_batches()


def statement(
    url: str,
    table: str,
    columns: list[str],
    bounds: Bounds,
    shards: tuple[int, ...] | None = None,
) -> Select[Any]:
    """Select the columns of `tasks`, `dead` or `timers` that `columns` come from.

    Raises:
        ConfigError: another table.
    """
    rows = _columns(url, table)
    found = select(*(rows[name].label(name) for name in usage.sources(columns)))
    chosen = shards if shards is not None else bounds.shards
    if chosen is not None:
        found = found.where(rows["shard_id"].in_(sorted(chosen)))
    if bounds.queues is not None:
        found = found.where(rows["queue"].in_(sorted(bounds.queues)))
    if bounds.groups is not None and "consumer_group" in rows:
        found = found.where(rows["consumer_group"].in_(sorted(bounds.groups)))
    if bounds.from_us is not None:
        found = found.where(rows[TIMES[table]] >= bounds.from_us)
    if bounds.to_us is not None:
        found = found.where(rows[TIMES[table]] < bounds.to_us)
    return found


def _schema(names: list[str]) -> pa.Schema:
    return pa.schema([usage.RAW.field(name) for name in names])


def _columns(url: str, table: str) -> dict[str, Any]:
    if table == "tasks":
        found = _log(url)
    else:
        chosen = {"dead": dead, "timers": timer}.get(table)
        if chosen is None:
            raise ConfigError(f"no table {table!r}: usage, tasks, dead, timers or journal")
        found = dict(chosen.c)
    if parse(url).get_backend_name() == "postgresql":
        # As the server says it: Arrow has no type for a uuid that all drivers agree on.
        found["task_id"] = cast(found["task_id"], Text)
    return found


def _log(url: str) -> dict[str, Any]:
    engine = make_engine(url)
    log = log_table_of(_Named(engine.dialect))  # type: ignore[arg-type]
    found: dict[str, Any] = dict(log.c)
    if engine.dialect.name == SPANNER:
        # Of the table itself: a query of a query is none that Spanner divides into parts.
        micros = func.unix_micros(found["created_at"], type_=BigInteger)
        found |= {"created_at_us": micros, "position": micros * 1_000}
    elif "xid" in found:
        found["position"] = cast(cast(found["xid"], Text), BigInteger)
    elif "seq" in found:
        found["position"] = found["seq"]
    elif "position" not in found:
        found["position"] = literal(0)
    return found


@dataclass(frozen=True)
class _Named:
    """The one attribute of a connection that `log_table_of` needs."""

    dialect: Any
