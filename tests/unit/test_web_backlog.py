"""No forecast of the backlog where nobody works: the rate is that of workers that are gone."""

from __future__ import annotations

import msgspec
import pytest

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
