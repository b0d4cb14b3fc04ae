"""The tail of Spanner on a model of the Read API whose timestamps the test chooses.

What no emulator can be asked for: ties across pages, a replica that lags behind the cursor, a
version that is gone, nanoseconds that are next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("google.cloud.spanner_v1", reason="no google-cloud-spanner")

from google.api_core import exceptions as api
from hypothesis import given, settings
from hypothesis import strategies as st

from late.model.task import Cursor, ShardId
from late.store.base import cursor_within
from late.store.spanner.cursor import moment_of, nanoseconds
from late.store.spanner.tail import WINDOW_NS, SpannerTail

BASE = 1_795_231_900_895_684_000
"""Nanoseconds; what the tests call time is counted from here."""
BEGINNING = Cursor("")


def name(number: int) -> str:
    return f"01a1fc28-e4c7-7000-8000-{number:012d}"


class Spanner:
    """Rows with commit timestamps, and reads at timestamps: all that the tail knows of Spanner."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, str]] = []
        """(shard, nanoseconds, task id)."""
        self.now = BASE
        self.lag = 0
        """How far behind a stale read is answered, nanoseconds."""
        self.kept_from = 0
        """Versions below are gone."""
        self.asked: list[dict[str, Any]] = []

    def commit(self, shard: int, number: int, *, tied: bool = False) -> None:
        """A row; `tied`: at the last commit's timestamp, which nobody can have read yet."""
        self.now += not tied
        self.rows.append((shard, self.now, name(number)))

    @contextmanager
    def snapshot(self, **bound: Any) -> Iterator[Any]:
        self.asked.append(bound)
        if "read_timestamp" in bound:
            at = nanoseconds(bound["read_timestamp"])
            if at < self.kept_from:
                raise api.FailedPrecondition("read timestamp is past the version GC limit")
        elif "max_staleness" in bound:
            at = self.now - self.lag
        else:
            at = self.now
        yield SimpleNamespace(read=lambda *given, **more: self._read(at, *given, **more))

    def _read(self, at: int, _table: str, _columns: Any, keys: Any, *, limit: int) -> Any:
        found = [
            (shard, moment_of(ts), task_id, "default", "count", "e30=", None, None)
            for shard, ts, task_id in sorted(self.rows)
            if ts <= at and any(_within(each, (shard, ts, task_id)) for each in keys.ranges)
        ][:limit]
        transaction = SimpleNamespace(read_timestamp=moment_of(at))
        return Result(found, SimpleNamespace(transaction=transaction))


class Result(list[Any]):
    def __init__(self, rows: list[Any], metadata: Any) -> None:
        super().__init__(rows)
        self.metadata = metadata


def _within(bounds: Any, key: tuple[int, int, str]) -> bool:
    """Spanner's rule: a bound that is a prefix stands for every key that begins with it."""

    def parts(bound: list[Any]) -> tuple[Any, ...]:
        read = (int, lambda text: nanoseconds(_moment(text)), str)
        return tuple(parse(part) for parse, part in zip(read, bound, strict=False))

    assert bounds.end_closed is not None
    end = parts(bounds.end_closed)
    if bounds.start_open is not None:
        start = parts(bounds.start_open)
        above = key[: len(start)] > start
    else:
        start = parts(bounds.start_closed)
        above = key[: len(start)] >= start
    return above and key[: len(end)] <= end


def _moment(text: str) -> Any:
    return type(moment_of(BASE)).from_rfc3339(text)


def follow(
    tail: SpannerTail, spanner: Spanner, cursor: Cursor, limit: int
) -> tuple[list[str], Cursor]:
    """All that shard 0 has from `cursor` on."""
    found: list[str] = []
    while pages := tail.read(spanner, {ShardId(0): cursor}, limit):
        [page] = pages
        found += [record.task_id for record in page.records]
        cursor = page.cursor
        if not page.more:
            break
    return found, cursor


@pytest.mark.parametrize("limit", range(1, 8))
def test_ties_across_pages_are_read_once_each(limit: int) -> None:
    spanner, tail = Spanner(), SpannerTail(0)
    for number in range(6):
        spanner.commit(0, number, tied=number % 5 > 0)
    found, cursor = follow(tail, spanner, BEGINNING, limit)
    assert found == [name(number) for number in range(6)]
    spanner.commit(0, 6)
    assert follow(tail, spanner, cursor, limit)[0] == [name(6)]


def test_neighbouring_nanoseconds_are_two_moments() -> None:
    spanner, tail = Spanner(), SpannerTail(0)
    spanner.commit(0, 1)
    found, cursor = follow(tail, spanner, BEGINNING, 10)
    spanner.commit(0, 0)
    assert spanner.rows[1][1] - spanner.rows[0][1] == 1
    assert found + follow(tail, spanner, cursor, 10)[0] == [name(1), name(0)]


