"""The error budget of a queue: counted from settlements, and what stands still counts too."""

from __future__ import annotations

import msgspec
import pytest

from late.control.status.objectives import WHOLE, Counted, Starts, add, view
from late.model.histogram import bucket, histogram
from late.model.task import CONTROL_QUEUE, ENQUEUED, Usage

LEAST = {"mail": bucket(30_000_000)}
MINUTE_US = 60_000_000


def settled(*usage: Usage) -> str:
    return msgspec.json.encode(usage).decode()


def started(queue: str, outcome: str, *waits_s: float) -> Usage:
    waits = histogram(round(each * 1e6) for each in waits_s)
    return Usage(queue, "send", "local", outcome, len(waits_s), len(waits_s), waiting=waits)


def test_starts_are_counted_in_each_window_that_they_are_in() -> None:
    windows: dict[tuple[str, str], Starts] = {}
    add(windows, settled(started("mail", "done", 1.0, 29.0, 40.0)), MINUTE_US, LEAST)
    add(windows, settled(started("mail", "retried", 600.0)), 45 * MINUTE_US, LEAST)
    found = {window: (of.started, of.late) for (_, window), of in windows.items()}
    assert found == {"5m": (3, 1), "30m": (3, 1), "1h": (4, 2), "6h": (4, 2), "7d": (4, 2)}


def test_arrivals_other_queues_and_rows_that_nobody_can_read_are_not_counted() -> None:
    windows: dict[tuple[str, str], Starts] = {}
    add(windows, settled(started("mail", ENQUEUED, 90.0), started("slow", "done", 90.0)), 0, LEAST)
    add(windows, "not json", 0, LEAST)
    add(windows, None, 0, LEAST)
    assert windows == {}


def test_a_group_counts_the_starts_of_all_of_its_queues_but_no_command() -> None:
    windows: dict[tuple[str, str], Starts] = {}
    least = LEAST | {WHOLE: bucket(60_000_000)}
    usage = started("mail", "done", 1.0, 40.0), started("slow", "done", 90.0)
    add(windows, settled(*usage, started(CONTROL_QUEUE, "done", 90.0)), MINUTE_US, least)
    found = {
        queue: (of.started, of.late) for (queue, window), of in windows.items() if window == "5m"
    }
    assert found == {"mail": (2, 1), WHOLE: (3, 1)}
    counted, whole = {"default": Counted(windows)}, {"default": 60.0}
    both = list(view(counted, {"mail": 30.0}, {("default", WHOLE): 0.0}, whole))
    assert [(each.queue, each.objective_s, each.started) for each in both] == [
        (WHOLE, 60.0, 3), ("mail", 30.0, 2),
    ]  # fmt: skip


def test_a_group_in_which_nothing_starts_burns_by_its_oldest_task() -> None:
    oldest = {("idle", WHOLE): 60.0 + 300.0, ("other", WHOLE): 0.0}
    found, other = view({}, {}, oldest, {"idle": 60.0, "other": 5.0})
    assert (other.group, other.objective_s, other.budget_left) == ("other", 5.0, 1.0)
    assert found.burn("5m") == pytest.approx(100.0)
    assert found.overdue_s == 300.0


def burns(counted: Counted, oldest_s: float) -> dict[str, float]:
    [found] = view({"default": counted}, {"mail": 30.0}, {("default", "mail"): oldest_s})
    return {each.window: round(each.rate, 2) for each in found.burns} | {"left": found.budget_left}


def test_a_burn_rate_is_the_late_part_in_parts_of_the_budget() -> None:
    counted = Counted({("mail", "1h"): Starts(200, 4), ("mail", "7d"): Starts(1_000, 5)})
    found = burns(counted, 0.0)
    assert (found["1h"], found["7d"]) == (2.0, 0.5)
    assert found["left"] == pytest.approx(0.5)
    assert burns(Counted({("mail", "7d"): Starts(100, 50)}), 0.0)["left"] == 0.0


def test_a_queue_in_which_nothing_starts_burns_while_its_oldest_is_overdue() -> None:
    found = burns(Counted({}), 30.0 + 1_800.0)
    assert (found["5m"], found["30m"], found["1h"]) == (100.0, 100.0, 50.0)
    assert set(burns(Counted({}), 29.0).values()) == {0.0, 1.0}, "not overdue yet"
