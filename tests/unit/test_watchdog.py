"""When a worker stalls, when it only waits, and when a stall is over: pure, so time is a number."""

from __future__ import annotations

import pytest

from late.worker.watch.progress import Duty, Watchdog


class Worker:
    """Looks once a second at duties that the test sets."""

    def __init__(self, stall_s: float = 10.0) -> None:
        self.dog = Watchdog(stall_s)
        self.done = 0
        self.owed = True
        self.changes: list[tuple[int, frozenset[str]]] = []
        self.second = 0

    def live(self, seconds: int, *, works: bool = False, paused: bool = False) -> None:
        for _ in range(seconds):
            self.second += 1
            self.done += works
            if self.dog.look(1.0, [Duty("start", self.owed, self.done)], paused=paused):
                self.changes.append((self.second, self.dog.stalled))


STALLED, FINE = frozenset({"start"}), frozenset[str]()


def test_who_owes_and_does_nothing_stalls_after_its_time_and_not_before() -> None:
    worker = Worker()
    worker.live(1, works=True)
    worker.live(9)
    assert worker.changes == []
    worker.live(5)
    assert worker.changes == [(11, STALLED)]


def test_any_progress_begins_the_time_anew() -> None:
    worker = Worker()
    for _ in range(10):
        worker.live(9)
        worker.live(1, works=True)
    assert worker.changes == []


def test_who_owes_nothing_may_rest_for_ever() -> None:
    worker = Worker()
    worker.owed = False
    worker.live(1_000)
    worker.owed = True
    worker.live(9)
    assert worker.changes == [], "the rest does not count"


def test_an_interruption_of_what_is_owed_begins_the_time_anew() -> None:
    worker = Worker()
    for _ in range(20):
        worker.owed = True
        worker.live(9)
        worker.owed = False
        worker.live(1)
    assert worker.changes == []


def test_a_database_that_is_away_is_no_stall() -> None:
    worker = Worker()
    worker.live(1, works=True)
    worker.live(1_000, paused=True)
    worker.live(9)
    assert worker.changes == []
    worker.live(1)
    assert worker.changes[0][1] == STALLED


def test_but_a_loop_that_does_not_answer_is_one_all_the_same() -> None:
    dog = Watchdog(10.0)
    for _ in range(12):
        dog.look(1.0, [Duty("answer", True, 7)], paused=True)
    assert dog.stalled == {"answer"}


def test_progress_ends_a_stall_at_once() -> None:
    worker = Worker()
    worker.live(20)
    worker.live(1, works=True)
    assert worker.changes[-1] == (21, FINE)


def test_a_stall_whose_shards_are_gone_is_over_after_the_same_time_once_more() -> None:
    """What was wrong may be wrong for all: a fleet in which nobody tries again would be worse."""
    worker = Worker()
    worker.live(20)
    worker.owed = False
    worker.live(9)
    assert worker.dog.stalled == STALLED
    worker.live(1)
    assert worker.dog.stalled == FINE


def test_a_stall_that_is_still_owed_goes_on() -> None:
    worker = Worker()
    worker.live(10_000)
    assert worker.changes == [(11, STALLED)]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_duties_are_judged_each_for_itself(order: tuple[str, str]) -> None:
    dog = Watchdog(10.0)
    for second in range(30):
        counts = {"a": second, "b": 0}
        dog.look(1.0, [Duty(name, True, counts[name]) for name in order])
    assert dog.stalled == {"b"}