def test_a_replica_behind_the_cursor_says_nothing() -> None:
    """Between two ties: the answer may not be taken as one about the cursor's own timestamp."""
    spanner, tail = Spanner(), SpannerTail(2)
    spanner.commit(0, 0)
    spanner.commit(0, 1, tied=True)
    [page] = tail.read(spanner, {ShardId(0): BEGINNING}, 1)
    assert page.more
    spanner.now += WINDOW_NS  # the window is given up
    tail.read(spanner, {ShardId(1): BEGINNING}, 1)
    spanner.lag = spanner.now - BASE
    assert tail.read(spanner, {ShardId(0): page.cursor}, 5) == []
    spanner.lag = 0
    assert follow(tail, spanner, page.cursor, 5)[0] == [name(1)]


def test_the_cursor_is_the_timestamp_that_spanner_chose() -> None:
    spanner, tail = Spanner(), SpannerTail(2)
    spanner.commit(0, 0)
    chosen = spanner.now
    spanner.commit(0, 1)
    spanner.now += 1_000
    spanner.lag = spanner.now - chosen
    [page] = tail.read(spanner, {ShardId(0): BEGINNING}, 5)
    assert (page.cursor, len(page.records)) == (str(chosen), 1)
    spanner.lag = 0
    assert follow(tail, spanner, page.cursor, 5)[0] == [name(1)]


@pytest.mark.parametrize("restarted", [False, True], ids=["slept for long", "a new owner"])
def test_a_window_whose_versions_are_gone_is_given_up(restarted: bool) -> None:
    spanner, tail = Spanner(), SpannerTail(0)
    for number in range(4):
        spanner.commit(0, number)
    [page] = tail.read(spanner, {ShardId(0): BEGINNING}, 2)
    spanner.commit(0, 4)
    spanner.now += 3_600 * 1_000_000_000
    spanner.kept_from = spanner.now - 1
    spanner.asked.clear()
    found, _ = follow(SpannerTail(0) if restarted else tail, spanner, page.cursor, 5)
    assert found == [name(number) for number in (2, 3, 4)]
    # A new owner does not even try: it cannot know how old the window is.
    assert ("read_timestamp" in spanner.asked[0]) is not restarted


def test_a_strong_read_that_is_refused_is_an_error() -> None:
    spanner, tail = Spanner(), SpannerTail(0)

    def refuse(*_: Any, **__: Any) -> Any:
        raise api.FailedPrecondition("something else")

    spanner._read = refuse  # type: ignore[method-assign]
    with pytest.raises(api.FailedPrecondition):
        tail.read(spanner, {ShardId(0): BEGINNING}, 5)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("lag"), st.integers(0, 6), st.booleans()),
        st.tuples(st.just("read"), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("forget"), st.integers(0, 3), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(STEPS, st.sampled_from([0, 2]))
def test_whatever_happens_each_row_is_read_once_and_in_order(
    steps: list[tuple[str, int, bool]], staleness_s: int
) -> None:
    """Commits with ties, lagging replicas, lost versions and new owners, in any order.

    A tie joins the last commit only if no read has been at its timestamp: a read at T forces what
    commits later above T.
    """
    spanner, tail = Spanner(), SpannerTail(staleness_s)
    cursors = {ShardId(shard): BEGINNING for shard in range(3)}
    found: dict[int, list[tuple[int, str]]] = {0: [], 1: [], 2: []}
    read_since_commit = True
    for count, (what, number, flag) in enumerate(steps):
        if what == "commit":
            spanner.commit(number, 100 - count, tied=flag and not read_since_commit)
            read_since_commit = False
        elif what == "lag":
            spanner.lag = min(number, spanner.now - BASE)
        elif what == "forget":
            spanner.kept_from = spanner.now - number
            tail = SpannerTail(staleness_s) if flag else tail
        else:
            read_since_commit = True
            _take(tail.read(spanner, cursors, number), cursors, found, partly=flag)
    spanner.lag = 0
    while pages := tail.read(spanner, cursors, 2):
        _take(pages, cursors, found)
    for shard, seen in found.items():
        assert seen == sorted((ts, task_id) for at, ts, task_id in spanner.rows if at == shard)


def _take(
    pages: list[Any],
    cursors: dict[ShardId, Cursor],
    found: dict[int, list[tuple[int, str]]],
    *,
    partly: bool = False,
) -> None:
    """Take pages; `partly`: as if the owner died when it had settled the first record of each."""
    for page in pages:
        taken = page.records[:1] if partly else page.records
        found[page.shard_id] += [(r.position, r.task_id) for r in taken]
        within = taken and (partly or page.more)
        cursors[page.shard_id] = cursor_within(page.window, taken[-1]) if within else page.cursor
