"""What the judge of a storm adds to the checker's classes."""

from __future__ import annotations

from typing import Any

from tests.chaos.judge import _late_starts
from tests.support.history import Event


def story(*steps: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(t, fields.pop("p", "w1"), f, **fields) for t, (f, fields) in enumerate(steps)]  # type: ignore[arg-type]


TAKEN = ("lease", {"p": "w2", "shard": 0, "epoch": 2})
START = ("exec_start", {"task": "a", "shard": 0, "epoch": 1})
WOKEN = ("fault", {"p": "storm", "word": "cont", "target": "w1"})


def copied(*steps: tuple[str, dict[str, Any]]) -> list[Event]:
    return story(*((f, dict(fields)) for f, fields in steps))


def test_a_start_under_an_epoch_that_is_over_is_late() -> None:
    assert list(_late_starts(copied(START, TAKEN))) == []
    assert list(_late_starts(copied(TAKEN, START))) == [False]


def test_and_worse_if_its_owner_had_slept_through_the_takeover() -> None:
    assert list(_late_starts(copied(TAKEN, WOKEN, START))) == [True]
    assert list(_late_starts(copied(WOKEN, TAKEN, START))) == [False], "that was a race"
