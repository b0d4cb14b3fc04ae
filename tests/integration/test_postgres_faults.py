"""What happens around the PostgreSQL store: poolers, lost connections, foreign errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from late.errors import (
    ConfigError,
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionAborted,
)
from late.model.task import HELD_US, Parked, ShardId
from late.store.base import Settlement, SettleResult, WorkerInfo
from late.store.common.compaction import PROBE, plan_sums
from late.store.postgres import compaction
from late.store.postgres.connection import CONNECT, conninfo_of, translate
from late.store.postgres.store import PostgresStore
from tests.conformance.backends import BACKENDS
from tests.conformance.journal_kit import HOUR_US, KEEP_S, compact, past, sound, sums
from tests.conformance.kit import own
from tests.integration.postgres_kit import (
    SHARD,
    Reader,
    database,
    enqueue,
    enqueue_many,
    open_store,
    opened,
    producer,
)
from tests.integration.postgres_proxy import Proxy

ME = WorkerInfo("w1", "host:1", ("default",))


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    async with Proxy(url, backends=3) as made:
        yield made


async def everything(store: PostgresStore, url: str) -> None:
    """Every method once, with what it needs of the others."""
    with producer(url) as writer:
        ids = [*enqueue_many(writer, 30), enqueue(writer)]
        await store.heartbeat(ME, 60)
        (lease,) = await store.acquire("w1", [("default", SHARD)])
        reader = Reader(store, limit=7)
        await reader.until(*ids)
        first = reader.records[0]
        parked = Parked(record=first, due_at_us=HELD_US, reason="held", held_key="trip-1")
        settlement = Settlement(
            settlement_id=f"s{lease.seq}",
            group="default",
            shard_id=SHARD,
            seq=lease.seq + 1,
            epoch=lease.epoch,
            owner="w1",
            cursor=reader.cursors[SHARD],
            open=(),
            parked=(parked,),
        )
        assert await store.settle([settlement]) == [SettleResult.SETTLED]
        assert parked in await store.due("default", SHARD, until_us=HELD_US, limit=9)
        await store.prune(journal_keep_s=3600)
        await store.release([lease])
        assert (await store.heartbeat(ME, 0)).workers == ()


async def test_every_transaction_may_run_in_another_session(proxy: Proxy, url: str) -> None:
    """As behind a PgBouncer in transaction mode: no session state, no prepared statement."""
    store = await open_store(proxy.url)
    for _ in range(2):
        await everything(store, url)
    await store.close()

    assert proxy.switches > 20
    assert not proxy.statements, "a named prepared statement would belong to one session"


async def test_a_lost_connection_heals_by_itself(proxy: Proxy, url: str) -> None:
    store = await open_store(proxy.url)
    await everything(store, url)
    proxy.cut()

    failures = 0
    for _ in range(3):  # each of its connections may find out for itself
        try:
            await everything(store, url)
        except StoreUnavailable:
            failures += 1
    assert failures >= 1, "or nothing was cut"
    await everything(store, url)
    await store.close()


async def test_a_commit_whose_answer_is_lost_is_found_again(proxy: Proxy, url: str) -> None:
    store = await open_store(proxy.url)
    await store.heartbeat(ME, 60)
    (lease,) = await store.acquire("w1", [("default", SHARD)])
    settlement = Settlement(
        settlement_id="s1",
        group="default",
        shard_id=SHARD,
        seq=lease.seq + 1,
        epoch=lease.epoch,
        owner="w1",
        cursor=lease.cursor,
        open=(),
    )
    proxy.swallow_answers = True
    with pytest.raises(StoreUnavailable):
        await store.settle([settlement])
    proxy.swallow_answers = False

    with producer(url) as connection:
        rows = connection.execute("select count(*) from late_settlement").fetchall()
        assert rows == [(2,)], "it was committed: else this test shows nothing"
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
    await store.close()


async def test_a_hung_database_is_unavailable(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.store.postgres.connection.CALL_TIMEOUT_S", 0.3)
    store = await open_store(proxy.url)
    proxy.stall(True)
    with pytest.raises(StoreUnavailable, match=r"0\.3 s"):
        await store.now()
    proxy.stall(False)
    assert await store.now() > 0
    await store.close()


async def test_a_heartbeat_is_not_compiled(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longer than the statement, and can take longer than a lease. Nor is the
    setting left behind in the session, which behind a pooler is somebody else's next."""
    asked = "select case current_setting('jit') when 'off' then 7 else 8 end::smallint"
    monkeypatch.setattr("late.store.postgres.statements.SHARDS", asked)
    monkeypatch.setattr("late.store.postgres.membership.SHARDS_S", 0.0)
    with producer(url) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set jit = on')  # as it is by default
    store = await open_store(url)
    assert (await store.heartbeat(ME, 60)).shards == (7,)
    monkeypatch.setattr("late.store.postgres.statements.SHARDS_PLAN", "select 1")
    assert (await store.heartbeat(ME, 60)).shards == (8,)
    await store.close()


