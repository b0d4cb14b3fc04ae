"""The catalogue: every metric of `late`, as data. `docs/metrics.md` is made from it.

A new name for a metric or a label breaks dashboards of users; a further metric does not. A metric
comes from an event (`late/events.py`) or from a look. A look reads the worker's own state when it
is asked for, or the database, by one worker for each group.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from late import events
from late.events import Event

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["event", "worker", "parent", "database", "replica", "close"]

LONG = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Bounds for times from milliseconds to hours: waiting, running."""
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for calls to a database."""
SIZES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)


class Metric(msgspec.Struct, frozen=True):
    """One metric. Seconds and bytes are named as such; other values are counts."""

    name: str
    kind: Kind
    text: str
    """The description for people."""
    labels: tuple[str, ...] = ()
    source: Source = "event"
    event: Event | None = None
    measure: str = ""
    """The name of the event's measure; if it is empty, events are counted."""
    series: str = ""
    """The name of the event's histogram; `measure` is then its sum."""
    only: str = ""
    """Use only events with this outcome; with a `!` before it, only those with another one."""
    bounds: tuple[float, ...] = ()
    merge: Literal["sum", "max", "min"] = "sum"
    """The way in which several gauges are combined under the label `other`."""


METRICS: dict[str, Metric] = {}
"""Every metric, by name."""

TAGS = {"task": "name"}
"""Labels that have another name than the event's tag: in an event `task` is an id."""


def _add(
    name: str, kind: Kind, text: str, labels: str = "", event: Event | None = None, **more: Any
) -> None:
    METRICS[name] = Metric(name, kind, text, tuple(labels.split()), event=event, **more)


def _count(name: str, text: str, labels: str, event: Event, measure: str = "", **x: Any) -> None:
    _add(name, "counter", text, labels, event, measure=measure, **x)


def _times(name: str, text: str, labels: str, event: Event, measure: str, **more: Any) -> None:
    _add(name, "histogram", text, labels, event, measure=measure, **more)


def _look(source: Source, name: str, text: str, labels: str = "", **more: Any) -> None:
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    _add(name, kind, text, labels, source=source, **more)


# --- the work, from the counts of settlements ----------------------------------------------------

_WORK = "group queue task target"
_count("late_enqueued_total", "Tasks that a group has taken from the log, each once.",
       "group queue task", events.ENDED, "count", only="enqueued")  # fmt: skip
_count("late_outcomes_total", "How attempts and tasks have ended: done, dead, expired, discarded, "
       "cancelled end a task; retried, stalled (an outage), snoozed and interrupted do not.",
       f"{_WORK} outcome", events.ENDED, "count", only="!enqueued")  # fmt: skip
_count("late_attempts_total", "Attempts that have ended.", _WORK, events.ENDED, "attempts",
       only="!enqueued")  # fmt: skip
_count("late_retries_total", "Attempts that were not their task's first.", _WORK, events.ENDED,
       "retries", only="!enqueued")  # fmt: skip
_count("late_payload_bytes_total", "Bytes of arguments of tasks that have ended.",
       "group queue task", events.ENDED, "bytes", only="!enqueued")  # fmt: skip
_times("late_wait_seconds", "From when a task was due to the start of its attempt.", _WORK,
       events.ENDED, "waiting_s", series="waiting", only="!enqueued", bounds=LONG)  # fmt: skip
_times("late_run_seconds", "How long an attempt ran.", _WORK, events.ENDED, "busy_s",
       series="busy", only="!enqueued", bounds=LONG)  # fmt: skip
_count("late_dead_letters_total", "Tasks that will not run again by themselves.",
       "group queue task reason", events.DEAD_LETTER)  # fmt: skip
_count("late_unknown_tasks_total", "Tasks that were parked because no handler here could run them.",
       "group queue task", events.UNKNOWN_TASK, "count")  # fmt: skip
_count("late_stuck_handlers_total", "Handlers that ran on after their time-out and hold a slot.",
       "queue task", events.STUCK_HANDLER)  # fmt: skip
_count("late_child_deaths_total", "Child processes that died under a task.", "task",
       events.CHILD_DIED)  # fmt: skip
