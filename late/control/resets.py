"""Resetting a group: it reads the log again, or leaves out what waits.

A reset decides what is **read from the log**. Each record is then in one of two sets: those that
will be read, and the rest. What was taken from the log before and is not finished (running, parked)
stays where it is, unless its record will be read again: then its timer, its dead letter and its
place in `open` go, or it would run twice.

All shards in one transaction: a group is never half reset. The settlement that it writes for each
fences the owner, who learns of it with its next heartbeat or settlement; what it runs at that
moment is not recorded and, if it is among the records read again, runs again.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    delete,
    func,
    not_,
    select,
    update,
)

from late.control import audit, backlog, groups, positions
from late.control.groups import Checkpoint
from late.control.journals import Journal, journals
from late.control.rows import SPANNER, log_of, now_us, open_of
from late.control.status import shard_ids
from late.control.views import Reset, ShardReset
from late.schema.engine import reading
from late.schema.tables import dead, group, lease, schedule, settlement, timer, unique
from late.store.groups import reads_of
from late.store.suspects import inherited, suspects_of, suspects_text
from late.task import DEFAULT_GROUP, OpenTask, Reads

_open_of = msgspec.json.Decoder(tuple[OpenTask, ...]).decode
_encode = msgspec.json.Encoder().encode


class _Shard(msgspec.Struct, frozen=True):
    """One shard before and after."""

    shard_id: int
    before: Journal
    cursor: str
    old: Reads
    new: Reads

    def again(self, connection: Connection) -> ColumnElement[bool]:
        """Records that will be read, now that the group is reset."""
        return positions.ahead(connection, self.shard_id, self.cursor, self.new)

    def waiting(self, connection: Connection) -> ColumnElement[bool]:
        """Records that would have been read."""
        return positions.ahead(connection, self.shard_id, self.before.cursor, self.old)


def reset(engine: Engine, name: str, to: str | int, *, dry_run: bool) -> Reset:
    """Let the group begin anew at `to`: `beginning`, `now`, or a moment in microseconds.

    Raises:
        ConfigError: no such group, or no such place.
    """
    head = positions.head(engine) if to == positions.NOW else ""
    with reading(engine) as connection:
        shards = _shards(connection, name, to, head)
        found = tuple(_effect(connection, name, each) for each in shards)
    shown = str(to)
    if not dry_run:
        groups.once(engine, lambda connection: _apply(connection, name, to, head, found))
    return Reset(name, shown, dry_run, found)


def _shards(connection: Connection, name: str, to: str | int, head: str) -> list[_Shard]:
    row = groups.known(connection, name, lock=False)
    now = now_us(connection)
    place = positions.checked(to, now)
    old = reads_of(row.queues, row.from_us, row.replay_us)
    new = Reads(old.queues, positions.from_us(place) or 0, old.replay_us)
    last = journals(connection)
    found = []
    names = sorted({DEFAULT_GROUP, name, *positions.registered(connection)})
    for shard_id in shard_ids(connection):
        cursor = head
        if isinstance(place, int):
            cursor = positions.before(connection, shard_id, place, names)
        found.append(_Shard(shard_id, last.get((name, shard_id), Journal()), cursor, old, new))
    return found


# --- what it does --------------------------------------------------------------------------------


def _effect(connection: Connection, name: str, shard: _Shard) -> ShardReset:
    again, waiting = shard.again(connection), shard.waiting(connection)
    opened = open_of(shard.before.open)
    returned = _among(connection, shard, opened)
    unparked = _elsewhere(connection, timer, name, shard, again)
    parked = _count(connection, timer, _of(timer, name, shard.shard_id))
    return ShardReset(
        shard_id=shard.shard_id,
        again=_count(connection, log_of(connection), and_(again, not_(waiting))),
        skipped=_count(connection, log_of(connection), and_(waiting, not_(again))),
        unparked=unparked,
        dead=_elsewhere(connection, dead, name, shard, again),
        kept=len(opened) - len(returned) + parked - unparked,
    )


def _of(table: Table, name: str, shard_id: int) -> ColumnElement[bool]:
    return and_(table.c.consumer_group == name, table.c.shard_id == shard_id)


def _count(connection: Connection, table: Any, condition: ColumnElement[bool]) -> int:
    count = select(func.count()).select_from(table).where(condition)
    return int(connection.execute(count).scalar_one())


def _elsewhere(
    connection: Connection, table: Table, name: str, shard: _Shard, again: ColumnElement[bool]
) -> int:
    return _count(connection, table, _doomed(connection, table, name, shard, again))


def _doomed(
    connection: Connection, table: Table, name: str, shard: _Shard, again: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Rows of the timers or the dead letters whose record will be read again."""
    log = log_of(connection)
    returning = select(log.c.task_id).where(again)
    return and_(_of(table, name, shard.shard_id), table.c.task_id.in_(returning))


