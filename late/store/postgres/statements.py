"""The statements of the PostgreSQL store, over the names of `late.schema.tables`.

Rules that all of them keep:

- One statement is one transaction (autocommit) wherever possible: no session state and no prepared
  statement, because of a PgBouncer in transaction mode; `kept_plans.py` is the exception.
- Parameters of unnamed statements are planned as constants. This keeps the read of a backlog cheap:
  the planner prunes partitions and chooses index ranges by the very numbers.
- Columns are qualified. `select xid::text ... order by xid` sorts by the output column, as text.
"""

from __future__ import annotations

from late.model.task import HELD_US
from late.schema.key_order import in_order
from late.schema.notices import TELL_FLEET
from late.store.common.compaction import COLUMNS as _JOURNAL_COLUMNS
from late.store.common.fleet_view import NEIGHBOURS
from late.store.common.followed import OFFERED, SETTINGS
from late.store.common.groups import ACTIVE
from late.store.postgres.timeline import STARTED

NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"

_BODY = "queue, name, payload, headers, options, created_at_us"
_L_BODY = ", ".join(f"l.{column}" for column in _BODY.split(", "))
# In the order of the fields of `Record`. `sequence` is the time of the insert: a transaction that
# began early and inserted late has a low xid, so the xid would put the effect before the cause.
_L_RECORD = f"l.shard_id, l.xid, l.task_id::text, {_L_BODY}, l.created_at_us"

# --- the tail ------------------------------------------------------------------------------------
# First a step's frame: the snapshot that becomes its upper end, and an LSN read after it was taken,
# which is therefore at or above the commit record of everything that the snapshot sees. It has a
# statement of its own, before the rows: a later statement sees all rows that it sees, and
# `pg_visible_in_snapshot` holds back those that the later one sees in addition. The other order,
# rows first, loses what commits between. A transaction with an xid would see its own later rows.
_FRAME = (
    "s.cur::text, s.ins::text, pg_current_wal_flush_lsn() >= s.ins,"
    f" left(pg_walfile_name(s.ins), 8) || '/' || {STARTED}, {NOW}"
)
_SNAPSHOT = """
  from (select pg_current_snapshot() as cur,
               case when not pg_is_in_recovery() then pg_current_wal_insert_lsn() end as ins
          offset 0) s"""
FRAME = f"""
select {_FRAME}{_SNAPSHOT}
 where not pg_is_in_recovery()
"""
# Then the rows that `cur` sees and `prev` does not, for many shards that share the window: the
# transactions that ran in `prev` by key (`xips`), those that had not begun by range (`low`). The
# wrong shapes:
#
# - `where xid > last` loses tasks: a lower xid commits later.
# - `xid >= xmin(prev) and not visible in prev` reads everything behind an open transaction again
#   and again (8,000 buffers per poll at 500,000 rows).
# - `xid < pg_snapshot_xmin(pg_current_snapshot())` is safe, and stands still while anybody in the
#   cluster has a transaction open.
# - `xip` as a subquery is no constant: full scan. `xid = any (xips)` alone reads and sorts all rows
#   of a large transaction again for every page of it; one probe for each running xid reads in
#   order from the page key. The constant array beside it is for the planner, to prune partitions.
#
# The row comparison is the page key and the lower end at once, so that the scan starts right
# there even inside one huge transaction. `low` and `high` repeat the range for the planner, who
# prunes no partition by a row comparison; `high` also hides the empty partitions that lie ahead.
_TAIL = f"""
select {_L_RECORD}, l.asynchronous
  from unnest(%(shards)s::smallint[], %(from_xids)s::xid8[], %(from_ids)s::uuid[],
              %(key_xids)s::xid8[], %(key_ids)s::uuid[])
       as q (shard_id, from_xid, from_id, key_xid, key_id)
  cross join lateral ({{running}}
    (select l.* from late_task l
      where l.shard_id = q.shard_id and (l.xid, l.task_id) > (q.from_xid, q.from_id)
        and l.xid >= %(low)s::xid8 and l.xid < %(high)s::xid8{{visible}}
      order by l.xid, l.task_id limit %(limit)s){{merged}}) l
"""
_RUNNING = """
    (select l.* from unnest(%(xips)s::xid8[]) r (xid) cross join lateral (
       select l.* from late_task l
        where l.shard_id = q.shard_id and l.xid = r.xid and l.xid = any (%(xips)s::xid8[])
          and (l.xid, l.task_id) > (q.key_xid, q.key_id){visible}
        order by l.xid, l.task_id limit %(limit)s) l
      order by l.xid, l.task_id limit %(limit)s)
    union all"""
