"""The plan of the PostgreSQL log's ranges: those to make ahead and those to drop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.store.postgres import partitions as postgres_partitions
from late.store.postgres.cursor import XID_MAX, parse_snapshot
from late.store.postgres.partitions import (
    AHEAD,
    MARGIN_MIN,
    WIDTH_MAX,
    WIDTH_MIN,
    Partition,
    list_partitions,
    plan_layout,
)


def leaf(low: int, high: int, size_bytes: int = 0) -> Partition:
    return Partition(f"late_task_{low}_{high}", low, high, size_bytes)


def test_the_first_layout_begins_ahead_of_the_present() -> None:
    plan = plan_layout([], parse_snapshot("900:1000:900"), 0, None)

    assert plan is not None
    assert plan.over == []
    assert [high - low for low, high in plan.new] == [WIDTH_MIN * units for units in AHEAD]
    assert plan.new[0][0] == 1000 + MARGIN_MIN
    assert all(a[1] == b[0] for a, b in zip(plan.new, plan.new[1:], strict=False))


def test_a_slow_stream_has_few_layouts() -> None:
    """At a task a second and two other transactions: each layout writes 170 KB of WAL."""
    leaves: list[Partition] = []
    sample, layouts = None, 0
    for at_s in range(0, 86_400, 15):
        xmax = 1_000 + 3 * at_s
        plan = plan_layout(leaves, parse_snapshot(f"{xmax}:{xmax}:"), at_s * 10**6, sample)
        if plan is not None and plan.new:
            layouts, sample = layouts + 1, f"{xmax},{at_s * 10**6}"
            leaves = [each for each in leaves if each not in plan.over]
            leaves += [leaf(low, high) for low, high in plan.new]
    assert layouts <= 1 + 3 * 86_400 // (2 * WIDTH_MIN)
    assert layouts < 20


def test_ranges_follow_the_rate_and_stay_bounded() -> None:
    def width(grown: int, seconds: int) -> int:
        sample = f"1000,{0}"
        snapshot = parse_snapshot(f"{1000 + grown}:{1000 + grown}:")
        plan = plan_layout([], snapshot, seconds * 1_000_000, sample)
        assert plan is not None
        return plan.new[0][1] - plan.new[0][0]

    assert width(6000, 60) == 100 * postgres_partitions.PERIOD_S
    assert width(0, 60) == WIDTH_MIN
    assert width(10**12, 60) == WIDTH_MAX


def test_large_rows_make_narrow_ranges() -> None:
    full = leaf(1000, 100_000, size_bytes=4 * postgres_partitions.SIZE_BYTES)
    plan = plan_layout([full], parse_snapshot("90000:90000:"), 10**8, "1000,0")

    assert plan is not None
    low, high = plan.new[0]
    assert low == full.high
    assert high - low == 89_000 // 4


def test_wide_ranges_that_nobody_reached_are_cut_again() -> None:
    present = leaf(0, 10_000, size_bytes=8192)
    ahead = [leaf(10_000, 30_000), leaf(30_000, 300_000)]
    plan = plan_layout([present, *ahead], parse_snapshot("500:500:"), 10**8, "400,0")

    assert plan is not None
    assert plan.over == ahead
    assert plan.new[0][0] == present.high


def test_what_still_runs_keeps_its_leaf() -> None:
    behind = [leaf(n * 10, n * 10 + 10) for n in range(20)]
    rest = [leaf(200, 20_000, 8192), *(leaf(n, n + 1) for n in range(20_000, 20_003))]
    plan = plan_layout([*behind, *rest], parse_snapshot("55:300:55"), 0, None)

    assert plan is not None
    assert behind[5] not in plan.over
    assert len(plan.over) == 19
    assert plan.new == []


def test_a_restored_copys_ranges_are_replaced() -> None:
    """They lie far ahead of this cluster's counter: nothing covers the present."""
    old = [leaf(n, n + 1000) for n in range(50_000, 58_000, 1000)]
    plan = plan_layout(old, parse_snapshot("800:800:"), 0, None)

    assert plan is not None
    assert plan.over == old
    assert plan.new[0][0] == 800 + MARGIN_MIN


@given(
    st.sets(st.integers(0, 1000), min_size=1).flatmap(lambda lows: st.permutations(sorted(lows)))
)
async def test_leaves_are_listed_by_their_ranges_and_the_default_one_first(
    lows: list[int],
) -> None:
    rows = [(f"leaf_{low}", f"FOR VALUES FROM ('{low}') TO ('{low + 1}')", low) for low in lows]
    others = [
        ("default_leaf", "DEFAULT", 9),
        ("detached", None, 1),
        ("odd", "FOR VALUES IN (1)", 1),
    ]

    async def rows_of(*_: Any) -> list[Any]:
        return [*rows, *others]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_partitions, "rows_of", rows_of)
        first, *leaves = await list_partitions(None)  # type: ignore[arg-type]
    assert first == Partition("default_leaf", 0, XID_MAX, 9, is_default=True)
    assert leaves == [Partition(f"leaf_{n}", n, n + 1, n) for n in sorted(lows)]
