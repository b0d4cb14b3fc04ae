"""The causes of cost, measured from the usage: one row per local day and key.

`daily` is the only part of the cost report that sees all of the usage: DuckDB or Spark turns a
hundred million rows into as many as there are keys and days. `work` makes weights of them, in
integers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from late_spark import relation, schema
from late_spark.allocation import Key, Work, equal_shares
from late_spark.calendar import Calendar
from late_spark.pricebook import Driver
from late_spark.relation import Columns, Relation, counted, total

MEANING: dict[Driver, str] = {
    "tasks": "tasks that ended, each once per consumer group",
    "writes": "rows written: 1 per ended task (its record), 1 per entry in the journal, 2 per "
    "attempt after which the task goes on (parked and taken out again), 1 per dead letter",
    "reads": "rows read: 1 per ended task, 1 per attempt after which the task goes on",
    "bytes": "payload bytes of ended tasks",
    "busy": "time for which handlers ran",
    "retries": "attempts after a task's first",
    "idle": "polling that finds nothing: each queue of each consumer group that had work on the "
    "day bears the same, and within it each task by its number",
}
_GROUPS = ("consumer_group", "queue", "name", "tenant", "owner")
_SUMS = ("attempts", "retries", "busy_us", "waiting_us", "bytes")


@dataclass(frozen=True, slots=True)
class Used:
    """The work of one key on one local day. All are sums, so days and keys may be added up."""

    day: date
    key: Key
    entries: int = 0
    """Rows of usage: entries in the settlement journal."""
    ended: int = 0
    dead: int = 0
    again: int = 0
    """Attempts after which the task went on: retried, snoozed and their like."""
    retried: int = 0
    enqueued: int = 0
    attempts: int = 0
    retries: int = 0
    busy_us: int = 0
    waiting_us: int = 0
    bytes: int = 0
    unrecorded: int = 0
    """Attempts that were written by a version that recorded no retries."""


def daily(usage: Relation, calendar: Calendar, without: Collection[str] = frozenset()) -> Columns:
    """Per local day, consumer group, queue, task, tenant and owner: the sums of `Used`.

    Args:
        without: `tenant` or `name` where nobody asks for them. Tenants are as many as customers:
            what the division costs in Python would grow with them.
    """
    groups = ", ".join(name for name in _GROUPS if name not in without)
    sums = {
        "ended": counted(*schema.ENDS),
        "dead": counted("dead"),
        "again": counted(*schema.GOES_ON),
        "retried": counted("retried"),
        "enqueued": counted(schema.ENQUEUED),
        "unrecorded": total(f"case when {relation.UNRECORDED} then attempts else 0 end"),
        **{name: total(name) for name in _SUMS},
    }
    return usage.ask(f"""
        select {relation.day(calendar)} as day, {groups}, count(*) as entries,
            {", ".join(f"{sum} as {name}" for name, sum in sums.items())}
        from usage where {relation.within(calendar)}
        group by 1, {groups}
    """)


def collect(columns: Columns, owner_of: Callable[[str, str, str], str] | None = None) -> list[Used]:
    """The rows of `daily`, ascending by day and key.

    Args:
        owner_of: (queue, task, recorded owner) -> owner; None keeps what is recorded.
    """
    missing = [""] * len(columns["day"])
    found: dict[tuple[date, Key], Used] = {}
    epoch = date(1970, 1, 1)
    groups = [columns.get(each, missing) for each in _GROUPS]
    names = ("entries", "ended", "dead", "again", "retried", "enqueued", *_SUMS, "unrecorded")
    for index, number in enumerate(columns["day"]):
        group, queue, name, tenant, owner = (each[index] or "" for each in groups)
        if owner_of is not None:
            owner = owner_of(queue, name, owner)
        at = epoch + timedelta(days=number), Key(group, queue, name, tenant, owner)
        row = Used(*at, *(columns[each][index] or 0 for each in names))
        # Two recorded owners may have become one.
        found[at] = added(found[at], row) if at in found else row
    return [found[at] for at in sorted(found)]


def added(first: Used, second: Used) -> Used:
    """The sums of both, under the first one's day and key."""
    numbers = Used.__slots__[2:]
    sums = (getattr(first, name) + getattr(second, name) for name in numbers)
    return Used(first.day, first.key, *sums)


def work(rows: Iterable[Used]) -> dict[date, Work]:
    """The weights of every day."""
    days: dict[date, list[Used]] = defaultdict(list)
    for row in rows:
        days[row.day].append(row)
    return {day: _work(sorted(found, key=lambda row: row.key)) for day, found in days.items()}


def _work(rows: Sequence[Used]) -> Work:
    weights: dict[Driver, list[int]] = {
        "tasks": [row.ended for row in rows],
        "writes": [row.ended + row.entries + 2 * row.again + row.dead for row in rows],
        "reads": [row.ended + row.again for row in rows],
        "bytes": [row.bytes for row in rows],
        "busy": [row.busy_us for row in rows],
        "retries": [row.retries for row in rows],
        "idle": equal_shares([row.key[:2] for row in rows], [row.ended for row in rows]),
    }
    blank: dict[Driver, str] = {}
    # What was put off today is often tried again tomorrow: that alone is no retry of today.
    if any(row.retried and row.unrecorded for row in rows) and not any(weights["retries"]):
        blank["retries"] = "the version of late that wrote this day's usage did not record retries"
    return Work([row.key for row in rows], weights, blank)