_count("late_ticks_total", "Firings of a schedule.", "schedule", events.TICK)
_count("late_ticks_skipped_total", "Times of a schedule that its policies left out.", "schedule",
       events.TICK, "skipped")  # fmt: skip
_count("late_ticks_overlapping_total", "Ticks at which the task of an earlier one had not ended.",
       "schedule", events.TICK, "overlaps")  # fmt: skip
_count("late_ticks_late_total", "Ticks that fired more than a minute after their time.", "schedule",
       events.TICK, "late")  # fmt: skip
_times("late_tick_lateness_seconds", "How long after its time a schedule fired.", "schedule",
       events.TICK, "lateness_s", bounds=LONG)  # fmt: skip
_count("late_schedules_disabled_total", "Schedules that cannot be read or never fire again.",
       "schedule", events.SCHEDULE_DISABLED)  # fmt: skip

# --- ownership, and work that is done twice ------------------------------------------------------

_count("late_results_dropped_total", "Results of attempts whose shard had gone to another owner: "
       "these tasks run twice.", "group shard", events.LATE_RESULT, "count")  # fmt: skip
_count("late_already_done_total", "Tasks whose effects (ctx.once) were there already: they ran "
       "twice, and had their effects once. Not from child processes.", "group queue task",
       events.ALREADY_DONE)  # fmt: skip
_count("late_replays_refused_total", "Second rows of tasks that were refused: copies of rows.",
       "group shard", events.REPLAYED, "count")  # fmt: skip
_count("late_fenced_total", "Settlements that were refused: the shard has another owner.",
       "group shard", events.FENCED)  # fmt: skip
_count("late_settlements_refused_total", "Settlements that the database refuses, not for a "
       "moment: they are sent again for ten minutes, then their tasks run again.", "group shard",
       events.SETTLEMENT_REFUSED)  # fmt: skip
for _event, _change in (
    (events.LEASE_ACQUIRED, "acquired"),
    (events.LEASE_RELEASED, "released"),
    (events.LEASE_LOST, "lost"),
):
    _count(f"late_lease_{_change}_total", f"Shards that were {_change}.", "group shard", _event)
_count("late_trust_lost_total", "How often the heartbeat was overdue, so that no task started.",
       "", events.TRUST_LOST)  # fmt: skip
_count("late_stalls_total", "How often this worker gave its shards up because it stood still.",
       "", events.STALLED)  # fmt: skip
_count("late_loop_blocks_total", "How often the event loop did not turn for two"
       " seconds or more.", "", events.EVENT_LOOP_BLOCKED)  # fmt: skip
_count("late_target_down_total", "How often an endpoint of a target went down.", "target",
       events.TARGET_DOWN)  # fmt: skip

# --- the database, as this process sees it -------------------------------------------------------

_count("late_reads_total", "Reads of the log, of all shards of a group each.", "group",
       events.PAGE_READ)  # fmt: skip
_count("late_pages_total", "Pages that these reads brought, one per shard.", "group",
       events.PAGE_READ, "pages")  # fmt: skip
_times("late_read_records", "Records that one read brought.", "group", events.PAGE_READ,
       "records", bounds=SIZES)  # fmt: skip
_count("late_read_bytes_total", "Bytes of arguments that these reads brought.", "group",
       events.PAGE_READ, "bytes")  # fmt: skip
_times("late_read_seconds", "How long one read took.", "group", events.PAGE_READ, "duration_s",
       bounds=SHORT)  # fmt: skip
_times("late_settle_seconds", "How long one group commit took.", "", events.SETTLED, "duration_s",
       bounds=SHORT)  # fmt: skip
_times("late_settle_tasks", "Outcomes that one group commit recorded.", "", events.SETTLED,
       "outcomes", bounds=SIZES)  # fmt: skip
_count("late_settlements_total", "Rows added to the settlement journal.", "", events.SETTLED,
       "settlements")  # fmt: skip
_times("late_heartbeat_seconds", "How long a heartbeat took.", "", events.HEARTBEAT, "duration_s",
       bounds=SHORT)  # fmt: skip
