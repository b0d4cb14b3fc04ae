"""Forecasts of the backlog: none where nobody works, and none for what is held back."""

from __future__ import annotations

import msgspec
import pytest

from late.autoscaler.keda.demand import Signals
from late.control.findings.findings import findings
from late.control.views import Count, QueueStatus
from late.web.models import overview
from tests.unit.test_web_views import PACE, group, seen


@pytest.mark.parametrize(
    ("locked", "note", "sentence"),
    [
        (False, "nothing moves", "30 tasks wait or run, and no worker is there to run them."),
        (True, "", "30 tasks wait or run."),
    ],
)
def test_without_workers_nobody_says_when_the_backlog_is_gone(
    locked: bool, note: str, sentence: str
) -> None:
    look = msgspec.structs.replace(
        seen(QueueStatus("default", "mail", Count(30)), workers=()),
        signals={"default": msgspec.structs.replace(PACE, workers=0)}, write_locked=locked,
    )  # fmt: skip
    found = overview.overview(look)
    [backlog] = [tile for tile in found.tiles if tile.label == "Backlog"]
    assert (backlog.value, backlog.note) == ("30", note)
    assert found.backlog == sentence


def test_a_stale_group_without_workers_has_no_time_that_its_backlog_takes() -> None:
    look = seen(groups=(group(stale_s=900.0, lag=Count(100), lag_s=1.0),))
    [stale] = overview.overview(look).attention
    assert "100 wait, and 20/s end: that takes 5.0 s." in stale.detail
    gone = msgspec.structs.replace(
        look, signals={"default": msgspec.structs.replace(PACE, workers=0)}
    )
    [stale] = overview.overview(gone).attention
    assert "100 wait. " in f"{stale.detail} "
    assert "that takes" not in stale.detail


def test_a_group_without_workers_stands_still_beside_one_that_moves() -> None:
    gone = msgspec.structs.replace(PACE, workers=0)
    look = msgspec.structs.replace(seen(), signals={"a": PACE, "b": gone})
    [backlog] = [tile for tile in overview.overview(look).tiles if tile.label == "Backlog"]
    assert backlog.note == "1 of 2 groups stand still"


def test_what_is_held_back_has_no_end_at_the_pace_of_others() -> None:
    """A target is away, and other queues go on."""
    held = Signals(85, 210.0, 7.0, 0.1, 2, 8, helped=0, limits=("hooks waits for target bank",))

    def told(**signals: Signals) -> str:
        found = msgspec.structs.replace(seen(), signals=signals)
        return next(each.note for each in overview.overview(found).tiles if each.label == "Backlog")

    assert told(a=held) == "all of it is held back"
    assert told(a=held, b=PACE) == "gone in 5.0 s, but 85 are held back"
    look = msgspec.structs.replace(seen(groups=(group(stale_s=90.0),)), signals={"default": held})
    [stale] = findings(look)
    assert " 85 wait. It is limited: hooks waits for target bank." in stale.detail
    some = msgspec.structs.replace(held, helped=35)
    [stale] = findings(msgspec.structs.replace(look, signals={"default": some}))
    assert " 85 wait, and 7/s end: that takes 5.0 s for all but what is held back." in stale.detail
