"""Usage of one shard since its last settlement: counts that commit with the outcomes."""

from __future__ import annotations

from late.task import Outcome, Usage


class Ledger:
    """Adds up attempts per (queue, name, target, outcome)."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str, str], list[int]] = {}

    def add(self, outcome: Outcome, word: str, *, ended: bool) -> None:
        """Count one attempt under `word`; payload bytes count once, when the task has ended."""
        record = outcome.attempt.record
        key = (record.queue, record.name, outcome.target, word)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = [0, 0, 0, 0, 0]
        row[0] += 1
        # What never ran (expired, undecodable) was no attempt.
        row[1] += outcome.kind not in ("expired", "dead")
        row[2] += outcome.busy_us
        row[3] += max(0, outcome.started_at_us - outcome.attempt.due_at_us)
        row[4] += len(record.payload) if ended else 0

    def add_final(self, queue: str, name: str, word: str, payload_bytes: int) -> None:
        """Count a task that ended without an attempt (expired, unknown, undecodable)."""
        row = self._rows.setdefault((queue, name, "", word), [0, 0, 0, 0, 0])
        row[0] += 1
        row[4] += payload_bytes

    def take(self) -> tuple[Usage, ...]:
        """All rows, ascending by key; the ledger is empty afterwards."""
        rows = tuple(Usage(*key, *row) for key, row in sorted(self._rows.items()))
        self._rows = {}
        return rows
