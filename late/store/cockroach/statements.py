"""The statements of the CockroachDB store that differ from PostgreSQL's.

Rules that all of them keep:

- SERIALIZABLE, and no statement that needs a rare part of the SQL dialect: PostgreSQL's one clever
  statement is several plain ones here, in one transaction.
- A row of the log is inserted and deleted, **never updated**: a new version has a new timestamp.
- No `cluster_logical_timestamp()`: it pins the producers' commit timestamps and fails outside
  SERIALIZABLE. No `transaction_timestamp()`, no changefeed, no SKIP LOCKED.
"""

from __future__ import annotations

from late.model.task import HELD_US
from late.store.postgres import statements as postgres_sql

NOW = postgres_sql.NOW

# --- the tail ------------------------------------------------------------------------------------


def begin_at(us: int) -> str:
    """Open a read-only transaction that sees the database as it was at `us`.

    Only constants are allowed there. HIGH, because a reader of normal priority waits for every open
    transaction that has written to the rows that it reads; this one moves them to a later
    timestamp instead, which is above `us`.
    """
    return f"begin priority high, as of system time '{us * 1_000}.0000000000'"


# The first whole nanosecond that is not before the commit (the ten digits behind the point are a
# counter); see `tail.moment_of`. Not divided here: a division keeps twenty digits, and a moment
# rounded down would count as covered by a pass that did not see it. An integer, because servers
# have had bugs with decimals in binary form.
_MOMENT = "ceil(l.crdb_internal_mvcc_timestamp)::bigint"
_BODY = "l.queue, l.name, l.payload, l.headers, l.options, l.created_at_us"
_ROW = f"{_MOMENT}, l.task_id::text, {_BODY}"
PAGE = f"""
select {_ROW} from late_task l
 where l.shard_id = %(shard)s and l.task_id >= %(first)s::uuid and l.task_id > %(key)s::uuid
   and l.crdb_internal_mvcc_timestamp > %(swept)s::decimal
   and l.crdb_internal_mvcc_timestamp <= %(until)s::decimal
   and (l.crdb_internal_mvcc_timestamp > %(seen)s::decimal or l.task_id < %(recent)s::uuid)
 order by l.task_id limit %(limit)s
"""
FETCH = f"""
select {_ROW} from late_task l
 where l.shard_id = %s and l.task_id = any (%s::uuid[])
"""

# --- the journal, which is the fence -------------------------------------------------------------
# It inserts no row if the seq does not follow the last one or is taken: the row count tells, so
# that no error has to be parsed.
SETTLE = f"""
insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner, cursor,
                             open, usage, suspects, settled_at_us)
select %(group)s::text, %(shard)s::smallint, %(seq)s::bigint, %(id)s::text, %(epoch)s::bigint,
       %(owner)s::text, %(cursor)s::text, %(open)s::text, %(usage)s::text, %(suspects)s::text,
       {NOW}
 where %(seq)s::bigint = 1 + coalesce((
   select p.seq from late_settlement p
    where p.consumer_group = %(group)s::text and p.shard_id = %(shard)s::smallint
    order by p.seq desc limit 1), 0)
on conflict (consumer_group, shard_id, seq) do nothing
"""
# Settled rows go at once, or every scan would walk over them. Only while there are no other groups
# than those of which the caller knows that they have settled them.
_NO_OTHER_GROUP = """
   and not exists (select 1 from late_group g where g.name <> all (%(groups)s::text[]))
   and not exists (select 1 from late_lease e where e.consumer_group <> all (%(groups)s::text[]))
"""
DELETE_SETTLED = f"""
delete from late_task
 where shard_id = %(shard)s::smallint and task_id = any (%(ids)s::uuid[]){_NO_OTHER_GROUP}
"""
GROUPS = "select name from late_group union select distinct consumer_group from late_lease"
CHECKPOINT = """
select s.cursor, s.open from late_settlement s
 where s.consumer_group = %s and s.shard_id = %s order by s.seq desc limit 1
"""
MOVE_SCHEDULE = f"""
update late_schedule set next_due_at_us = %(next)s::bigint, updated_at_us = {NOW},
       open_task_id = coalesce(%(last_id)s::uuid, open_task_id)
 where name = %(name)s and next_due_at_us = %(due)s::bigint
"""
CLAIM = f"""
insert into late_unique (unique_key, task_id, digest, created_at_us)
values (%s, %s::uuid, %s, {NOW}) on conflict (unique_key) do nothing
"""
INSERT_TASK = """
insert into late_task (shard_id, task_id, queue, name, payload, headers, options)
values (%s, %s::uuid, %s, %s, %s, %s, %s)
"""

