"""Many shards in one statement: what is asked of each is a leg of one `union all`.

A statement costs a round trip and its planning, and a screen asks every shard. So the number of
statements grows with the chunks of shards and not with the shards. Each leg keeps a condition on
its own shard and a limit of its own: it walks one range of an index and ends, as it would alone.

Legs that differ in values alone are one lateral join where the database has that: `lateral_rows`.
A union of 64 is 50 KB of text, which both sides read anew each time; and SQLAlchemy keeps it as ten
thousand objects, through which each collection of garbage goes. SQLite, which is in this process,
is asked leg by leg: there a statement costs no round trip, only its text. One scan with a window
over all shards was rejected: it would have to read each of them to its end before it could stop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    Row,
    Select,
    SelectBase,
    Text,
    bindparam,
    func,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy.types import TypeEngine

from late.control.sql.rows import SPANNER
from late.model.task import SHARDS_MAX

LEGS = 80
"""Legs of one statement. SQLite takes 500."""
LEGS_OF = {SPANNER: 16}
"""Databases that take fewer: Spanner's parser takes 10,000 tokens."""
BINDS = 700
"""Parameters of one statement on Spanner, which takes 950: its driver numbers them, so that one
that is in each leg is sent with each of them."""
JOINED = 1_000
"""Legs of one lateral join, which is no longer for more of them."""
FEW = 4
"""Rows that `first_rows` asks of each leg, beside twice its share."""
ROWS = 16_000
"""Rows that the legs of one statement may read together, so that no statement takes long."""
LATERAL = frozenset({"postgresql"})
"""Dialects with `unnest` of several arrays and lateral joins that walk an index for each row."""
EMBEDDED = "sqlite"
"""The dialect of a database in this process: a statement is a call, and no round trip."""
Value = int | str | ColumnElement[Any]
"""A value of a leg, or the column that stands for it."""
Span = tuple[int, int]
"""Shards, the first and the last of them."""


def union_rows(
    connection: Connection, legs: Sequence[Select[Any]], *, rows: int = 1
) -> Iterator[Row[Any]]:
    """The rows of all legs, with which one they are of as `row.leg`, in some order.

    Args:
        legs: each with the same columns. One may have an order and a limit.
        rows: that one leg reads at most: those that read many are fewer in one statement.
    """
    for union in _unions(connection, legs, rows):
        # At once: row by row the driver takes ten times as long as the database.
        yield from connection.execute(union).all()


