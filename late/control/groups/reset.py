"""Reset a group: it reads the log again, or skips the tasks that wait.

A reset decides which records are **read from the log**. Each record is then in one of two sets:
those that will be read, and the rest. A task that was read before and has not ended (running or
parked) stays where it is, unless its record will be read again. In that case its timer, its dead
letter and its place in `open` are removed, so that it does not run twice.

All shards are reset in one transaction, so a group is never half reset. The settlement that is
written for each shard fences its owner, which learns of it with its next heartbeat or settlement.
Attempts that run at that time are not recorded, and run again if their records are read again.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    and_,
    case,
    delete,
    func,
    not_,
    select,
    update,
)

from late.control import audit
from late.control.groups import groups
from late.control.groups.groups import Checkpoint
from late.control.sql import beyond_cursor, positions
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.per_shard import union_rows
from late.control.sql.rows import locking, log_of, now_us, open_of
from late.control.sql.shards import survey
from late.control.status import backlog
from late.control.views import Count, Reset, ShardReset
from late.errors import Conflict
from late.model.task import DEFAULT_GROUP, Reads
from late.model.workflow import OPEN, WAITING
from late.schema.engine import reading
from late.schema.tables import dead, group, lease, schedule, settlement, stage, timer, unique
from late.store.common import open_tasks
from late.store.common.groups import is_shadow, reads_of
from late.store.common.suspects import inherited, suspects_of, suspects_text

LOOKED = 64_000
"""The number of rows of one kind that a preview looks at, over all shards."""
LOOKED_MIN = 1_000
"""The least number of rows of one shard that are looked at, for any number of shards."""


class _Shard(msgspec.Struct, frozen=True):
    """One shard before and after the reset."""

    shard_id: int
    before: Journal
    cursor: str
    old: Reads
    new: Reads

    def again(self, connection: Connection) -> ColumnElement[bool]:
        """Return the condition for records that will be read after the reset."""
        return positions.ahead(connection, self.shard_id, self.cursor, self.new)

    def waiting(self, connection: Connection) -> ColumnElement[bool]:
        """Return the condition for records that would be read without the reset."""
        return positions.ahead(connection, self.shard_id, self.before.cursor, self.old)


def reset(engine: Engine, name: str, to: str | int, *, dry_run: bool = False) -> Reset:
    """Let the group read from `to`: `beginning`, `now`, or a time in microseconds.

    Raises:
        ConfigError: there is no such group, or `to` is not valid.
        Conflict: it is a shadow, whose counts begin with it.
    """
    head = positions.head(engine) if to == positions.NOW else ""
    with reading(engine) as connection:
        shards = _shards(connection, name, to, head)
        found = tuple(_effects(connection, name, shards))
    shown = str(to)
    if not dry_run:
        groups.once(engine, lambda connection: _apply(connection, name, to, head, found))
    return Reset(name, shown, dry_run, found)


def _shards(connection: Connection, name: str, to: str | int, head: str) -> list[_Shard]:
    row = groups.known(connection, name, lock=False)
    if is_shadow(row.paused):
        raise Conflict(
            f"group {name!r} is a shadow: delete it and make it anew, in place of a reset"
        )
    now = now_us(connection)
    place = positions.checked(to, now)
    old = reads_of(row.queues, row.from_us, row.replay_us)
    new = Reads(old.queues, positions.from_us(place) or 0, old.replay_us)
    last = journals(connection)
    found = []
    names = sorted({DEFAULT_GROUP, name, *positions.registered(connection)})
    every = survey(connection).every
    cursors = dict.fromkeys(every, head)
    if isinstance(place, int):
        cursors = positions.before(connection, every, place, names)
    for shard_id in every:
        journal = last.get((name, shard_id), Journal())
        found.append(_Shard(shard_id, journal, cursors[shard_id], old, new))
    return found


# --- effects -------------------------------------------------------------------------------------


def _effects(connection: Connection, name: str, shards: list[_Shard]) -> list[ShardReset]:
    """Count the effects of a reset on each shard, among the first rows of each kind.

    People see it before they decide, and a full count of a long log would take too long.
    """
    most = max(LOOKED_MIN, LOOKED // max(1, len(shards)))
    again = _logged(connection, shards, most, returns=True)
    skipped = _logged(connection, shards, most, returns=False)
    unparked, parked = _elsewhere(connection, timer, name, shards, most)
    dead_too, _ = _elsewhere(connection, dead, name, shards, most)
    opened = [open_of(each.before.open) for each in shards]
    conditions = (each.again(connection) for each in shards)
    returned = backlog.ids_among(connection, list(zip(conditions, opened, strict=True)))
    return [
        ShardReset(
            shard_id=each.shard_id,
            again=again[n],
            skipped=skipped[n],
            unparked=unparked[n],
            dead=dead_too[n],
            kept=Count(
                len(opened[n]) - len(returned[n]) + parked[n].n - unparked[n].n, parked[n].capped
            ),
        )
        for n, each in enumerate(shards)
    ]


def _logged(
    connection: Connection, shards: list[_Shard], most: int, *, returns: bool
) -> list[Count]:
    """Count the records of each shard that the reset adds or removes, among the first `most`.

    Args:
        returns: count records beyond the new cursor that are read only because of the reset. If
            False, count records beyond the old cursor that are no longer read.
    """
    legs = []
    for each in shards:
        again, waiting = each.again(connection), each.waiting(connection)
        meant = and_(again, not_(waiting)) if returns else and_(waiting, not_(again))
        cursor = each.cursor if returns else each.before.cursor
        # The limit is on the rows that are read, as the conditions on time and queue have no index.
        legs.append(
            select(case((meant, 1), else_=0).label("meant"))
            .where(beyond_cursor.beyond(connection, each.shard_id, cursor))
            .order_by(*beyond_cursor.order_of(connection))
            .limit(most)
        )
    return [found for found, _ in _counted(connection, legs, most)]


def _elsewhere(
    connection: Connection, table: Table, name: str, shards: list[_Shard], most: int
) -> tuple[list[Count], list[Count]]:
    """Count timers or dead letters, among the first `most` rows of each shard.

    Returns:
        For each shard the rows whose record will be read again, and all rows.
    """
    log, time = log_of(connection), table.c[2]
    legs = []
    for each in shards:
        its = select(log.c.task_id).where(
            backlog.is_record_of(connection, table), each.again(connection)
        )
        legs.append(
            select(case((its.correlate(table).exists(), 1), else_=0).label("meant"))
            .where(_of(table, name, each.shard_id))
            .order_by(time)
            .limit(most)
        )
    found = _counted(connection, legs, most)
    return [meant for meant, _ in found], [all_ for _, all_ in found]


def _counted(
    connection: Connection, legs: list[Select[Any]], most: int
) -> list[tuple[Count, Count]]:
    """Count for each leg the rows that are `meant`, and all rows."""
    counts = []
    for leg in legs:
        looked = leg.subquery()
        meant = func.coalesce(func.sum(looked.c.meant), 0).label("meant")
        counts.append(select(func.count().label("n"), meant).select_from(looked))
    found = [(Count(), Count())] * len(legs)
    for row in union_rows(connection, counts, rows=most):
        capped = row.n >= most
        found[row.leg] = Count(int(row.meant), capped), Count(row.n, capped)
    return found


def _of(table: Table, name: str, shard_id: int) -> ColumnElement[bool]:
    return and_(table.c.consumer_group == name, table.c.shard_id == shard_id)


def _doomed(
    connection: Connection, table: Table, name: str, shard: _Shard, again: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return the condition for timers or dead letters whose record will be read again."""
    log = log_of(connection)
    returning = select(log.c.task_id).where(again)
    return and_(_of(table, name, shard.shard_id), table.c.task_id.in_(returning))