# --- ownership -----------------------------------------------------------------------------------

LEASE = f"""
select e.owner, e.epoch, exists (
         select 1 from late_worker w where w.worker_id = e.owner and w.expires_at_us > {NOW}),
       e.taken_at_us, {NOW}
  from late_lease e where e.consumer_group = %s and e.shard_id = %s for update
"""
GRANT = """
insert into late_lease (consumer_group, shard_id, owner, epoch, taken_at_us)
values (%s, %s, %s, %s, %s::bigint) on conflict (consumer_group, shard_id) do update
   set owner = excluded.owner, epoch = excluded.epoch, taken_at_us = excluded.taken_at_us
"""
LAST = """
select p.seq, p.epoch, p.cursor, p.open, p.suspects from late_settlement p
 where p.consumer_group = %s and p.shard_id = %s order by p.seq desc limit 1
"""
TAKE_OVER = f"""
insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner, cursor,
                             open, suspects, settled_at_us)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, {NOW})
"""
HELD = f"""
select t.held_key, sum(case when t.due_at_us >= {HELD_US} then 1 else 0 end)::bigint,
       bool_or(t.due_at_us < {HELD_US})
  from late_timer t
 where t.consumer_group = %s and t.shard_id = %s and t.held_key is not null group by t.held_key
"""
READS = "select queues, from_us, replay_us, paused from late_group where name = %s"
RELEASE = """
update late_lease set owner = null
 where consumer_group = %s and shard_id = %s and owner = %s and epoch = %s
"""
LANES = "select first_shard, shards from late_lane"
LOGGED = """
select l.shard_id from late_task l where l.shard_id >= %s and l.shard_id < %s
 order by l.shard_id limit 1
"""
SCHEDULED = "select distinct s.shard_id from late_schedule s"
TIMED = """
select 1 from late_timer t where t.consumer_group = %s and t.shard_id = %s limit 1
"""

# --- maintenance ---------------------------------------------------------------------------------

PRUNABLE = """
select l.task_id::text from late_task l
 where l.shard_id = %(shard)s and l.task_id > %(after)s::uuid
   and (l.crdb_internal_mvcc_timestamp <= %(swept)s::decimal
        or l.crdb_internal_mvcc_timestamp <= %(seen)s::decimal and l.task_id >= %(recent)s::uuid)
   and l.task_id <> all (%(open)s::uuid[])
 order by l.task_id limit %(limit)s
"""
# Only a prefix of a journal goes: a hole below a kept row would be a free seq for a zombie.
LEASES = "select consumer_group, shard_id from late_lease order by 1, 2"
JOURNAL_KEPT = f"""
select coalesce(
  (select s.seq from late_settlement s where s.consumer_group = %(group)s
      and s.shard_id = %(shard)s and s.settled_at_us >= {NOW} - %(keep_us)s::bigint
    order by s.seq limit 1),
  (select max(s.seq) from late_settlement s where s.consumer_group = %(group)s
      and s.shard_id = %(shard)s))
"""
DELETE_SETTLEMENTS = """
delete from late_settlement where (consumer_group, shard_id, seq) in (
  select s.consumer_group, s.shard_id, s.seq from late_settlement s
   where s.consumer_group = %s and s.shard_id = %s and s.seq < %s order by s.seq limit %s)
"""
DELETE_WORKERS = f"delete from late_worker where expires_at_us < {NOW} - %s::bigint"

# --- guards --------------------------------------------------------------------------------------

META = "select key, value from late_meta"
CLUSTER = "select crdb_internal.cluster_id()::text"
ADOPT = "insert into late_meta (key, value) values (%s, %s) on conflict (key) do nothing"
CLAIM_IDENTITY = """
insert into late_meta (key, value) values ('identity', %s)
on conflict (key) do update set value = excluded.value
"""
