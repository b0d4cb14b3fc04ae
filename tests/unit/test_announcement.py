"""The announcement of a tail that sleeps: when it is made, and when it is taken back."""

from __future__ import annotations

import pytest

from late.tailer import announcement as limits
from late.tailer.announcement import Announcement

POLL_S = 0.005
SILENCE_S = POLL_S * limits.SLEEP_AFTER


def announced(now_s: float = 0.0) -> Announcement:
    made = Announcement(POLL_S)
    assert not made.due(now_s, SILENCE_S / 2)
    assert made.due(now_s, SILENCE_S)
    made.made(now_s)
    return made


def storm(made: Announcement, now_s: float) -> int:
    """Notices until it must be taken back, all at once."""
    count = 0
    while not made.overrun:
        count += 1
        made.heard(now_s)
    return count


def test_it_stands_while_commits_are_told_of_at_a_low_rate() -> None:
    made = announced()
    assert all(made.heard(number / 100) for number in range(1_000))
    assert made.stands
    assert not made.overrun


def test_a_storm_of_notices_is_bounded() -> None:
    made = announced(10.0)
    assert storm(made, 10.0) <= limits.NOTICES
    made.withdrawn(10.0)
    assert not made.heard(10.0), "what comes late is a hint as any other"
    assert not made.due(10.0 + limits.HOLD_S, SILENCE_S)


def test_one_that_never_lasts_is_made_less_and_less_often() -> None:
    """Other shards are busy while ours are silent: their producers pay for each announcement."""
    made, now_s, notices = announced(), 0.0, 0
    while now_s < 60:
        notices += storm(made, now_s)
        made.withdrawn(now_s)
        while not made.due(now_s, 60.0):
            now_s += 0.01
        made.made(now_s)
    assert notices <= 60 / limits.HOLD_MAX_S * limits.NOTICES + 4 * limits.NOTICES


def test_each_one_that_did_not_last_doubles_the_wait_for_the_next() -> None:
    made, now_s = announced(), 0.0
    for wait_s in (2 * limits.HOLD_S, 4 * limits.HOLD_S, 8 * limits.HOLD_S):
        made.withdrawn(now_s)
        assert not made.due(now_s + wait_s - 0.01, 60.0)
        now_s += wait_s
        assert made.due(now_s, 60.0)
        made.made(now_s)


def test_one_that_lasted_may_be_made_soon_again() -> None:
    made = announced()
    for now_s in (0.0, 10.0):
        storm(made, now_s)
        made.withdrawn(now_s)
        made.made(now_s + 1)
    storm(made, 20.0)
    made.withdrawn(20.0)
    assert made.due(20.0 + limits.HOLD_S, SILENCE_S)


def test_one_that_stood_for_just_long_enough_has_lasted() -> None:
    made = announced()
    made.withdrawn(limits.LASTED_S)
    assert made.due(limits.LASTED_S + limits.HOLD_S, SILENCE_S)


def test_it_is_renewed_before_it_ends() -> None:
    made = announced()
    assert not made.due(limits.RENEW_S / 2, 100.0)
    assert made.due(limits.RENEW_S, 0.0)


def test_a_sleeper_looks_after_as_much_silence_again() -> None:
    made = announced()
    made.found(0.0, 1, told=True)
    now_s, looks = SILENCE_S, 0
    while now_s < 1.0:
        wait_s = made.look_after_s(now_s, now_s, 1.0)
        assert wait_s <= max(2 * POLL_S, now_s / 2)
        now_s += wait_s
        looks += 1
    assert looks <= 12
    assert made.look_after_s(100.0, 100.0, 1.0) == limits.LOOK_MAX_S
    assert made.look_after_s(100.0, 100.0, 0.2) == pytest.approx(0.2 * limits.LONGER)


def test_one_that_is_made_again_is_not_relied_upon_for_longer_than_it_has_stood() -> None:
    """Who inserted before it tells nobody, however long the silence before was."""
    made = announced()
    made.lost()
    assert made.due(100.0, 100.0)
    made.made(100.0)
    assert made.look_after_s(100.0, 100.0, 1.0) == POLL_S
    assert made.look_after_s(102.0, 102.0, 1.0) == 1.0


def trickle(made: Announcement, rate: float, for_s: float) -> float:
    """Records at an even rate, of which nobody tells; return the time of the last."""
    count = int(rate * for_s)
    for number in range(count):
        made.found(number / rate, 1, told=False)
    return count / rate


def test_a_steady_trickle_is_announced_though_it_is_never_silent() -> None:
    made = Announcement(POLL_S)
    now_s = trickle(made, 0.6 * limits.NOTICES_PER_S, limits.CALM_S + 0.1)
    assert made.due(now_s, 0.0)


def test_a_busy_stream_is_not_announced() -> None:
    made = Announcement(POLL_S)
    now_s = trickle(made, 2 * limits.NOTICES_PER_S, 10.0)
    assert not made.due(now_s, 0.0)
    # nor one that has only just become a trickle
    made.found(now_s + 0.5, 1, told=False)
    assert not made.due(now_s + 0.5, 0.0)
    assert made.due(now_s + limits.CALM_S + 0.1, 0.0)


def test_a_trickle_that_is_told_of_needs_no_polls() -> None:
    made = announced()
    made.heard(100.0)
    made.found(100.0, 1, told=True)
    assert made.look_after_s(100.0, 0.0, 1.0) == limits.LOOK_MAX_S


def test_records_that_nobody_tells_of_keep_the_pace_of_polls() -> None:
    made = announced()
    made.found(100.0, 1, told=False)
    assert made.look_after_s(100.0, 0.0, 1.0) == POLL_S
    # also between those that are told of, for a while
    made.found(101.0, 1, told=True)
    assert made.look_after_s(101.0, 0.0, 1.0) == 2 * POLL_S
    later_s = 100.0 + limits.DOUBT_S
    assert made.look_after_s(later_s, 0.0, 1.0) == limits.LOOK_MAX_S


def test_a_record_that_was_found_before_its_notice_came_is_told_of() -> None:
    made = announced()
    made.found(100.0, 1, told=False)
    made.heard(100.0 + limits.CROSSED_S)
    assert made.look_after_s(100.1, 0.0, 1.0) == limits.LOOK_MAX_S
    made.found(200.0, 1, told=False)
    made.heard(200.0 + 2 * limits.CROSSED_S)
    assert made.look_after_s(200.1, 0.0, 1.0) == POLL_S
