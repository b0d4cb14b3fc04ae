"""What the queue costs on Spanner per 1,000 tasks: calls, mutations, rows read. Counts, no times.

Everything is counted by a proxy on the wire, not by our own telemetry: the requests as Spanner
gets them and the rows as they come back.

**What "rows read" means here.** The emulator has no scan statistics: a read carries none, and
`query_mode=PROFILE` tells rows returned and nothing of rows scanned. So two things are counted
that together bound what Spanner must touch: where every key range of the Read API begins (above
all consumed rows: a range is a seek), and the rows that were sent back for it. On the real service
rows that were deleted less than an hour ago are marks that a scan walks over; a range that begins
above them does not meet them, and that is what is checked.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from google.cloud.spanner_v1 import COMMIT_TIMESTAMP, PartialResultSet

import late
from late.config import WorkerConfig
from late.model.task import HELD_US, Cursor, Record, ShardId
from late.outbox import admission
from late.store.base import SettleResult, WorkerInfo, cursor_within
from late.store.spanner.client import close_database, open_database
from late.store.spanner.cursor import timestamp
from late.store.spanner.row_codec import LOG, LOG_COLUMNS, task_row
from late.store.spanner.store import SpannerStore
from late.testing.servers import spanner
from late.worker.worker import Worker
from tests.conformance.kit import BEGINNING, own, parked, task
from tests.integration import spanner_kit as kit
from tests.integration.grpc_proxy import GrpcProxy

SHARDS = 8
INDEXED = {"late_timer": ("held_key", 6), "late_settlement": ("seq", 3)}
"""Table -> (column, columns of its index): an entry is written where the column is not null."""
COMMIT_MAX = 80_000
"""Mutations that Spanner takes in one commit."""

app = late.App("sqlite:///unused.db", shards=SHARDS)


@app.task
def greet(name: str) -> None: ...


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with kit.emulator() as host, kit.environment(host):
        yield host


@pytest.fixture
def url(upstream: str) -> str:
    return spanner.create_database(migrated=True)


@pytest.fixture(autouse=True)
def _one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app reads what is full once a second, in whichever transaction comes then: the first one
    of a test does it, and the others are counted without."""
    monkeypatch.setattr(admission, "LOOK_S", 3_600.0)
    monkeypatch.setattr(app.admission, "_look_s", -math.inf)


@pytest.fixture
def wire(upstream: str) -> Iterator[GrpcProxy]:
    with GrpcProxy(upstream) as made, kit.environment(made.host):
        yield made


@pytest.fixture
async def store(url: str, wire: GrpcProxy) -> AsyncIterator[SpannerStore]:
    """Its sessions are made: what is counted from here on is work."""
    made = SpannerStore(url)
    await made.open()
    await made.read({ShardId(0): BEGINNING}, 1)
    await made.now()
    wire.heard.clear()
    yield made
    await made.close()


@pytest.fixture
def database(url: str, wire: GrpcProxy) -> Iterator[Any]:
    made = open_database(url, priority="foreground")
    yield made
    close_database(made)


# --- Counting ------------------------------------------------------------------------------------


def calls(wire: GrpcProxy) -> dict[str, int]:
    """By method, without the look at each session before it is used: the emulator has no
    multiplexed session for transactions, and the service needs no look."""
    return dict(Counter(one.method for one in wire.heard if one.method != "GetSession"))


def mutations(wire: GrpcProxy) -> int:
    """As Spanner counts: columns of a row and of its index entries; 1 per deleted key or range."""
    return sum(_count(each) for commit in wire.calls("Commit") for each in commit.mutations)


def _count(mutation: Any) -> int:
    message = mutation._pb
    kind = message.WhichOneof("operation")
    body = getattr(message, kind)
    if kind == "delete":
        each = 2 if body.table in INDEXED else 1
        return each * len(body.key_set.keys) + len(body.key_set.ranges)
    count = len(body.columns) * len(body.values)
    if body.table in INDEXED:
        column, width = INDEXED[body.table]
        at = list(body.columns).index(column)
        count += width * sum(row.values[at].HasField("string_value") for row in body.values)
    return count