_MERGED = "\n    order by xid, task_id limit %(limit)s"
_VISIBLE = "\n          and pg_visible_in_snapshot(l.xid, %(cur)s::pg_snapshot)"
TAIL = _TAIL.format(running=_RUNNING.format(visible=_VISIBLE), merged=_MERGED, visible=_VISIBLE)
TAIL_QUIET = _TAIL.format(running="", merged="", visible=_VISIBLE)
"""The same for a `prev` in which no transaction ran."""
# Frame and rows in one statement, for a reader who has caught up. Its own snapshot is `cur`, so the
# server judges what is visible. The planner cannot know `xmax(cur)`, which pruned the partitions
# ahead: `high` is a guess, and the caller reads the rows in a statement of their own if it was low.
_LOOK = f"""
select {_FRAME}, l.*{_SNAPSHOT}
  left join lateral ({{rows}}) l on true
 where not pg_is_in_recovery()
"""
LOOK = _LOOK.format(
    rows=_TAIL.format(running=_RUNNING.format(visible=""), merged=_MERGED, visible="")
)
LOOK_QUIET = _LOOK.format(rows=_TAIL.format(running="", merged="", visible=""))
FLUSHED = "select pg_current_wal_flush_lsn() >= %s::pg_lsn"
# True if WAL is flushed already. Otherwise it writes a message: a commit that waits for its flush
# also flushes all WAL before it, whatever the role's own `synchronous_commit` is. An xid
# alone would commit without a flush. Both functions are called, as neither returns null.
FLUSH = """
select case when pg_current_wal_flush_lsn() >= %s::pg_lsn then true
            else (set_config('synchronous_commit', 'local', true)
                  || pg_logical_emit_message(true, 'late', '')) is null end
"""

FETCH = f"""
select {_L_RECORD} from unnest(%(xids)s::xid8[], %(ids)s::uuid[]) q (xid, task_id)
  cross join lateral (select l.* from late_task l
    where l.shard_id = %(shard)s and l.xid = q.xid and l.task_id = q.task_id) l
"""

# --- timers --------------------------------------------------------------------------------------

_T_PARKED = (
    "t.due_at_us, t.reason, t.attempts, t.deaths, t.held_key, t.errors,"
    " t.shard_id, t.position, t.task_id::text, t.queue, t.name, t.payload, t.headers, t.options,"
    " t.created_at_us, t.sequence"
)
DUE = f"""
select {_T_PARKED} from late_timer t
 where t.consumer_group = %(group)s and t.shard_id = %(shard)s
   and (t.due_at_us, t.task_id) > (%(after)s::bigint, %(after_id)s::uuid)
   and t.due_at_us <= %(until)s::bigint
 order by t.due_at_us, t.task_id limit %(limit)s
"""
DUE_HELD = f"""
select {_T_PARKED} from late_timer t
 where t.consumer_group = %(group)s and t.shard_id = %(shard)s and t.held_key = %(key)s
 order by t.sequence, t.task_id limit %(limit)s
"""

DUE_OF = f"""
select {_T_PARKED} from late_timer t
 where t.consumer_group = %(group)s and t.shard_id = %(shard)s
   and t.task_id = any (%(ids)s::uuid[]) limit %(limit)s
"""

