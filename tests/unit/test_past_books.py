"""The books of a past moment, and answers without what is not known."""

from __future__ import annotations

from collections import Counter

import pytest

from late.control.past.as_of import AsOf, NotKnown
from late.control.past.books import Unfinished, split, unfinished_then
from late.control.past.journal import Since
from late.control.past.moment import left_out
from late.control.views import Count, TaskInGroup, TaskView
from late.model.histogram import bucket
from late.model.task import ENQUEUED, Usage


def test_what_was_read_since_was_not_there_and_what_has_ended_was() -> None:
    since = Since(arrived=Counter(a=3), ended=Counter(a=1, b=2))
    assert unfinished_then({"a": 2, "c": 4}, since) == {"b": 2, "c": 4}


@pytest.mark.parametrize("since", [Since(redriven=True), Since(anew=True)])
def test_what_came_back_cannot_be_led_back(since: Since) -> None:
    assert unfinished_then({"a": 1}, since) is None


def test_less_than_nothing_is_not_believed() -> None:
    assert unfinished_then({"a": 1}, Since(arrived=Counter(a=2))) is None


@pytest.mark.parametrize(
    ("open_count", "opened", "expected"),
    [
        (0, (), Unfinished({"a": Count(0), "b": Count(0)}, {"a": Count(2), "b": Count(3)})),
        (5, None, Unfinished({"a": Count(2), "b": Count(3)}, {"a": Count(0), "b": Count(0)})),
        (2, ("a", "b"), Unfinished({"a": Count(1), "b": Count(1)}, {"a": Count(1), "b": Count(2)})),
        (
            4,
            None,
            Unfinished(
                {"a": Count(1, capped=True), "b": Count(2, capped=True)},
                {"a": Count(0, capped=True), "b": Count(0, capped=True)},
            ),
        ),
        (6, None, None),
        (1, ("c",), None),
        (3, ("a", "a", "a"), None),
    ],
)
def test_open_tasks_are_told_from_parked_ones(
    open_count: int, opened: tuple[str, ...] | None, expected: Unfinished | None
) -> None:
    assert split({"a": 2, "b": 3}, open_count, opened) == expected


def test_an_age_counts_only_if_it_is_long_enough_for_certain() -> None:
    since = Since()
    ages = ((bucket(999_000), 1), (bucket(1_100_000), 2), (bucket(5_000_000), 3))
    since.take(Usage("a", "t", "", ENQUEUED, 6, waiting=ages), after_us=1_000_000)
    assert (since.arrived, since.older) == (Counter(a=6), Counter(a=5))


def test_what_is_not_known_is_left_out_of_one_group_or_of_all() -> None:
    groups = (TaskInGroup("x", "unknown"), TaskInGroup("y", "parked"))
    gone = (NotKnown("groups[x].state", "-"), NotKnown("groups.reason", "-"), NotKnown("queue", ""))
    found = left_out(TaskView("id", 3, 5, groups, as_of=AsOf(7, "journal", gone)))
    assert ["state" in each for each in found["groups"]] == [False, True]
    assert not any("reason" in each for each in found["groups"])
    assert "queue" not in found
    assert found["as_of"]["not_known"][0] == {"field": "groups[x].state", "why": "-"}