def sent(wire: GrpcProxy) -> int:
    """Bytes of the requests that the proxy knows the shape of."""
    known = [one.request for one in wire.heard if not isinstance(one.request, bytes)]
    return sum(len(type(request).serialize(request)) for request in known)


def rows_read(wire: GrpcProxy, table: str = LOG) -> int:
    """Rows of `table` that came back from the Read API."""
    total = 0
    for one in wire.heard:
        if one.method != "StreamingRead" or one.request.table != table:
            continue
        values = 0
        for raw in one.answers:
            part = PartialResultSet.deserialize(raw)
            # A value in pieces is one value.
            values += len(part.values) - part.chunked_value
        total += values // len(one.request.columns)
    return total


def starts(wire: GrpcProxy) -> list[tuple[int, str]]:
    """(shard, timestamp) at which each key range on the log begins; "" is the beginning."""
    found = []
    for request in wire.calls("StreamingRead"):
        if request.table == LOG:
            for one in request.key_set.ranges:
                key = [*(one.start_open or one.start_closed)]
                found.append((int(key[0]), key[1] if len(key) > 1 else ""))
    return found


# --- Enqueue -------------------------------------------------------------------------------------


def test_enqueue_adds_mutations_and_no_call(database: Any, wire: GrpcProxy) -> None:
    database.run_in_transaction(lambda tx: greet.enqueue(tx, "makes the session"))

    def cost(count: int) -> tuple[dict[str, int], int, int]:
        wire.heard.clear()
        database.run_in_transaction(
            lambda tx: app.enqueue_many(tx, [greet.call("Ada") for _ in range(count)])
        )
        return calls(wire), mutations(wire), sent(wire)

    one, thousand = cost(1), cost(1000)
    # Begin and commit are the caller's own: its business rows need both.
    assert one[0] == thousand[0] == {"BeginTransaction": 1, "Commit": 1}
    assert (one[1], thousand[1]) == (8, 8_000)
    assert thousand[2] < 200 * 1000


def test_unique_keys_cost_two_calls_however_many(database: Any, wire: GrpcProxy) -> None:
    database.run_in_transaction(lambda tx: greet.enqueue(tx, "makes the session"))

    def cost(first: int, count: int) -> dict[str, int]:
        wire.heard.clear()
        keyed = [
            greet.options(unique_key=f"key-{number}").call("Ada")
            for number in range(first, first + count)
        ]
        database.run_in_transaction(lambda tx: app.enqueue_many(tx, keyed))
        return calls(wire)

    assert cost(0, 1) == cost(1, 500) == {"ExecuteSql": 1, "Commit": 1}


# --- Tail ----------------------------------------------------------------------------------------


async def test_the_tail_reads_many_shards_by_one_call_a_page(
    store: SpannerStore, database: Any, wire: GrpcProxy
) -> None:
    database.run_in_transaction(
        lambda tx: app.enqueue_many(tx, [greet.call("Ada") for _ in range(1000)])
    )
    wire.heard.clear()
    cursors = {ShardId(shard): BEGINNING for shard in range(SHARDS)}
    records: list[Record] = []
    rounds = 0
    while True:
        pages = await store.read(cursors, 1000)
        rounds += 1
        cursors |= {page.shard_id: page.cursor for page in pages}
        records += [record for page in pages for record in page.records]
        if not any(page.more for page in pages):
            break
    assert len(records) == 1000
    assert calls(wire).keys() == {"StreamingRead"}
    # The page that is exactly full cannot know that it was the last.
    assert len(wire.heard) <= rounds + 1 <= 4
    assert rows_read(wire) == 1000
    wire.heard.clear()
    assert not any(page.records for page in await store.read(cursors, 1000))
    assert calls(wire) == {"StreamingRead": 1}, "an idle poll of all shards"
    assert rows_read(wire) == 0