# --- the journal, which is the fence -------------------------------------------------------------
# Two owners cannot both insert the same seq. The primary key alone would not do: retention removes
# old rows, and a zombie that slept that long would find its next seq free again. So a row must
# also follow the last one; one that does not gets no owner, and NOT NULL fails the transaction
# without a further round trip. Nor does one whose cursor is ahead of the server's counter: after
# the promotion of a standby that lacks the last commits, what it numbers anew would count as read.
# The rows come as one JSON text: ten arrays, which psycopg writes in Python, took a tenth of a busy
# worker's time.
SETTLE = f"""
insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner, cursor,
                             open, usage, settled_at_us, suspects)
select u.consumer_group, u.shard_id, u.seq, u.settlement_id, u.epoch,
       case when u.seq = 1 + coalesce((select p.seq from late_settlement p
              where p.consumer_group = u.consumer_group and p.shard_id = u.shard_id
              order by p.seq desc limit 1), 0) and u.reached <= n.xmax then u.owner end,
       u.cursor, u.open, u.usage, {NOW}, u.suspects
  from json_to_recordset(%s::json) u (consumer_group text, shard_id smallint, seq bigint,
       settlement_id text, epoch bigint, owner text, cursor text, open text, usage text,
       suspects text, reached xid8),
       (select pg_snapshot_xmax(pg_current_snapshot()) as xmax offset 0) n
"""
SETTLEMENT_ID = (
    "select settlement_id from late_settlement"
    " where consumer_group = %s and shard_id = %s and seq = %s"
)
# Compaction: see `store/common/compaction.py`.
LAST_SETTLEMENTS = """
select e.consumer_group, e.shard_id, p.seq from late_lease e cross join lateral (
  select s.seq from late_settlement s
   where s.consumer_group = e.consumer_group and s.shard_id = e.shard_id
   order by s.seq desc limit 1) p
"""
COMPACTED = f"""
select {_JOURNAL_COLUMNS} from late_settlement
 where consumer_group = %s and shard_id = %s and seq >= %s and seq < %s order by seq limit %s
"""
DELETE_SUMMED = """
delete from late_settlement where consumer_group = %s and shard_id = %s and seq >= %s and seq < %s
"""
UPDATE_SUM = """
update late_settlement set first_seq = %s, usage = %s
 where consumer_group = %s and shard_id = %s and seq = %s
"""
# The timers, too, come as one JSON text: seventeen arrays took 11 µs of the worker's loop per row,
# during which nothing else starts. So do dead letters and results. Bytes are in it as base64.
_TIMER = "consumer_group text, shard_id smallint, due_at_us bigint, task_id uuid"
UNPARK = f"""
delete from late_timer t using json_to_recordset(%s::json) u ({_TIMER})
 where t.consumer_group = u.consumer_group and t.shard_id = u.shard_id
   and t.due_at_us = u.due_at_us and t.task_id = u.task_id
"""
_CARRIED = (
    "position, sequence, queue, name, payload, headers, options, created_at_us, attempts, deaths,"
    " errors"
)
_CARRIED_TYPES = (
    "position bigint, sequence bigint, queue text, name text, payload text, headers text,"
    " options text, created_at_us bigint, attempts int, deaths int, errors text"
)
_KEPT = ", ".join(
    f"{column} = excluded.{column}" for column in ["reason", "held_key", *_CARRIED.split(", ")]
)
_U_CARRIED = ", ".join(
    "decode(u.payload, 'base64')" if column == "payload" else f"u.{column}"
    for column in _CARRIED.split(", ")
)
# A task that is parked twice for the same time has one timer, with the later values.
PARK = f"""
insert into late_timer (consumer_group, shard_id, due_at_us, task_id, reason, held_key, {_CARRIED})
select u.consumer_group, u.shard_id, u.due_at_us, u.task_id, u.reason, u.held_key,
       {_U_CARRIED}
  from json_to_recordset(%s::json) u ({_TIMER}, reason text, held_key text, {_CARRIED_TYPES})
on conflict (consumer_group, shard_id, due_at_us, task_id) do update set {_KEPT}
"""
BURY = f"""
insert into late_dead (consumer_group, shard_id, dead_at_us, task_id, reason, {_CARRIED})
select u.consumer_group, u.shard_id, {NOW}, u.task_id, u.reason, {_U_CARRIED}
  from json_to_recordset(%s::json) u (consumer_group text, shard_id smallint, task_id uuid,
       reason text, {_CARRIED_TYPES})
on conflict (consumer_group, shard_id, dead_at_us, task_id) do nothing
"""
# The delete is the claim: a letter that an operator has taken away in the meantime is left alone.
REVIVE = f"""
with u as (select * from unnest(%s::text[], %s::smallint[], %s::uuid[], %s::bigint[], %s::bytea[])
             u (g, s, id, due, body)),
gone as (delete from late_dead d using u
          where d.consumer_group = u.g and d.shard_id = u.s and d.task_id = u.id
         returning d.*, u.due, u.body)
insert into late_timer (consumer_group, shard_id, due_at_us, task_id, reason, {_CARRIED})
select d.consumer_group, d.shard_id, d.due, d.task_id, 'retry', d.position, d.sequence, d.queue,
       d.name, coalesce(d.body, d.payload), d.headers, d.options, d.created_at_us, 0, 0, d.errors
  from gone d
on conflict (consumer_group, shard_id, due_at_us, task_id) do nothing
"""
RESULT = f"""
insert into late_result (consumer_group, task_id, value, expires_at_us)
select u.consumer_group, u.task_id, decode(u.value, 'base64'), {NOW} + u.ttl_us
  from json_to_recordset(%s::json) u (consumer_group text, task_id uuid, value text, ttl_us bigint)
on conflict (consumer_group, task_id) do update
   set value = excluded.value, expires_at_us = excluded.expires_at_us
"""
# Numbered after the last step of the same task, which is one down its key.
HISTORY = """
insert into late_history (consumer_group, task_id, number, at_us, event, worker, detail)
select u.consumer_group, u.task_id,
       (coalesce((select max(h.number) from late_history h
                   where h.consumer_group = u.consumer_group and h.task_id = u.task_id), 0)
        + row_number() over (partition by u.consumer_group, u.task_id order by u.place))::int,
       u.at_us, u.event, u.worker, u.detail
  from json_to_recordset(%s::json) u (consumer_group text, task_id uuid, place int, at_us bigint,
       event text, worker text, detail text)
"""
# A step for those that REVIVE has moved and whose history is kept.
REVIVED = f"""
insert into late_history (consumer_group, task_id, number, at_us, event, worker)
select u.g, u.id, max(h.number) + 1, {NOW}, 'redriven', u.owner
  from unnest(%s::text[], %s::smallint[], %s::uuid[], %s::bigint[], %s::text[])
       u (g, s, id, due, owner)
  join late_timer t on t.consumer_group = u.g and t.shard_id = u.s and t.due_at_us = u.due
                   and t.task_id = u.id
  join late_history h on h.consumer_group = u.g and h.task_id = u.id
 group by u.g, u.id, u.owner
"""
# A tick takes effect only if the schedule still expects it; a task whose unique key is taken is
# in the log already. Without tasks the update alone happens.
TICK = f"""
with moved as (
  update late_schedule set next_due_at_us = %(next)s::bigint, updated_at_us = {NOW},
         open_task_id = coalesce(%(last_id)s::uuid, open_task_id)
   where name = %(name)s and next_due_at_us = %(due)s returning 1),
task as (
  select u.* from moved cross join
    unnest(%(shards)s::smallint[], %(ids)s::uuid[], %(queues)s::text[], %(names)s::text[],
           %(payloads)s::bytea[], %(headers)s::text[], %(options)s::text[], %(keys)s::text[],
           %(digests)s::text[])
    u (shard_id, task_id, queue, name, payload, headers, options, unique_key, digest)),
claimed as (
  insert into late_unique (unique_key, task_id, digest, created_at_us)
  select t.unique_key, t.task_id, t.digest, {NOW} from task t where t.unique_key is not null
  on conflict (unique_key) do nothing returning task_id)
insert into late_task (shard_id, task_id, queue, name, payload, headers, options)
select t.shard_id, t.task_id, t.queue, t.name, t.payload, t.headers,
       {in_order("t.options")} from task t
 where t.unique_key is null or t.task_id in (select c.task_id from claimed c)
"""
END_TICK = """
update late_schedule s set open_task_id = null from unnest(%s::text[], %s::uuid[]) u (name, id)
 where s.name = u.name and s.open_task_id = u.id
"""
# A key with a period stays, marked as one whose task has ended: see `late/outbox/insert.py`. Two
# statements, because CockroachDB changes a table only once in each.
_ENDED_KEYS = "json_to_recordset(%s::json) u (unique_key text, task_id uuid)"
RELEASE_UNIQUE = f"""
delete from late_unique k using {_ENDED_KEYS}
 where k.unique_key = u.unique_key and k.task_id = u.task_id and k.expires_at_us is null
"""
END_UNIQUE = f"""
update late_unique k set expires_at_us = -k.expires_at_us from {_ENDED_KEYS}
 where k.unique_key = u.unique_key and k.task_id = u.task_id and k.expires_at_us < 0
"""

