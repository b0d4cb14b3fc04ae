"""The autoscaler's journal on every store: one term at a time, and its epoch fences."""

from __future__ import annotations

import time

import pytest

from late.autoscaler.autoscaler import TermLost
from late.autoscaler.decide import Decision
from late.control import Control


def test_a_term_is_held_taken_over_and_fenced(url: str) -> None:
    with Control(url) as control:
        journal = control.autoscalers.journal()
        # Given a controller that holds its term, and one that waits
        first = journal.hold("shop", "a", 60.0)
        assert first is not None
        assert first.epoch == 1
        assert journal.hold("shop", "b", 60.0) is None
        started = Decision(first.now_us, "linear", 10, 13, 13, "", {"cpu": 80.0})
        assert journal.record(first, started, "started") == 1
        # When the term runs out and is taken over
        assert journal.hold("shop", "a", 0.000001) is not None
        time.sleep(0.01)  # SQLite's clock counts milliseconds
        second = journal.hold("shop", "b", 60.0)
        # Then cool-downs go on, and the first can write nothing
        assert second is not None
        assert (second.epoch, second.up_us) == (2, first.now_us)
        for write in (
            lambda: journal.record(first, started, "started"),
            lambda: journal.finish(first, 1, "applied"),
            lambda: journal.looked(first, "text"),
            lambda: journal.give_back(first),
        ):
            with pytest.raises(TermLost):
                write()
        assert [row.result for row in control.autoscalers.decisions()] == [
            "unknown: its controller ended"
        ]
        # And what it gives back is free at once
        held = Decision(second.now_us, "within", 13, 13, 13, "", {})
        assert journal.record(second, held, "held") == 2
        journal.finish(second, 2, "held")
        journal.give_back(second)
        assert control.autoscalers.all()[0].owner is None
        third = journal.hold("shop", "a", 60.0)
        assert third is not None
        assert third.epoch == 3
        # A term of the same owner from before counts no more either
        with pytest.raises(TermLost):
            journal.looked(first, "text")
        assert [row.seq for row in control.autoscalers.decisions(name="shop")] == [2, 1]
        assert [row.seq for row in control.autoscalers.decisions(changes=True)] == [1]