async def test_a_deadlock_asks_for_a_repeat(url: str) -> None:
    store = await open_store(url)
    await store.heartbeat(ME, 60)
    (lease,) = await store.acquire("w1", [("default", SHARD)])
    with producer(url) as rival:
        rival.execute("begin")
        rival.execute("set local deadlock_timeout = '60s'")
        rival.execute("lock table late_timer in access exclusive mode")
        parked = Parked(record=await _some_record(store, url), due_at_us=1, reason="delay")
        settlement = Settlement(
            "s1", "default", SHARD, lease.seq + 1, lease.epoch, "w1", lease.cursor, (),
            parked=(parked,),
        )  # fmt: skip
        settling = asyncio.create_task(store.settle([settlement]))
        # It has its row of the journal and waits for the timers; now the rival waits for it.
        await asyncio.to_thread(wait_for_waiter, url)
        blocked = asyncio.to_thread(
            rival.execute,
            "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch,"
            " owner, cursor, open, settled_at_us)"
            " values ('default', 0, %s, 'x', 9, 'rival', '', '', 1)",
            (lease.seq + 1,),
        )
        results = await asyncio.gather(settling, blocked, return_exceptions=True)
        assert isinstance(results[0], TransactionAborted), results
        assert results[0].transient
        rival.execute("rollback")
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
    await store.close()


async def _some_record(store: PostgresStore, url: str):  # type: ignore[no-untyped-def]
    with producer(url) as writer:
        reader = Reader(store)
        await reader.until(enqueue(writer))
    return reader.records[0]


def wait_for_waiter(url: str) -> None:
    """Return when some session of the database waits for a lock."""
    with producer(url) as connection:
        while not connection.execute(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
            " and datname = current_database()"
        ).fetchall():
            time.sleep(0.01)


# --- the map of errors ---------------------------------------------------------------------------

EXPECTED = {
    errors.ConnectionFailure: StoreUnavailable,
    errors.AdminShutdown: StoreUnavailable,
    errors.CrashShutdown: StoreUnavailable,
    errors.CannotConnectNow: StoreUnavailable,
    errors.TooManyConnections: StoreUnavailable,
    errors.DiskFull: StoreUnavailable,
    errors.IoError: StoreUnavailable,
    errors.ReadOnlySqlTransaction: StoreUnavailable,
    errors.SerializationFailure: TransactionAborted,
    errors.DeadlockDetected: TransactionAborted,
    errors.LockNotAvailable: TransactionAborted,
    errors.QueryCanceled: TransactionAborted,
    errors.UndefinedTable: SchemaMismatch,
    errors.UndefinedColumn: SchemaMismatch,
    errors.InvalidSchemaName: SchemaMismatch,
    errors.InvalidCatalogName: StoreRefused,
    errors.InsufficientPrivilege: StoreRefused,
    errors.InvalidPassword: StoreRefused,
    psycopg.OperationalError: StoreUnavailable,
    psycopg.InterfaceError: StoreUnavailable,
    ConnectionResetError: StoreUnavailable,
    TimeoutError: StoreUnavailable,
    psycopg.DataError: StoreError,
    psycopg.ProgrammingError: StoreError,
    errors.IdleInTransactionSessionTimeout: StoreUnavailable,
    errors.SnapshotTooOld: TransactionAborted,
    errors.UniqueViolation: StoreError,
    errors.NumericValueOutOfRange: StoreError,
}