# --- ownership -----------------------------------------------------------------------------------
# Two statements in one transaction. While the lease's row is locked nobody else can take over, and
# the takeover's own snapshot is taken after that lock was got. If its seq is then free, there is no
# settlement that this snapshot does not see: checkpoint and held keys are the old owner's last
# ones. If the old owner settles in between, the key is taken and all is rolled back.
# The time of the transaction, so that the second statement knows what the first one did. It may be
# a little earlier than the grant, which may have waited.
_BEGUN = "(extract(epoch from transaction_timestamp()) * 1000000)::bigint"
GRANT = f"""
insert into late_lease as e (consumer_group, shard_id, owner, epoch)
values (%(group)s, %(shard)s, %(worker)s, 1 + coalesce((
  select p.epoch from late_settlement p where p.consumer_group = %(group)s
     and p.shard_id = %(shard)s order by p.seq desc limit 1), 0))
on conflict (consumer_group, shard_id) do update
   set owner = excluded.owner, epoch = greatest(e.epoch + 1, excluded.epoch),
       taken_at_us = case when e.owner is null or e.owner = excluded.owner then e.taken_at_us
                     else {_BEGUN} end
 where e.owner is null or e.owner = excluded.owner or not exists (
       select 1 from late_worker w where w.worker_id = e.owner and w.expires_at_us > {NOW})
"""
# `suspects.inherited` in SQL, because nothing is read between the two statements.
_INHERITED = f"""(
         select case when e.taken_at_us = {_BEGUN} then (
           select json_agg(json_build_array(m.id, m.deaths, false))::text from (
             select s->>0 as id,
                    (s->>1)::int + coalesce((s->>2)::bool, false)::int as deaths
               from json_array_elements(last.suspects::json) s) m where m.deaths > 0)
         else last.suspects end)"""