# --- changes -------------------------------------------------------------------------------------


def _apply(
    connection: Connection, name: str, to: str | int, head: str, found: tuple[ShardReset, ...]
) -> None:
    groups.known(connection, name)
    leases = select(lease).where(lease.c.consumer_group == name).order_by(lease.c.shard_id)
    locked = connection.execute(locking(connection, leases))
    epochs = {row.shard_id: row.epoch for row in locked}
    for shard in _shards(connection, name, to, head):
        _one(connection, name, shard, epochs.get(shard.shard_id))
    values: dict[str, Any] = {"from_us": positions.from_us(to)}
    if to != positions.NOW:
        # The time is that of the reset itself. So a task that was never read counts as a replay
        # too; with an earlier time, one that ran during the count would count as new.
        values["replay_us"] = now_us(connection)
    connection.execute(update(group).where(group.c.name == name).values(**values))
    words = ("again", "skipped", "unparked", "dead")
    totals = {w: sum((getattr(each, w) for each in found), start=Count()) for w in words}
    audit.record(
        connection,
        action="group.reset",
        subject=f"group:{name}",
        after={
            "to": to,
            **{word: total.n for word, total in totals.items()},
            "at_least": any(total.capped for total in totals.values()),
        },
    )


def _let_go(connection: Connection, left_out: ColumnElement[bool]) -> None:
    """Release unique keys and schedules that wait for the end of tasks that will never run.

    A unique key with a period stays taken for the rest of its period.
    """
    tasks = select(log_of(connection).c.task_id).where(left_out)
    bound = unique.c.task_id.in_(tasks)
    connection.execute(delete(unique).where(bound, unique.c.expires_at_us.is_(None)))
    lives = and_(bound, unique.c.expires_at_us < 0)
    connection.execute(update(unique).where(lives).values(expires_at_us=-unique.c.expires_at_us))
    waits = schedule.c.open_task_id.in_(tasks)
    connection.execute(update(schedule).where(waits).values(open_task_id=None))
    _cancel_stages(connection, tasks)