@pytest.mark.parametrize("foreign", EXPECTED, ids=lambda kind: kind.__name__)
def test_each_foreign_error_is_ours(foreign: type[Exception]) -> None:
    ours = translate(foreign("something\nDETAIL: a payload"))

    assert type(ours) is EXPECTED[foreign]
    assert "payload" not in str(ours)


@pytest.mark.parametrize(
    "text",
    [
        'invalid dsn "postgresql://late:hunter2@db/late"',
        "connection to host failed: password=hunter2 user=late",
        "could not translate postgresql+psycopg://late:hunter2@db",
    ],
)
def test_no_password_in_a_message(text: str) -> None:
    assert "hunter2" not in str(translate(psycopg.OperationalError(text)))


@pytest.mark.parametrize(
    "url", ["postgresql://u:hunter2@h:x/d?a=b", "mysql://u:hunter2@h/d", "hunter2", ""]
)
def test_a_bad_url_is_a_config_error_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PostgresStore(url)
    assert "hunter2" not in str(refused.value)


async def test_a_wrong_password_says_so_without_it(url: str) -> None:
    head, _, tail = url.rpartition("@")
    user = head.rsplit(":", 1)[0]
    store = PostgresStore(f"{user}:hunter2@{tail}")
    with pytest.raises(StoreError) as refused:
        await store.open()
    assert "hunter2" not in str(refused.value)
    assert "password" in str(refused.value)
    await store.close()


def test_what_a_url_says_wins() -> None:
    given = conninfo_of("postgresql+psycopg://u@h/d?connect_timeout=3&application_name=trips")

    assert (given["connect_timeout"], given["application_name"]) == ("3", "trips")
    assert given["keepalives_idle"] == CONNECT["keepalives_idle"]


async def test_two_connections_are_too_few(url: str) -> None:
    with pytest.raises(ConfigError):
        PostgresStore(url, connections=2)


async def test_it_keeps_to_its_connections(url: str) -> None:
    store = await open_store(url, connections=3)
    await store.heartbeat(ME, 60)
    shards = [ShardId(n) for n in range(8)]
    await asyncio.gather(
        *(store.now() for _ in range(10)),
        *(store.acquire("w1", [("default", shard)]) for shard in shards),
        *(store.read({shard: Reader(store).cursors[SHARD]}, 1) for shard in shards),
    )
    with opened(connection := producer(url)):
        rows = connection.execute(
            "select count(*) from pg_stat_activity where application_name = 'late'"
            " and datname = current_database()"
        ).fetchall()
    await store.close()

    assert rows == [(3,)]


# --- two compactions -----------------------------------------------------------------------------


async def test_a_compaction_between_the_read_and_the_writes_of_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hours between one of minutes: what was read is no longer what would be replaced."""
    stores = [PostgresStore(url) for _ in range(2)]
    for store in stores:
        await store.open()
    (backend,) = [each for each in BACKENDS if each.name == "postgres"]
    raw = backend.raw(url)
    await past(await own(stores[0]), raw, 30, ago_us=26 * HOUR_US, apart_us=20_000_000)
    counted, plan, peers = sums(raw), plan_sums, 0

    def planned(rows: Any, stretch: Any, limit: int) -> Any:
        """In a thread, in the middle of the transaction."""
        nonlocal peers
        if limit != PROBE and peers == 0:
            peers += 1
            ended = asyncio.run_coroutine_threadsafe(compact(stores[1]), loop)
            assert ended.result(30).compacted
        return plan(rows, stretch, limit)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(compaction, "plan_sums", planned)
    assert (await compact(stores[0], journal_minute_s=KEEP_S)).compacted == 0
    assert peers == 1
    sound(url, raw, counted)
    for store in stores:
        await store.close()
    raw.close()
