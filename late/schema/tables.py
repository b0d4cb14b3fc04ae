"""Every table of `late`, for every dialect that SQLAlchemy speaks.

The control plane queries these objects; migrations build them; the hot path of each store has
its own hand-written SQL over the same names. Times are BIGINT microseconds since the Unix epoch
by the database's clock. JSON is stored as text: it is validated where it is read, and no
statement of the hot path looks inside.

Two append-only logs carry everything: `late_task` (many writers; position = commit order) and
`late_settlement` (one writer per group and shard; `seq` is the fence). All others are small.
"""

from __future__ import annotations

import base64
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeDecorator, UserDefinedType

metadata = MetaData()


class TaskIdType(UserDefinedType[str]):
    """`uuid` on PostgreSQL, TEXT elsewhere; Python sees the 36 character string everywhere."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "TEXT"

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return lambda value: None if value is None else str(value)


class Payload(TypeDecorator[bytes]):
    """Bytes. Spanner returns them as base64, which its dialect encodes but does not decode."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        if value is None or dialect.name != "spanner+spanner":
            return value
        return base64.b64decode(value)


class Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction id; only in `late_task` there."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"

    def bind_processor(self, dialect: Any) -> Any:
        # There is no cast from an integer; a parameter of unknown type is read as xid8's text.
        return lambda value: None if value is None else str(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return lambda value: None if value is None else int(value)


@compiles(TaskIdType, "postgresql")
@compiles(TaskIdType, "cockroachdb")
def _task_id_postgresql(*_: Any, **__: Any) -> str:
    return "uuid"


NOW_US = {
    "postgresql": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    # Milliseconds are all that SQLite's clock gives before 3.42; the cast keeps it an integer.
    "cockroachdb": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    "sqlite": "(cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)",
    "spanner+spanner": "UNIX_MICROS(CURRENT_TIMESTAMP())",
}
"""The database's clock in microseconds, per dialect."""


def log_table(dialect: str, meta: MetaData) -> Table:
    """Return the task log. Its position differs by dialect: see `design` section 4.

    PostgreSQL: `xid`, the inserting top-level transaction, partitioned by ranges of it so that
    consumed rows leave by TRUNCATE and DROP of a partition. SQLite: `seq`, an AUTOINCREMENT rowid
    (without AUTOINCREMENT the highest deleted id is used again and lands below every cursor).
    Spanner: `created_at`, the commit timestamp; its DDL is `late.schema.spanner.migrate`'s.
    CockroachDB: no column; every row version has a commit timestamp beside its columns.
    """
    if dialect == "spanner+spanner":
        return _log_spanner(meta)
    body: list[Any] = [
        Column("queue", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("payload", Payload, nullable=False),
        Column("headers", Text),
        Column("options", Text),
        Column("created_at_us", BigInteger, nullable=False, server_default=text(NOW_US[dialect])),
    ]
    if dialect == "postgresql":
        return Table(
            "late_task",
            meta,
            Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
            Column("xid", Xid8, primary_key=True, server_default=text("pg_current_xact_id()")),
            Column("task_id", TaskIdType, primary_key=True),
            *body,
            CheckConstraint("shard_id between 0 and 4095", name="late_task_shard"),
            postgresql_partition_by="RANGE (xid)",
        )
    if dialect == "cockroachdb":
        return Table(
            "late_task",
            meta,
            Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
            Column("task_id", TaskIdType, primary_key=True),
            *body,
            CheckConstraint("shard_id between 0 and 4095", name="late_task_shard"),
        )
    return Table(
        "late_task",
        meta,
        Column("seq", Integer, primary_key=True, autoincrement=True),
        Column("shard_id", Integer, nullable=False),
        Column("task_id", TaskIdType, nullable=False),
        *body,
        # An explicit negative rowid is never seen; an explicit 2^63-1 ends every later insert.
        CheckConstraint("seq between 1 and 4611686018427387904", name="late_task_seq"),
        CheckConstraint("shard_id between 0 and 4095", name="late_task_shard"),
        Index("late_task_shard_seq", "shard_id", "seq"),
        sqlite_autoincrement=True,
    )


def _log_spanner(meta: MetaData) -> Table:
    return Table(
        "late_task",
        meta,
        Column("shard_id", Integer, primary_key=True, autoincrement=False),
        Column(
            "created_at",
            DateTime(timezone=True),
            primary_key=True,
            default=text("PENDING_COMMIT_TIMESTAMP()"),
        ),
        Column("task_id", TaskIdType, primary_key=True),
        Column("queue", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("payload", Payload, nullable=False),
        Column("headers", Text),
        Column("options", Text),
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
        Column("errors", Text),  # JSON list of AttemptError, NULL when none
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
    Column("open", Text, nullable=False),  # JSON list of [position, task_id]
    Column("usage", Text),  # JSON list of Usage, NULL when none
    Column("settled_at_us", BigInteger, nullable=False),
    Column("suspects", Text),  # JSON list of [task_id, deaths, running], NULL when none
)

lease = Table(
    "late_lease",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("owner", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("taken_at_us", BigInteger),  # last taken from an owner who had not given it back
)

worker = Table(
    "late_worker",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    Column("consumer_groups", Text, nullable=False),  # JSON list of names
    Column("capacity", Float, nullable=False),
    Column("version", Text, nullable=False),
    Column("endpoint", Text),  # host:port where other processes reach it, NULL when they cannot
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

# By id, for commands and questions about one task.
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
    Column("rule", Text, nullable=False),  # cron expression, or `every <seconds>s`
    Column("zone", Text, nullable=False),  # IANA name
    Column("catch_up", Text, nullable=False),  # skip | latest | all
    Column("catch_up_max", Integer, nullable=False),
    Column("overlap", Text, nullable=False),  # allow | skip | queue
    Column("queue", Text, nullable=False),
    Column("task_name", Text, nullable=False),
    Column("payload", Payload, nullable=False),
    Column("options", Text),
    Column("anchor_us", BigInteger, nullable=False),  # intervals count from here
    Column("next_due_at_us", BigInteger),  # NULL: never again
    Column("paused", SmallInteger, nullable=False, server_default=text("0")),
    Column("open_task_id", TaskIdType),  # the last tick's task while it is unfinished
    Column("updated_at_us", BigInteger, nullable=False),
)

unique = Table(
    "late_unique",
    metadata,
    Column("unique_key", Text, primary_key=True),
    Column("task_id", TaskIdType, nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger),  # taken until then, although its task has ended
)

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
    Column("waits_for", Text),  # JSON list of transactions, on PostgreSQL
    Column("closings", Text),  # JSON list of task ids by shard, NULL until they are written
)

group = Table(
    "late_group",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at_us", BigInteger, nullable=False),
    Column("queues", Text),  # JSON list of the queues that it reads, NULL for all
    Column("paused", SmallInteger, nullable=False, server_default=text("0")),
    Column("from_us", BigInteger),  # what was created before is passed over
    Column("replay_us", BigInteger),  # what was created before is a replay
)


def _knobs_table(name: str, *more: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        Column("name", Text, primary_key=True),
        Column("knobs", Text, nullable=False),  # JSON object of those that are set
        Column("version", BigInteger, nullable=False),  # rises with each change
        Column("updated_at_us", BigInteger, nullable=False),
        *more,
    )


queue = _knobs_table(
    "late_queue",
    Column("held", BigInteger),  # tasks that it held at that time, where it has a bound
    Column("held_at_us", BigInteger),
)
target = _knobs_table("late_target")

audit = Table(
    "late_audit",
    metadata,
    Column("audit_id", Text, primary_key=True),  # a UUIDv7: ascending is by time
    Column("at_us", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),  # such as `queue.set`
    Column("subject", Text, nullable=False),  # such as `queue:payments`
    Column("before", Text),  # JSON
    Column("after", Text),  # JSON
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
    Column("scopes", Text, nullable=False),  # JSON list
    Column("queues", Text, nullable=False),  # JSON list of patterns
    Column("created_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger),
    Column("revoked_at_us", BigInteger),
)

controller = Table(
    "late_controller",
    metadata,
    Column("name", Text, primary_key=True),  # one autoscaler: of one database
    Column("owner", Text),  # who acts now; NULL after it gave it back
    Column("epoch", BigInteger, nullable=False),  # higher with every owner
    Column("expires_at_us", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),  # of its last decision
    Column("up_us", BigInteger),  # when it was last enlarged, and made smaller: cool-downs
    Column("down_us", BigInteger),  # go on under the next owner
    Column("looked_at_us", BigInteger, nullable=False),
    Column("last", Text),  # JSON of the last look, also of one that changed nothing
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
    Column("inputs", Text, nullable=False),  # JSON
    Column("why", Text, nullable=False),
    Column("result", Text, nullable=False),  # held, dry run, started, applied, or failed: CAUSE
)

meta = Table(
    "late_meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""Keys: `schema_version`, `deployment` (a name, random when not given), `identity` (the database
this schema lives in: PostgreSQL's system identifier, the file of SQLite), `position_max` (the
highest xid seen: a younger cluster below it is a restored copy)."""

SHARDS_DEFAULT = 8
"""Shards of the lane `default` in a fresh schema."""


def all_tables(dialect: str) -> MetaData:
    """Return a fresh `MetaData` with every table in the form of `dialect` (`sqlite`, `postgresql`,
    `cockroachdb`)."""
    full = MetaData()
    log_table(dialect, full)
    for table in metadata.sorted_tables:
        table.to_metadata(full)
    return full