def _among(connection: Connection, shard: _Shard, opened: tuple[OpenTask, ...]) -> set[str]:
    """Those of the open tasks whose record will be read again."""
    condition = shard.again(connection)
    return backlog.ids_among(connection, opened, condition)


# --- doing it ------------------------------------------------------------------------------------


def _apply(
    connection: Connection, name: str, to: str | int, head: str, found: tuple[ShardReset, ...]
) -> None:
    groups.known(connection, name)
    leases = select(lease).where(lease.c.consumer_group == name).order_by(lease.c.shard_id)
    if connection.dialect.name != SPANNER:
        leases = leases.with_for_update()
    epochs = {row.shard_id: row.epoch for row in connection.execute(leases)}
    for shard in _shards(connection, name, to, head):
        _one(connection, name, shard, epochs.get(shard.shard_id))
    values: dict[str, Any] = {"from_us": positions.from_us(to)}
    if to != positions.NOW:
        # By the moment of the reset: a task that nobody has read yet counts as a replay too,
        # rather than one that ran while the reset was being counted counts as new.
        values["replay_us"] = now_us(connection)
    connection.execute(update(group).where(group.c.name == name).values(**values))
    audit.record(
        connection,
        action="group.reset",
        subject=f"group:{name}",
        after={
            "to": to,
            "again": sum(each.again for each in found),
            "skipped": sum(each.skipped for each in found),
            "unparked": sum(each.unparked for each in found),
            "dead": sum(each.dead for each in found),
        },
    )


def _let_go(connection: Connection, left_out: ColumnElement[bool]) -> None:
    """What was bound to the life of tasks that will never run: their unique keys (with a period,
    for the rest of it), and schedules that wait for them to end."""
    tasks = select(log_of(connection).c.task_id).where(left_out)
    bound = unique.c.task_id.in_(tasks)
    connection.execute(delete(unique).where(bound, unique.c.expires_at_us.is_(None)))
    lives = and_(bound, unique.c.expires_at_us < 0)
    connection.execute(update(unique).where(lives).values(expires_at_us=-unique.c.expires_at_us))
    waits = schedule.c.open_task_id.in_(tasks)
    connection.execute(update(schedule).where(waits).values(open_task_id=None))


def _one(connection: Connection, name: str, shard: _Shard, leased: int | None) -> None:
    before = shard.before
    opened = _open_of(before.open)  # a damaged one must not be written over
    returned = _among(connection, shard, opened)
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
        open=_encode([key for key in opened if key.task_id not in returned]).decode(),
        suspects=suspects_text(inherited(suspects_of(marks), died=False)),
    )
    # The fence first: no owner can park anything any more once it stands.
    groups.write_checkpoint(connection, name, checkpoint, by="reset", leased=leased is not None)
    again = shard.again(connection)
    if name == DEFAULT_GROUP:
        _let_go(connection, and_(shard.waiting(connection), not_(again)))
    for table in (timer, dead):
        connection.execute(delete(table).where(_doomed(connection, table, name, shard, again)))
