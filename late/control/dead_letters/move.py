"""Dead letters on their way: out of `late_dead`, and into `late_timer` or nowhere.

The delete is the claim: two operators at once move different rows. Each transaction leaves a row in
`late_audit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import merge
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Select,
    and_,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
)

from late.control import audit
from late.control.dead_letters.filter import Filter
from late.control.sql.per_shard import Value, lateral_rows
from late.control.sql.rows import SPANNER, now_us
from late.control.sql.shards import Shard, named, parked
from late.schema.engine import reading
from late.schema.tables import dead, history, timer

CHUNK = 1_000
"""Rows that one transaction moves: an owner's settlement must never wait long for it."""
PAGE = 250
"""Keys of one shard that one statement reads ahead: more than a filter has ids."""
NOTED = 500
"""Tasks that one statement looks up in the histories: below what a query may have of parameters."""
_ORDER = (dead.c.dead_at_us, dead.c.task_id, dead.c.consumer_group)
_KEY = (dead.c.dead_at_us, dead.c.task_id, dead.c.consumer_group, dead.c.shard_id)
Key = tuple[int, str, str, int]
"""A dead letter's time of death, task id, group and shard. Keys compare as the letters go."""


def oldest(engine: Engine, which: Filter) -> tuple[int, Iterator[Key]]:
    """The database's now, and the keys of those that match and have died by then, the oldest first,
    each read once.

    No index has all of them in this order: asked for the first thousand, a database puts all of
    them in order, and among millions does so again for each thousand. So each shard is walked along
    its key, and the walks are put together here. The first page of every shard is read in the one
    transaction that finds the shards; those behind have a transaction each, for a purge may take
    long.
    """
    with reading(engine) as connection:
        until_us = now_us(connection)
        there = parked(connection, dead.c.dead_at_us, named(connection).known)
        shards = [shard for shard, _ in there if which.reaches(*shard)]
        first: list[list[tuple[int, str]]] = [[] for _ in shards]
        for row in lateral_rows(connection, partial(_page, which, until_us), shards, rows=PAGE):
            first[row.leg].append((row.dead_at_us, str(row.task_id)))
    pages = zip(shards, first, strict=True)
    return until_us, merge(*(_walk(engine, which, until_us, *each) for each in pages))


def _page(which: Filter, until_us: int, name: Value, shard_id: Value) -> Select[Any]:
    """The oldest that match of one (group, shard)."""
    died, task_id = dead.c.dead_at_us, dead.c.task_id
    mine = dead.c.consumer_group == name, dead.c.shard_id == shard_id, died <= until_us
    page = select(died, task_id).where(*mine, *which.clauses()).limit(PAGE)
    # A task id has an index of its own, and an order may lead the planner along the key.
    return page if which.task_id or which.task_ids else page.order_by(died, task_id)


def _walk(
    engine: Engine, which: Filter, until_us: int, shard: Shard, page: list[tuple[int, str]]
) -> Iterator[Key]:
    """The keys of one shard, page by page; the first page was read."""
    died, task_id = dead.c.dead_at_us, dead.c.task_id
    following = _page(which, until_us, *shard)
    while True:
        page.sort()
        yield from ((*key, *shard) for key in page)
        if len(page) < PAGE:
            return
        last_us, last_id = page[-1]
        beyond = died >= last_us, or_(died > last_us, task_id > last_id)
        with reading(engine) as connection:
            rows = connection.execute(following.where(*beyond)).all()
        page = [(row.dead_at_us, str(row.task_id)) for row in rows]


class Mover(msgspec.Struct, frozen=True):
    """A way to move dead letters, and its words for the audit."""

    action: str
    which: Filter
    rate: float | None = None
    """Letters that fall due per second; 0: all at once. None: they are deleted."""

    def chunk(self, engine: Engine, limit: int | None, total: int) -> int:
        """Return the number that the next transaction moves."""
        size = CHUNK
        if self.rate and engine.dialect.name == SPANNER:
            # There a transaction moves all of its rows to one due time: a second's worth each.
            size = max(1, min(CHUNK, int(self.rate)))
        return size if limit is None else min(size, limit - total)

    def move(
        self, chosen: list[Key], from_us: int, before: int, connection: Connection
    ) -> list[str]:
        """Move those of `chosen` that nobody has moved since; returns their task ids.

        Args:
            chosen: the oldest that match and had died by `from_us`.
            before: how many were moved before them.
        """
        now = now_us(connection)
        step_us = 1_000_000 / self.rate if self.rate else 0.0
        due_us = from_us + round(before * step_us) if step_us else max(now, from_us)
        if connection.dialect.name == SPANNER:
            clauses = [*self.which.clauses(), dead.c.dead_at_us <= from_us]
            due = None if self.rate is None else due_us
            keys = _move_range(clauses, len(chosen), due, connection)
        else:
            rows = _take(connection, chosen)
            keys = [(row["consumer_group"], str(row["task_id"])) for row in rows]
            if self.rate is not None and rows:
                connection.execute(insert(timer), _parked(rows, due_us, step_us))
        ids = [task_id for _, task_id in keys]
        if ids:
            _note(connection, keys, "purged" if self.rate is None else "redriven", now)
            given = {k: v for k, v in msgspec.to_builtins(self.which).items() if v is not None}
            after = {"count": len(ids), "filter": given}
            if self.rate:
                after["rate"] = self.rate
            subject = f"dead:{given.get('group', '*')}"
            audit.record(connection, action=self.action, subject=subject, after=after, at_us=now)
        return ids


