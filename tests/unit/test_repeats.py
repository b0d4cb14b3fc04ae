"""Lines that say the same again and again."""

from __future__ import annotations

import logging

import pytest

from late import events
from late.observability import repeats
from late.observability.logs import log_events
from late.observability.repeats import CALM_S, KINDS_MAX, Repeats


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def shown(kind: Repeats, time: Time, for_s: int) -> dict[int, int]:
    """Say the same each tenth of a second: the seconds of the lines, and what each left out."""
    began, found = time.now_s, dict[int, int]()
    for tenth in range(for_s * 10):
        time.now_s = began + tenth / 10
        left_out = kind.left_out("away")
        if left_out is not None:
            found[round(tenth / 10)] = left_out
    return found


def test_the_first_one_is_shown_and_the_others_more_and_more_rarely() -> None:
    time = Time()
    assert shown(Repeats(time), time, 200) == {0: 0, 10: 99, 30: 199, 70: 399, 130: 599, 190: 599}


def test_after_a_calm_time_it_is_the_first_one_again() -> None:
    time = Time()
    kinds = Repeats(time)
    shown(kinds, time, 40)
    time.now_s += CALM_S - 1
    assert kinds.left_out("away") is not None, "its time had come"
    assert kinds.left_out("away") is None
    time.now_s += CALM_S + 1
    assert kinds.left_out("away") == 0


def test_kinds_are_apart_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    kinds, logger = Repeats(Time()), logging.getLogger("late.test")
    with caplog.at_level(logging.INFO, "late.test"):
        for what in ("lanes", "knobs", "lanes"):
            kinds.log(logger, "%s could not be read: %s", what, "away", kind=what)
        kinds.log(logger, "load failed", level=logging.INFO)
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "lanes could not be read: away"),
        ("WARNING", "knobs could not be read: away"),
        ("INFO", "load failed"),
    ]
    for number in range(KINDS_MAX + 10):
        kinds.left_out(number)
    assert len(kinds._kinds) <= KINDS_MAX


def test_errors_of_the_database_are_such_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, emitter = Time(), events.Emitter()
    monkeypatch.setattr(repeats, "default", Repeats(time))
    with caplog.at_level(logging.INFO, "late.worker"):
        log_events(emitter)

        def fail(component: str) -> None:
            emitter.emit(
                events.STORE_ERROR,
                component=component,
                transient=True,
                retry_in_s=0.1,
                error="away",
            )

        for component in ("tailer", "tailer", "settle", "tailer"):
            fail(component)
        time.now_s += 11
        fail("tailer")
    assert [one.getMessage().partition(" event=")[0] for one in caplog.records] == [
        "database error, will try again",
        "database error, will try again",
        "database error, will try again (2 more like this since the last one)",
    ]