TAKE_OVER = f"""
with last as (
  select p.seq, p.cursor, p.open, p.suspects from late_settlement p
   where p.consumer_group = %(group)s and p.shard_id = %(shard)s order by p.seq desc limit 1),
taken as (
  insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner, cursor,
                               open, settled_at_us, suspects)
  select e.consumer_group, e.shard_id, coalesce(last.seq, 0) + 1, %(id)s, e.epoch, e.owner,
         coalesce(last.cursor, ''), coalesce(last.open, '[]'), {NOW}, {_INHERITED}
    from late_lease e left join last on true
   where e.consumer_group = %(group)s and e.shard_id = %(shard)s and e.owner = %(worker)s
  returning epoch, seq, cursor, open, suspects)
select taken.*, (
    select e.taken_at_us from late_lease e
     where e.consumer_group = %(group)s and e.shard_id = %(shard)s), (
    select coalesce(json_agg(k), '[]')::text from (
    select t.held_key as key, count(*) filter (where t.due_at_us >= {HELD_US}) as waiting,
           bool_or(t.due_at_us < {HELD_US}) as head_parked from late_timer t
     where t.consumer_group = %(group)s and t.shard_id = %(shard)s and t.held_key is not null
     group by t.held_key) k), (
    select json_build_array(g.queues, g.from_us, g.replay_us, g.paused)::text from late_group g
     where g.name = %(group)s)
  from taken
"""
HEARTBEAT = f"""
insert into late_worker (worker_id, expires_at_us, started_at_us, address, consumer_groups,
                         capacity, version, ends)
values (%(id)s, {NOW} + %(ttl)s::bigint, {NOW}, %(address)s, %(groups)s, %(capacity)s, %(version)s,
        %(ends)s)
on conflict (worker_id) do update set expires_at_us = excluded.expires_at_us,
   address = excluded.address, consumer_groups = excluded.consumer_groups,
   capacity = excluded.capacity, version = excluded.version, ends = excluded.ends
"""
DECLARE = "update late_worker set handlers = %(handlers)s where worker_id = %(id)s"
LEAVE = "delete from late_worker where worker_id = %(id)s"
WORKERS = f"""
select worker_id, address, consumer_groups, capacity, version, ends, expires_at_us
  from late_worker where expires_at_us > {NOW} order by worker_id
"""
LEASES = "select consumer_group, shard_id, owner, epoch from late_lease order by 1, 2"
# Every shard of a lane, and every other that holds records, timers or schedules (a lane that was
# made smaller). Only the gaps between the lanes are searched, one step down the index per shard
# found: `select distinct shard_id` would walk the whole log.
SHARDS = """
with recursive
gap (lo, hi) as (
  select first_shard + shards, coalesce(lead(first_shard) over (order by first_shard), 4096)
    from late_lane
  union all select 0, coalesce((select min(first_shard) from late_lane), 4096)::int),
logged (shard_id, hi) as (
  select (select min(l.shard_id) from late_task l
           where l.shard_id >= gap.lo and l.shard_id < gap.hi), gap.hi
    from gap where gap.lo < gap.hi
  union all
  select (select min(l.shard_id) from late_task l
           where l.shard_id > f.shard_id and l.shard_id < f.hi), f.hi
    from logged f where f.shard_id is not null),
timed (consumer_group, shard_id) as (
  (select t.consumer_group, t.shard_id from late_timer t order by 1, 2 limit 1)
  union all
  select n.consumer_group, n.shard_id from timed f cross join lateral (
    select t.consumer_group, t.shard_id from late_timer t
     where (t.consumer_group, t.shard_id) > (f.consumer_group, f.shard_id)
     order by 1, 2 limit 1) n)
select generate_series(first_shard, first_shard + shards - 1) as shard_id from late_lane
union select shard_id from logged where shard_id is not null
union select shard_id from timed
union select shard_id from late_schedule
order by 1
"""
CLOCK = f"select {NOW}"
_SETTINGS = ",\n".join(
    f"(select '{table.split()[0]} '"
    f" || string_agg(concat_ws(',', {columns}), ';' order by {columns}) from {table})"
    for table, columns in SETTINGS.items()
)
# The numbers of `store/common/fleet_view`: each is a sum over rows of `late_meta`, so that workers
# seldom wait for each other. A statement raises one as its last write: no lock is asked for while
# it is held, and it is held until the commit that follows.
CHANGE_ROWS = 8
_RAISE = (
    """
insert into late_meta as m (key, value) select 'changes:{what}:' || {row}::text, '1' {where}
on conflict (key) do update set value = (m.value::bigint + 1)::text
returning """
    + TELL_FLEET
)
LEASES_CHANGED = _RAISE.format(what="lease", row="%s", where="")
RELEASE = """
with given as (
  update late_lease e set owner = null
    from unnest(%s::text[], %s::smallint[], %s::text[], %s::bigint[]) u (g, s, owner, epoch)
   where e.consumer_group = u.g and e.shard_id = u.s and e.owner = u.owner and e.epoch = u.epoch
  returning 1)""" + _RAISE.format(what="lease", row="%s", where="from given limit 1")
