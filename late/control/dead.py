"""Dead letters: look, throw away, send back.

A redrive moves the row from `late_dead` to `late_timer`, due now, with its attempts back to zero.
It does not put a new task into the log: the task keeps its id, its history and its place behind
its unique key. The shard's owner stays the only one that decides on the task: it looks through
its overdue timers every few seconds and finds the row there, as it finds any other.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
)

from late.control.rows import SPANNER, errors_of, now_us, object_of, payload_of
from late.control.views import DeadView, Moved
from late.errors import ConfigError
from late.ids import shard_of
from late.schema.engine import reading, write
from late.schema.tables import dead, timer

CHUNK = 1_000
"""Rows that one transaction moves: an owner's settlement must never wait long for it."""
IDS_SHOWN = 100
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_ORDER = (dead.c.dead_at_us, dead.c.task_id, dead.c.consumer_group)
_KEY = (dead.c.consumer_group, dead.c.shard_id, dead.c.dead_at_us, dead.c.task_id)


class Filter(msgspec.Struct, frozen=True):
    """Which dead letters; every field that is given must match. Empty: all of them."""

    queue: str | None = None
    name: str | None = None
    reason: str | None = None
    group: str | None = None
    task_id: str | None = None
    since_us: int | None = None
    """Died at or after this time."""
    until_us: int | None = None
    """Died before this time."""

    def check(self) -> None:
        """Refuse what can match nothing.

        Raises:
            ConfigError: a name outside the rule for names, or an empty range of time.
            InvalidName: not a task id.
        """
        for field in ("queue", "name", "reason", "group"):
            value = getattr(self, field)
            if value is not None and not _NAME.match(value):
                raise ConfigError(
                    f"{field} {value[:64]!r}: names are 1 to 128 of letters, digits and . _ : -"
                )
        if self.task_id is not None:
            shard_of(self.task_id)
        since, until = self.since_us, self.until_us
        if since is not None and until is not None and since >= until:
            raise ConfigError("since must be before until")

    def clauses(self) -> list[ColumnElement[bool]]:
        """The conditions on `late_dead`."""
        found: list[ColumnElement[bool]] = []
        for column, value in (
            (dead.c.queue, self.queue),
            (dead.c.name, self.name),
            (dead.c.reason, self.reason),
            (dead.c.consumer_group, self.group),
            (dead.c.task_id, self.task_id),
        ):
            if value is not None:
                found.append(column == value)
        if self.task_id is not None:
            found.append(dead.c.shard_id == shard_of(self.task_id))
        if self.since_us is not None:
            found.append(dead.c.dead_at_us >= self.since_us)
        if self.until_us is not None:
            found.append(dead.c.dead_at_us < self.until_us)
        return found


def listed(engine: Engine, which: Filter, *, limit: int, payload: bool) -> list[DeadView]:
    """Up to `limit` dead letters, the latest first."""
    which.check()
    _check_limit(limit)
    order = (dead.c.dead_at_us.desc(), dead.c.task_id.desc())
    with reading(engine) as connection:
        rows = connection.execute(
            select(dead).where(*which.clauses()).order_by(*order).limit(limit)
        )
        return [_view(row._mapping, payload) for row in rows]


def count(engine: Engine, which: Filter) -> int:
    """How many match."""
    which.check()
    with reading(engine) as connection:
        statement = select(func.count()).select_from(dead).where(*which.clauses())
        return int(connection.execute(statement).scalar_one())


def purge(engine: Engine, which: Filter, *, limit: int | None, dry_run: bool) -> Moved:
    """Delete dead letters, the oldest first: the only way to lose one, and always on demand."""
    return _move(engine, which, limit=limit, dry_run=dry_run, park=False)


def redrive(engine: Engine, which: Filter, *, limit: int | None, dry_run: bool) -> Moved:
    """Send dead letters back to their shards' owners, the oldest first."""
    return _move(engine, which, limit=limit, dry_run=dry_run, park=True)


