"""The statements of the SQLite store, over the names of `late.schema.tables`.

`NOW` is read once in a transaction, so that all of its rows have the same time. A value that is
used twice has a name. It has no number (`?1`): Python 3.12.0 to 3.12.3 warn of those.
"""

from __future__ import annotations

from late.model.task import (
    HELD_US,
)
from late.schema.tables import NOW_US
from late.store.common.compaction import COLUMNS as _JOURNAL_COLUMNS
from late.store.common.followed import OFFERED as _OFFERED

NOW = f"select {NOW_US['sqlite']}"

# --- the log -------------------------------------------------------------------------------------

# In the order of the fields of `Record`, so that a row becomes one without a look at names. The
# cast costs nothing for a blob and makes bytes of a payload that was inserted as text.
_RECORD = (
    "shard_id, seq, task_id, queue, name, cast(payload as blob), headers, options,"
    " created_at_us, seq"
)

# The rowid is taken under the write lock and there is one writer at a time, so that rowid order is
# commit order and `seq > ?` can miss nothing: a row that commits later has a higher one. This holds
# for AUTOINCREMENT only. Without it the highest deleted rowid is given again, below the cursor.
READ = f"select {_RECORD} from late_task where shard_id = ? and seq > ? order by seq limit ?"
FETCH = f"select {_RECORD} from late_task where seq = ? and shard_id = ? and task_id = ?"

# created_at_us and seq are left to the database: nobody else may give them.
INSERT_TASK = (
    "insert into late_task (shard_id, task_id, queue, name, payload, headers, options)"
    " values (?, ?, ?, ?, ?, ?, ?)"
)
INSERT_UNIQUE = (
    "insert into late_unique (unique_key, task_id, digest, created_at_us) values (?, ?, ?, ?)"
    " on conflict (unique_key) do nothing"
)
# A key with a period stays, marked as one whose task has ended: see `late/outbox/insert.py`.
RELEASE_UNIQUE = (
    "delete from late_unique where unique_key = ? and task_id = ? and expires_at_us is null"
)
END_UNIQUE = (
    "update late_unique set expires_at_us = -expires_at_us"
    " where unique_key = ? and task_id = ? and expires_at_us < 0"
)

# --- timers and dead letters ---------------------------------------------------------------------

_CARRIED = (
    "position, sequence, queue, name, payload, headers, options, created_at_us, attempts, deaths,"
    " errors"
)
_PARKED = (
    "due_at_us, reason, attempts, deaths, held_key, errors,"
    " shard_id, position, task_id, queue, name, cast(payload as blob), headers, options,"
    " created_at_us, sequence"
)
DUE = (
    f"select {_PARKED} from late_timer where consumer_group = ? and shard_id = ?"
    " and (due_at_us, task_id) > (?, ?) and due_at_us <= ? order by due_at_us, task_id limit ?"
)
DUE_HELD = (
    f"select {_PARKED} from late_timer where consumer_group = ? and shard_id = ? and held_key = ?"
    " order by sequence, task_id limit ?"
)
DUE_OF = (
    f"select {_PARKED} from late_timer where consumer_group = ? and shard_id = ?"
    " and task_id in (select value from json_each(?)) limit ?"
)
HELD_KEYS = (
    f"select held_key, sum(due_at_us >= {HELD_US}), max(due_at_us < {HELD_US}) from late_timer"
    " where consumer_group = ? and shard_id = ? and held_key is not null group by held_key"
)
UNPARK = (
    "delete from late_timer where consumer_group = ? and shard_id = ? and due_at_us = ?"
    " and task_id = ?"
)
# `or replace`: parking the same task for the same time twice is one timer, not an error.
PARK = (
    f"insert or replace into late_timer (consumer_group, shard_id, due_at_us, task_id, reason,"
    f" held_key, {_CARRIED}) values (?{', ?' * 16})"
)
BURY = (
    f"insert or replace into late_dead (consumer_group, shard_id, dead_at_us, task_id, reason,"
    f" {_CARRIED}) values (?{', ?' * 15})"
)

# A dead letter that is to run again; nothing happens where there is none.
REVIVE = (
    f"insert or replace into late_timer (consumer_group, shard_id, due_at_us, task_id, reason,"
    f" held_key, {_CARRIED}) select consumer_group, shard_id, ?, task_id, 'retry', null,"
    " position, sequence, queue, name, coalesce(?, payload), headers, options, created_at_us,"
    " 0, 0, errors from late_dead where consumer_group = ? and shard_id = ? and task_id = ?"
)
UNBURY = "delete from late_dead where consumer_group = ? and shard_id = ? and task_id = ?"

