"""How much of the timer table is read at once, and that what others put there is found."""

from __future__ import annotations

import msgspec
import pytest

from late.model.task import HELD_US, Parked, Record, TaskId
from late.scheduler.core.timers import LOAD_MAX, RESCAN_US, SCAN_ON_US, Timers
from late.scheduler.events_effects import Load

SECOND = 1_000_000


def overdue(n: int) -> Parked:
    """The lower the number, the longer."""
    record = Record(0, n, TaskId(f"{n:08}"), "q", "job", b"{}", None, None, 0, n)
    return Parked(record, due_at_us=n, reason="delayed")


class Table:
    """A timer table, and the timers of a worker that has read all of it."""

    def __init__(self, crowd: int) -> None:
        self.rows = {n: overdue(n) for n in range(10, 10 * crowd + 1, 10)}
        self.timers = Timers(horizon_us=2 * SECOND, timers_max=100_000)
        self.now_us = 1_000 * SECOND
        self.known: set[int] = set()
        self.pages: list[int] = []
        """Rows of each answer that had any."""
        while len(self.known) < crowd:
            self.look()

    def look(self) -> None:
        """All loads of this moment."""
        while (request := self.timers.load(self.now_us)) is not None:
            self._answer(request)

    def _answer(self, request: Load) -> None:
        found = [
            row
            for n, row in sorted(self.rows.items())
            if (n, row.record.task_id) > request.after and n <= request.until_us
        ][: request.limit]
        if found:
            self.pages.append(len(found))
        self.known |= {row.due_at_us for row in self.timers.answer(request, found)}

    def after(self, pause_us: int) -> None:
        self.now_us += pause_us
        self.look()


@pytest.mark.parametrize("place", [15, 5_005, 9_995], ids=["first", "middle", "last"])
def test_what_is_put_into_a_crowd_is_found_however_long_that_is(place: int) -> None:
    table = Table(1_000)
    table.rows[place] = overdue(place)
    seconds = RESCAN_US // SECOND + 2 * 1_000 // LOAD_MAX * SCAN_ON_US // SECOND
    for _ in range(seconds):
        table.after(SECOND)
    assert place in table.known


def test_a_scan_is_read_in_pages_with_pauses() -> None:
    table = Table(1_000)
    table.after(10 * RESCAN_US)  # wherever the first one was
    while table.timers._scan_after != (0, ""):
        table.after(SCAN_ON_US)
    table.pages.clear()
    table.after(RESCAN_US - 1)
    assert table.pages == []
    table.after(1)
    assert table.pages == [LOAD_MAX]
    table.after(SCAN_ON_US - 1)
    assert table.pages == [LOAD_MAX]
    for _ in range(3):
        table.after(SCAN_ON_US)
    assert table.pages[:4] == [LOAD_MAX] * 4, "no row twice"


def test_a_page_that_failed_is_asked_for_again() -> None:
    table = Table(1_000)
    table.after(10 * RESCAN_US)
    table.now_us += RESCAN_US
    request = table.timers.load(table.now_us)
    assert request is not None
    table.timers.failed(request)
    assert table.timers.load(table.now_us) == request


def test_a_scan_that_has_seen_all_begins_again_after_its_pause() -> None:
    table = Table(10)
    table.after(RESCAN_US)
    table.pages.clear()
    for _ in range(2 * RESCAN_US // SECOND):
        table.after(SECOND)
        assert table.timers._scan_after == (0, ""), "there is nothing to go on with"
    assert table.pages == [10, 10]


def test_what_is_due_later_is_loaded_as_it_comes_near_and_not_all_at_once() -> None:
    table = Table(0)
    start_us = table.now_us
    table.rows = {n: overdue(n) for n in range(start_us, start_us + 10 * SECOND, 4_000)}
    table.after(SECOND // 100)
    table.pages.clear()
    for _ in range(400):
        table.after(SECOND // 50)
        near = {n for n in table.rows if n <= table.now_us + SECOND // 2}
        assert near <= table.known, "what is near is in memory"
    assert max(table.pages) == LOAD_MAX
    assert 7 <= len(table.pages) <= 10, "a page a second, and none before its time"


def test_a_row_that_is_put_there_again_is_shown_by_what_is_asked_afterwards_only() -> None:
    """Under the same key: a task that waits behind its ordering key, moves, and waits again."""
    timers = Timers(horizon_us=2 * SECOND, timers_max=100)
    row = msgspec.structs.replace(overdue(1), due_at_us=HELD_US)
    before, after = (Load(until_us=HELD_US, limit=10, held_key="k") for _ in range(2))
    timers.asked(before)
    timers.rows_changed([(HELD_US, row.record.task_id)], new=False)
    timers.asked(after)
    assert timers.answer(after, [row]) == [row]
    assert timers.answer(before, [row]) == []
    assert not timers._gone, "nothing is out that may show it"


def test_an_idle_shard_asks_once_for_what_is_overdue_and_what_is_near() -> None:
    timers = Timers(horizon_us=10 * SECOND, timers_max=100)
    asked: list[int] = []
    for now_us in range(SECOND, 120 * SECOND, SECOND // 10):
        if (request := timers.load(now_us)) is not None:
            asked.append(now_us)
            timers.answer(request, [])
            assert timers.loaded[0] >= now_us
    assert len(asked) <= 120 / 5 + 2
