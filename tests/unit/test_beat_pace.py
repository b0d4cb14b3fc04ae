"""The time between two heartbeats: longer while nothing changes and changes are told of."""

from __future__ import annotations

import pytest

from late.store.base import LeaseView, WorkerInfo
from late.tailer.beat_pace import CALM_AFTER_S, BeatPace
from late.tailer.placement import announced

NOW = announced("1")
ME, OTHER = (WorkerInfo(name, "host:1", ("default",), version=NOW) for name in ("me", "other"))
LEASE = LeaseView("default", 0, "me", 1)
LONG_S = 1_000.0


def calm(told: bool = True) -> BeatPace:
    pace = BeatPace(1.0, 4.5, lambda: told)
    pace.saw((ME,), (LEASE,), 0.0)
    return pace


def test_it_is_the_usual_one_until_the_fleet_has_been_calm_for_a_while() -> None:
    pace = calm()
    assert pace.pause_s(CALM_AFTER_S - 0.1) == 1.0
    assert pace.pause_s(CALM_AFTER_S) == 2.0


def test_it_is_the_usual_one_for_whom_nobody_tells() -> None:
    assert calm(told=False).pause_s(LONG_S) == 1.0


def test_an_equal_view_changes_nothing() -> None:
    pace = calm()
    pace.saw((WorkerInfo("me", "host:1", ("default",), version=NOW),), (LEASE,), LONG_S)
    assert pace.pause_s(LONG_S) == 2.0


@pytest.mark.parametrize(
    "seen",
    [((ME, OTHER), (LEASE,)), ((ME,), (LeaseView("default", 0, "me", 2),)), ((ME,), ())],
    ids=["join", "grant", "release"],
)
def test_a_change_brings_the_usual_pace_back(seen: tuple[tuple[WorkerInfo, ...], ...]) -> None:
    pace = calm()
    pace.saw(*seen, LONG_S)  # type: ignore[call-arg, arg-type]
    assert pace.pause_s(LONG_S + CALM_AFTER_S - 0.1) == 1.0
    assert pace.pause_s(LONG_S + CALM_AFTER_S) == 2.0


def test_nobody_is_calm_beside_a_worker_that_tells_nobody() -> None:
    pace = calm()
    pace.saw((ME, WorkerInfo("old", "host:1", ("default",), version="0.1")), (LEASE,), LONG_S)
    assert pace.pause_s(2 * LONG_S) == 1.0


def test_so_does_a_notice() -> None:
    pace = calm()
    pace.heard(LONG_S)
    assert pace.pause_s(LONG_S + CALM_AFTER_S - 0.1) == 1.0


@pytest.mark.parametrize(("every_s", "trust_s"), [(1.0, 4.5), (1.0, 2.7), (1.0, 1.5), (20.0, 54.0)])
def test_one_of_two_may_be_lost(every_s: float, trust_s: float) -> None:
    pace = BeatPace(every_s, trust_s, lambda: True)
    pace.saw((ME,), (), 0.0)
    assert every_s <= pace.pause_s(LONG_S) <= max(every_s, trust_s / 2)


def test_it_is_the_usual_one_if_nobody_knows_who_tells() -> None:
    def fails() -> bool:
        raise RuntimeError("defect")

    pace = BeatPace(1.0, 4.5, fails)
    pace.saw((ME,), (LEASE,), 0.0)
    assert pace.pause_s(LONG_S) == 1.0