def lateral_rows(
    connection: Connection,
    leg: Callable[..., Select[Any]],
    asked: Sequence[tuple[int | str, ...]],
    *,
    types: Sequence[TypeEngine[Any]] = (),
    rows: int = 1,
) -> Iterator[Row[Any]]:
    """Read the rows of legs that differ in values alone: `leg(*values)` for each of `asked`.

    Args:
        leg: makes a leg of values, or of columns that stand for them: it compares them with
            columns and does nothing else with them.
        asked: the values of each leg, as many and of the same types.
        types: of these values; by default what Python's are taken for.
    """
    if connection.dialect.name == EMBEDDED:
        # One statement of one leg, made once and run for each: the driver keeps it prepared.
        if not asked:
            return
        taken = _types(asked[0], types)
        of = leg(*(bindparam(name, type_=type_) for name, type_ in taken.items())).subquery()
        statement = select(bindparam("leg", type_=BigInteger()).label("leg"), *of.c)
        for place, values in enumerate(asked):
            named = dict(zip(taken, values, strict=True))
            yield from connection.execute(statement, {"leg": place, **named}).all()
        return
    if connection.dialect.name not in LATERAL:
        yield from union_rows(connection, [leg(*values) for values in asked], rows=rows)
        return
    size = max(1, min(JOINED, ROWS // max(1, rows)))
    for start in range(0, len(asked), size):
        some = list(zip(range(start, len(asked)), asked[start : start + size], strict=False))
        yield from connection.execute(*_lateral(leg, some, types)).all()


def _types(
    values: Sequence[int | str], known: Sequence[TypeEngine[Any]]
) -> dict[str, TypeEngine[Any]]:
    """Name and type of each value of a leg."""
    taken = [Text() if isinstance(value, str) else BigInteger() for value in values]
    return {f"v{number}": of for number, of in enumerate([*known, *taken[len(known) :]])}


def _lateral(
    leg: Callable[..., Select[Any]],
    asked: Sequence[tuple[int, tuple[int | str, ...]]],
    known: Sequence[TypeEngine[Any]],
) -> tuple[Select[Any], dict[str, list[Any]]]:
    """One statement for legs of these places and values, and its parameters: an array for each
    value, so that its text is the same for any number of legs."""
    types: dict[str, TypeEngine[Any]] = {"leg": BigInteger()} | _types(asked[0][1], known)
    columns = ([place for place, _ in asked], *zip(*(values for _, values in asked), strict=True))
    arrays = {name: list(column) for name, column in zip(types, columns, strict=True)}
    places = func.unnest(*(bindparam(name, type_=ARRAY(types[name])) for name in arrays))
    table = places.table_valued(*arrays).render_derived(name="asked")
    # By name: a leg within a leg would take the table for one of its own.
    place, *values = (literal_column(f"asked.{name}", type_) for name, type_ in types.items())
    of = leg(*values).lateral("found")
    return select(place.label("leg"), *of.c).select_from(table.join(of, true())), arrays


def first_rows(
    connection: Connection,
    leg: Callable[..., Select[Any]],
    asked: Sequence[tuple[int | str, ...]],
    limit: int,
    key: Callable[[Row[Any]], Any],
    *,
    reverse: bool = False,
) -> list[tuple[int, Row[Any]]]:
    """The first `limit` rows of all legs together, each with the number of its leg, in order.

    Most legs have few of them, so each is asked for a few, and those of which all are among the
    first are asked again. To put a union in order is not better: only some databases merge it, the
    others read `limit` rows of each leg.

    Args:
        leg: as `lateral_rows` takes it, with a limit behind the values. Its rows come in the order.
        key: of a row, which ascends in the order, or descends in the `reverse` one.
    """
    few = min(limit, 2 * limit // max(1, len(asked)) + FEW)

    def of(places: Sequence[int], most: int) -> Iterator[tuple[int, Row[Any]]]:
        some = [asked[place] for place in places]
        for row in lateral_rows(connection, lambda *values: leg(*values, most), some, rows=most):
            yield places[row.leg], row

    def first(found: Iterable[tuple[int, Row[Any]]]) -> list[tuple[int, Row[Any]]]:
        return sorted(found, key=lambda each: key(each[1]), reverse=reverse)[:limit]

    found = first(of(range(len(asked)), few))
    whole = [place for place, n in Counter(place for place, _ in found).items() if n == few < limit]
    if whole:
        others = [each for each in found if each[0] not in whole]
        found = first([*others, *of(whole, limit)])
    return found


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
    connection: Connection,
    ask: Callable[[Sequence[int], int], Iterator[Row[Any]]],
    legs: int,
    limit: int,
) -> list[list[Row[Any]]]:
    """The rows of each leg, where one counts up to `limit` rows.

    Legs that may read many are few in one statement, and most shards have few rows. So all are
    asked to count up to a few rows first, many in one statement, and again only those that have
    come to that many.

    Args:
        ask: asks the legs of these numbers up to a limit, as `union_rows` or `lateral_rows`. Their
            rows say how many they count: `looked`, or `n` where that is the same.
        legs: how many there are.
    """
    few = ROWS // LEGS_OF.get(connection.dialect.name, LEGS)
    found: list[list[Row[Any]]] = [[] for _ in range(legs)]
    left = list(range(legs))
    for most in sorted({min(few, limit), limit}):
        of: dict[int, list[Row[Any]]] = defaultdict(list)
        for row in ask(left, most):
            of[left[row.leg]].append(row)
        for place, rows in of.items():
            found[place] = rows
        left = [place for place, rows in of.items() if looked(rows) >= most]
    return found


def looked(rows: Sequence[Row[Any]]) -> int:
    """Add up the rows that the legs counted."""
    # Asked once: a look has tens of thousands of rows, and a name that is not there costs an error.
    apart = bool(rows) and "looked" in rows[0]._fields
    return sum(row.looked if apart else row.n for row in rows)


def limited_count(
    connection: Connection,
    legs: Sequence[Select[Any]],
    most: int,
    ask: Callable[[FromClause], ColumnElement[Any]],
) -> Iterator[Row[Any]]:
    """Apply `ask` to the first `most` rows of all legs together, one leg after the other.

    There is one row for each chunk of legs; `looked` says how many rows they were.

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
    """Return the number of legs that one statement takes."""
    most = LEGS_OF.get(connection.dialect.name, LEGS)
    return max(1, min(most, _within_binds(connection, legs)))


def _within_binds(connection: Connection, legs: Sequence[Select[Any]]) -> int:
    """Return how many legs have at most `BINDS` parameters; one, where a single leg has more."""
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
    connection: Connection, leg: Callable[[Any, Any], Select[Any]], among: Sequence[Span]
) -> Iterator[Row[Any]]:
    """The first row of each shard that has any.

    Where shards that nobody knew of have rows, each of them costs a statement: that is so after a
    lane was forgotten, and never in a deployment that knows its lanes.

    Args:
        leg: the first row of the shards from one to another, as `lateral_rows` takes it: one
            step along an index. It has a column `shard_id`.
    """
    left = list(among)
    while left:
        following = []
        for row in lateral_rows(connection, leg, left):
            yield row
            last = left[row.leg][1]
            if row.shard_id < last:
                following.append((row.shard_id + 1, last))
        left = following