_count("late_store_errors_total", "Errors of the database that were tried again.",
       "component transient", events.STORE_ERROR)  # fmt: skip
_count("late_rpc_total", "Calls of the database's API (Spanner).", "method code role", events.RPC)
_times("late_rpc_seconds", "How long such a call took.", "method role", events.RPC, "duration_s",
       bounds=SHORT)  # fmt: skip
_count("late_rpc_sent_bytes_total", "Bytes sent.", "method role", events.RPC, "sent_bytes")
_count("late_rpc_received_bytes_total", "Bytes received.", "method role", events.RPC,
       "received_bytes")  # fmt: skip
_count("late_rpc_retries_total", "Calls that repeated one before.", "method role", events.RPC,
       "retries")  # fmt: skip
_count("late_conflicts_total", "Transactions that the database ended or held up for others.",
       "kind tag other", events.CONFLICT, "count")  # fmt: skip
_count("late_conflict_seconds_total", "Seconds that these transactions had taken.",
       "kind tag other", events.CONFLICT, "lost_s")  # fmt: skip
_count("late_pruned_tasks_total", "Rows removed from the log.", "", events.PRUNED, "tasks")
_count("late_pruned_settlements_total", "Rows removed from the journal.", "", events.PRUNED,
       "settlements")  # fmt: skip
_count("late_compacted_settlements_total", "Rows of the journal added to others.", "",
       events.PRUNED, "compacted")  # fmt: skip

# --- callers of the interfaces -------------------------------------------------------------------

_count("late_sign_ins_failed_total", "Callers that have shown no valid token, each with a line in "
       "the log.", "interface", events.SIGN_IN_FAILED)  # fmt: skip
_count("late_sign_ins_slowed_total", "Those that came after too many others of their address, "
       "without a line.", "interface", events.SIGN_IN_SLOWED)  # fmt: skip
_count("late_connections_refused_total", "Connections that a port (http, grpc, health) refused or "
       "ended: for the bound of their address or of the port, for a handshake that did not end, or "
       "idle, for another one.", "port reason", events.CONNECTION_REFUSED, "count")  # fmt: skip

# --- the autoscaler ------------------------------------------------------------------------------

_count("late_autoscale_decisions_total",
       "Decisions: applied, dry runs, and reasons to hold that are new.",
       "controller rule result", events.AUTOSCALED)  # fmt: skip
_add("late_autoscale_size", "gauge", "The size at the last look.", "controller",
     events.AUTOSCALER_LOOKED, measure="size", merge="max")  # fmt: skip
_add("late_autoscale_wanted", "gauge",
     "The size that the last look wanted, before limits and cool-downs.", "controller",
     events.AUTOSCALER_LOOKED, measure="wanted", merge="max")  # fmt: skip
_count("late_autoscaler_looks_total",
       "Looks that decided; without metrics by the rule `hold`.", "controller rule",
       events.AUTOSCALER_LOOKED)  # fmt: skip
_count("late_autoscaler_no_metrics_total",
       "Looks without a size or the database, and resizes that failed.",
       "controller", events.AUTOSCALER_BLIND)  # fmt: skip
_count("late_autoscaler_blind_total",
       "The old name of `late_autoscaler_no_metrics_total`; the next release has it no more.",
       "controller", events.AUTOSCALER_BLIND)  # fmt: skip

# --- one worker's state, looked at when it is asked for ------------------------------------------

_look("worker", "late_worker_info", "1, with what this worker is.", "worker version", merge="max")
_look("worker", "late_worker_trusted", "1 while this worker may start tasks.", merge="min")
_look("worker", "late_slots", "Attempts that this worker runs at the same time at most.")
_look("worker", "late_slots_busy", "Attempts that run now.")
_look("worker", "late_slots_stuck", "Slots held by handlers that do not end.")
_look("worker", "late_slots_waiting", "Attempts that wait for a slot.")
_look("worker", "late_unrecorded", "Tasks ended or to be parked that are not in the journal yet.")
_look("worker", "late_settling_seconds", "Age of the settlement that the database has not answered "
      "yet; 0 if none is under way.", merge="max")  # fmt: skip
