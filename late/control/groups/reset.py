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

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    and_,
    delete,
    not_,
    select,
    update,
)

from late.control import audit
from late.control.groups import groups, rehearsal, replay
from late.control.groups.groups import Checkpoint
from late.control.groups.rehearsal import Shard, of_shard
from late.control.sql import positions
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.rows import locking, log_of, now_us
from late.control.sql.shards import survey
from late.control.status import backlog
from late.control.views import Count, Reset, ShardReset
from late.errors import ConfigError, Conflict
from late.model.task import DEFAULT_GROUP, Reads
from late.model.workflow import OPEN, WAITING
from late.schema.engine import reading
from late.schema.tables import dead, group, lease, schedule, settlement, stage, timer, unique
from late.store.common import open_tasks
from late.store.common.groups import is_shadow, reads_of
from late.store.common.suspects import inherited, suspects_of, suspects_text


def reset(
    engine: Engine,
    name: str,
    to: str | int,
    *,
    rate: float | None = None,
    dry_run: bool = False,
) -> Reset:
    """Let the group read from `to`: `beginning`, `now`, or a time in microseconds.

    Args:
        rate: tasks created before the reset that begin in a second, at most, in all workers.

    Raises:
        ConfigError: there is no such group, or `to` or `rate` is not valid.
        Conflict: it is a shadow, whose counts begin with it.
    """
    replay.check(rate)
    if rate is not None and to == positions.NOW:
        raise ConfigError("a reset to now replays nothing: give no rate")
    head = positions.head(engine) if to == positions.NOW else ""
    with reading(engine) as connection:
        shards = _shards(connection, name, to, head)
        ahead = rehearsal.ahead(connection, shards)
        found = tuple(rehearsal.effects(connection, name, shards, ahead.again))
        kept_us = rehearsal.kept_since(connection, [shard.shard_id for shard in shards])
    if not dry_run:

        def work(connection: Connection) -> None:
            _apply(connection, name, to, head, found, rate)

        groups.once(engine, work)
    return Reset(
        name, str(to), dry_run, found, queues=ahead.queues, oldest_us=ahead.oldest_us,
        newest_us=ahead.newest_us, kept_us=kept_us, rate=rate,
    )  # fmt: skip


def _shards(connection: Connection, name: str, to: str | int, head: str) -> list[Shard]:
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
        found.append(Shard(shard_id, journal, cursors[shard_id], old, new))
    return found


def _doomed(
    connection: Connection, table: Table, name: str, shard: Shard, again: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return the condition for timers or dead letters whose record will be read again."""
    log = log_of(connection)
    returning = select(log.c.task_id).where(again)
    return and_(of_shard(table, name, shard.shard_id), table.c.task_id.in_(returning))


# --- changes -------------------------------------------------------------------------------------


def _apply(
    connection: Connection,
    name: str,
    to: str | int,
    head: str,
    found: tuple[ShardReset, ...],
    rate: float | None,
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
    replay.put(connection, name, rate)
    words = ("again", "skipped", "unparked", "dead")
    totals = {w: sum((getattr(each, w) for each in found), start=Count()) for w in words}
    audit.record(
        connection,
        action="group.reset",
        subject=f"group:{name}",
        after={
            "to": to,
            **({} if rate is None else {"rate": rate}),
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


def _one(connection: Connection, name: str, shard: Shard, leased: int | None) -> None:
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