RESULT = (
    "insert or replace into late_result (consumer_group, task_id, value, expires_at_us)"
    " values (?, ?, ?, ?)"
)

# The last numbers of tasks, each found by one step down the index. A look for many tasks and plain
# inserts take less than half of what a subquery in each insert takes.
LAST_STEPS = (
    "select task_id, max(number) from late_history where consumer_group = ?"
    " and task_id in (select value from json_each(?)) group by task_id"
)
HISTORY = (
    "insert into late_history (consumer_group, task_id, number, at_us, event, worker, detail)"
    " values (?, ?, ?, ?, ?, ?, ?)"
)

# A step for a dead letter that went back, if its history is kept.
REVIVED = (
    "insert into late_history (consumer_group, task_id, number, at_us, event, worker)"
    " select :group, :task, max(number) + 1, :now, 'redriven', :worker from late_history"
    " where consumer_group = :group and task_id = :task and exists (select 1 from late_timer"
    " where consumer_group = :group and shard_id = :shard and due_at_us = :due and task_id = :task)"
    " having max(number) > 0"
)

# --- recurring tasks -----------------------------------------------------------------------------

TICK = (
    "update late_schedule set next_due_at_us = ?, open_task_id = coalesce(?, open_task_id),"
    " updated_at_us = ? where name = ? and next_due_at_us = ?"
)
END_TICK = "update late_schedule set open_task_id = null where name = ? and open_task_id = ?"

# --- the journal, which is the fence -------------------------------------------------------------

# The primary key alone would not do. An old owner that slept through the journal's retention finds
# its next `seq` free again, because the row that fenced it was pruned. The last row is always kept,
# so each row must be one more than the last of its journal, or no row of the call is inserted. By
# itself the statement is a transaction. Values are ids, numbers and JSON, because JSON cuts a text
# at a NUL.
_JOURNAL = (
    "consumer_group, shard_id, seq, settlement_id, epoch, owner, cursor, open, usage, suspects"
)
_GIVEN = ", ".join([f"json_extract(value, '$[{n}]')" for n in range(10)])
SETTLE = (
    f"insert into late_settlement ({_JOURNAL}, settled_at_us)"
    f" with given ({_JOURNAL}) as materialized (select {_GIVEN} from json_each(?))"
    f" select {_JOURNAL}, coalesce(?, ({NOW})) from given"
    " where not exists (select 1 from given g"
    " where g.seq <> 1 + coalesce((select max(s.seq) from late_settlement s"
    " where s.consumer_group = g.consumer_group and s.shard_id = g.shard_id), 0))"
)
SETTLEMENT_ID = (
    "select settlement_id from late_settlement where consumer_group = ? and shard_id = ?"
    " and seq = ?"
)
# A row that another one follows is history, of which an outline is enough: a takeover needs the
# last `open` only. With thousands of open tasks a row is tens of kilobytes. Short ones stay. The
# new rowid moves the row to the end of the table, where it lies beside others. In its place it
# would keep a page, of which it needs a tenth.
SHORTEN = (
    "update late_settlement set open = ?, rowid = (select max(rowid) + 1 from late_settlement)"
    " where consumer_group = ? and shard_id = ? and seq = ?"
)
LAST = (
    "select seq, epoch, cursor, open, suspects from late_settlement"
    " where consumer_group = ? and shard_id = ? order by seq desc limit 1"
)
# From the leases, one per journal: a `group by` over the journal would read all of it, and so would
# a plain join, which the planner reorders. CROSS JOIN keeps the order as written.
LAST_CHECKPOINTS = (
    "select l.consumer_group, l.shard_id, s.cursor, s.open from late_lease l"
    " cross join late_settlement s on s.consumer_group = l.consumer_group"
    " and s.shard_id = l.shard_id and s.seq = (select max(seq) from late_settlement m"
    " where m.consumer_group = l.consumer_group and m.shard_id = l.shard_id)"
)
# The same as it was at a moment.
PAST_CHECKPOINTS = LAST_CHECKPOINTS.replace(
    "m.shard_id = l.shard_id)", "m.shard_id = l.shard_id and m.settled_at_us <= ?)"
)

# --- ownership -----------------------------------------------------------------------------------

