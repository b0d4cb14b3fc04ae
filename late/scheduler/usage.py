"""Usage of one shard since its last settlement: counts that commit with the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from late.model.histogram import histogram
from late.model.task import ENQUEUED, TENANTS_OTHER, Attempt, Counts, Outcome, Record, Usage
from late.model.usage_sums import named_sums
from late.scheduler.task_state import Entry

TENANTS_MAX = 100
"""Tenants that one settlement tells apart: whoever chooses them must not choose its size."""
TENANT_LENGTH_MAX = 128
_UNRUN = ("expired", "dead")
"""Outcomes of tasks that never ran (expired, undecodable): they were no attempt."""

_REPEATED = ("stalled", "died", "interrupted")
"""Outcomes of attempts that are made again under the same number."""

LOST = "died"
"""The outcome of an attempt whose worker is gone."""

_Key = tuple[str, str, str, str, str | None]


class _Row:
    """Sums of one key. A plain object: the path of every task comes through here."""

    __slots__ = (
        "busy",
        "bytes",
        "count",
        "counts",
        "delayed",
        "lateness_us",
        "retries",
        "tenant",
        "waiting",
    )

    def __init__(self, tenant: str | None) -> None:
        self.tenant = tenant
        self.count = self.bytes = self.retries = self.lateness_us = self.delayed = 0
        # Added up and put into buckets by the settlement, many at once: half as dear as one by one.
        self.waiting: list[int] = []
        self.busy: list[int] = []
        """One of each attempt."""
        self.counts: list[Counts] = []
        """Those of the attempts that have counted something."""

    def ran(self, attempt: Attempt, outcome: Outcome) -> None:
        """Count an attempt that was one."""
        due_us = attempt.due_at_us
        waiting_us = outcome.started_at_us - due_us
        self.waiting.append(waiting_us)
        self.busy.append(outcome.busy_us)
        if attempt.number > 1:
            self.retries += 1
        if due_us > attempt.record.created_at_us:
            self.delayed += 1
            self.lateness_us += max(0, waiting_us)

    def usage(self, key: _Key) -> Usage:
        queue, name, target, outcome, tenant = key
        waiting, busy = _no_less_than_0(self.waiting), _no_less_than_0(self.busy)
        return Usage(
            queue,
            name,
            target,
            outcome,
            self.count,
            len(busy),
            sum(busy),
            sum(waiting),
            self.bytes,
            self.retries,
            self.lateness_us,
            self.delayed,
            histogram(waiting),
            histogram(busy),
            tenant,
            named_sums(self.counts) if self.counts else (),
        )


def _no_less_than_0(durations: list[int]) -> list[int]:
    """Return the durations with 0 in place of negative ones: two clocks may differ."""
    return durations if min(durations, default=0) >= 0 else [max(0, us) for us in durations]


_NO_ROW = _Row(None)
"""Stands before the first row of a loop, and counts nothing."""


class UsageCounters:
    """Adds up attempts, ends and arrivals per (queue, name, target, outcome, tenant).

    Args:
        tenant_of: the tenant of a task; None where its queue has no fair key.
    """

    def __init__(self, tenant_of: Callable[[Record], str | None]) -> None:
        self._tenant_of = tenant_of
        self._rows: dict[_Key, _Row] = {}
        self._tenants: set[str] = set()

    def add(self, outcome: Outcome, word: str, *, ended: bool) -> None:
        """Count one outcome under `word`, and the attempt if its handler was called; payload bytes
        count once, when the task has ended."""
        attempt = outcome.attempt
        record = attempt.record
        row = self._row(record, outcome.target, word)
        row.count += 1
        if ended:
            row.bytes += len(record.payload)
        if outcome.counts and word == "done":
            row.counts.append(outcome.counts)
        if outcome.kind in _UNRUN or not outcome.begun:
            return
        row.ran(attempt, outcome)
        if word in _REPEATED and attempt.number == 1:
            row.retries += 1  # the next one is no first either, and does not show it

    @property
    def has_lost(self) -> bool:
        """True while attempts are counted whose process has gone."""
        return any(outcome == LOST for _, _, _, outcome, _ in self._rows)

    def add_done(self, outcomes: Iterable[Outcome]) -> None:
        """Do as `add` for each, under `done`: the way of nearly all."""
        # As in `add_arrived`: those that end together are mostly of one task.
        queue = name = target = None
        row = _NO_ROW
        for outcome in outcomes:
            attempt = outcome.attempt
            record = attempt.record
            if record.queue != queue or record.name != name or outcome.target != target:
                row = self._row(record, outcome.target, "done")
                name, target = record.name, outcome.target
                # A queue with a fair key has a tenant for each task, others have none for any.
                queue = record.queue if row.tenant is None else None
            row.count += 1
            row.bytes += len(record.payload)
            if outcome.counts:
                row.counts.append(outcome.counts)
            row.ran(attempt, outcome)

    def add_final(self, record: Record, word: str) -> None:
        """Count a task that ended without an attempt (expired, unknown, undecodable)."""
        row = self._row(record, "", word)
        row.count += 1
        row.bytes += len(record.payload)

    def add_lost(self, record: Record, target: str) -> None:
        """Count an attempt that the last checkpoint has as started, by an owner that cannot record
        its end. How long it took is not known, so it counts as nothing.

        A takeover keeps the checkpoint, so this is counted with the first settlement that follows
        one, and by the successor's successor if there is none.
        """
        row = self._row(record, target, LOST)
        row.count += 1
        row.retries += 1
        row.waiting.append(0)
        row.busy.append(0)

    def add_arrived(self, entries: Iterable[Entry], now_us: int) -> None:
        """Count records that the checkpoint has come to cover, with their ages."""
        # The records of one page are mostly of one task: the row of the last one is at hand.
        queue = name = None
        row = _NO_ROW
        for entry in entries:
            record = entry.record
            if record.queue != queue or record.name != name:
                row = self._row(record, "", ENQUEUED)
                name, queue = record.name, record.queue if row.tenant is None else None
            row.waiting.append(now_us - record.created_at_us)
            row.count += 1

    def _row(self, record: Record, target: str, word: str) -> _Row:
        tenant = self._tenant_of(record)
        if tenant is not None:
            tenant = self._told(tenant[:TENANT_LENGTH_MAX])
        key = (record.queue, record.name, target, word, tenant)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(tenant)
        return row

    def _told(self, tenant: str) -> str:
        if tenant not in self._tenants:
            if len(self._tenants) >= TENANTS_MAX:
                return TENANTS_OTHER
            self._tenants.add(tenant)
        return tenant

    def take(self) -> tuple[Usage, ...]:
        """Take out all rows, ascending by key."""
        # No tenant and the tenant "" do not compare.
        keys = sorted(self._rows, key=lambda key: (*key[:4], key[4] or ""))
        rows = tuple(self._rows[key].usage(key) for key in keys)
        self._rows, self._tenants = {}, set()
        return rows
