"""What the Spanner store writes and finds in a transaction, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("google.cloud.spanner_v1", reason="no google-cloud-spanner")

from late.model.task import Cursor, DeadLetter, Epoch, ShardId
from late.store.base import Revival, Settlement, Step, Tick
from late.store.spanner import cursor as spanner_cursor
from late.store.spanner import journal as spanner_journal
from late.store.spanner import prune as spanner_prune
from late.store.spanner import rebase as spanner_rebase
from late.store.spanner.row_codec import carried_row, parked_of
from late.store.spanner.store import SpannerStore
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


def settlement(**carried: Any) -> Settlement:
    return Settlement("id", "g", ShardId(0), 2, Epoch(1), "me", Cursor(""), (), **carried)


def test_tasks_of_ticks_are_inserted_unless_their_key_is_taken() -> None:
    taken, plain, first, second = (
        task(unique_key=key, digest="d") for key in ("taken", None, "free", "free")
    )
    written = Written()
    held: dict[str, Any] = {"taken": (record().task_id, None)}
    spanner_journal._append(written, [taken, plain, first, second], held, 7)

    assert [row["task_id"] for row in written.rows["late_task"]] == [plain.task_id, first.task_id]
    [key] = written.rows["late_unique"]
    assert (key["unique_key"], key["task_id"], key["digest"]) == ("free", first.task_id, "d")
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


def test_a_journal_of_which_no_row_is_old_is_not_read() -> None:
    journal = spanner_prune.JournalRange("g", 0, first=9, last=9)
    assert spanner_prune.old_settlements(None, journal, 50) == (0, 0, False)


class Tables:
    """A transaction that answers what is asked of its tables, and keeps what is written."""

    def __init__(self, **tables: list[Any]) -> None:
        self.tables = tables
        self.asked: dict[str, list[Any]] = {}
        self.written: dict[str, list[Any]] = {}

    def read(self, table: str, columns: Any, keyset: Any, index: str = "") -> list[Any]:
        self.asked[table] = list(keyset.keys)
        return self.tables.get(index or table, [])

    def execute_sql(self, statement: str, where: Any) -> list[Any]:
        return self.tables["checkpoint"]

    def write(self, table: str, columns: Any, rows: list[Any]) -> None:
        self.written.setdefault(table, []).extend(rows)

    insert = update = insert_or_update = write

    def delete(self, table: str, keyset: Any) -> None: ...


def test_a_tick_takes_effect_where_its_schedule_expects_it_and_nowhere_else() -> None:
    due, moved, gone = task(), task(), task()
    ticks = (
        Tick("due", 10, 20, (due,)),
        Tick("moved", 10, 20, (moved,)),
        Tick("gone", 10, 20, (gone,)),
    )
    tables = Tables()
    schedules: dict[str, list[Any]] = {"due": [10, None], "moved": [11, None]}
    spanner_journal._ticks(tables, settlement(ticks=ticks), schedules, {}, 7)
    assert tables.written["late_schedule"] == [("due", 20, due.task_id, 7)]
    [row] = tables.written["late_task"]
    assert due.task_id in row


def test_the_keys_that_a_settlement_frees_and_takes_are_looked_up() -> None:
    tasks = (task(unique_key="taken"), task())
    carried = settlement(
        released_keys=(("freed", record().task_id),), ticks=(Tick("s", 10, 20, tasks),)
    )
    tables = Tables(late_unique=[("taken", "other", None)])
    assert spanner_journal._unique_keys(tables, carried) == {"taken": ("other", None)}
    assert tables.asked["late_unique"] == [["freed"], ["taken"]]


def test_a_dead_letter_goes_back_with_the_payload_that_it_was_given() -> None:
    old = DeadLetter(record(payload=b"old"), "failed", 1, 0)
    task_id = old.record.task_id
    row = ("g", 0, 5, task_id, "failed", *carried_row(old))
    tables = Tables(late_dead_task=[(5, task_id)], late_dead=[row])
    back = (Revival(task_id, 9, b"new"),)
    assert list(spanner_journal._revive(tables, settlement(revived=back), 7)) == [task_id]
    [timer] = tables.written["late_timer"]
    found = parked_of(list(timer))
    assert (found.due_at_us, found.record) == (9, replace(old.record, payload=b"new"))


def test_a_shard_that_is_freed_keeps_its_checkpoint_and_fences_its_owner() -> None:
    open_tasks, leases = '[[3,"t"]]', [("me", 4)]
    journal = [(7, 5, "cursor", open_tasks, None), (6, 5, "before", "[]", None)]
    tables = Tables(checkpoint=[(100, journal, leases, None)])
    spanner_rebase.free(tables, "g", 3)
    [settled] = tables.written["late_settlement"]
    assert settled[:3] == ("g", 3, 8)
    assert settled[4:8] == (6, "rebase", "cursor", open_tasks)
    assert tables.written["late_lease"] == [("g", 3, None, 6)]


class Database:
    """What pruning asks: the groups, their checkpoints by shard, no limit of age, the time."""

    def __init__(self, *checkpoints: tuple[str, int, list[Any]]) -> None:
        self.answers = iter([[("a",), ("b",)], list(checkpoints), [], [(100,)]])

    @contextmanager
    def snapshot(self) -> Iterator[Database]:
        yield self

    def execute_sql(self, statement: str) -> list[Any]:
        return next(self.answers)


def test_rows_stay_until_every_group_has_settled_them() -> None:
    first, second = ("a", 0, [(5, "200", "[]")]), ("b", 0, [(3, "100", "[]")])
    plan = spanner_prune.plan(Database(first, ("b", 0, [])))
    assert (plan.settled, [each.group for each in plan.journals]) == ([], ["a"])
    plan = spanner_prune.plan(Database(first, second))
    assert [(each.shard_id, each.floor.position) for each in plan.settled] == [(0, 100)]
    assert [(each.group, each.last) for each in plan.journals] == [("a", 5), ("b", 3)]


class Log:
    """A log whose rows are a nanosecond apart."""

    def __init__(self, count: int) -> None:
        self.rows = [
            (spanner_cursor.moment_of(number), f"t{number}") for number in range(1, count + 1)
        ]

    @contextmanager
    def snapshot(self) -> Iterator[Log]:
        yield self

    def read(self, table: str, columns: Any, keyset: Any, limit: int) -> list[Any]:
        return self.rows[:limit]


@pytest.mark.parametrize("count", [0, 1, spanner_prune.BATCH, spanner_prune.BATCH + 1])
def test_there_may_be_more_behind_a_batch_that_is_full(count: int) -> None:
    settled = spanner_prune.SettledShard(0, spanner_cursor.parse("9000"), ())
    batch = spanner_prune.next_batch(Log(count), settled, (0, "t0"))
    rows = min(count, spanner_prune.BATCH)
    assert (batch.rows, batch.end, batch.full) == (rows, (rows, f"t{rows}"), count >= rows > 1)


class Clients:
    """Answers each step of pruning from a list, and counts the transactions that write."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.limits: list[int] = []
        self.writes: list[Any] = []

    async def call(self, step: Any, *values: Any, role: str) -> Any:
        self.limits += values[2:]
        return self.answers.pop(0)

    async def write(self, step: Any, *values: Any, role: str) -> None:
        self.writes.append(values)


