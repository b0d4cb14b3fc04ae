"""Every alert. Each has a page in `docs/runbooks/` with its cause, a check, and the remedy.

`page` wakes somebody: no work is done, or soon none will be. `ticket` is for the next working day.
Expressions are PromQL over `docs/metrics.md`. One worker reports the database's metrics for all
workers. They are taken by `max`, because for a moment two workers may report them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["page", "ticket"]


class Alert(msgspec.Struct, frozen=True):
    """One alert. In `expr`, `{seconds}` is the objective, `{queues}` and `{parts}` are matchers of
    labels."""

    name: str
    severity: Severity
    expr: str
    hold: str
    """The time for which the expression must be true."""
    summary: str
    """A sentence with Prometheus' placeholders."""
    per_queue: bool = False
    """A queue's owner, severity and objective apply."""
    per_budget: bool = False
    """Each part that has a budget has a rule of its own, which goes to that part."""

    @property
    def runbook(self) -> str:
        """The name of its page, without the folder and the suffix."""
        words = "".join(f"-{c.lower()}" if c.isupper() else c for c in self.name)
        return words.strip("-").removeprefix("late-")


_QUEUE = "max by (group, queue) (late_queue_oldest_age_seconds{{{queues}}})"
_LOST = (
    "max by (tag, other) (sum by (kind, tag, other) (increase(late_conflict_seconds_total[10m])))"
)
"""A deadlock is seen by its victim and as a wait: the larger of the two is the time lost."""
_BAD = "max by (group) (late_freshness_seconds) > bool {seconds}"


def _burns(long: str, short: str, share: float) -> str:
    """Make the condition that the error budget burns too fast, over a long and a short time."""
    parts = [f"avg_over_time(({_BAD})[{span}:1m]) > {share}" for span in (long, short)]
    return " and ".join(parts)


def _spends(long: str, short: str, rate: float) -> str:
    """Make the condition that a queue's own objective is missed, by what the journal says."""
    parts = [
        f'max by (group, queue) (late_objective_burn{{{{window="{span}",{{queues}}}}}}) > {rate:g}'
        for span in (long, short)
    ]
    return " and ".join(parts)


