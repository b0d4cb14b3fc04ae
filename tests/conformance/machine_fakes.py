"""The simulator's databases as worlds of the state machine: the seam without its network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from late.model.task import Cursor, NewTask, OpenTask, Parked, Record, ShardId, TaskId
from late.store.base import (
    JOURNAL_DETAIL_S,
    JOURNAL_MINUTE_S,
    Features,
    Lease,
    Membership,
    Page,
    PruneReport,
    Settlement,
    SettleResult,
    Store,
    WorkerInfo,
)
from late.store.common.fleet import membership_of
from tests.conformance.machine_worlds import Transaction
from tests.simulator.database import Database
from tests.simulator.logs import CockroachLog, Log, PostgresLog, SpannerLog, SqliteLog
from tests.simulator.network import FEATURES

T = TypeVar("T")


class _NoJudge:
    """The simulator's database judges its workers; here the model judges the database."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def __call__(self, *_: object) -> None:
        """It has no objection."""


def _database(log: Log, now_us: Callable[[], int]) -> Database:
    database = Database(
        log, now_us=now_us, groups=("default",), shards=2, schedules=(), window=1_000
    )
    database.truth = _NoJudge()  # type: ignore[assignment]
    return database


class FakeStore:
    """The seam over a fake, without the simulator's network."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def features(self) -> Features:
        return FEATURES

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to close."""

    async def now(self) -> int:
        return self._database.now_us()

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        return self._database.read(cursors, limit)

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        return self._database.fetch(shard_id, keys)

    async def due(
        self,
        group: str,
        shard_id: ShardId,
        *,
        until_us: int,
        limit: int,
        after: tuple[int, str] = (0, ""),
        held_key: str | None = None,
        task_ids: Sequence[TaskId] = (),
    ) -> list[Parked]:
        return self._database.due(group, shard_id, until_us, limit, after, held_key, task_ids)

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        return self._database.settle(settlements)

    async def prune(
        self,
        *,
        journal_keep_s: float,
        journal_detail_s: float = JOURNAL_DETAIL_S,
        journal_minute_s: float = JOURNAL_MINUTE_S,
    ) -> PruneReport:
        return self._database.prune()

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        database = self._database
        database.beat(worker, ttl_s, says=True)
        _, workers, leases = database.fleet(0)
        found = membership_of(
            database.now_us(), sorted(workers), sorted(leases), database.shards, ()
        )
        return msgspec.structs.replace(found, groups=None)

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        return self._database.acquire(worker_id, shards)

    async def release(self, leases: Sequence[Lease]) -> None:
        self._database.release(leases)


class _FakeTransaction:
    """Rows in memory until the commit; its place in the log is taken by the first of them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._number: int | None = None
        self._rows: list[NewTask] = []
        self._marks: dict[str, int] = {}

    def insert(self, tasks: Sequence[NewTask]) -> None:
        if self._number is None:
            self._number = self._database.begin()
        self._rows += tasks

    def savepoint(self, name: str) -> None:
        self._marks[name] = len(self._rows)

    def rollback_to(self, name: str) -> None:
        del self._rows[self._marks[name] :]

    def prepare(self) -> None:
        """It goes on running, and nobody's connection is needed for that."""

    def commit(self) -> None:
        if self._number is not None:
            self._database.commit(self._number, self._rows)

    def abort(self) -> None:
        if self._number is not None:
            self._database.abort(self._number)

    crash = abort


class FakeWorld:
    """A fake of the simulator. Its clock moves a little with every look at it."""

    url: str | None = None
    prunes_max = 10

    def __init__(
        self,
        make: Callable[[Callable[[], int]], Log],
        *,
        exclusive: bool = False,
        begins_us: int = 1_700_000_000_000_000,
        step_us: int = 7,
    ):
        self.exclusive = exclusive
        self._begins_us, self._step_us = begins_us, step_us
        self.savepoints = self.prepares = not exclusive
        self._make = make
        self._loop = asyncio.new_event_loop()
        self.reset()

    def reset(self) -> None:
        self._now_us = self._begins_us
        self._database = _database(self._make(self._tick), self._tick)
        self.stores: Sequence[Store] = (FakeStore(self._database), FakeStore(self._database))

    def _tick(self) -> int:
        self._now_us += self._step_us
        return self._now_us

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    def begin(self) -> Transaction:
        return _FakeTransaction(self._database)

    def close(self) -> None:
        self._loop.close()


STRIDE_US = 2_000_000
"""More than the clocks of gateways differ by: a read that has to wait for one comes to no end
here. The model of that is `test_cockroach_model`."""
LATE_US = 4_000_000_000_000_000


def _cockroach(now_us: Callable[[], int]) -> Log:
    return CockroachLog(now_us, random.Random(7))


FAKES: Mapping[str, Callable[[], FakeWorld]] = {
    "sqlite": lambda: FakeWorld(lambda _: SqliteLog(), exclusive=True),
    "postgres": lambda: FakeWorld(lambda _: PostgresLog()),
    # Half of the commits that may tie do.
    "spanner": lambda: FakeWorld(lambda now: SpannerLog(now, random.Random(7), ties=0.5)),
    # All ids are recent ones: of producers whose clocks are ahead.
    "cockroach": lambda: FakeWorld(_cockroach, step_us=STRIDE_US),
    # All ids are old: made long before the database's time, and only found by sweeps.
    "cockroach-swept": lambda: FakeWorld(_cockroach, begins_us=LATE_US, step_us=STRIDE_US),
}
"""One per profile of a log."""
