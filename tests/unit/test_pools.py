"""The tasks that were handed over and that nobody has begun, by group."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from late.model.task import Attempt, Record, TaskId
from late.scheduler.pools import queued_by_group


def record(number: int) -> Record:
    return Record(0, number, TaskId(f"t{number}"), "q", "n", b"{}", None, None, 0, number)


def holder(*attempts: tuple[str, int]) -> Any:
    queued = deque([Attempt(group, record(n), 1, 0, 1, 0) for group, n in attempts])
    return SimpleNamespace(queued=queued)


def ids(*numbers: int) -> set[str]:
    return {record(number).task_id for number in numbers}


def test_each_group_has_its_own_tasks() -> None:
    """The same task may be begun in one group and wait in another."""
    slots = holder(("a", 1), ("b", 2), ("a", 3))
    assert queued_by_group([slots]) == {"a": ids(1, 3), "b": ids(2)}


def test_all_holders_are_looked_at() -> None:
    found = queued_by_group([holder(("a", 1)), holder(), holder(("a", 2), ("b", 1))])
    assert found == {"a": ids(1, 2), "b": ids(1)}


def test_nothing_waits() -> None:
    assert queued_by_group([holder(), holder()]) == {}