_KEYS = {
    what: ", ".join(f"'changes:{what}:{row}'" for row in range(CHANGE_ROWS))
    for what in ("worker", "lease")
}
_NUMBERS = ", ".join(
    "(select coalesce(sum(value::bigint), 0)::bigint from late_meta"
    f" where key in ({keys})) as {what}s"
    for what, keys in _KEYS.items()
)
WORKERS_CHANGED = _RAISE.format(what="worker", row="%s", where="")
_WORKER_CHANGED = _RAISE.format(what="worker", row="%(row)s", where="from own")
JOIN = f"with own as ({HEARTBEAT} returning 1) {_WORKER_CHANGED}"
PART = f"with own as ({LEAVE} returning 1) {_WORKER_CHANGED}"
# All that nearly every heartbeat needs, in one statement: each one more would cost an idle fleet a
# round trip, a snapshot and a plan every second. A lease that has ended is not renewed: others may
# have taken what it held. `own` is seen by `returning` only.
# `+ 0`: all ends are later than when the table was analysed, so the planner would expect hardly any
# row, and read the whole table for it.
_RING = " union all ".join(
    "(select worker_id, expires_at_us from late_worker"
    f" where worker_id {side} %(id)s and expires_at_us + 0 > %(told)s::bigint"
    f" order by worker_id {order} limit {NEIGHBOURS})"
    for side, order in ((">", "asc"), ("<", "desc"))
)


