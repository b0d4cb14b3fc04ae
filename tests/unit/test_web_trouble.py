"""What the page says of trouble: why a queue is amber, and since when it is not well."""

from __future__ import annotations

import msgspec

from late.control.views import Count, QueueStatus
from late.web.models import overview, queues
from tests.unit.test_web_views import PACE, group, seen


def test_what_is_amber_says_why() -> None:
    letters = QueueStatus("default", "mail", Count(1), dead=Count(2))
    (row,) = queues.rows(seen(letters))
    assert (row.level, row.badges) == ("warn", ("waiting", "dead letters"))
    (row,) = queues.rows(seen(QueueStatus("default", "mail"), groups=(group(state="paused"),)))
    assert (row.level, row.badges) == ("warn", ("group paused",))


def test_since_when_it_is_not_well_is_that_of_the_worst() -> None:
    old = QueueStatus("default", "mail", Count(1), oldest_age_s=1_000.0)
    behind = overview.overview(seen(old))
    status = seen(old).status
    assert behind.since_us == status.now_us - 400_000_000, "when it was beyond its objective"
    worse = overview.overview(seen(old, groups=(group(lagging=True, lag_s=90.0),)))
    assert (worse.critical, worse.since_us) == (1, status.now_us - 90_000_000)
    assert overview.overview(seen()).since_us is None


def test_where_all_is_well_it_says_how_fast_the_backlog_ends() -> None:
    look = seen(QueueStatus("default", "mail", Count(888)), groups=(group(),))
    moves = overview.overview(look)
    assert moves.backlog == "888 tasks wait or run; 20 attempts/s end: gone in 5.0 s."
    assert not moves.still
    stands = {"default": msgspec.structs.replace(PACE, rate=0.0)}
    still = overview.overview(msgspec.structs.replace(look, signals=stands))
    assert still.still
    assert still.backlog == "888 tasks wait or run, and no attempt ended in the last minute."
    assert (overview.overview(seen()).still, overview.overview(seen()).backlog) == (False, "")
