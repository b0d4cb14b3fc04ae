"""What the Spanner store writes and finds in a transaction, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("google.cloud.spanner_v1", reason="no google-cloud-spanner")

from late.model.task import Cursor, Epoch, ShardId
from late.store.base import Settlement, Step
from late.store.spanner import journal as spanner_journal
from late.store.spanner import prune as spanner_prune
from tests.conformance.kit import record, task


class Written:
    """A transaction that keeps what it is to insert."""

    def __init__(self, *history: tuple[str, int]) -> None:
        self.rows: dict[str, list[Any]] = {}
        self.history = history
        """(task, number of a step) as they are there already."""

    def read(self, table: str, columns: Any, keyset: Any) -> list[tuple[str, int]]:
        asked = {each.start_closed[1] for each in keyset.ranges}
        return [step for step in self.history if step[0] in asked]

    def insert(self, table: str, columns: tuple[str, ...], values: list[Any]) -> None:
        self.rows.setdefault(table, []).extend(
            dict(zip(columns, row, strict=True)) for row in values
        )


def test_tasks_of_ticks_are_inserted_unless_their_key_is_taken() -> None:
    taken, plain, first, second = (task(unique_key=key) for key in ("taken", None, "free", "free"))
    written = Written()
    held: dict[str, Any] = {"taken": (record().task_id, None)}
    spanner_journal._append(written, [taken, plain, first, second], held, 7)

    assert [row["task_id"] for row in written.rows["late_task"]] == [plain.task_id, first.task_id]
    [key] = written.rows["late_unique"]
    assert (key["unique_key"], key["task_id"]) == ("free", first.task_id)
    assert held["free"] == (first.task_id, None)


def test_steps_go_on_from_the_last_and_a_redrive_is_one_where_a_history_is_kept() -> None:
    ended, back, silent = (record().task_id for _ in range(3))
    written = Written((ended, 1), (back, 1), (back, 2))
    steps = (Step(ended, 5, "done"),)
    settlement = Settlement("id", "g", ShardId(0), 2, Epoch(1), "me", Cursor(""), (), history=steps)
    spanner_journal._history(written, settlement, [back, silent], 7)

    found = [(row["task_id"], row["number"], row["event"]) for row in written.rows["late_history"]]
    assert found == [(ended, 2, "done"), (back, 3, "redriven")]


class Journal:
    """The rows of one journal: (seq, when)."""

    def __init__(self, *rows: tuple[int, int]) -> None:
        self.rows = rows

    @contextmanager
    def snapshot(self) -> Iterator[Journal]:
        yield self

    def read(self, table: str, columns: Any, keys: Any, limit: int) -> list[tuple[int, int]]:
        return list(self.rows[:limit])


@pytest.mark.parametrize(
    ("rows", "limit", "found"),
    [
        ((), 9, (0, 0, False)),
        (((3, 50),), 9, (0, 0, False)),
        (((3, 10), (4, 20), (5, 50)), 9, (2, 4, False)),
        (((3, 10), (4, 20), (5, 50)), 2, (2, 4, True)),
        # The clock went back: behind a row that stays no other goes
        (((3, 10), (4, 50), (5, 20)), 9, (1, 3, False)),
    ],
)
def test_the_old_settlements_of_a_journal_are_a_prefix(
    rows: tuple[tuple[int, int], ...], limit: int, found: tuple[int, int, bool]
) -> None:
    journal = spanner_prune.JournalRange("g", 0, first=3, last=9)
    assert spanner_prune.old_settlements(Journal(*rows), journal, 50, limit) == found
