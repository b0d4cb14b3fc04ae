"""Many shards in one statement: what is asked of each is a leg of one `union all`.

A statement costs a round trip and its planning, and a screen asks every shard. So the number of
statements grows with the chunks of shards and not with the shards. Each leg keeps a condition on
its own shard and a limit of its own: it walks one range of an index and ends, as it would alone.

Not `values` with a lateral join, which SQLite has not, and not one scan with a window over all
shards, which would have to read each of them to its end before it could stop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    Row,
    Select,
    SelectBase,
    func,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from late.control.rows import SPANNER
from late.task import SHARDS_MAX

LEGS = 80
"""Of one statement. SQLite takes 500."""
LEGS_OF = {SPANNER: 16}
"""Where they are fewer: its dialect's parser takes 10,000 tokens."""
BINDS = 700
"""Parameters of one statement on Spanner, which takes 950: its driver numbers them, so that one
that is in each leg is sent with each of them."""
ROWS = 16_000
"""That the legs of one statement may read together, so that none of them takes long."""
Span = tuple[int, int]
"""Shards, the first and the last of them."""


def together(
    connection: Connection, legs: Sequence[Select[Any]], *, rows: int = 1
) -> Iterator[Row[Any]]:
    """The rows of all legs, with which one they are of as `row.leg`, in some order.

    Args:
        legs: each with the same columns. One may have an order and a limit.
        rows: that one leg reads at most: those that read many are fewer in one statement.
    """
    for union in _unions(connection, legs, rows):
        yield from connection.execute(union)


def foremost(
    connection: Connection,
    legs: Sequence[Select[Any]],
    limit: int,
    order: Callable[[ReadOnlyColumnCollection[str, Any]], Sequence[ColumnElement[Any]]],
) -> Iterator[Sequence[Row[Any]]]:
    """As `together`, but the first `limit` rows only, of all legs of one statement by `order`: what
    each leg could have had among them stays in the database, which is most of it.

    Args:
        legs: each in that order, and with that limit of its own.
        order: of columns such as those of a leg.
    """
    for union in _unions(connection, legs, limit):
        of = union.subquery()
        yield connection.execute(select(*of.c).order_by(*order(of.c)).limit(limit)).all()


def _unions(
    connection: Connection, legs: Sequence[Select[Any]], rows: int
) -> Iterator[Select[Any] | CompoundSelect[Any]]:
    """`legs` in as many statements as it takes."""
    size = max(1, min(_size(connection, legs), ROWS // max(1, rows)))
    for start in range(0, len(legs), size):
        parts = []
        for place, leg in enumerate(legs[start : start + size], start):
            # A leg within a leg: SQLite takes no order and no limit in a part of a union.
            inner = leg.subquery()
            parts.append(select(literal_column(str(place)).label("leg"), *inner.c))
        yield union_all(*parts) if len(parts) > 1 else parts[0]


def counted(
    connection: Connection, leg: Callable[[int, int], Select[Any]], legs: int, limit: int
) -> list[list[Row[Any]]]:
    """The rows of each leg, where one counts up to `limit` rows.

    Legs that may read many are few in one statement, and most shards have few rows. So all are
    asked to count up to a few rows first, many in one statement, and again only those that have
    come to that many.

    Args:
        leg: the one of a number, and up to a limit. Its rows say how many they count: `looked`, or
            `n` where that is the same.
        legs: how many there are.
    """
    few = ROWS // LEGS_OF.get(connection.dialect.name, LEGS)
    found: list[list[Row[Any]]] = [[] for _ in range(legs)]
    left = list(range(legs))
    for most in sorted({min(few, limit), limit}):
        of: dict[int, list[Row[Any]]] = defaultdict(list)
        for row in together(connection, [leg(place, most) for place in left], rows=most):
            of[left[row.leg]].append(row)
        for place, rows in of.items():
            found[place] = rows
        left = [place for place, rows in of.items() if looked(rows) >= most]
    return found


def looked(rows: Sequence[Row[Any]]) -> int:
    """How many rows those of one leg count."""
    # Asked once: a look has tens of thousands of rows, and a name that is not there costs an error.
    apart = bool(rows) and "looked" in rows[0]._fields
    return sum(row.looked if apart else row.n for row in rows)


def upto(
    connection: Connection,
    legs: Sequence[Select[Any]],
    most: int,
    ask: Callable[[FromClause], ColumnElement[Any]],
) -> Iterator[Row[Any]]:
    """What `ask` says of the first `most` rows of all legs together, one leg after the other: a row
    for each chunk of legs, of which `looked` says how many rows they were.

    Args:
        legs: each with the same columns. One may have an order, and no limit.
        ask: a sum or such over the rows, with a label.
    """
    size = _size(connection, legs)
    for start in range(0, len(legs), size):
        first = within(legs[start : start + size], most).subquery()
        statement = select(func.count().label("looked"), ask(first)).select_from(first)
        row = connection.execute(statement).one()
        yield row
        most -= row.looked
        if most <= 0:
            return


def within(legs: Sequence[Select[Any]], most: int) -> SelectBase:
    """The first `most` rows of all legs together. The limit is on the whole as well: a database
    goes through a union leg by leg and ends there, so it reads no more of many than of one."""
    inner = (leg.limit(most).subquery() for leg in legs)
    parts = [select(*each.c) for each in inner]
    return (union_all(*parts) if len(parts) > 1 else parts[0]).limit(most)


def _size(connection: Connection, legs: Sequence[Select[Any]]) -> int:
    """How many legs one statement takes."""
    most = LEGS_OF.get(connection.dialect.name, LEGS)
    return max(1, min(most, _within_binds(connection, legs)))


def _within_binds(connection: Connection, legs: Sequence[Select[Any]]) -> int:
    """How many legs have no more than `BINDS` parameters; one, where a single leg has more."""
    dialect = connection.dialect
    if dialect.name != SPANNER:
        return LEGS
    # A list of values is one parameter until it is rendered.
    whole = {"render_postcompile": True}
    texts = (leg.compile(dialect=dialect, compile_kwargs=whole) for leg in legs)
    return BINDS // max([1, *(len(text.positiontup or ()) for text in texts)])


def spans(known: Collection[int]) -> list[Span]:
    """Every shard that can be: the known ones by themselves, and what lies between them."""
    found: list[Span] = []
    at = 0
    for shard_id in sorted(known):
        if shard_id > at:
            found.append((at, shard_id - 1))
        found.append((shard_id, shard_id))
        at = shard_id + 1
    return [*found, (at, SHARDS_MAX - 1)] if at < SHARDS_MAX else found


def firsts(
    connection: Connection, leg: Callable[[int, int], Select[Any]], among: Sequence[Span]
) -> Iterator[Row[Any]]:
    """The first row of each shard that has any.

    Where shards that nobody knew of have rows, each of them costs a statement: that is so after a
    lane was forgotten, and never in a deployment that knows its lanes.

    Args:
        leg: the first row of the shards from one to another: one step along an index. It has a
            column `shard_id`.
    """
    left = list(among)
    while left:
        following = []
        for row in together(connection, [leg(*span) for span in left]):
            yield row
            last = left[row.leg][1]
            if row.shard_id < last:
                following.append((row.shard_id + 1, last))
        left = following