async def test_pages_of_one_shard_overlap_in_no_row(
    store: SpannerStore, database: Any, wire: GrpcProxy
) -> None:
    _fill(database, 1_000)
    wire.heard.clear()
    cursor, found = BEGINNING, 0
    more = True
    while more:
        [page] = await store.read({ShardId(0): cursor}, 90)
        cursor, more, found = page.cursor, page.more, found + len(page.records)
    assert found == rows_read(wire) == 1_000
    assert calls(wire) == {"StreamingRead": 12}


# --- Settle --------------------------------------------------------------------------------------


async def test_a_settlement_is_two_calls_and_one_row_whatever_it_ends(
    store: SpannerStore, database: Any, wire: GrpcProxy
) -> None:
    _fill(database, 1_000)
    owner = await own(store)
    [page] = await store.read({ShardId(0): BEGINNING}, 2_000)
    await owner.settle()  # makes the session
    for records in (page.records[:250], page.records):
        wire.heard.clear()
        cursor = cursor_within(page.window, records[-1])
        assert await owner.settle(cursor=cursor) is SettleResult.SETTLED
        assert calls(wire) == {"StreamingRead": 1, "Commit": 1}
        assert mutations(wire) == 14
        assert sent(wire) < 2_000


async def test_a_thousand_retries_cost_a_row_written_and_one_deleted_each(
    store: SpannerStore, wire: GrpcProxy
) -> None:
    owner = await own(store)
    now_us = await store.now()
    rows = [parked(now_us + 60_000_000 + n, reason="retry") for n in range(1_000)]
    await owner.settle(parked=rows)
    wire.heard.clear()
    later = [parked(row.due_at_us + 1, of=row.record, reason="retry") for row in rows]
    gone = [(row.due_at_us, row.record.task_id) for row in rows]
    await owner.settle(parked=later, unparked=tuple(gone))
    assert calls(wire) == {"StreamingRead": 1, "Commit": 1}
    # 17 columns and no entry of the index, which holds what waits for a key; then the deletes.
    assert mutations(wire) <= 14 + 1_000 * (17 + 2)


async def test_a_full_window_that_is_parked_fits_into_one_commit(
    store: SpannerStore, wire: GrpcProxy
) -> None:
    owner = await own(store)
    rows = [parked(HELD_US, reason="held", held_key=f"key-{n % 7}") for n in range(2_000)]
    wire.heard.clear()
    assert await owner.settle(parked=rows) is SettleResult.SETTLED
    assert mutations(wire) == 14 + 2_000 * (17 + 6)
    assert mutations(wire) < COMMIT_MAX


# --- Behind 100,000 consumed rows ----------------------------------------------------------------


def _fill(database: Any, count: int, shard: int = 0) -> int:
    """Rows committed long ago, a microsecond apart; the last one's timestamp, nanoseconds.

    Explicit past timestamps, because the emulator takes the mark for the commit's own in time
    that grows with the square of the rows.
    """
    first = time.time_ns() - 86_400 * 1_000_000_000
    for start in range(0, count, 10_000):
        rows = [
            task_row(task(shard), timestamp(first + number * 1_000))
            for number in range(start, min(count, start + 10_000))
        ]
        database.run_in_transaction(lambda tx, rows=rows: tx.insert(LOG, LOG_COLUMNS, rows))
    return first + (count - 1) * 1_000