def _note(connection: Connection, keys: list[tuple[str, str]], event: str, at_us: int) -> None:
    """A step for those whose history is kept, with who did it."""
    for name in sorted({name for name, _ in keys}):
        mine = history.c.consumer_group == name
        if connection.execute(select(history.c.number).where(mine).limit(1)).first() is None:
            continue
        ids = [task_id for group, task_id in keys if group == name]
        for start in range(0, len(ids), NOTED):
            last = (
                select(
                    history.c.consumer_group,
                    history.c.task_id,
                    func.max(history.c.number) + 1,
                    literal(at_us, BigInteger),
                    literal(event),
                    literal(audit.actor()),
                )
                .where(mine, history.c.task_id.in_(ids[start : start + NOTED]))
                .group_by(history.c.consumer_group, history.c.task_id)
            )
            columns = ["consumer_group", "task_id", "number", "at_us", "event", "worker"]
            connection.execute(insert(history).from_select(columns, last))


def _move_range(
    clauses: list[ColumnElement[bool]], size: int, due_us: int | None, connection: Connection
) -> list[tuple[str, str]]:
    """Spanner, where a delete has no CTE and its driver takes seconds for hundreds of keys.

    What a transaction has read there is locked: all that match up to the last row that was read
    are the rows that were read.
    """
    oldest = select(*_ORDER).where(*clauses).order_by(*_ORDER).limit(size)
    rows = connection.execute(oldest).all()
    if not rows:
        return []
    died, task_id, group = rows[-1]
    taken = and_(
        *clauses,
        or_(
            dead.c.dead_at_us < died,
            and_(dead.c.dead_at_us == died, dead.c.task_id < task_id),
            and_(
                dead.c.dead_at_us == died,
                dead.c.task_id == task_id,
                dead.c.consumer_group <= group,
            ),
        ),
    )
    if due_us is not None:
        again = {"due_at_us": due_us, "reason": "retry", "attempts": 0, "deaths": 0}
        kept = [c for c in dead.c if c.name not in ("dead_at_us", *again)]
        values = [literal(value) for value in again.values()]
        connection.execute(
            insert(timer).from_select(
                [*(column.name for column in kept), *again], select(*kept, *values).where(taken)
            )
        )
    connection.execute(delete(dead).where(taken))
    return [(row.consumer_group, str(row.task_id)) for row in rows]


def _take(connection: Connection, chosen: list[Key]) -> list[dict[str, Any]]:
    """Delete those that are still there and return them, the oldest first.

    Two redrives at once get different rows: the delete is the claim.
    """
    meant = tuple_(*_KEY).in_(chosen)
    if connection.dialect.name == "postgresql":
        # Not to wait for another redrive, and in one order, so that no two wait for each other.
        there = select(*_KEY).where(meant).order_by(*_KEY).with_for_update(skip_locked=True)
        free = there.cte("free")
        meant = tuple_(*_KEY).in_(select(*(free.c[column.name] for column in _KEY)))
    rows = connection.execute(delete(dead).where(meant).returning(dead))
    taken = [dict(row._mapping) for row in rows]
    return sorted(taken, key=lambda row: (row["dead_at_us"], str(row["task_id"])))


def _parked(rows: list[dict[str, Any]], due_us: int, step_us: float) -> list[dict[str, Any]]:
    parked = []
    for number, row in enumerate(rows):
        kept = {key: value for key, value in row.items() if key not in ("dead_at_us", "reason")}
        parked.append(
            {
                **kept,
                "due_at_us": due_us + round(number * step_us),
                "reason": "retry",
                "held_key": None,
                "attempts": 0,
                "deaths": 0,
            }
        )
    return parked
