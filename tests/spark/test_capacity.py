"""What would be enough, by loads that can be computed on paper."""

from __future__ import annotations

from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from late_spark import capacity, schema
from late_spark.calendar import Calendar
from late_spark.capacity import Setting, Step
from late_spark.series import Key, Metrics

from late.errors import ConfigError
from tests.spark.conftest import Related
from tests.spark.usage_kit import row

DAY = Calendar.of("2026-03-28", "2026-03-29", ZoneInfo("UTC"))
# 3,000 tasks of 0.2 s arrive in the first step of 100 s, 600 in each of the two after it.
BURST = [
    Step(at, "pay", shard, n, n, 200_000 * n)
    for at, all_ in enumerate((3_000, 600, 600))
    for shard, n in ((0, all_ // 3), (1, all_ - all_ // 3))
]


def test_a_concurrency_that_is_too_small_makes_a_backlog() -> None:
    # 4 slots carry 20 tasks/s: 2,000 in a step. 1,000 wait, then 600 come and all is done.
    found = capacity.play("pay", BURST, 3, Setting(concurrency=4), 1.0, 100)
    assert (found.backlog_max, found.left) == (1_000, 0)
    assert found.wait_max_s == 50
    assert found.peak_per_s == 30
    assert found.slots_needed == 9  # 30/s of 0.2 s are 6 slots, at 70 % of them
    # Twice the load: 4,000 wait, then 3,200, then 2,400, and so it ends.
    grown = capacity.play("pay", BURST, 3, Setting(concurrency=4), 2.0, 100)
    assert (grown.backlog_max, grown.left) == (4_000, 2_400)


def test_a_rate_limits_as_well_and_no_limit_never_waits() -> None:
    assert capacity.play("pay", BURST, 3, Setting(rate=15), 1.0, 100).backlog_max == 1_500
    assert capacity.play("pay", BURST, 3, Setting(4, 15), 1.0, 100).backlog_max == 1_500
    assert capacity.play("pay", BURST, 3, Setting(), 1.0, 100).backlog_max == 0


def test_shards() -> None:
    now, needed, then = capacity.shards(BURST, 1.0, 4, 12, step_s=100)
    assert (now.answer, now.enough) == ("20 tasks/s, 1.33 times its share", False)
    assert needed.answer == "4"
    assert (then.answer, then.enough) == ("10 tasks/s", True)


def test_nodes() -> None:
    samples = [(Key("nodes"), DAY.from_us, Decimal(3)), (Key("cpu"), DAY.from_us, Decimal("0.6"))]
    metrics = Metrics.of(samples, "m")
    needed, then = capacity.nodes(metrics, DAY, 2.0, 4)
    assert needed.answer == "6"  # 3.6 nodes at 65 %
    assert (then.answer, then.enough) == ("90%", False)
    assert capacity.nodes(Metrics(), DAY, 1.0, None) == []
    with pytest.raises(ConfigError, match="--nodes: no file"):
        capacity.nodes(Metrics(), DAY, 1.0, 4)


def test_the_load_is_what_arrived(related: Related) -> None:
    rows = [
        row("2026-03-28T00:00:01Z", "pay", "charge", "enqueued", 7, attempts=0, busy_us=0),
        row("2026-03-28T00:04:59Z", "pay", "charge", "done", 5, shard_id=3),
        row("2026-03-28T00:05:00Z", "pay", "charge", "done", 2),
        row("2026-03-29T00:00:00Z", "pay", "charge", "done", 9),
    ]
    steps = capacity.collect(capacity.load(related(rows), DAY))
    found = sorted(steps, key=lambda s: (s.at, s.shard))
    assert found == [
        Step(0, "pay", 0, 7, 0, 0),
        Step(0, "pay", 3, 0, 5, 500),
        Step(1, "pay", 0, 0, 2, 200),
    ]
    old = capacity.load(related(rows[1:]), DAY)
    assert sum(step.arrived for step in capacity.collect(old)) == 7
    assert schema.ENQUEUED == "enqueued"


@pytest.mark.parametrize("text", ["pay=3", "pay.size=3", "pay.rate=fast", "pay.rate=0", ".rate=1"])
def test_a_wrong_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected QUEUE\.concurrency"):
        capacity.settings([text])


def test_half_an_attempt_at_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency is a whole number"):
        capacity.settings(["pay.concurrency=0.5"])


def test_settings() -> None:
    found = capacity.settings(["a.b.rate=2.5", "a.b.concurrency=4"])
    assert found == {"a.b": Setting(4, 2.5)}
    with pytest.raises(ConfigError, match="no load of this queue"):
        capacity.queues(BURST, DAY, found, 1.0)
