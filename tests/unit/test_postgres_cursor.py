"""What a cursor of the PostgreSQL store covers, against the definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.errors import StoreError
from late.model.task import Cursor, OpenTask, ShardId, TaskId
from late.store.postgres.cursor import FIRST_ID, LAST_ID, parse, parse_snapshot
from late.store.postgres.prune import LastCheckpoints, PostgresCheckpoint
from late.store.postgres.tail import _values

ID = "01900000-0000-7000-8000-{:012d}"
XIDS = st.integers(3, 40)


def naive_sees(text: str, xid: int) -> bool:
    """`pg_visible_in_snapshot`, from the documentation of the type."""
    if not text:
        return False
    _, xmax, xip = text.split(":")
    return xid < int(xmax) and str(xid) not in xip.split(",")


@st.composite
def snapshots(draw: st.DrawFn, least: int = 3) -> str:
    xmax = draw(st.integers(least, 40))
    xip = sorted(draw(st.sets(st.integers(3, max(3, xmax - 1)), max_size=5)))
    xip = [xid for xid in xip if xid < xmax]
    return f"{xip[0] if xip else xmax}:{xmax}:{','.join(map(str, xip))}"


@st.composite
def cursors(draw: st.DrawFn) -> str:
    """As they arise: `cur` sees all that `prev` sees."""
    prev = draw(st.one_of(st.just(""), snapshots()))
    if draw(st.booleans()):
        return prev
    cur = draw(snapshots(least=parse_snapshot(prev).xmax or 3))
    before = parse_snapshot(prev)
    _, xmax, xip = cur.split(":")
    running = [x for x in xip.split(",") if x and not before.sees(int(x))]
    cur = f"{running[0] if running else xmax}:{xmax}:{','.join(running)}"
    return f"{prev}|{cur}@{draw(XIDS)},{ID.format(draw(st.integers(0, 3)))}"


def naive_covers(cursor: str, xid: int, task_id: str) -> bool:
    prev, _, rest = cursor.partition("|")
    if not rest:
        return naive_sees(prev, xid)
    cur, _, key = rest.partition("@")
    at, _, last = key.partition(",")
    return naive_sees(prev, xid) or (naive_sees(cur, xid) and (xid, task_id) <= (int(at), last))


@given(cursors(), XIDS, st.integers(0, 3))
def test_covers_is_the_definition(cursor: str, xid: int, number: int) -> None:
    task_id = ID.format(number)
    assert parse(Cursor(cursor)).covers(xid, task_id) == naive_covers(cursor, xid, task_id)


@given(cursors(), XIDS, XIDS)
def test_covering_a_range_is_covering_all_of_it(cursor: str, low: int, high: int) -> None:
    """It may say no where it could say yes, and never the other way round."""
    if parse(Cursor(cursor)).covers_all(low, high):
        assert all(naive_covers(cursor, xid, LAST_ID) for xid in range(low, high))


@pytest.mark.parametrize(
    ("cursor", "low", "high", "covered"),
    [
        ("20:20:", 3, 20, True),
        ("20:20:", 3, 21, False),
        ("20:30:20,25", 3, 20, True),
        ("20:30:20,25", 3, 21, False),
        ("20:30:20,25", 21, 25, True),
        ("20:30:20,25", 21, 26, False),
        # Within a window: up to the page's key, whose own transaction may have more rows.
        ("|30:30:@20," + ID.format(2), 3, 20, True),
        ("|30:30:@20," + ID.format(2), 3, 21, False),
        ("10:10:|20:20:@40," + ID.format(2), 3, 20, True),
        ("10:10:|20:20:@40," + ID.format(2), 3, 21, False),
        ("10:10:|12:20:12@40," + ID.format(2), 3, 12, True),
        ("10:10:|12:20:12@40," + ID.format(2), 3, 13, False),
    ],
)
def test_the_edges_of_what_is_covered(cursor: str, low: int, high: int, covered: bool) -> None:
    assert parse(Cursor(cursor)).covers_all(low, high) == covered


@pytest.mark.parametrize(
    ("opened", "settled"), [(9, True), (10, False), (15, False), (20, False), (21, True)]
)
def test_an_open_task_at_the_edge_of_a_leaf_holds_it(opened: int, settled: bool) -> None:
    checkpoint = PostgresCheckpoint(
        parse(Cursor("90:90:")), (OpenTask(opened, TaskId(ID.format(1))),)
    )
    assert checkpoint.settled(10, 20, ID.format(2)) == settled
    assert checkpoint.floor == opened


@given(cursors())
def test_everything_below_the_floor_is_covered(cursor: str) -> None:
    floor = parse(Cursor(cursor)).floor
    assert all(naive_covers(cursor, xid, LAST_ID) for xid in range(3, floor))


@given(cursors(), st.lists(XIDS, max_size=3), XIDS, XIDS)
def test_what_may_go_is_settled(cursor: str, opened: list[int], low: int, last: int) -> None:
    tasks = tuple(OpenTask(xid, TaskId(ID.format(1))) for xid in opened)
    checkpoint = PostgresCheckpoint(parse(Cursor(cursor)), tasks)
    if checkpoint.settled(low, last, ID.format(2)):
        assert not any(low <= xid <= last for xid in opened)
        assert all(naive_covers(cursor, xid, LAST_ID) for xid in range(low, last))
        assert naive_covers(cursor, last, ID.format(2))
    assert not any(xid < checkpoint.floor for xid in opened)


def test_a_group_without_a_checkpoint_holds_everything() -> None:
    done = PostgresCheckpoint(parse(Cursor("90:90:")), ())
    journal = LastCheckpoints(frozenset({"a", "b"}), {("a", 0): done})

    assert not journal.settled(0, [(0, 5, FIRST_ID)])
    assert journal.floor(0) == 0
    assert journal.settled(0, []), "where nothing is, nothing is held"
    assert LastCheckpoints(frozenset(), {}).floor(0) == 0, "nobody has settled anything"


@given(cursors(), snapshots(least=40), XIDS, st.integers(0, 3))
def test_a_step_reads_what_the_cursor_does_not_cover(
    cursor: str, now: str, xid: int, number: int
) -> None:
    """The ranges that are put into the statement select exactly the difference."""
    window = parse(Cursor(cursor))
    cur = window.cur or now
    if any(parse_snapshot(window.prev).sees(x) for x in parse_snapshot(cur).xip):
        return  # cannot be: what was seen as finished does not run again
    values = _values(window.prev, cur, {ShardId(0): window}, 10)
    row = (xid, ID.format(number))
    running = [int(x) for x in values["xips"].strip("{}").split(",") if x]
    by_key = xid in running and row > (
        int(values["key_xids"].strip("{}")),
        values["key_ids"].strip("{}"),
    )
    start = (int(values["from_xids"].strip("{}")), values["from_ids"].strip("{}"))
    by_range = row > start and int(values["low"]) <= xid < int(values["high"])
    read = (by_key or by_range) and naive_sees(cur, xid)

    assert read == (naive_sees(cur, xid) and not naive_covers(cursor, *row))
    assert not (by_key and by_range), "a row that both branches bring would come twice"


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "1:2",
        "1:2:x",
        "a:b:",
        "1:2:3,",
        "|",
        "1:2:|",
        "1:2:|3:4:",
        "1:2:|3:4:@5",
        f"1:2:|@5,{FIRST_ID}",
        "1:2:|3:4:@5,no-id",
        f"1:2:|3:4:@x,{FIRST_ID}",
        "'; drop table late_task; --",
        "12@5",
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(StoreError):
        parse(Cursor(text))


def test_the_beginning_covers_nothing() -> None:
    window = parse(Cursor(""))
    assert not window.covers(3, FIRST_ID)
    assert (window.floor, window.xmax) == (0, 0)
