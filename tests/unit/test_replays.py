"""A second row of a sealed task is told from the first one by its position."""

from __future__ import annotations

import pytest

from late.model.task import Options, TaskId
from late.scheduler.core import replays
from late.scheduler.core.replays import Replays
from tests.conformance.kit import record

SEALED = Options(codec="sealed")
TASK = TaskId("a")


def second(seen: Replays, task_id: str, position: int, options: Options = SEALED) -> bool:
    return seen.is_second(record(task_id=TaskId(task_id), position=position), options)


def test_a_row_that_is_read_again_is_no_second_one() -> None:
    seen = Replays()
    assert not second(seen, "a", 5)
    assert not second(seen, "a", 5)
    assert second(seen, "a", 6)
    assert second(seen, "a", 4)
    assert seen.refused == [TASK, TASK]


@pytest.mark.parametrize("codec", [None, "json", "msgpack"])
def test_rows_without_a_seal_are_not_remembered(codec: str | None) -> None:
    seen = Replays()
    for position in (5, 6):
        assert not second(seen, "a", position, Options(codec=codec))


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "SEALED_MAX", 2)
    seen = Replays()
    for task_id in "abc":
        second(seen, task_id, 5)
    assert [second(seen, task_id, 6) for task_id in "bca"] == [True, True, False]
