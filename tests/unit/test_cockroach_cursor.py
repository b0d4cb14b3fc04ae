"""Cursors of the CockroachDB store: what they cover, how passes follow each other, their texts."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from late.errors import StoreError
from late.model.ids import made_at_us, new_id
from late.model.task import SHARDS_MAX, Cursor, Options
from late.store.base import cursor_within
from late.store.cockroach.cursor import (
    FIRST_ID,
    LAG_US,
    RECENT_US,
    SWEEP_US,
    CockroachWindow,
    first_id,
    parse,
    position_of,
    sweep_every_us,
)
from late.store.cockroach.prune import agreed
from late.store.cockroach.tail import moment_of, record_of, values_of

PATIENT = settings(deadline=None)  # a machine under load is no failure
T0 = 1_800_000_000_000_000
MOMENTS = st.integers(T0, T0 + 200_000_000)
IDS = st.builds(lambda us, tail: first_id(us)[:-4] + f"{tail:04x}", MOMENTS, st.integers(0, 0xFFFF))


@st.composite
def between(draw: st.DrawFn) -> CockroachWindow:
    swept, seen = sorted((draw(MOMENTS), draw(MOMENTS)))
    return CockroachWindow(*draw(st.sampled_from([(0, 0), (0, seen), (swept, seen), (seen, seen)])))


@st.composite
def inside(draw: st.DrawFn) -> CockroachWindow:
    base = draw(between())
    until = base.seen + draw(st.integers(1, 100_000_000))
    return CockroachWindow(
        base.swept, base.seen, until, draw(st.booleans()), draw(st.just(FIRST_ID) | IDS)
    )


def by_scan(window: CockroachWindow, moment: int, task_id: str) -> bool:
    """What `cockroach_sql.PAGE` selects: its conditions, word by word."""
    given = values_of(0, window, 1)
    stamp = moment * 1_000
    return (
        task_id >= given["first"]
        and task_id > given["key"]
        and stamp > int(given["swept"])
        and stamp <= int(given["until"])
        and (stamp > int(given["seen"]) or task_id < given["recent"])
    )


@PATIENT
@given(inside(), MOMENTS, IDS)
def test_a_pass_finds_exactly_what_it_adds(
    window: CockroachWindow, moment: int, task_id: str
) -> None:
    before, after = window.covers(moment, task_id), window.end().covers(moment, task_id)

    assert by_scan(window, moment, task_id) == (after and not before)


@PATIENT
@given(inside(), MOMENTS, IDS, IDS)
def test_a_page_adds_what_lies_up_to_its_last_id(
    window: CockroachWindow, moment: int, task_id: str, key: str
) -> None:
    key = max(key, window.key)
    further = CockroachWindow(window.swept, window.seen, window.until, window.sweep, key)

    found = by_scan(window, moment, task_id) and task_id <= key
    assert found == (further.covers(moment, task_id) and not window.covers(moment, task_id))


@PATIENT
@given(between(), st.integers(0, SHARDS_MAX - 1), MOMENTS, MOMENTS, IDS)
def test_what_is_covered_stays_covered(
    window: CockroachWindow, shard: int, at: int, moment: int, task_id: str
) -> None:
    following = window.next(shard, at)
    if following is None:
        assert at <= window.seen
        return

    for later in (following, following.end()):
        assert later.covers(moment, task_id) or not window.covers(moment, task_id)


@PATIENT
@given(
    st.integers(0, SWEEP_US - 1), st.integers(1, SWEEP_US), st.integers(-5, 45), st.integers(-9, 9)
)
def test_the_recent_range_does_not_move_between_two_sweeps(
    seen: int, more: int, id_s: int, moment_s: int
) -> None:
    window = CockroachWindow(T0, T0 + seen)
    task_id = first_id(T0 - RECENT_US + id_s * 1_000_000)
    moment = T0 + seen + moment_s * 1_000_000
    following = window.next(15, T0 + seen + more)

    assert following is not None
    if window.covers(moment, task_id):
        assert following.end().covers(moment, task_id)


@PATIENT
@given(between(), MOMENTS, MOMENTS, IDS)
def test_nothing_beyond_what_was_read_is_claimed(
    window: CockroachWindow, at: int, moment: int, task_id: str
) -> None:
    following = window.next(0, at)
    if following is not None and moment > at:
        assert not following.end().covers(moment, task_id)
    if following is not None and not following.sweep and task_id < window.recent_from:
        assert following.end().covers(moment, task_id) == (moment <= window.swept)


def test_a_shard_is_swept_first_and_then_every_15_to_30_s() -> None:
    first = CockroachWindow().next(0, T0)
    assert first is not None
    assert first.sweep
    for shard in range(SHARDS_MAX):
        assert SWEEP_US <= sweep_every_us(shard) < 2 * SWEEP_US
        window = first.end()
        soon, due = (window.next(shard, T0 + sweep_every_us(shard) + d) for d in (-1, 0))
        assert soon is not None
        assert due is not None
        assert (soon.sweep, due.sweep) == (False, True)
    assert len({sweep_every_us(shard) for shard in range(8)}) == 8, "all would sweep at once"


@PATIENT
@given(st.lists(between() | inside(), min_size=1, max_size=3), MOMENTS, IDS)
def test_only_what_every_group_covers_is_pruned(
    windows: list[CockroachWindow], moment: int, task_id: str
) -> None:
    settled = agreed(windows, frozenset())
    # As `cockroach_sql.PRUNABLE` has it.
    prunable = moment <= settled.window.swept or (
        moment <= settled.window.seen and task_id >= settled.recent_from
    )

    if prunable:
        assert all(window.covers(moment, task_id) for window in windows)
    if len(windows) == 1 and windows[0].until is None:
        assert prunable == windows[0].covers(moment, task_id)


def test_a_gateway_that_is_behind_waits() -> None:
    window = CockroachWindow(T0, T0 + 5)
    assert window.next(0, T0 + 5) is None
    assert CockroachWindow(T0, T0 + 5, T0 + 9, True).next(0, T0 + 8) is None
    begun = CockroachWindow(T0, T0 + 5, T0 + 9, True, first_id(T0))
    assert begun.next(0, T0 + 10**9) is begun, "a pass goes on, however much later"


@PATIENT
@given(between() | inside())
def test_texts_come_back(window: CockroachWindow) -> None:
    if window.until is None:
        assert parse(window.text) == window
    else:
        record = record_of(0, (0, window.key, "q", "n", b"", None, None, 0))
        assert parse(cursor_within(window.mark, record)) == window


def test_the_beginning_covers_nothing() -> None:
    assert parse(Cursor("")) == CockroachWindow()
    assert not CockroachWindow().covers(1, new_id(0))


@pytest.mark.parametrize(
    "text",
    [
        "x", "1", "1,", ",1", "2,1", "-1,2", "1,2>", "1,2>3", "1,2>3@4", "1,2>3@4,x",
        f"1,2>2@0,{FIRST_ID}", f"1,2>>>3@0,{FIRST_ID}", f"1,2>3@0,{FIRST_ID.replace('0', 'A')}",
        f"1,2>3@0,{FIRST_ID}\n", "1,2\n", "850:852:850", "1" * 19 + ",1",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(StoreError, match="not a cursor of the CockroachDB store"):
        parse(Cursor(text))


@PATIENT
@given(st.lists(IDS, min_size=2, max_size=9))
def test_positions_sort_as_ids_do(ids: list[str]) -> None:
    by_id = sorted(ids)
    assert sorted(ids, key=lambda i: (position_of(i), i)) == by_id
    assert all(position_of(a) <= position_of(b) for a, b in pairwise(by_id))
    assert position_of("ffffffff-ffff-ffff-ffff-ffffffffffff") < 2**63


def test_an_id_made_at_a_time_is_not_below_the_first_of_it() -> None:
    made = new_id(4095)
    assert first_id(made_at_us(made)) <= made < first_id(made_at_us(made) + 1_000)
    assert first_id(-RECENT_US) == first_id(0) == FIRST_ID


@PATIENT
@given(st.integers(0, 2**62), st.integers(0, 2**40))
def test_a_moment_says_what_the_timestamp_says(nanoseconds: int, bound_us: int) -> None:
    assert (moment_of(nanoseconds) <= bound_us) == (nanoseconds <= bound_us * 1_000)


def test_a_pass_ends_in_the_past() -> None:
    assert LAG_US > 0


def test_a_task_with_a_key_waits_for_ids_that_were_made_up_to_a_minute_later() -> None:
    """Ids are made before the insert, each by a producer's clock: their order says nothing."""
    made = 5_000_000_000_000_000
    options = '{"ordering_key":"k","priority":3}'
    for text, below in ((options, (made + RECENT_US) // 1_000), ('{"priority":3}', 0), (None, 0)):
        record = record_of(0, (0, FIRST_ID, "q", "n", b"", None, text, made))
        read = msgspec.json.decode(record.options or "{}", type=Options)
        assert read.committed_below == below
        assert (read.priority, read.ordering_key) == (3 if text else 0, "k" if below else None)