def beat(*, ring: bool, tells: bool) -> str:
    """Return the statement of a heartbeat.

    Args:
        ring: look at the leases of neighbours only.
        tells: return the version of the settings, too.
    """
    return f"""
with at as materialized (select {NOW} as now_us),
own as (
  update late_worker set expires_at_us = {NOW} + %(ttl)s::bigint
   where worker_id = %(id)s and expires_at_us > {NOW} returning expires_at_us)
select at.now_us, (select expires_at_us from own), {_NUMBERS}, w.ends, w.live,
       (select json_agg(name)::text from ({ACTIVE}) active),
       (select concat_ws(',', extract(epoch from pg_postmaster_start_time()),
                         string_agg(xmin::text, ',' order by name)) from late_group),
       {OFFERED.format(me="%(id)s")}
       {f", md5(concat_ws('|', {_SETTINGS}))" if tells else ""}
  from at cross join lateral (
    select json_agg(json_build_array(worker_id, expires_at_us)) filter (
             where worker_id <> %(id)s and expires_at_us > %(told)s::bigint
               and not expires_at_us - at.now_us between %(ttl)s::bigint / 2 + 1
                                                     and %(ttl)s::bigint)::text as ends,
           {"null::bigint" if ring else "count(*) filter (where expires_at_us > at.now_us)"} as live
      from {f"({_RING})" if ring else "late_worker"} each) w
"""


BEATS = {
    (ring, tells): beat(ring=ring, tells=tells) for ring in (False, True) for tells in (False, True)
}
# A row that is visible now and was not then was written by a transaction that ran then or came
# later: none of them is older than the oldest one that ran.
_SINCE = "where age(xmin) <= age(%(since)s::text::xid)"
_FLEET = f"""
select {_NUMBERS}, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       case when %(workers)s::boolean then (
         select json_agg(json_build_array(worker_id, address, consumer_groups, capacity::text,
                                          version, ends, expires_at_us))::text
           from late_worker where expires_at_us > {NOW}) end,
       (select json_agg(json_build_array(consumer_group, shard_id, owner, epoch))::text
          from late_lease {{since}})
"""
FLEET, FLEET_SINCE = _FLEET.format(since=""), _FLEET.format(since=_SINCE)
# For the transaction, so that no session keeps it. PostgreSQL estimates the recursion above as far
# more expensive than it is, and compiles it while the statistics of small tables are missing: three
# seconds with every heartbeat, longer than a lease may be. A plan that is kept was made when the
# log was empty perhaps: it must go along the indexes.
SHARDS_PLAN = "select set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true)"