_look("worker", "late_target_room", "Attempts that a target takes beyond those it has.", "target")
_SHARD = "group shard"
_look("worker", "late_shard_ready", "Tasks that could start now.", _SHARD)
_look("worker", "late_shard_limited", "Tasks that could start if it were not for knobs.", _SHARD)
_look("worker", "late_shard_running", "Attempts that run, of this shard.", _SHARD)
_look("worker", "late_shard_unsettled", "Records read and not settled.", _SHARD)
_look("worker", "late_shard_epoch", "The epoch under which the shard is owned.", _SHARD,
      merge="max")  # fmt: skip
_look("worker", "late_tail_lag_seconds", "Age by commit of the first record that may not have been "
      "read: how far the reading is behind the log.", _SHARD, merge="max")  # fmt: skip
_LIMIT = "scope limited"
_look("worker", "late_limit_running", "Attempts that run under a queue's or target's limits.",
      _LIMIT)  # fmt: skip
_look("worker", "late_limit_calls_total", "Attempts that ended under them. result: good, if its "
      "executor works by it; bad, if it fails.", f"{_LIMIT} result")  # fmt: skip
_look("worker", "late_limit_concurrency", "How many may, in this worker.", _LIMIT)
_look("worker", "late_limit_tokens", "Starts that the rate allows at once.", _LIMIT)
_look("worker", "late_retry_budget", "Retries that may start at once.", _LIMIT)
_look("worker", "late_paused", "1 while a queue or target is paused.", _LIMIT, merge="max")
_look("worker", "late_breaker_state", "0 closed, 1 half-open, 2 open.", _LIMIT, merge="max")
_look("worker", "late_outage", "1 while most tasks of a name fail in this worker: they keep "
      "their attempts.", "group queue task", merge="max")  # fmt: skip
_look("worker", "late_breaker_opened_total", "How often the breaker has opened.", _LIMIT)
_look("worker", "late_consumers_unanswered_total", "Attempts of a pulled queue whose consumer let "
      "its time pass without an answer.", "queue")  # fmt: skip
_look("worker", "late_statements_total", "Statements sent to the database by the store, without "
      "begin and commit; Spanner's are in late_rpc_total.", "verb")  # fmt: skip
_look("worker", "late_clock_offset_seconds", "How far the database's clock is ahead of this "
      "machine's.", merge="max")  # fmt: skip
_look("worker", "late_clock_age_seconds", "Since the database's clock was last seen.", merge="max")

# --- what the parent of several worker processes says --------------------------------------------

PROCESS_RESTARTS = "late_process_restarts_total"
_look("parent", PROCESS_RESTARTS, "Worker processes started in place of one that ended or stalled.")

# --- the whole database, looked at by one worker for each group ----------------------------------

_QUEUE = "group queue"
_look("database", "late_queue_depth", "Tasks in the log beyond the group's cursors; counting stops "
      "at a limit.", _QUEUE)  # fmt: skip
_look("database", "late_queue_depth_capped", "1 where it did: there are more.", _QUEUE,
      merge="max")  # fmt: skip
_look("database", "late_queue_oldest_age_seconds", "Age of the oldest task in the log that is not "
      "settled.", _QUEUE, merge="max")  # fmt: skip
_look("database", "late_queue_in_flight", "Started, or due within moments, by the checkpoints.",
      _QUEUE)  # fmt: skip
_look("database", "late_queue_parked", "In the timer table: delays, retries, held tasks.", _QUEUE)
_look("database", "late_tenant_share", "Part of what arrived in a queue in the last minute, or "
      "of what ended if that is more, of the three tenants that send most or have most slots; of "
      "queues with a fair key and several tenants.",
      f"{_QUEUE} tenant", merge="max")  # fmt: skip
_look("database", "late_queue_limited", "Of the parked, those that a limit or a target holds back.",
      _QUEUE)  # fmt: skip
_look("database", "late_queue_dead", "Dead letters.", _QUEUE)
_look("database", "late_queue_killed", "Dead letters under which workers died.", _QUEUE)
_look("database", "late_unhandled_tasks", "Parked tasks that no live worker can run. handlers: "
      "none, if no live worker has declared one; some, if they did not fit or refused; unknown, "
      "if not all workers have declared theirs.", "group queue task handlers")  # fmt: skip
