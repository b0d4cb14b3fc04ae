"""The sufficient capacity: shards, nodes and knobs against the load that was recorded.

The load is the arrivals of each queue by steps of some minutes (`load`, which alone sees the
usage), times a growth. Against it a queue's knobs are played as a fluid: what a step cannot start
waits for the next. That is exact for averages over a step, and says nothing about bursts within
one; hence the steps are short and the report names their length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from late.errors import ConfigError
from late_spark import schema, series
from late_spark.calendar import Calendar
from late_spark.relation import Columns, Relation, counted, part_of, total, within
from late_spark.series import Metrics

STEP_S = 300
BUSY_AT_MOST = 0.7
"""Busy share of a queue's slots; above it, waiting grows faster than the load."""
CPU_AT_MOST = 0.65
"""CPU share of the database that Spanner recommends for one region."""
SHARD_RATE = 1_000.0
"""Tasks per second that one shard may have, if nobody says otherwise: a shard has one owner, and
a process needs room for the others that it owns."""


@dataclass(frozen=True, slots=True)
class Step:
    """The load of one queue on one shard in one step."""

    at: int
    """Number of the step."""
    queue: str
    shard: int
    arrived: int
    attempts: int
    busy_us: int


@dataclass(frozen=True)
class Setting:
    """Knobs of a queue to be tried; None is no limit."""

    concurrency: int | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Verdict:
    """One line of the report."""

    subject: str
    question: str
    answer: str
    enough: bool | None
    """None where there is nothing to compare with."""


def load(usage: Relation, calendar: Calendar, step_s: int = STEP_S) -> Columns:
    """Per step, queue and shard: arrivals, attempts, running time.

    Where arrivals are not recorded (usage of an older version), the tasks that ended stand for
    them. Of several consumer groups, each has its own load; they are added up.
    """
    at = part_of(f"(settled_us - {calendar.from_us})", step_s * 1_000_000)
    return usage.ask(f"""
        select {at} as step, queue, shard_id, {counted(schema.ENQUEUED)} as arrived,
            {counted(*schema.ENDS)} as ended, {total("attempts")} as attempts,
            {total("busy_us")} as busy_us
        from usage where {within(calendar)}
        group by 1, queue, shard_id
    """)


def collect(columns: Columns) -> list[Step]:
    """The rows of `load`."""
    arrivals = "arrived" if any(columns["arrived"]) else "ended"
    names = ("step", "queue", "shard_id", arrivals, "attempts", "busy_us")
    return [Step(*row) for row in zip(*(columns[name] for name in names), strict=True)]


