"""The store behind a proxy that answers in Spanner's stead: what becomes of a settlement."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import msgspec
import pytest
from google.cloud.spanner_v1 import COMMIT_TIMESTAMP

from late.errors import StoreError, StoreRefused, StoreUnavailable
from late.model.task import Cursor, ShardId, TaskId
from late.store.base import SettleResult
from late.store.spanner import journal as spanner_journal
from late.store.spanner.client import close_database, open_database
from late.store.spanner.connection import THREADS
from late.store.spanner.cursor import timestamp
from late.store.spanner.row_codec import LOG, LOG_COLUMNS, task_row
from late.store.spanner.store import SpannerStore
from late.testing.servers import spanner
from tests.conformance.kit import BEGINNING, Owner, own, parked, task
from tests.integration import spanner_kit as kit
from tests.integration.grpc_proxy import GrpcProxy, Rule

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with kit.emulator() as host, kit.environment(host):
        yield host


@pytest.fixture
def url(upstream: str) -> str:
    return spanner.create_database(migrated=True)


@pytest.fixture
def proxy(upstream: str) -> Iterator[GrpcProxy]:
    with GrpcProxy(upstream) as made, kit.environment(made.host):
        yield made


@pytest.fixture
async def store(url: str, proxy: GrpcProxy) -> AsyncIterator[SpannerStore]:
    made = SpannerStore(url)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def direct(url: str, upstream: str) -> Iterator[Any]:
    """A client that no rule of the proxy touches."""
    with kit.environment(upstream):
        made = open_database(url, priority="foreground")
    yield made
    close_database(made)


def journal(direct: Any) -> list[list[Any]]:
    return kit.rows(direct, "late_settlement", "seq", "settlement_id")


async def one(store: SpannerStore, owner: Owner) -> tuple[Any, list[Any]]:
    """A settlement with a row to park, and what the timer table must hold once it is there."""
    row = parked(await store.now() + 60_000_000)
    return owner.next(parked=(row,)), [[row.record.task_id]]


# --- Outcomes that nobody knows -------------------------------------------------------------------

UNSURE = (Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.INTERNAL)


@pytest.mark.parametrize("code", UNSURE, ids=lambda code: code.name)
@pytest.mark.parametrize("happened", [False, True], ids=["not committed", "committed"])
async def test_the_same_settlement_again_finds_out_what_became_of_it(
    store: SpannerStore, proxy: GrpcProxy, direct: Any, code: grpc.StatusCode, happened: bool
) -> None:
    owner = await own(store)
    settlement, timers = await one(store, owner)
    proxy.add(Rule("Commit", code, forward=happened))
    with pytest.raises(StoreUnavailable):
        await store.settle([settlement])
    assert (len(journal(direct)) == 2) is happened
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
    assert journal(direct)[1:] == [[2, settlement.settlement_id]]
    assert kit.rows(direct, "late_timer", "task_id") == timers


async def test_a_commit_whose_answer_was_cut_off_is_sent_again_under_the_same_transaction(
    store: SpannerStore, proxy: GrpcProxy, direct: Any
) -> None:
    owner = await own(store)
    settlement, timers = await one(store, owner)
    proxy.heard.clear()
    proxy.add(Rule("Commit", Code.UNAVAILABLE, forward=True))
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
    first, second = proxy.calls("Commit")
    assert first.transaction_id == second.transaction_id
    assert not first._pb.HasField("single_use_transaction")
    assert len(journal(direct)) == 2
    assert kit.rows(direct, "late_timer", "task_id") == timers


async def test_an_aborted_settlement_runs_as_a_whole_again(
    store: SpannerStore, proxy: GrpcProxy, direct: Any
) -> None:
    owner = await own(store)
    settlement, timers = await one(store, owner)
    proxy.heard.clear()
    proxy.add(Rule("Commit", Code.ABORTED, times=2))
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
    commits = proxy.calls("Commit")
    assert len({request.transaction_id for request in commits}) == len(commits) == 3
    assert len(proxy.calls("StreamingRead")) == 3, "the fence is looked at each time"
    assert len(journal(direct)) == 2
    assert kit.rows(direct, "late_timer", "task_id") == timers


async def test_an_aborted_settlement_that_had_committed_sees_itself(
    store: SpannerStore, proxy: GrpcProxy, direct: Any
) -> None:
    owner = await own(store)
    settlement, timers = await one(store, owner)
    proxy.add(Rule("Commit", Code.ABORTED, forward=True))
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
    assert len(journal(direct)) == 2
    assert kit.rows(direct, "late_timer", "task_id") == timers


# --- The fence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["its own", "another's"])
async def test_a_key_that_exists_although_none_was_seen_decides(
    store: SpannerStore, direct: Any, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """The first look is blind to the row, so that Spanner itself says ALREADY_EXISTS."""
    owner = await own(store)
    settlement, _ = await one(store, owner)
    other = owner.next(cursor=Cursor("7"))
    await store.settle([settlement if whose == "its own" else other])
    looks: list[int] = []
    real = spanner_journal.settle

    class Blind:
        def __init__(self, transaction: Any) -> None:
            self._transaction = transaction

        def read(self, *given: Any, **options: Any) -> Any:
            rows = list(self._transaction.read(*given, **options))
            return [row for row in rows if row[0] != settlement.seq]

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transaction, name)

    def settle(transaction: Any, *given: Any) -> Any:
        looks.append(1)
        return real(transaction if len(looks) > 1 else Blind(transaction), *given)

    monkeypatch.setattr(spanner_journal, "settle", settle)
    expected = SettleResult.SETTLED if whose == "its own" else SettleResult.FENCED
    assert await store.settle([settlement]) == [expected]
    assert len(looks) == 2
    assert len(journal(direct)) == 2


# --- Refusals -------------------------------------------------------------------------------------


async def test_over_a_quota_is_for_later(
    store: SpannerStore, proxy: GrpcProxy, direct: Any
) -> None:
    owner = await own(store)
    settlement, _ = await one(store, owner)
    for method in ("Commit", "StreamingRead"):
        proxy.add(Rule(method, Code.RESOURCE_EXHAUSTED))
        with pytest.raises(StoreUnavailable, match="proxy"):
            await store.settle([settlement])
    assert len(journal(direct)) == 1
    assert await store.settle([settlement]) == [SettleResult.SETTLED]


async def test_a_permission_that_was_taken_is_no_matter_of_time(
    store: SpannerStore, proxy: GrpcProxy, direct: Any
) -> None:
    owner = await own(store)
    settlement, _ = await one(store, owner)
    proxy.add(Rule("Commit", Code.PERMISSION_DENIED))
    with pytest.raises(StoreRefused) as refused:
        await store.settle([settlement])
    assert not refused.value.transient
    proxy.add(Rule("StreamingRead", Code.PERMISSION_DENIED))
    with pytest.raises(StoreRefused):
        await store.read({ShardId(0): BEGINNING}, 10)
    assert len(journal(direct)) == 1


async def test_opening_without_permission_is_refused(url: str, proxy: GrpcProxy) -> None:
    proxy.add(Rule("ExecuteStreamingSql", Code.PERMISSION_DENIED, times=9))
    proxy.add(Rule("StreamingRead", Code.PERMISSION_DENIED, times=9))
    store = SpannerStore(url)
    with pytest.raises(StoreRefused):
        await store.open()
    await store.close()


async def test_a_refused_step_gives_the_locks_of_its_transaction_back(
    store: SpannerStore, proxy: GrpcProxy, direct: Any
) -> None:
    owner = await own(store)
    settlement, _ = await one(store, owner)
    # The first read begins the transaction; the second one is refused.
    settlement = msgspec.structs.replace(settlement, ended_ticks=(("nightly", TaskId("x")),))
    proxy.add(Rule("StreamingRead"))
    proxy.add(Rule("StreamingRead", Code.RESOURCE_EXHAUSTED))
    proxy.heard.clear()
    with pytest.raises(StoreUnavailable):
        await store.settle([settlement])
    assert len(proxy.calls("Rollback")) == 1
    assert await store.settle([settlement]) == [SettleResult.SETTLED]


async def test_closing_does_not_wait_for_calls_that_hang(url: str, proxy: GrpcProxy) -> None:
    store = SpannerStore(url)
    await store.open()
    hold = threading.Event()
    proxy.add(Rule("StreamingRead", hold=hold, times=100))
    cursors = {ShardId(0): BEGINNING}
    # More than there are threads, though the proxy lets fewer through at once.
    reads = [asyncio.create_task(store.read(cursors, 1)) for _ in range(THREADS + 4)]
    while not proxy.calls("StreamingRead"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await store.close()
    assert not hold.is_set()
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(result, StoreError) for result in results)


async def test_a_rebase_that_was_cut_off_is_done_again(
    store: SpannerStore, proxy: GrpcProxy, direct: Any
) -> None:
    owners = [await own(store, shard) for shard in range(3)]
    direct.run_in_transaction(
        lambda tx: tx.update("late_meta", ("key", "value"), [("identity", "elsewhere")])
    )
    copy = SpannerStore(store._url)
    proxy.heard.clear()
    proxy.add(Rule("Commit"))
    proxy.add(Rule("Commit", Code.PERMISSION_DENIED))
    with pytest.raises(StoreRefused):
        await copy.rebase()
    with pytest.raises(StoreRefused, match="late rebase"):
        await copy.open()
    await copy.rebase()
    await copy.open()
    for owner in owners:
        assert await owner.settle() is SettleResult.FENCED
    again = await own(copy, 0)
    assert again.lease.epoch > owners[0].lease.epoch
    await copy.close()


# --- The tail on the wire ----------------------------------------------------------------------


async def test_ties_are_paged_on_the_wire(store: SpannerStore, direct: Any) -> None:
    """Explicit equal timestamps of the past: whole pages of one moment."""
    tasks = [task() for _ in range(7)]
    moment = timestamp(1_700_000_000_123_456_789)
    direct.run_in_transaction(
        lambda tx: tx.insert(LOG, LOG_COLUMNS, [task_row(each, moment) for each in tasks])
    )
    cursor, found, more = BEGINNING, [], True
    while more:
        [page] = await store.read({ShardId(0): cursor}, 2)
        found += page.records
        cursor, more = page.cursor, page.more
    assert [record.task_id for record in found] == sorted(each.task_id for each in tasks)
    assert {record.position for record in found} == {1_700_000_000_123_456_789}


@pytest.mark.parametrize("code", [Code.FAILED_PRECONDITION, Code.OUT_OF_RANGE])
async def test_a_window_that_spanner_no_longer_has_is_read_anew(
    store: SpannerStore, proxy: GrpcProxy, direct: Any, code: grpc.StatusCode
) -> None:
    tasks = [task() for _ in range(4)]
    direct.run_in_transaction(
        lambda tx: tx.insert(LOG, LOG_COLUMNS, [task_row(t, COMMIT_TIMESTAMP) for t in tasks])
    )
    [first] = await store.read({ShardId(0): BEGINNING}, 2)
    proxy.heard.clear()
    proxy.add(Rule("StreamingRead", code))
    [second] = await store.read({ShardId(0): first.cursor}, 5)
    assert len({r.task_id for r in [*first.records, *second.records]}) == 4
    refused, again = proxy.calls("StreamingRead")
    assert refused.transaction.single_use.read_only.read_timestamp
    assert again.transaction.single_use.read_only.strong


async def test_a_stale_tail_asks_for_it_and_takes_the_answer_as_cursor(
    url: str, proxy: GrpcProxy, direct: Any
) -> None:
    store = SpannerStore(f"{url}?staleness_s=2&replica=us-east4")
    await store.open()
    new = task()
    direct.run_in_transaction(
        lambda tx: tx.insert(LOG, LOG_COLUMNS, [task_row(new, COMMIT_TIMESTAMP)])
    )
    cursor, found = BEGINNING, []
    async with asyncio.timeout(120):
        while not found:
            for page in await store.read({ShardId(0): cursor}, 10):
                found += page.records
                cursor = page.cursor
            # Nothing announces the moment from which a replica has it.
            await asyncio.sleep(0.05)
    await store.close()
    assert [record.task_id for record in found] == [new.task_id]
    asked = [request for request in proxy.calls("StreamingRead") if request.table == LOG]
    assert {
        request.transaction.single_use.read_only.max_staleness.seconds for request in asked
    } == {2}
    for request in asked:
        (chosen,) = request.directed_read_options.include_replicas.replica_selections
        assert chosen.location == "us-east4"
    others = [each.request for each in proxy.heard if each.request not in asked]
    assert not any(getattr(each, "directed_read_options", None) for each in others)
    assert int(cursor) >= found[0].position


async def test_a_refusal_of_another_kind_is_no_reason_to_go_on(
    store: SpannerStore, proxy: GrpcProxy
) -> None:
    proxy.add(Rule("StreamingRead", Code.FAILED_PRECONDITION))
    with pytest.raises(StoreError):
        await store.read({ShardId(0): BEGINNING}, 10)