def _move(engine: Engine, which: Filter, *, limit: int | None, dry_run: bool, park: bool) -> Moved:
    which.check()
    if limit is not None:
        _check_limit(limit)
    if dry_run:
        return _rehearsal(engine, which, limit)
    moved: list[str] = []
    total = 0
    with reading(engine) as connection:
        # What dies from here on is not meant: a task that fails again at once would otherwise be
        # sent back without end.
        clauses = [*which.clauses(), dead.c.dead_at_us <= now_us(connection)]
    while limit is None or total < limit:
        size = CHUNK if limit is None else min(CHUNK, limit - total)
        ids = write(engine, partial(_move_some, clauses, size, park))
        total += len(ids)
        moved += ids[: max(0, IDS_SHOWN - len(moved))]
        if len(ids) < size:
            break
    return Moved(total, dry_run, tuple(moved))


def _move_some(
    clauses: list[ColumnElement[bool]], size: int, park: bool, connection: Connection
) -> list[str]:
    """Move the oldest `size` that match; their task ids."""
    if connection.dialect.name == SPANNER:
        return _move_range(clauses, size, park, connection)
    rows = _take(connection, clauses, size)
    if park and rows:
        connection.execute(insert(timer), _parked(rows, now_us(connection)))
    return [str(row["task_id"]) for row in rows]


def _move_range(
    clauses: list[ColumnElement[bool]], size: int, park: bool, connection: Connection
) -> list[str]:
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
    if park:
        again = {"due_at_us": now_us(connection), "reason": "retry", "attempts": 0, "deaths": 0}
        kept = [c for c in dead.c if c.name not in ("dead_at_us", *again)]
        values = [literal(value) for value in again.values()]
        connection.execute(
            insert(timer).from_select(
                [*(column.name for column in kept), *again], select(*kept, *values).where(taken)
            )
        )
    connection.execute(delete(dead).where(taken))
    return [str(row.task_id) for row in rows]


def _rehearsal(engine: Engine, which: Filter, limit: int | None) -> Moved:
    total = count(engine, which)
    with reading(engine) as connection:
        ids = connection.execute(
            select(dead.c.task_id)
            .where(*which.clauses())
            .order_by(dead.c.dead_at_us, dead.c.task_id)
            .limit(min(IDS_SHOWN, IDS_SHOWN if limit is None else limit))
        )
        shown = tuple(str(row.task_id) for row in ids)
    return Moved(total if limit is None else min(total, limit), True, shown)


def _take(
    connection: Connection, clauses: list[ColumnElement[bool]], size: int
) -> list[dict[str, Any]]:
    """Delete the oldest `size` that match and return them.

    Two redrives at once get different rows: the delete is the claim.
    """
    oldest = select(*_KEY).where(*clauses).order_by(*_ORDER).limit(size)
    if connection.dialect.name == "postgresql":
        oldest = oldest.with_for_update(skip_locked=True)
    # A CTE, because a plain subquery with a limit may be run more than once by the planner, and
    # would then name other rows each time.
    chosen = oldest.cte("oldest")
    keys = select(*(chosen.c[column.name] for column in _KEY))
    rows = connection.execute(delete(dead).where(tuple_(*_KEY).in_(keys)).returning(dead))
    taken = [dict(row._mapping) for row in rows]
    return sorted(taken, key=lambda row: (row["dead_at_us"], str(row["task_id"])))


def _parked(rows: list[dict[str, Any]], due_at_us: int) -> list[dict[str, Any]]:
    parked = []
    for row in rows:
        kept = {key: value for key, value in row.items() if key not in ("dead_at_us", "reason")}
        parked.append(
            {
                **kept,
                "due_at_us": due_at_us,
                "reason": "retry",
                "held_key": None,
                "attempts": 0,
                "deaths": 0,
            }
        )
    return parked


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")


def _view(row: Any, payload: bool) -> DeadView:
    options = object_of(row["options"])
    return DeadView(
        task_id=str(row["task_id"]),
        group=row["consumer_group"],
        shard_id=row["shard_id"],
        dead_at_us=row["dead_at_us"],
        reason=row["reason"],
        queue=row["queue"],
        name=row["name"],
        created_at_us=row["created_at_us"],
        attempts=row["attempts"],
        deaths=row["deaths"],
        errors=errors_of(row["errors"]),
        payload_bytes=len(row["payload"]),
        headers=object_of(row["headers"]),
        options=options,
        payload=payload_of(row["payload"], options) if payload else None,
    )
