"""Dead letters: look, throw away, send back.

A redrive moves the row from `late_dead` to `late_timer`, due now, with its attempts back to zero.
It does not put a new task into the log: the task keeps its id, its history and its place behind
its unique key. The shard's owner stays the only one that decides on the task: it looks through
its overdue timers every few seconds and finds the row there, as it finds any other.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Engine, Integer, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.functions import FunctionElement

from late.control.dead_letters.dry_run import IDS_SHOWN, rehearsal
from late.control.dead_letters.move import Mover, oldest
from late.control.sql.rows import errors_of, now_us, object_of, payload_of
from late.control.views import DeadView, Moved
from late.errors import ConfigError
from late.model.ids import shard_of
from late.schema.engine import reading, write
from late.schema.tables import dead

RATE_MIN, RATE_MAX = 0.001, 100_000.0
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


class _Position(FunctionElement[int]):
    """Where a text is in a column, from 1: LIKE has no escape on Spanner."""

    type = Integer()
    inherit_cache = True


@compiles(_Position)
def _strpos(element: _Position, compiler: Any, **kw: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **kw)})"


@compiles(_Position, "sqlite")
def _instr(element: _Position, compiler: Any, **kw: Any) -> str:
    return f"instr({compiler.process(element.clauses, **kw)})"


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
    error: str | None = None
    """A text that one of its attempts' errors holds, as it was written."""

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

    def clauses(self, of: ReadOnlyColumnCollection[str, Any] = dead.c) -> list[ColumnElement[bool]]:
        """The conditions on `late_dead`, or on a part of it."""
        found: list[ColumnElement[bool]] = []
        for column, value in (
            (of.queue, self.queue),
            (of.name, self.name),
            (of.reason, self.reason),
            (of.consumer_group, self.group),
            (of.task_id, self.task_id),
        ):
            if value is not None:
                found.append(column == value)
        if self.error is not None:
            # As JSON has it, where quotes and such are escaped.
            text = msgspec.json.encode(self.error).decode()[1:-1]
            found.append(_Position(of.errors, text) > 0)
        if self.task_id is not None:
            found.append(of.shard_id == shard_of(self.task_id))
        if self.since_us is not None:
            found.append(of.dead_at_us >= self.since_us)
        if self.until_us is not None:
            found.append(of.dead_at_us < self.until_us)
        return found

    def keyed(self) -> Filter:
        """The part of it that one group's rows of one shard have indexes for."""
        return Filter(task_id=self.task_id, since_us=self.since_us, until_us=self.until_us)

    def reaches(self, name: str, shard_id: int) -> bool:
        """Whether a (group, shard) can have some that match."""
        return self.group in (None, name) and (
            self.task_id is None or shard_of(self.task_id) == shard_id
        )


def listed(engine: Engine, which: Filter, *, limit: int, payload: bool) -> list[DeadView]:
    """Up to `limit` dead letters, the latest first."""
    which.check()
    _check_limit(limit)
    order = (dead.c.dead_at_us.desc(), dead.c.task_id.desc())
    # A payload has up to 1 MiB: who does not want them must not wait for hundreds of them.
    wanted = [column for column in dead.c if payload or column is not dead.c.payload]
    size = func.length(dead.c.payload).label("payload_bytes")
    with reading(engine) as connection:
        rows = connection.execute(
            select(*wanted, size).where(*which.clauses()).order_by(*order).limit(limit)
        )
        return [view_of(row._mapping, payload) for row in rows]


def purge(
    engine: Engine, which: Filter, *, limit: int | None, dry_run: bool, exact: bool = False
) -> Moved:
    """Delete dead letters, the oldest first: the only way to lose one, and always on demand."""
    mover = Mover("dead.purge", which)
    return _move(engine, which, limit, mover, dry_run=dry_run, exact=exact)


def redrive(
    engine: Engine,
    which: Filter,
    *,
    limit: int | None,
    dry_run: bool,
    rate: float | None = None,
    exact: bool = False,
) -> Moved:
    """Send dead letters back to their shards' owners, the oldest first.

    With a `rate` they fall due so many a second, from now on: all are moved at once, and nobody
    has to stay for it.
    """
    if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
        raise ConfigError(f"rate {rate:g}: {RATE_MIN:g} to {RATE_MAX:g} a second")
    mover = Mover("dead.redrive", which, rate=rate or 0.0)
    return _move(engine, which, limit, mover, dry_run=dry_run, exact=exact)


def _move(
    engine: Engine, which: Filter, limit: int | None, mover: Mover, *, dry_run: bool, exact: bool
) -> Moved:
    which.check()
    if limit is not None:
        _check_limit(limit)
    if dry_run:
        return rehearsal(engine, which, limit, exact=exact)
    moved: list[str] = []
    total = 0
    with reading(engine) as connection:
        now = now_us(connection)
    # What dies from here on is not meant: a task that fails again at once would otherwise be sent
    # back without end.
    clauses = [*which.clauses(), dead.c.dead_at_us <= now]
    keys = oldest(engine, which, now)
    while limit is None or total < limit:
        chosen = list(islice(keys, mover.chunk(engine, limit, total)))
        if not chosen:
            break
        ids = write(engine, partial(mover.move, clauses, chosen, now, total))
        total += len(ids)
        moved += ids[: max(0, IDS_SHOWN - len(moved))]
    return Moved(total, False, tuple(moved))


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")


def view_of(row: Any, payload: bool) -> DeadView:
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
        payload_bytes=row["payload_bytes"],
        headers=object_of(row["headers"]),
        options=options,
        payload=payload_of(row["payload"], options) if payload else None,
    )