_look("database", "late_suspect_deaths", "Workers that died under one task, which runs on trial: "
      "the most of any task.", "group", merge="max")  # fmt: skip
_look("database", "late_objective_burn", "How fast a queue with an objective uses up its error "
      "budget, over a window: 1 is just as fast as it lasts. Without a queue: a group's own.",
      f"{_QUEUE} window", merge="max")  # fmt: skip
_look("database", "late_objective_budget_left", "The part of the error budget of seven days that "
      "is left.", _QUEUE, merge="min")  # fmt: skip
_look("database", "late_freshness_seconds", "Everything that was committed this long ago is done, "
      "or was put off.", "group", merge="max")  # fmt: skip
_look("database", "late_fresh_until_timestamp_seconds", "The same as a time: everything committed "
      "before is done, or was put off.", "group", merge="min")  # fmt: skip
_look("database", "late_attempt_rate", "Attempts that ended per second, in the last minute.",
      "group")  # fmt: skip
_look("database", "late_drain_seconds", "How long the backlog takes at the rate of attempts "
      "that end well; +Inf where none does.", "group", merge="max")  # fmt: skip
_look("database", "late_saturation", "Share of the slots of all live workers that is busy.",
      "group", merge="max")  # fmt: skip
_look("database", "late_workers", "Live workers.", "group")
_look("database", "late_workers_wanted", "Workers that the load and its backlog need.", "group")
_look("database", "late_shards", "Shards of the group.", "group")
_look("database", "late_shards_unowned", "Those that no live worker owns.", "group")
_look("database", "late_database_size_bytes", "Size of the database.")
_look("database", "late_database_connections", "Connections to the database.")
_look("database", "late_database_connections_max", "Those that the whole server takes.")
_look("database", "late_database_transactions_total", "Transactions, by the server's own count.",
      "outcome")  # fmt: skip
_look("database", "late_database_rows_total", "Rows that were read, inserted, updated or deleted, "
      "by the server's own count.", "verb")  # fmt: skip
_look("database", "late_database_blocks_total", "Blocks that were asked for, from the cache or "
      "from the disk.", "source")  # fmt: skip
_look("database", "late_database_wal_bytes_total", "Write-ahead log of the whole server.")
_look("database", "late_database_temp_bytes_total", "Spilt to the disk by queries.")
_look("database", "late_database_deadlocks_total", "Deadlocks that the server has ended.")
_look("database", "late_database_oldest_transaction_seconds", "Age of the oldest open transaction: "
      "it holds up vacuum, and on PostgreSQL the tail. Without pg_read_all_stats only those of the "
      "same login count.")  # fmt: skip
_look("database", "late_database_replica_lag_seconds", "How far the slowest replica is behind.")
_look("database", "late_database_dead_rows", "Rows of `late`'s tables that wait for vacuum.")
_look("database", "late_database_disk_free_bytes", "Free on the disk of a database in a file.",
      merge="min")  # fmt: skip
_look("database", "late_database_disk_bytes", "Size of that disk.")
_look("database", "late_looked_timestamp_seconds", "When the database was last looked at.",
      merge="min")  # fmt: skip
_look("replica", "late_read_replica_used", "1 while the page reads from its replica, 0 while from "
      "the database.", merge="min")  # fmt: skip
_look("replica", "late_read_replica_lag_seconds", "The most by which the replica is behind; none "
      "while that is not known.", merge="max")  # fmt: skip

# --- what a close of a month writes into its folder, for a textfile collector --------------------

_look("close", "late_budget_spent_ratio", "Cost of the month so far, as a share of the budget.",
      "part", merge="max")  # fmt: skip
_look("close", "late_budget_expected_ratio", "The same of the whole month, as it is expected.",
      "part", merge="max")  # fmt: skip
_look("close", "late_budget_known_timestamp_seconds", "End of the last day whose cost is known.",
      "part", merge="min")  # fmt: skip