@pytest.mark.parametrize(
    ("answers", "limits", "deleted"),
    [
        ([(0, 0, False)], [1], 0),
        ([(1, 3, True), (4, 6, False)], [1, spanner_prune.BATCH], 4),
    ],
)
async def test_a_journal_is_asked_for_one_row_first_and_its_old_rows_go_together(
    answers: list[Any], limits: list[int], deleted: int
) -> None:
    store = SpannerStore("spanner:///projects/p/instances/i/databases/d")
    store._clients = clients = Clients(*answers)  # type: ignore[assignment]
    journal = spanner_prune.JournalRange("g", 0, last=9)
    assert await store._prune_journal(journal, 50) == deleted
    assert clients.limits == limits
    assert len(clients.writes) == (deleted > 0)


async def test_a_batch_in_which_every_row_must_stay_writes_nothing() -> None:
    store = SpannerStore("spanner:///projects/p/instances/i/databases/d")
    batches = [
        spanner_prune.PruneBatch([], 0, (5, "a"), True),
        spanner_prune.PruneBatch([([6, "a"], [6, "a"])], 1, (6, "a"), False),
    ]
    store._clients = clients = Clients(*batches)  # type: ignore[assignment]
    settled = spanner_prune.SettledShard(0, spanner_cursor.parse("9"), ())
    assert await store._prune_shard(settled) == 1
    assert clients.writes == [(0, batches[1])]
