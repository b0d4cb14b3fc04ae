"""`late rebase` on PostgreSQL: make a restored or copied database one that workers may run on.

Positions and cursors of the old cluster are compared only with each other: plain arithmetic on
stored values tells which rows each group had settled. The rows that are left get positions of this
cluster, and every group gets a cursor with the same meaning in new numbers.

With several groups, rows that were settled by the same set of groups form a class, and each class
gets a transaction id that is used for nothing else. A group's cursor is a snapshot in which the
classes that it has settled are finished and the others still run.
"""

from __future__ import annotations

import uuid
from typing import Any

from late.errors import StoreRefused
from late.model.task import Cursor
from late.schema.key_order import moved
from late.store.common.open_tasks import open_of
from late.store.postgres import statements as sql
from late.store.postgres.connection import Connection, rows_of
from late.store.postgres.cursor import Snapshot, parse, parse_snapshot
from late.store.postgres.guard import ServerState, state_of

CLASSES_MAX = 1_000
LOCK_TIMEOUT_S = 10

_COLUMNS = "shard_id, task_id, queue, name, payload, headers, options, created_at_us"
_LOCK = "lock table late_task, late_lease, late_settlement in access exclusive mode"
_GROUPS = "select name from late_group union select consumer_group from late_lease order by 1"
_LAST = """
select distinct on (s.consumer_group, s.shard_id)
       s.consumer_group, s.shard_id, s.seq, s.epoch, s.cursor, s.open
  from late_settlement s order by s.consumer_group, s.shard_id, s.seq desc
"""
# `done`: the groups that have settled the row. Where the counter fell back, a row that was written
# in this cluster (its tuple bears its own transaction) is new, whatever the old cursors say of its
# number.
_JUDGE = f"""
create temporary table late_rebase on commit drop as
select {", ".join(f"l.{column}" for column in _COLUMNS.split(", "))},
  array(
    select c.g from unnest(%(groups)s::text[], %(shards)s::smallint[], %(prev)s::pg_snapshot[],
                           %(cur)s::pg_snapshot[], %(xids)s::xid8[], %(ids)s::uuid[])
           c (g, shard_id, prev, cur, xid, id)
     where c.shard_id = l.shard_id
       and not (%(fell)s and l.xmin::text::bigint = mod(l.xid::text::numeric, 4294967296))
       and (pg_visible_in_snapshot(l.xid, c.prev)
            or pg_visible_in_snapshot(l.xid, c.cur) and (l.xid, l.task_id) <= (c.xid, c.id))
       and not exists (
         select 1 from unnest(%(open_groups)s::text[], %(open_shards)s::smallint[],
                              %(open_xids)s::xid8[], %(open_ids)s::uuid[]) o (g, s, xid, id)
          where o.g = c.g and o.s = l.shard_id and o.xid = l.xid and o.id = l.task_id)
     order by c.g) as done
  from late_task l
"""
_R_COLUMNS = ", ".join(f"r.{column}" for column in _COLUMNS.split(", "))
_REFILL = f"""
insert into late_task (xid, {_COLUMNS})
select c.xid, {_R_COLUMNS.replace("r.options", moved("r.options"))}
  from late_rebase r join unnest(%s::text[], %s::xid8[]) c (done, xid) on c.done = r.done::text
"""
_LEASE = """
insert into late_lease as e (consumer_group, shard_id, owner, epoch) values (%s, %s, null, %s)
on conflict (consumer_group, shard_id) do update
   set owner = null, epoch = greatest(e.epoch + 1, excluded.epoch)
returning epoch
"""
_SETTLEMENT = f"""
insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner, cursor,
                             open, settled_at_us)
values (%s, %s, %s, %s, %s, 'rebase', %s, '[]', {sql.NOW})
"""
_META = """
insert into late_meta (key, value) values (%s, %s)
on conflict (key) do update set value = excluded.value
"""

# A snapshot that sees nothing, in SQL: the meaning of an empty cursor.
_BLIND = "1:1:"