def settings(texts: Iterable[str]) -> dict[str, Setting]:
    """`payments.concurrency=20` and `payments.rate=50` as settings by queue.

    Raises:
        ConfigError: another form, another knob, no number above zero, or a part of an attempt.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for text in texts:
        left, _, value = text.partition("=")
        queue, _, knob = left.rpartition(".")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not queue or knob not in ("concurrency", "rate") or not 0 < number < 1e12:
            raise ConfigError(
                f"--set {text[:64]!r}: expected QUEUE.concurrency=NUMBER or QUEUE.rate=NUMBER"
            )
        if knob == "concurrency" and not number.is_integer():
            raise ConfigError(f"--set {text[:64]!r}: concurrency is a whole number")
        found[queue][knob] = number
    return {
        queue: Setting(
            int(knobs["concurrency"]) if "concurrency" in knobs else None, knobs.get("rate")
        )
        for queue, knobs in found.items()
    }


@dataclass(frozen=True)
class Played:
    """The result of a queue under a setting."""

    queue: str
    slots_needed: int
    peak_per_s: float
    backlog_max: int
    wait_max_s: float
    """Longest that the last task of a backlog waits."""
    left: int
    """Backlog at the end of the range: the setting does not carry the load if it grows."""


def play(
    queue: str, steps: Sequence[Step], length: int, setting: Setting, growth: float, step_s: int
) -> Played:
    """One queue's load against its knobs.

    Args:
        length: number of steps in the range.
    """
    arrived = [0.0] * length
    busy = attempts = tasks = 0
    for step in steps:
        arrived[step.at] += step.arrived * growth
        busy += step.busy_us
        attempts += step.attempts
        tasks += step.arrived
    # A task occupies a slot for all of its attempts.
    each_s = busy / 1e6 / tasks if tasks else 0.0
    per_task = attempts / tasks if tasks else 1.0
    limit = float("inf")
    if setting.concurrency is not None and each_s > 0:
        limit = setting.concurrency / each_s * step_s
    if setting.rate is not None:
        limit = min(limit, setting.rate / max(per_task, 1.0) * step_s)
    backlog = most = wait = 0.0
    for amount in arrived:
        backlog = max(0.0, backlog + amount - limit)
        most = max(most, backlog)
        wait = max(wait, backlog / limit * step_s if backlog else 0.0)
    peak = max(arrived, default=0.0) / step_s
    slots = ceil(peak * each_s / BUSY_AT_MOST)
    return Played(queue, slots, peak, ceil(most), wait, ceil(backlog))


def queues(
    steps: Sequence[Step], calendar: Calendar, chosen: Mapping[str, Setting], growth: float,
    step_s: int = STEP_S,
) -> list[Played]:  # fmt: skip
    """Every queue, the one that needs most slots first.

    Raises:
        ConfigError: a setting for a queue that had no load.
    """
    length = ceil((calendar.to_us - calendar.from_us) / (step_s * 1_000_000))
    by_queue: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        by_queue[step.queue].append(step)
    for queue in chosen:
        if queue not in by_queue:
            raise ConfigError(f"--set {queue}: there is no load of this queue in the range")
    found = [
        play(queue, mine, length, chosen.get(queue, Setting()), growth, step_s)
        for queue, mine in by_queue.items()
    ]
    return sorted(found, key=lambda each: (-each.slots_needed, each.queue))


def shards(
    steps: Sequence[Step], growth: float, wanted: int | None, rate: float, step_s: int = STEP_S
) -> list[Verdict]:
    """Judge the busiest shard, now and with another number of shards.

    With another number the tasks spread as evenly as they did: the busiest has as much more than
    its share as now. Ordering keys that are hot by themselves do not spread at all.
    """
    by_step: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for step in steps:
        by_step[step.at][step.shard] += step.arrived
    if not by_step:
        return []
    count = len({step.shard for step in steps})
    totals = {at: sum(found.values()) for at, found in by_step.items()}
    peak_at = max(totals, key=lambda at: totals[at])
    total = totals[peak_at] * growth / step_s
    hottest = max(by_step[peak_at].values()) * growth / step_s
    skew = hottest / (total / count) if total else 1.0
    needed = max(1, ceil(total * skew / rate))
    found = [
        Verdict(
            "shards", f"the busiest of {count} at the peak of {total:,.0f} tasks/s",
            f"{hottest:,.0f} tasks/s, {skew:.2f} times its share", hottest <= rate,
        ),
        Verdict("shards", f"needed for at most {rate:,.0f} tasks/s each", str(needed), None),
    ]  # fmt: skip
    if wanted is not None:
        expected = total / wanted * skew
        found.append(
            Verdict("shards", f"with {wanted}, the busiest", f"{expected:,.0f} tasks/s",
                    expected <= rate)
        )  # fmt: skip
    return found


def nodes(metrics: Metrics, calendar: Calendar, growth: float, wanted: int | None) -> list[Verdict]:
    """The database's nodes by its measured CPU: the busiest hour but for one in a hundred."""
    count = series.by_hour(metrics.find("nodes"), calendar.from_us, calendar.to_us)
    cpu = series.by_hour(metrics.find("cpu"), calendar.from_us, calendar.to_us)
    used = sorted(
        float(max(count[hour])) * float(max(cpu[hour])) * growth for hour in count if hour in cpu
    )
    if not used:
        if wanted is not None:
            raise ConfigError("--nodes: no file of --metrics has nodes and cpu in the range")
        return []
    peak = used[max(0, len(used) - 1 - len(used) // 100)]
    needed = max(1, ceil(peak / CPU_AT_MOST))
    found = [
        Verdict("nodes", f"needed for {CPU_AT_MOST:.0%} of CPU at the peak", str(needed), None)
    ]
    if wanted is not None:
        share = peak / wanted
        found.append(
            Verdict("nodes", f"with {wanted}, CPU at the peak", f"{share:.0%}",
                    share <= CPU_AT_MOST)
        )  # fmt: skip
    return found
