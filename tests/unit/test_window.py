"""What the window of a shard tells of the records that its checkpoint comes to cover."""

from __future__ import annotations

from late.model.task import Cursor, Policy, Record, ShardId, TaskId
from late.scheduler.core.window import Window
from late.scheduler.task_state import Entry
from late.store.base import Page


def read(window: Window, first: int, count: int) -> list[Entry]:
    numbers = range(first, first + count)
    records = [Record(0, n, TaskId(f"t{n}"), "q", "n", b"12345", None, None, 1, n) for n in numbers]
    entries = [Entry(record, Policy()) for record in records]
    cursor = Cursor(f"w@{first + count - 1}")
    window.append(entries, Page(ShardId(0), records, cursor, "w", False, 1))
    return entries


def test_each_record_is_told_once_when_the_checkpoint_covers_it() -> None:
    # Given two pages, of which the fourth record was started first
    window = Window(Cursor(""))
    entries = read(window, 1, 3) + read(window, 4, 3)
    assert window.arrived() == []
    window.cover_all([entries[3], entries[1]])
    # Then all up to it are covered, and told once
    assert window.arrived() == entries[:4]
    assert window.arrived() == []
    window.forget_all([entries[0].record.task_id])
    entries += read(window, 7, 1)
    window.cover(entries[6])
    assert window.arrived() == entries[4:]


def test_open_is_what_is_covered_and_not_settled_in_order() -> None:
    window = Window(Cursor(""))
    entries = read(window, 1, 6)
    window.cover(entries[4])
    found = window.open(without={"t1", "t3", "t6"})
    assert [task.task_id for task in found] == ["t2", "t4", "t5"]


def test_bytes_are_those_of_what_is_neither_settled_nor_gone() -> None:
    window = Window(Cursor(""))
    read(window, 1, 4)
    assert window.bytes == 20
    assert window.forget_all([TaskId("t2"), TaskId("t9")]) == ["t9"]
    assert (window.bytes, len(window)) == (15, 3)
