"""What a hint changes of the tail's pace: rate, repetitions, credit. The clock is a number."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.tailer.read_hints import CREDIT, CREDIT_PER_S, Hints

POLL_MIN_S = 0.005
SPACING_S = 0.002


def look(hints: Hints, at_s: float, *, found: bool, takes_s: float = 0.0) -> None:
    hints.begin(at_s)
    hints.end(at_s + takes_s, found)


def test_a_hint_asks_for_a_look_at_once() -> None:
    hints = Hints(POLL_MIN_S)
    assert math.isinf(hints.due_s)
    hints.heard(5.0)
    assert hints.due_s == 5.0
    look(hints, 5.0, found=True)
    assert math.isinf(hints.due_s), "one look, and no more"


def test_a_hint_waits_until_a_look_begins() -> None:
    hints = Hints(POLL_MIN_S)
    assert not hints.waits
    for hear in (hints.heard, hints.told):
        hear(5.0)
        assert hints.waits, "another one would say nothing new"
        hints.begin(5.0)
        assert not hints.waits
        hints.end(5.0, True)


def test_a_hint_that_comes_too_early_leads_to_a_few_quick_looks() -> None:
    hints = Hints(POLL_MIN_S)
    hints.heard(1.0)
    at_s, looks = 1.0, [1.0]
    for _ in range(10):
        look(hints, at_s, found=False)
        if math.isinf(hints.due_s):
            break
        at_s = hints.due_s
        looks.append(at_s)
    waits = [after - before for before, after in itertools.pairwise(looks)]
    assert waits == pytest.approx([SPACING_S, 2 * SPACING_S, 4 * SPACING_S])


@given(st.lists(st.floats(0, 0.02), min_size=4, max_size=4))
def test_quick_looks_begin_ever_longer_after_the_end_of_the_one_before(takes: list[float]) -> None:
    hints = Hints(POLL_MIN_S)
    hints.heard(1.0)
    at_s = 1.0
    for spacings, takes_s in zip((1, 2, 4), takes, strict=False):
        look(hints, at_s, found=False, takes_s=takes_s)
        # As long as it took is left free as well.
        assert hints.due_s == pytest.approx(at_s + takes_s + max(spacings * SPACING_S, takes_s))
        at_s = hints.due_s
    look(hints, at_s, found=False, takes_s=takes[3])
    assert math.isinf(hints.due_s)


def test_the_quick_looks_end_with_the_first_that_finds_something() -> None:
    hints = Hints(POLL_MIN_S)
    hints.heard(1.0)
    look(hints, 1.0, found=False)
    look(hints, hints.due_s, found=True)
    assert math.isinf(hints.due_s)


def test_a_hint_during_a_look_leads_to_another_one() -> None:
    hints = Hints(POLL_MIN_S)
    hints.heard(1.0)
    hints.begin(1.0)
    hints.heard(1.0005)
    hints.end(1.001, found=True)
    assert hints.due_s == pytest.approx(1.0 + SPACING_S)
    look(hints, hints.due_s, found=False)
    assert math.isinf(hints.due_s), "what it told of had come before: no quick looks"


def test_a_hint_during_quick_looks_is_looked_for_at_once() -> None:
    hints = Hints(POLL_MIN_S)
    hints.heard(1.0)
    look(hints, 1.0, found=False)
    look(hints, hints.due_s, found=False)
    assert hints.due_s > 1.005
    assert not hints.waits, "nobody was heard since"
    hints.heard(1.0045)
    assert hints.due_s == 1.0045


def test_looks_leave_the_pause_that_they_took() -> None:
    hints = Hints(POLL_MIN_S)
    hints.heard(1.0)
    look(hints, 1.0, found=True, takes_s=0.5)
    hints.heard(1.6)
    assert hints.due_s == 2.0


def test_a_look_that_was_due_anyway_takes_a_hint_along_for_nothing() -> None:
    hints = Hints(POLL_MIN_S)
    hints.heard(1.0)
    look(hints, 1.0, found=True)
    for n in range(1000):  # each hint is heard too soon for a look of its own
        hints.heard(1.0 + n * 1e-6)
        assert hints.due_s == 1.0 + SPACING_S
        look(hints, 1.0 + n * 1e-6, found=True)
    hints.heard(2.0)
    assert hints.due_s == 2.0


@given(st.lists(st.floats(0, 0.01), min_size=1, max_size=300), st.floats(0, 0.003))
def test_however_many_hints_come_that_are_wrong_few_looks_are_made(
    gaps: list[float], takes_s: float
) -> None:
    hints, now_s, looks = Hints(POLL_MIN_S), 100.0, 0
    for gap_s in gaps * 5:
        now_s += gap_s
        hints.heard(now_s)
        while hints.due_s <= now_s:
            look(hints, hints.due_s, found=False, takes_s=takes_s)
            looks += 1
    assert looks <= CREDIT + CREDIT_PER_S * (now_s - 100.0) + 1


def test_a_flood_of_hints_that_are_wrong_costs_what_is_stated() -> None:
    hints, looks = Hints(POLL_MIN_S), []
    for n in range(100_000):
        now_s = 50.0 + n / 10_000  # for ten seconds
        if not hints.waits:
            hints.heard(now_s)
        if hints.due_s <= now_s:
            look(hints, now_s, found=False, takes_s=0.0005)
            looks.append(now_s)
    assert CREDIT + CREDIT_PER_S * 10 * 0.9 <= len(looks) <= CREDIT + CREDIT_PER_S * 10 + 1


def test_a_flood_of_hints_that_are_right_is_looked_for_at_the_stated_pace() -> None:
    hints, looks = Hints(POLL_MIN_S), []
    for n in range(100_000):
        now_s = 50.0 + n / 100_000  # for one second
        if not hints.waits:
            hints.heard(now_s)
        if hints.due_s <= now_s:
            look(hints, now_s, found=True, takes_s=0.0005)
            looks.append(now_s)
    apart = [after - before for before, after in itertools.pairwise(looks)]
    assert min(apart) >= SPACING_S - 1e-9
    assert len(looks) > 0.9 / SPACING_S, "credit is given back by what is found"