# The epoch also stays above that of the journal, should a lease row have been tampered with. When
# it was taken from an owner who had not given it back is kept: see `store/common/suspects.py`.
ACQUIRE = (
    "insert into late_lease (consumer_group, shard_id, owner, epoch)"
    " values (:group, :shard, :worker, :epoch + 1)"
    " on conflict (consumer_group, shard_id) do update"
    " set owner = excluded.owner, epoch = max(epoch, :epoch) + 1,"
    " taken_at_us ="
    " case when owner is null or owner = excluded.owner then taken_at_us else :now end"
    " where owner is null or owner = excluded.owner or not exists (select 1 from late_worker w"
    " where w.worker_id = late_lease.owner and w.expires_at_us > :now) returning epoch,"
    " taken_at_us"
)
READS = "select queues, from_us, replay_us, paused from late_group where name = ?"
RELEASE = (
    "update late_lease set owner = null where consumer_group = ? and shard_id = ? and owner = ?"
    " and epoch = ?"
)
HEARTBEAT = (
    "insert into late_worker (worker_id, expires_at_us, started_at_us, address, consumer_groups,"
    " capacity, version, ends) values (?, ?, ?, ?, ?, ?, ?, ?)"
    " on conflict (worker_id) do update set"
    " expires_at_us = excluded.expires_at_us, address = excluded.address,"
    " consumer_groups = excluded.consumer_groups, capacity = excluded.capacity,"
    " version = excluded.version, ends = excluded.ends"
)
BEAT = "select expires_at_us from late_worker where worker_id = ?"
DECLARE = "update late_worker set handlers = ? where worker_id = ?"
LEAVE = "delete from late_worker where worker_id = ?"
WORKERS = (
    "select worker_id, address, consumer_groups, capacity, version, ends, expires_at_us"
    " from late_worker"
    " where expires_at_us > ? order by worker_id"
)
LEASES = "select consumer_group, shard_id, owner, epoch from late_lease order by 1, 2"
LANES = "select first_shard, shards from late_lane"
OFFERS = f"select {_OFFERED.format(me=':me')}"
# Shards with work that are outside every lane (of one that was made smaller). The log is searched
# for one shard after the other, one step down the index each; `select distinct` would read it all.
# Timers exist only where there was a lease.
SHARDS_WITH_ROWS = (
    "with recursive logged (shard_id) as (select min(shard_id) from late_task union all"
    " select (select min(shard_id) from late_task t where t.shard_id > logged.shard_id)"
    " from logged where shard_id is not null)"
    " select shard_id from logged where shard_id is not null"
)
SHARDS_WITH_WORK = (
    f"{SHARDS_WITH_ROWS} union select shard_id from late_schedule"
    " union select shard_id from late_lease l where exists (select 1 from late_timer t"
    " where t.consumer_group = l.consumer_group and t.shard_id = l.shard_id)"
)

# --- maintenance ---------------------------------------------------------------------------------

GROUPS = "select name from late_group union select consumer_group from late_lease"
# The end of a batch of a range delete: by the index, or by the order of the table.
BATCH_END = (
    "select max(seq) from (select seq from late_task where shard_id = ? and seq > ? and seq <= ?"
    " order by seq limit ?)"
)
BATCH_END_ALL = (
    "select max(seq) from (select seq from late_task where seq > ? and seq <= ?"
    " order by seq limit ?)"
)
DELETE_TASKS = "delete from late_task where shard_id = ? and seq > ? and seq < ?"
DELETE_TASKS_ALL = "delete from late_task where seq > ? and seq < ?"
FIRST_AFTER = "select min(seq) from late_task where shard_id = ? and seq > ?"
# The first journal row to keep: the first one young enough, else the last one. Only a prefix goes,
# whatever the clock did in between: a hole in the journal would look like a free `seq`.
JOURNAL_KEEP = (
    "select (select min(seq) from late_settlement where consumer_group = :group"
    " and shard_id = :shard), coalesce((select min(seq) from late_settlement"
    " where consumer_group = :group and shard_id = :shard"
    " and settled_at_us >= :horizon), (select max(seq) from late_settlement"
    " where consumer_group = :group and shard_id = :shard))"
)
DELETE_SETTLEMENTS = (
    "delete from late_settlement where consumer_group = ? and shard_id = ? and seq < ?"
)
# Compaction: see `store/common/compaction.py`.
LAST_SETTLEMENTS = (
    "select l.consumer_group, l.shard_id, (select max(seq) from late_settlement s"
    " where s.consumer_group = l.consumer_group and s.shard_id = l.shard_id) from late_lease l"
)
COMPACTED = (
    f"select {_JOURNAL_COLUMNS} from late_settlement where consumer_group = ? and shard_id = ?"
    " and seq >= ? and seq < ? order by seq limit ?"
)
DELETE_SUMMED = (
    "delete from late_settlement where consumer_group = ? and shard_id = ? and seq >= ? and seq < ?"
)
UPDATE_SUM = (
    "update late_settlement set first_seq = ?, usage = ? where consumer_group = ?"
    " and shard_id = ? and seq = ?"
)
DELETE_WORKERS = "delete from late_worker where expires_at_us < ?"
