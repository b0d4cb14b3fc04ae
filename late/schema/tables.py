"""Every table of `late`, for every dialect.

The control plane queries these objects, and migrations create the same tables. The hot path of each
store has hand-written SQL with the same names. Times are BIGINT microseconds since the Unix epoch
by the database's clock. JSON is stored as text: its readers validate it, and no statement of the
hot path uses its parts.

There are two append-only logs: `late_task` (with many writers; the position is the order of
commits) and `late_settlement` (one writer per group and shard; `seq` is the fence). All other
tables are small.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)

from late.schema.column_types import Payload, TaskIdType, Xid8

metadata = MetaData()


ASYNCHRONOUS = "case when current_setting('synchronous_commit') = 'off' then true end"
"""True in a row of `late_task` whose transaction did not wait for the disk (PostgreSQL)."""
NOW_US = {
    "postgresql": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    "cockroachdb": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    # Before 3.42 SQLite's clock has milliseconds only. The cast makes it an integer.
    "sqlite": "(cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)",
    "spanner+spanner": "UNIX_MICROS(CURRENT_TIMESTAMP())",
}
"""The database's clock in microseconds, by dialect."""


def log_table(dialect: str, meta: MetaData) -> Table:
    """Return the task log. The column of its position differs by dialect; see `design` section 4.

    - PostgreSQL: `xid`, the inserting top-level transaction. The log is partitioned by ranges of
      it, so that TRUNCATE and DROP of a partition remove consumed rows.
    - SQLite: `seq`, an AUTOINCREMENT rowid. Without AUTOINCREMENT the highest deleted id would be
      used again, and a row with it would be below every cursor.
    - Spanner: `created_at`, the commit timestamp. Its DDL is in `late.schema.spanner.ddl`.
    - CockroachDB: no column. Every version of a row has a commit timestamp of its own.
    """
    spanner, embedded = dialect == "spanner+spanner", dialect == "sqlite"
    shard_id = Column(
        "shard_id",
        Integer if spanner or embedded else SmallInteger,
        primary_key=not embedded,
        autoincrement=False,
        nullable=False,
    )
    columns: list[Any] = [
        shard_id,
        Column("task_id", TaskIdType, primary_key=not embedded, nullable=False),
        Column("queue", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("payload", Payload, nullable=False),
        Column("headers", Text),
        Column("options", Text),
    ]
    if spanner:
        moment = text("PENDING_COMMIT_TIMESTAMP()")
        position = Column("created_at", DateTime(timezone=True), primary_key=True, default=moment)
        return Table("late_task", meta, shard_id, position, *columns[1:])
    columns += [
        Column("created_at_us", BigInteger, nullable=False, server_default=text(NOW_US[dialect])),
        CheckConstraint("shard_id between 0 and 4095", name="late_task_shard"),
    ]
    if dialect == "postgresql":
        xid = Column("xid", Xid8, primary_key=True, server_default=text("pg_current_xact_id()"))
        by = "RANGE (xid)"
        lazy = Column("asynchronous", Boolean, server_default=text(ASYNCHRONOUS))
        return Table(
            "late_task", meta, shard_id, xid, *columns[1:], lazy, postgresql_partition_by=by
        )
    if dialect == "cockroachdb":
        return Table("late_task", meta, *columns)
    return Table(
        "late_task",
        meta,
        Column("seq", Integer, primary_key=True, autoincrement=True),
        *columns,
        # An explicit negative rowid would never be read. An explicit 2^63-1 would make every later
        # insert fail.
        CheckConstraint("seq between 1 and 4611686018427387904", name="late_task_seq"),
        Index("late_task_shard_seq", "shard_id", "seq"),
        sqlite_autoincrement=True,
    )


def _record_columns() -> list[Column[Any]]:
    """Return the columns of a task's row in the log, as timers and dead letters keep it."""
    return [
        Column("position", BigInteger, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("queue", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("payload", Payload, nullable=False),
        Column("headers", Text),
        Column("options", Text),
        Column("created_at_us", BigInteger, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("deaths", Integer, nullable=False),
        Column("errors", Text),  # JSON list of AttemptError; NULL if there are none.
    ]


settlement = Table(
    "late_settlement",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("settlement_id", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("cursor", Text, nullable=False),
    Column("open", Text, nullable=False),  # JSON list of [position, task_id].
    Column("usage", Text),  # JSON list of Usage; NULL if there is none.
    Column("settled_at_us", BigInteger, nullable=False),
    Column("suspects", Text),  # JSON list of [task_id, deaths, running]; NULL if there are none.
    # The first `seq` whose usage is in this row, if compaction has put rows together; else NULL.
    Column("first_seq", BigInteger),
)

lease = Table(
    "late_lease",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("owner", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("taken_at_us", BigInteger),  # The last time that it was taken without a release.
)

worker = Table(
    "late_worker",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    Column("consumer_groups", Text, nullable=False),  # JSON list of names.
    Column("capacity", Float, nullable=False),
    Column("version", Text, nullable=False),
    Column("endpoint", Text),  # host:port for other processes; NULL if they cannot reach it.
    Column("ends", Text),  # JSON list of late.store.base.NameEnds; NULL: nothing has failed lately.
    # JSON, see late.model.handlers; NULL: not known. Written once, and read by no heartbeat.
    Column("handlers", Text),
)

worker_report = Table(
    "late_worker_report",  # The last report of a worker that has something to tell, alive or not.
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("report", Text, nullable=False),  # JSON of late.model.worker_report.WorkerReport.
)

timer = Table(
    "late_timer",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("due_at_us", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", TaskIdType, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("held_key", Text),
    *_record_columns(),
)
Index(
    "late_timer_held",
    timer.c.consumer_group,
    timer.c.shard_id,
    timer.c.held_key,
    timer.c.sequence,
    postgresql_where=timer.c.held_key.isnot(None),
    sqlite_where=timer.c.held_key.isnot(None),
)

# The index by id is for commands and queries about one task.
Index("late_timer_task", timer.c.consumer_group, timer.c.shard_id, timer.c.task_id)

dead = Table(
    "late_dead",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("dead_at_us", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", TaskIdType, primary_key=True),
    Column("reason", Text, nullable=False),
    *_record_columns(),
)

Index("late_dead_task", dead.c.consumer_group, dead.c.shard_id, dead.c.task_id)

schedule = Table(
    "late_schedule",
    metadata,
    Column("name", Text, primary_key=True),
    Column("shard_id", SmallInteger, nullable=False),
    Column("rule", Text, nullable=False),  # A cron expression, or `every <seconds>s`.
    Column("zone", Text, nullable=False),  # An IANA name.
    Column("catch_up", Text, nullable=False),  # skip | latest | all
    Column("catch_up_max", Integer, nullable=False),
    Column("overlap", Text, nullable=False),  # allow | skip | queue
    Column("queue", Text, nullable=False),
    Column("task_name", Text, nullable=False),
    Column("payload", Payload, nullable=False),
    Column("options", Text),
    Column("anchor_us", BigInteger, nullable=False),  # Intervals count from this time.
    Column("next_due_at_us", BigInteger),  # NULL if it never fires again.
    Column("paused", SmallInteger, nullable=False, server_default=text("0")),
    Column("open_task_id", TaskIdType),  # The last tick's task until it has ended.
    Column("updated_at_us", BigInteger, nullable=False),
)

unique = Table(
    "late_unique",
    metadata,
    Column("unique_key", Text, primary_key=True),
    Column("task_id", TaskIdType, nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    # The end of its period, which is negative until its task has ended; NULL without a period.
    Column("expires_at_us", BigInteger),
)

stage = Table(
    "late_stage",  # The tasks of workflows: those that wait for others, and how the others ended.
    metadata,
    Column("workflow_id", TaskIdType, primary_key=True),  # The id of the first stage's task.
    Column("stage", Integer, primary_key=True, autoincrement=False),
    Column("task_id", TaskIdType, nullable=False),
    # waiting, started, stopping (cancelled, and it may still run), or the end of its task.
    Column("state", Text, nullable=False),
    Column("missing", Integer, nullable=False),  # The stages that must be done before it starts.
    Column("after", Text, nullable=False),  # JSON list of the stages before it.
    Column("next", Text, nullable=False),  # JSON list of the stages after it.
    Column("collects", SmallInteger, nullable=False),  # 1: it takes a list of their results.
    Column("on_failure", Integer),  # The stage that starts if this one fails.
    Column("mark", Text),  # The text of the payload that the results before it replace.
    Column("shard_id", SmallInteger, nullable=False),
    Column("queue", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("payload", Payload, nullable=False),
    Column("headers", Text),
    Column("options", Text),
    Column("result", Payload),  # JSON, once it is done.
    Column("ended_at_us", BigInteger),
)
Index("late_stage_task", stage.c.task_id, unique=True)

lane = Table(
    "late_lane",
    metadata,
    Column("name", Text, primary_key=True),
    Column("first_shard", SmallInteger, nullable=False),
    Column("shards", SmallInteger, nullable=False),
    Column("version", BigInteger, nullable=False, server_default=text("0")),
)

extent = Table(
    "late_extent",
    metadata,
    Column("lane", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("shards", SmallInteger, nullable=False),
    Column("closed_at_us", BigInteger, nullable=False),
    Column("waits_for", Text),  # JSON list of transactions, on PostgreSQL.
    Column("closings", Text),  # JSON list of task ids by shard; NULL until they are written.
)

group = Table(
    "late_group",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at_us", BigInteger, nullable=False),
    Column("queues", Text),  # JSON list of the queues that it reads; NULL for all.
    Column("paused", SmallInteger, nullable=False, server_default=text("0")),
    Column("from_us", BigInteger),  # Records that were created before are passed over.
    Column("replay_us", BigInteger),  # Records that were created before are replays.
)


def _settings_table(name: str, *more: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        Column("name", Text, primary_key=True),
        Column("knobs", Text, nullable=False),  # JSON object of the settings that are set.
        Column("version", BigInteger, nullable=False),  # It rises with each change.
        Column("updated_at_us", BigInteger, nullable=False),
        *more,
    )


queue = _settings_table(
    "late_queue",
    # Code for schemas before 0018 writes these two. Nothing reads them any more.
    Column("held", BigInteger),
    Column("held_at_us", BigInteger),
)
target = _settings_table("late_target")

full = Table(
    "late_full",  # What takes no new tasks. Each enqueue asks it.
    metadata,
    # A queue; or a queue, a space and a limit key. See late.model.admission.
    Column("name", Text, primary_key=True),
    Column("held", BigInteger, nullable=False),  # Its number of tasks.
    Column("bound", BigInteger, nullable=False),  # 0: an operator has closed the queue.
    Column("until_us", BigInteger, nullable=False),  # Then the row counts no more.
)

audit = Table(
    "late_audit",
    metadata,
    Column("audit_id", Text, primary_key=True),  # A UUIDv7, which ascends with time.
    Column("at_us", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),  # Such as `queue.set`.
    Column("subject", Text, nullable=False),  # Such as `queue:payments`.
    Column("before", Text),  # JSON.
    Column("after", Text),  # JSON.
)

inbox = Table(
    "late_inbox",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("task_id", TaskIdType, primary_key=True),
    Column("done_at_us", BigInteger, nullable=False),
)

result = Table(
    "late_result",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("task_id", TaskIdType, primary_key=True),
    Column("value", Payload, nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
)

history = Table(
    "late_history",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("task_id", TaskIdType, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at_us", BigInteger, nullable=False),
    Column("event", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("detail", Text),
)

token = Table(
    "late_token",
    metadata,
    Column("name", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("scopes", Text, nullable=False),  # JSON list.
    Column("queues", Text, nullable=False),  # JSON list of patterns.
    Column("created_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger),
    Column("revoked_at_us", BigInteger),
)

offer = Table(
    "late_offer",  # Attempts that the owner of their shard cannot run, for other workers.
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("task_id", TaskIdType, primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),  # Of the owner's lease.
    Column("owner", Text, nullable=False),
    Column("attempt", Text, nullable=False),  # JSON of late.model.offers.Offered.
    Column("offered_at_us", BigInteger, nullable=False),
    Column("refused_by", Text, nullable=False),  # JSON list of workers.
    Column("runner", Text),  # The worker that has taken it.
    Column("answer", Text),  # JSON of late.model.offers.Answer: how it ended.
)

controller = Table(
    "late_controller",
    metadata,
    Column("name", Text, primary_key=True),  # The name of one autoscaler of this database.
    Column("owner", Text),  # The process that acts now; NULL after it released the row.
    Column("epoch", BigInteger, nullable=False),  # It rises with every owner.
    Column("expires_at_us", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),  # The `seq` of its last decision.
    # The last times that it made the size larger and smaller: cool-downs continue under the next
    # owner.
    Column("up_us", BigInteger),
    Column("down_us", BigInteger),
    Column("looked_at_us", BigInteger, nullable=False),
    Column("last", Text),  # JSON of the last check, also of one that changed nothing.
)

decision = Table(
    "late_decision",
    metadata,
    Column("controller", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("rule", Text, nullable=False),
    Column("from_size", BigInteger, nullable=False),
    Column("to_size", BigInteger, nullable=False),
    Column("wanted", BigInteger, nullable=False),
    Column("inputs", Text, nullable=False),  # JSON.
    Column("why", Text, nullable=False),
    Column("result", Text, nullable=False),  # held, dry run, started, applied or failed: CAUSE
)

secret = Table(
    "late_secret",
    metadata,
    Column("name", Text, primary_key=True),  # `1`, `2` and so on: the number of the key.
    Column("peer_key", Text, nullable=False),  # Hex. Of receipts and peers; only workers read it.
    # Hex. Of the page's forms; operators read it too. It is the same in all rows.
    Column("form_key", Text, nullable=False),
    Column("created_at_us", BigInteger),  # NULL: by the migration.
)

subject_key = Table(
    "late_subject_key",
    metadata,
    Column("subject", Text, primary_key=True),  # late.payload.subject_keys.subject_id of its name.
    Column("wrapped", Text),  # Base64; only the codec's keys open it. NULL: it was dropped.
    Column("created_at_us", BigInteger, nullable=False),
    Column("dropped_at_us", BigInteger),
)

meta = Table(
    "late_meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""Keys and values: `schema_version`, `schema_oldest` (the oldest schema whose code may use this
one), `deployment` (a name; random if none is given), `identity`
(the database of this schema: PostgreSQL's system identifier, the file of SQLite), `database_oid`
(PostgreSQL's, within the cluster), `position_max` (the highest xid seen: a cluster that is below it
is a restored copy), `xid_sample` (an xid and when it was the next, to measure their rate),
`changes:worker:0` and the like (PostgreSQL's counts of changes of the fleet)."""

SHARDS_DEFAULT = 8
"""The number of shards of the lane `default` in a fresh schema."""


def all_tables(dialect: str) -> MetaData:
    """Return a new `MetaData` with every table in the form of `dialect` (`sqlite`, `postgresql`,
    `cockroachdb`)."""
    full = MetaData()
    log_table(dialect, full)
    for table in metadata.sorted_tables:
        table.to_metadata(full)
    return full