@pytest.mark.parametrize("consumed", [10_000, 100_000])
@pytest.mark.parametrize("pruned", [False, True], ids=["kept", "pruned"])
async def test_rows_read_per_row_returned_do_not_grow_with_consumed_ones(
    store: SpannerStore, url: str, upstream: str, wire: GrpcProxy, pruned: bool, consumed: int
) -> None:
    with kit.environment(upstream):
        direct: Any = open_database(url, priority="foreground")
    last = _fill(direct, consumed)
    owner = await own(store)
    [page] = await store.read({ShardId(0): Cursor(f"{last - 1}")}, 10)
    assert len(page.records) == 1
    await owner.settle(cursor=page.cursor)
    if pruned:
        wire.heard.clear()
        report = await store.prune(journal_keep_s=3_600)
        assert report.tasks == consumed
        # A batch of 2,000 rows is three ranges, because nothing in between stays.
        assert mutations(wire) <= 3 * consumed / 2_000 + 1
        assert calls(wire)["Commit"] <= 1.1 * consumed / 2_000 + 2
    fresh = [[task_row(task(0), COMMIT_TIMESTAMP) for _ in range(500)] for _ in range(2)]
    for rows in fresh:
        direct.run_in_transaction(lambda tx, rows=rows: tx.insert(LOG, LOG_COLUMNS, rows))
    close_database(direct)
    wire.heard.clear()

    cursor, returned, more = page.cursor, 0, True
    while more:
        [page] = await store.read({ShardId(0): cursor}, 300)
        cursor, returned, more = page.cursor, returned + len(page.records), page.more
    assert returned == 1_000
    assert rows_read(wire) <= 1.1 * returned
    assert all(begin > timestamp(last) for _, begin in starts(wire))
    assert all(0 < request.limit <= 300 for request in wire.calls("StreamingRead"))
    # A second round of maintenance begins where the first ended, and not before the marks.
    wire.heard.clear()
    if pruned:
        await store.prune(journal_keep_s=3_600)
        assert rows_read(wire) <= 1
        assert all(begin >= timestamp(last) for _, begin in starts(wire))


async def test_opening_an_open_store_asks_nothing(store: SpannerStore, wire: GrpcProxy) -> None:
    """A heartbeat opens its store each time."""
    await store.open()
    assert calls(wire) == {}


async def test_a_heartbeat_is_an_update_with_its_commit_and_two_reads(
    store: SpannerStore, wire: GrpcProxy
) -> None:
    await store.heartbeat(WorkerInfo("w1", "host:1", ("default",)), 60)
    wire.heard.clear()
    await store.open()
    await store.heartbeat(WorkerInfo("w1", "host:1", ("default",)), 60)
    # The row that is renewed, the view of the fleet, and a look for tasks outside the lanes.
    made = calls(wire)
    made.pop("BeginTransaction", None)
    assert made == {"ExecuteSql": 1, "Commit": 1, "ExecuteStreamingSql": 1, "StreamingRead": 1}


async def test_a_silent_log_is_read_once_in_two_seconds(
    url: str, wire: GrpcProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest pause is the store's; the pauses are counted and not waited for."""
    pauses: list[float] = []
    worker = Worker(app_of(url), settings=WorkerConfig(grace_s=5.0))
    tailer = worker.tailer
    assert (tailer._poll_min_s, tailer._poll_max_s) == (0.010, 2.0)

    real = tailer._wait_s

    def after_long_silence(records: int, quiet_s: float) -> float:
        pauses.append(real(records, quiet_s + 600))
        return 0.0

    monkeypatch.setattr(tailer, "_wait_s", after_long_silence)
    await worker.start()
    try:
        async with asyncio.timeout(120):
            while len(pauses) < 50:  # noqa: ASYNC110 - another task's progress
                await asyncio.sleep(0.01)
    finally:
        await worker.stop()
    # One strong read for all shards, whose pause is 2 s with a fifth of jitter: 1,800 an hour.
    reads = [each for each in wire.calls("StreamingRead") if each.table == LOG]
    polls = [each for each in reads if each.transaction.single_use.read_only.strong]
    assert len(polls) <= tailer.reads + 1
    assert all(len(each.key_set.ranges) == SHARDS for each in polls[-10:])
    assert all(1.6 <= pause <= 2.4 for pause in pauses)


def app_of(url: str) -> late.App:
    made = late.App(url, shards=SHARDS)

    @made.task
    def note() -> None: ...

    return made