def _cancel_stages(connection: Connection, tasks: Select[Any]) -> None:
    """Cancel the stages of these tasks, and those that wait in the same workflows."""
    gone = and_(stage.c.task_id.in_(tasks), stage.c.state.in_(OPEN))
    ids = connection.execute(select(stage.c.workflow_id).where(gone)).scalars().all()
    if not ids:
        return
    ended = {"state": "cancelled", "ended_at_us": now_us(connection)}
    connection.execute(update(stage).where(gone).values(**ended))
    waits = and_(stage.c.workflow_id.in_(set(ids)), stage.c.state == WAITING)
    connection.execute(update(stage).where(waits).values(**ended))


def _one(connection: Connection, name: str, shard: _Shard, leased: int | None) -> None:
    before = shard.before
    # It raises for a damaged value, which must not be overwritten.
    opened = open_tasks.open_of(before.open)
    (returned,) = backlog.ids_among(connection, [(shard.again(connection), opened)])
    marks = connection.execute(
        select(settlement.c.suspects).where(
            settlement.c.consumer_group == name,
            settlement.c.shard_id == shard.shard_id,
            settlement.c.seq == before.seq,
        )
    ).scalar()
    checkpoint = Checkpoint(
        shard_id=shard.shard_id,
        seq=before.seq + 1,
        epoch=max(leased or 0, before.epoch) + 1,
        cursor=shard.cursor,
        open=open_tasks.open_text([key for key in opened if key.task_id not in returned]),
        suspects=suspects_text(inherited(suspects_of(marks), died=False)),
    )
    # The fence is written first. After it no owner can park a task.
    groups.write_checkpoint(connection, name, checkpoint, by="reset", leased=leased is not None)
    again = shard.again(connection)
    if name == DEFAULT_GROUP:
        _let_go(connection, and_(shard.waiting(connection), not_(again)))
    for table in (timer, dead):
        connection.execute(delete(table).where(_doomed(connection, table, name, shard, again)))
