"""The columns of the tables that reports are functions of. Pure: `frames.py` has them for Spark.

A live store (`spark.read.format("late")`), the lake (`late lake export`) and generated data have
the same shape. Times are `_us`, microseconds since the Unix epoch by the database's clock, and
beside them timestamps. Kinds have Spark's names.
"""

from __future__ import annotations

from collections.abc import Mapping

ENQUEUED = "enqueued"
"""Outcome of usage rows that count arrivals: tasks of the log that the group has taken note of,
each once. They are neither attempts nor ends, have no target and no times; `bytes` is 0, for the
payload is counted where the task ends."""
ENDS = ("done", "dead", "expired", "discarded", "cancelled")
"""Outcomes that end a task, once per consumer group."""
GOES_ON = ("retried", "stalled", "snoozed", "interrupted", "died", "not_capable")
"""Outcomes of attempts after which the task will be tried again. With `ENDS` and `ENQUEUED` these
are all: an outcome in no group would be work that nobody pays for."""

Columns = Mapping[str, str]
"""Column -> kind."""

USAGE: Columns = {
    "settled_at": "timestamp",
    "settled_us": "bigint",
    "consumer_group": "string",
    "shard_id": "int",
    # (consumer_group, shard_id, seq) is one settlement.
    "seq": "bigint",
    "epoch": "bigint",
    "worker": "string",
    "queue": "string",
    "name": "string",
    # "" where nothing was executed.
    "target": "string",
    "outcome": "string",
    # Attempts under this outcome, or tasks that ended or arrived without one.
    "count": "bigint",
    # Those of `count` that were started; of them, those after a task's first.
    "attempts": "bigint",
    "retries": "bigint",
    # Sums over the attempts: running, and from being due to the start.
    "busy_us": "bigint",
    "waiting_us": "bigint",
    # Payload bytes of tasks that ended.
    "bytes": "bigint",
    # Start after due time, summed over the `delayed` attempts: those whose due time was set (a
    # delay, a time, a retry, a schedule) and not their arrival.
    "lateness_us": "bigint",
    # The same times as histograms over the attempts: bucket (`late.model.histogram`) -> attempts.
    "waiting_hist": "map<int,bigint>",
    "busy_hist": "map<int,bigint>",
    # Value of the queue's fair key; NULL where the queue has none.
    "tenant": "string",
    # Who pays for the queue; NULL where nobody was named.
    "owner": "string",
    "delayed": "bigint",
    # What handlers have counted (`ctx.count`): name -> sum. NULL in files of older versions.
    "counts": "map<string,bigint>",
}
LATER = frozenset({"counts"})
"""Columns of usage that files of older versions do not have."""


_CALL = {
    "queue": "string",
    "name": "string",
    "payload": "binary",
    "headers": "string",
    "options": "string",
    "created_at": "timestamp",
    "created_at_us": "bigint",
}
_PLACED = {"position": "bigint", "sequence": "bigint", **_CALL}
_TRIED = {"attempts": "int", "deaths": "int", "errors": "string"}

TASKS: Columns = {
    "shard_id": "int",
    "position": "bigint",
    "task_id": "string",
    **_CALL,
}
"""The task log: what retention has left of it."""

DEAD: Columns = {
    "consumer_group": "string",
    "shard_id": "int",
    "dead_at": "timestamp",
    "dead_at_us": "bigint",
    "task_id": "string",
    "reason": "string",
    **_PLACED,
    **_TRIED,
}

TIMERS: Columns = {
    "consumer_group": "string",
    "shard_id": "int",
    # NULL for a task that waits behind its ordering key: `due_at_us` is then beyond every time.
    "due_at": "timestamp",
    "due_at_us": "bigint",
    "task_id": "string",
    "reason": "string",
    "held_key": "string",
    **_PLACED,
    **_TRIED,
}

JOURNAL: Columns = {
    "consumer_group": "string",
    "shard_id": "int",
    "seq": "bigint",
    "settlement_id": "string",
    "epoch": "bigint",
    "owner": "string",
    "cursor": "string",
    "open": "string",
    "usage": "string",
    "settled_at": "timestamp",
    "settled_at_us": "bigint",
    "suspects": "string",
}

TABLES: Mapping[str, Columns] = {
    "usage": USAGE, "tasks": TASKS, "dead": DEAD, "timers": TIMERS, "journal": JOURNAL,
}  # fmt: skip
"""The tables of `.option("table", …)`."""