async def rebase(connection: Connection, burner: Connection) -> None:
    """Give log and journal positions of this cluster, in one transaction.

    Every epoch is raised, every shard freed, every worker forgotten; parked tasks and dead letters
    stay as they are. Rows that every group has settled are removed from the log. Calling it twice
    is fine.

    Args:
        connection: neither it nor `burner` is guarded.
        burner: takes transaction ids that nothing else will use.

    Raises:
        SchemaMismatch, StoreRefused: a fault that no rebase can repair.
        psycopg.Error: among others if the locks are not free within `LOCK_TIMEOUT_S`.
    """
    state = await state_of(connection)
    async with connection.transaction():
        await connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_S}s'")
        await connection.execute(_LOCK)
        groups = [name for (name,) in await rows_of(connection, _GROUPS)]
        journals = await rows_of(connection, _LAST)
        await _judge(connection, state, journals)
        classes = await _classes(connection, burner, groups)
        await connection.execute("truncate table late_task")
        await connection.execute(
            _REFILL, (list(classes), [str(xid) for xid, _ in classes.values()])
        )
        # Taken under the locks and after the ids were used up: it sees all of these as finished,
        # and a transaction that waits for the locks to insert its tasks as running.
        ((text,),) = await rows_of(connection, "select pg_current_snapshot()::text")
        now = parse_snapshot(text)
        for group, shard_id, seq, epoch, _, _ in journals:
            unsettled = {xid for xid, done in classes.values() if group not in done}
            ((raised,),) = await rows_of(connection, _LEASE, (group, shard_id, epoch + 1))
            await connection.execute(
                _SETTLEMENT,
                (group, shard_id, seq + 1, uuid.uuid4().hex, raised, _cursor(now, unsettled)),
            )
        await connection.execute("delete from late_worker")
        await connection.execute("delete from late_offer")
        await connection.execute("delete from late_meta where key = 'xid_sample'")
        await connection.execute(_META, ("position_max", str(now.xmax)))
        for mark in state.marks.items():
            await connection.execute(_META, mark)


async def _judge(connection: Connection, state: ServerState, journals: list[Any]) -> None:
    """Fill `late_rebase` with the log and, for each row, the groups that have settled it."""
    windows = [parse(Cursor(row[4])) for row in journals]
    highest = max([int(state.meta.get("position_max", 0)), *(w.xmax for w in windows)])
    opened = [(row[0], row[1], task) for row in journals for task in open_of(row[5])]
    await connection.execute(
        _JUDGE,
        {
            "fell": state.xmax < highest,
            "groups": [row[0] for row in journals],
            "shards": [row[1] for row in journals],
            "prev": [window.prev or _BLIND for window in windows],
            "cur": [window.cur or _BLIND for window in windows],
            "xids": [str(window.key[0]) for window in windows],
            "ids": [window.key[1] for window in windows],
            "open_groups": [group for group, _, _ in opened],
            "open_shards": [shard_id for _, shard_id, _ in opened],
            "open_xids": [str(task.position) for _, _, task in opened],
            "open_ids": [task.task_id for _, _, task in opened],
        },
    )


async def _classes(
    connection: Connection, burner: Connection, groups: list[str]
) -> dict[str, tuple[int, set[str]]]:
    """Take a transaction id for each set of groups that has settled rows which another needs."""
    found = await rows_of(connection, "select distinct r.done::text, r.done from late_rebase r")
    needed = {text: set(done) for text, done in found if not set(groups) <= set(done)}
    if len(needed) > CLASSES_MAX:
        raise StoreRefused(
            f"{len(groups)} groups are at {len(needed)} different places (at most {CLASSES_MAX}): "
            "remove groups that nobody needs from late_group and late_lease first"
        )
    classes = {}
    for text, done in needed.items():
        ((xid,),) = await rows_of(burner, "select pg_current_xact_id()::text")
        classes[text] = (int(xid), done)
    return classes


def _cursor(now: Snapshot, unsettled: set[int]) -> str:
    running = sorted(now.xip | unsettled)
    return f"{running[0] if running else now.xmax}:{now.xmax}:{','.join(map(str, running))}"