ALERTS: tuple[Alert, ...] = (
    Alert("LateNoWorkers", "page",
          "max by (group) (late_workers) == 0 and on (group) "
          "sum by (group) (max by (group, queue) (late_queue_depth)) > 0",
          "1m", "Nobody works for the group {{ $labels.group }}, and tasks wait."),
    Alert("LateMetricsAbsent", "page",
          "absent(late_looked_timestamp_seconds) or "
          "time() - max(late_looked_timestamp_seconds) > 300",
          "5m", "No process reports what the database holds, so no other alert can fire."),
    Alert("LateShardsUnowned", "page",
          "max by (group) (late_shards_unowned) > 0 and on (group) "
          "max by (group) (late_workers) > 0",
          "1m", "{{ $value }} shards of the group {{ $labels.group }} have no live owner."),
    Alert("LateFreshnessBurnsFast", "page", _burns("1h", "5m", 0.144), "2m",
          "The group {{ $labels.group }} uses up its budget of staleness 14 times too fast."),
    Alert("LateFreshnessBurnsSlowly", "ticket", _burns("6h", "30m", 0.06), "15m",
          "The group {{ $labels.group }} uses up its budget of staleness 6 times too fast."),
    Alert("LateGroupFallsBehind", "ticket",
          "max by (group) (late_freshness_seconds) > {seconds} and "
          "max by (group) (delta(late_freshness_seconds[1m])) > 0", "30s",
          "The group {{ $labels.group }} is stale by {{ $value | humanizeDuration }} and growing."),
    Alert("LateObjectiveBurnsFast", "page", _spends("1h", "5m", 14.4), "2m",
          "The error budget of {{ $labels.group }} {{ $labels.queue }} is used up "
          "{{ $value | humanize }} times too fast.",
          per_queue=True),
    Alert("LateObjectiveBurnsSlowly", "ticket", _spends("6h", "30m", 6.0), "15m",
          "The error budget of {{ $labels.group }} {{ $labels.queue }} is used up "
          "{{ $value | humanize }} times too fast.",
          per_queue=True),
    Alert("LateQueueIsOld", "ticket", f"{_QUEUE} > {{seconds}}", "2m",
          "The oldest task of {{ $labels.queue }} waits for {{ $value | humanizeDuration }}.",
          per_queue=True),
    Alert("LateBacklogDoesNotDrain", "ticket", "max by (group) (late_drain_seconds) > 3600", "15m",
          "The backlog of the group {{ $labels.group }} takes more than an hour at this pace."),
    Alert("LateTenantFloods", "ticket",
          # The flood is there until its tasks have run, and its arrivals show for a minute.
          "max by (group, queue, tenant) (max_over_time(late_tenant_share[5m])) > 0.5 "
          "and on (group, queue) "
          "max by (group, queue) (late_queue_depth + late_queue_in_flight + late_queue_limited) "
          "- scalar(sum(late_slots_busy) or vector(0)) > 100",
          "1m", "The tenant {{ $labels.tenant }} sends {{ $value | humanizePercentage }} of the "
          "tasks of {{ $labels.queue }}, and tasks wait."),
    Alert("LateWorkersDie", "ticket",
          # A task that kills quickly is a dead letter before anybody has seen it on trial.
          "max by (group) (late_suspect_deaths) > 1 or max by (group) (late_queue_killed) > 0",
          "0m", "Workers of the group {{ $labels.group }} died under a task."),
    Alert("LateDeadLetters", "ticket",
          "max by (group, queue) (late_queue_dead{{{queues}}}) > 0", "1m",
          "{{ $value }} tasks of {{ $labels.queue }} are dead letters, and wait for somebody.",
          per_queue=True),
    Alert("LateAttemptsFail", "ticket",
          "sum by (group, queue) (rate("
          'late_outcomes_total{{outcome=~"retried|stalled|dead",{queues}}}[10m]))'
          " / sum by (group, queue) (rate(late_attempts_total{{{queues}}}[10m])) > 0.5",
          "10m", "More than half of the attempts of {{ $labels.queue }} fail.", per_queue=True),
    Alert("LateOutage", "page", "max by (group, queue, task) (late_outage) > 0", "1m",
          "Most tasks {{ $labels.task }} of {{ $labels.queue }} fail: is what they need away?"),
    Alert("LateTasksUnknown", "ticket",
          "sum by (group, queue, task) (increase(late_unknown_tasks_total[15m])) > 0", "5m",
          "No worker has a handler for {{ $labels.task }}: its tasks are parked."),
    # Half-open too: it is that for the time of each probe, and a look may fall into it.
    Alert("LateBreakerOpen", "page", "max by (scope, limited) (late_breaker_state) >= 1", "1m",
          "Calls of the {{ $labels.scope }} {{ $labels.limited }} fail: its circuit is open."),
    Alert("LateTargetFails", "page",
          'sum by (limited) (rate(late_limit_calls_total{scope="target",result="bad"}[2m]))'
          ' / sum by (limited) (rate(late_limit_calls_total{scope="target"}[2m])) > 0.25',
          "1m", "{{ $value | humanizePercentage }} of the calls of the target "
          "{{ $labels.limited }} fail."),
    Alert("LateTargetDown", "ticket",
          "sum by (target) (increase(late_target_down_total[10m])) > 3", "0m",
          "Endpoints of the target {{ $labels.target }} go down again and again."),
    Alert("LateConsumersSilent", "ticket",
          "sum by (queue) (increase(late_consumers_unanswered_total[5m])) > 3", "0m",
          "Consumers of {{ $labels.queue }} take tasks and let their time pass: "
          "{{ $value | printf `%.0f` }} in five minutes."),
    Alert("LateDiskNearlyFull", "page",
          "min(late_database_disk_free_bytes) < 10 * 2 ^ 30 and "
          "min(late_database_disk_free_bytes / late_database_disk_bytes) < 0.1", "1m",
          "{{ $value | humanize1024 }}B are free on the disk of the database."),
    Alert("LateSlotsStuck", "ticket", "max by (instance) (late_slots_stuck) > 0", "10m",
          "{{ $value }} slots of {{ $labels.instance }} are held by handlers that do not end."),
    Alert("LateSaturated", "ticket", "max by (group) (late_saturation) > 0.9", "30m",
          "The workers of the group {{ $labels.group }} are busy all the time."),
    Alert("LateWorkerStalls", "page", "increase(late_stalls_total[10m]) > 0", "0m",
          "{{ $labels.instance }} stood still and gave its shards up."),
    Alert("LateProcessesRestart", "ticket", "increase(late_process_restarts_total[15m]) > 3", "0m",
          "Worker processes of {{ $labels.instance }} end or stall again and again."),
    Alert("LateLeaseChurn", "ticket",
          "sum by (group) (increase(late_lease_lost_total[15m])) > 10", "0m",
          "Shards of the group {{ $labels.group }} are taken over again and again."),
    Alert("LateHeartbeatOverdue", "ticket", "increase(late_trust_lost_total[15m]) > 2", "0m",
          "The heartbeat of {{ $labels.instance }} is overdue again and again: it starts nothing "
          "meanwhile."),
    Alert("LateStoreErrors", "ticket",
          "sum by (component) (rate(late_store_errors_total[5m])) > 0.2", "5m",
          "The database refuses or loses calls of {{ $labels.component }}."),
    Alert("LateSettlementsRefused", "page",
          "sum by (group, shard) (increase(late_settlements_refused_total[10m])) > 2", "0m",
          "The database takes no settlement of the shard {{ $labels.shard }} of the group "
          "{{ $labels.group }}: it starts nothing, and what it has run will run again."),
    Alert("LateSettlementUnanswered", "page", "max by (instance) (late_settling_seconds) > 10",
          "0m", "The database has not answered a settlement of {{ $labels.instance }} for "
          "{{ $value | humanizeDuration }}: a lock, or a slow disk."),
    Alert("LateSettlesSlowly", "ticket",
          "histogram_quantile(0.99, sum by (le) (rate(late_settle_seconds_bucket[10m]))) > 1",
          "10m", "One group commit in a hundred takes longer than a second."),
    Alert("LateReadsLate", "ticket", "max by (group) (late_tail_lag_seconds) > 30", "5m",
          "The reading of the log is {{ $value | humanizeDuration }} behind its commits."),
    Alert("LateConflicts", "ticket",
          f"{_LOST} > 5 and on (tag, other) "
          f"({_LOST} / scalar(sum(increase(late_run_seconds_sum[10m])))) > 0.05",
          "1m", "Transactions {{ $labels.tag }} lost {{ $value | humanizeDuration }} in ten "
          "minutes to others ({{ $labels.other }}): they want the same rows."),
    Alert("LateClockIsOff", "ticket", "max(abs(late_clock_offset_seconds)) > 5", "1m",
          "The database's clock and a worker's are {{ $value }} s apart."),
    Alert("LateTicksSlip", "ticket",
          "sum by (schedule) (increase(late_ticks_skipped_total[30m])) > 1 or "
          "sum by (schedule) (increase(late_ticks_late_total[30m])) > 1", "0m",
          "{{ $value | printf `%.0f` }} ticks of the schedule {{ $labels.schedule }} were left out "
          "or late within half an hour."),
    Alert("LateSchedulesDisabled", "ticket",
          # Not `increase`: a series that begins at one has no increase.
          "sum by (schedule) (late_schedules_disabled_total) > 0", "0m",
          "The schedule {{ $labels.schedule }} cannot be read or never fires again."),
    Alert("LateRowsCopied", "page",
          "sum by (group, shard) (late_replays_refused_total) > 0", "0m",
          "Somebody has copied rows of the log, in the shard {{ $labels.shard }} of the group "
          "{{ $labels.group }}."),
    Alert("LatePausedForLong", "ticket",
          "min_over_time((max by (scope, limited) (late_paused))[24h:5m]) == 1", "0m",
          "The {{ $labels.scope }} {{ $labels.limited }} is paused for a day."),
    Alert("LateAutoscalerNoMetrics", "ticket",
          "sum by (controller) (increase(late_autoscaler_no_metrics_total[30m])) > 5 or "
          # More than half of its looks had no metrics, at any rate of looks.
          'sum by (controller) (increase(late_autoscaler_looks_total{rule="hold"}[30m])) '
          "/ sum by (controller) (increase(late_autoscaler_looks_total[30m])) > 0.5", "0m",
          "The autoscaler {{ $labels.controller }} cannot look or act."),
    Alert("LateBudgetOverrun", "ticket",
          "max by (part) (late_budget_expected_ratio{{{parts}}}) > 1 and on (part) "
          # A month that was closed long ago has no budget left to save.
          "time() - max by (part) (late_budget_known_timestamp_seconds{{{parts}}}) < 604800", "0m",
          "The month is expected to end at {{ $value | humanizePercentage }} of the budget of "
          "{{ $labels.part }}.", per_budget=True),
)  # fmt: skip
