"""A store as a process sees it: the database at the far end of a network that does its worst.

A call is a message there, an instant at the database, and a message back. Messages take time, get
lost (the call then ends by its deadline), come twice, or find the line cut. What has been sent
happens even if the sender is killed meanwhile, and an answer that finds nobody is forgotten: so
every kind of unknown outcome comes up by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from late.errors import StoreError, StoreUnavailable, TransactionAborted
from late.model.task import Cursor, NewTask, OpenTask, Parked, Record, Schedule, ShardId, TaskId
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
    WorkerInfo,
)
from late.store.common.fleet_view import FleetView
from tests.simulator.database import Database
from tests.simulator.loop import SimLoop
from tests.simulator.truth import Broken

T = TypeVar("T")

FEATURES = Features(
    commit_order=False,
    delay_counts_from="commit",
    time_resolution_s=0.000_001,
    poll_min_s=0.02,
    group_commit=True,
    batch_size_max=1_000,
)
DEADLINE_S = 5.0
BUSY_S = 0.5
"""How long a write waits for the lock."""
READS = frozenset(("now", "read", "fetch", "due", "schedules"))


class Network(msgspec.Struct):
    """How the lines to the database are now. Rates are per message."""

    delay_s: float = 0.002
    """Mean of one way; exponential."""
    lost: float = 0.0
    """The message never arrives."""
    twice: float = 0.0
    """It arrives a second time, later."""
    refused: float = 0.0
    """The call fails, and nothing has happened."""
    aborted: float = 0.0
    """The database aborts the transaction."""
    cut: frozenset[str] = frozenset()
    """Processes without a line."""
    deaf: frozenset[str] = frozenset()
    """Processes whose calls arrive, and which hear no answer."""
    busy: bool = False
    """Nobody can write: another one holds SQLite's lock, the disk is full, the server is a
    read-only one."""
    storm: bool = False
    """What handlers depend on is down: every attempt fails."""
    dies: float = 0.0
    """The chance of a death at each step of a transaction that handlers share."""

    def heal(self) -> None:
        """All is well from now on."""
        self.lost = self.twice = self.refused = self.aborted = 0.0
        self.cut = self.deaf = frozenset()
        self.busy = self.storm = False
        self.dies = 0.0


def _no_answer(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(StoreUnavailable("no answer"))


class NetworkStore:
    """`late.store.base.Store` over a `Network`. One per process."""

    def __init__(
        self, loop: SimLoop, database: Database, network: Network, name: str, rng: random.Random
    ) -> None:
        self.database = database
        self.network = network
        self._loop = loop
        self._name = name
        self._rng = rng
        self._view = FleetView()
        self.beats = 0
        self.rows = 0
        """The rows of workers and leases that heartbeats have brought."""
        self._said: tuple[WorkerInfo, float] | None = None

    @property
    def features(self) -> Features:
        return FEATURES

    async def _call(self, what: str, work: Callable[[], T], *, once: bool = False) -> T:
        """`work` at the database, under a name for the trace.

        Args:
            once: it cannot come twice: it is part of a transaction on one connection.

        Raises:
            StoreUnavailable: it may have happened or not.
            TransactionAborted: it has not.
        """
        network, rng = self.network, self._rng
        if rng.random() < network.refused:
            await asyncio.sleep(self._delay())
            raise StoreUnavailable("refused")
        if network.busy and what not in READS:
            await asyncio.sleep(BUSY_S)
            if network.busy:
                raise StoreUnavailable("database is locked")
        answer: asyncio.Future[T] = self._loop.create_future()
        if not self._loses():
            self._loop.outside(self._arrive, what, work, answer, delay_s=self._delay())
            if rng.random() < network.twice and not once:
                forgotten: asyncio.Future[T] = self._loop.create_future()
                late_s = 20 * self._delay()
                self._loop.outside(self._arrive, what, work, forgotten, delay_s=late_s)
        deadline = self._loop.call_later(DEADLINE_S, _no_answer, answer)
        try:
            return await answer
        finally:
            deadline.cancel()

    def _arrive(self, what: str, work: Callable[[], T], answer: asyncio.Future[T]) -> None:
        """In no process: the database does it, whoever waits."""
        self.database.note(f"{self._name} {what}")
        result: Any = None
        error: StoreError | None = None
        if self._rng.random() < self.network.aborted:
            error = TransactionAborted("aborted")
        else:
            try:
                result = work()
            except Broken as broken:
                self.database.truth.verdicts.append(broken)
                return
        if self._loses() or self._name in self.network.deaf:
            return

        def deliver() -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
                answer.exception()  # a sender that was killed will never ask
            else:
                answer.set_result(result)

        self._loop.outside(deliver, delay_s=self._delay())

    def _delay(self) -> float:
        return self._rng.expovariate(1 / self.network.delay_s)

    def _loses(self) -> bool:
        return self._name in self.network.cut or self._rng.random() < self.network.lost

    # ------------------------------------------------------------------ the seam

    async def open(self) -> None:
        """Nothing to check."""

    async def close(self) -> None:
        """Nothing to close."""

    async def now(self) -> int:
        return await self._call("now", self.database.now_us)

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        wanted = dict(cursors)
        return await self._call("read", lambda: self.database.read(wanted, limit))

    async def fetch(self, shard_id: ShardId, keys: Sequence[OpenTask]) -> list[Record]:
        return await self._call("fetch", lambda: self.database.fetch(shard_id, keys))

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
        ids = tuple(task_ids)
        return await self._call(
            "due",
            lambda: self.database.due(group, shard_id, until_us, limit, after, held_key, ids),
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        written = tuple(settlements)
        return await self._call("settle", lambda: self.database.settle(written))

    async def prune(
        self,
        *,
        journal_keep_s: float,
        journal_detail_s: float = JOURNAL_DETAIL_S,
        journal_minute_s: float = JOURNAL_MINUTE_S,
    ) -> PruneReport:
        return await self._call("prune", self.database.prune)

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        """As the PostgreSQL store does it, with one message for all of its statements."""
        database, name, lives = self.database, worker.worker_id, ttl_s > 0
        said = (msgspec.structs.replace(worker, handlers=None), ttl_s)
        view, says = self._view if lives else FleetView(), not lives or said != self._said
        self._view, self._said = FleetView(), None
        told_us, ring = view.now_us, view.ring

        def work() -> Any:
            own_us = database.beat(worker, ttl_s, says=says)
            ends = database.ends(name, told_us, ttl_s, ring=ring)
            at_us, numbers = database.now_us(), database.numbers()
            live = None if ring else database.live()
            outdated = view.outdated(at_us, numbers, ends, live)
            return at_us, own_us, numbers, ends, database.fleet(view.since) if outdated else None

        now_us, own_us, numbers, ends, fleet = await self._call("heartbeat", work)
        if view.dead(now_us, ends):
            await self._call("dead", database.tell)
        view.pass_time(now_us, ends, ttl_s)
        self.beats += 1
        if fleet is not None:
            mark, workers, leases = fleet
            wanted = view.wants_workers(numbers)
            self.rows += len(leases) + wanted * len(workers)
            view.read(numbers, mark, workers if wanted else None, leases, now_us)
        if lives:
            self._view, self._said = view, said
        return msgspec.structs.replace(
            view.membership(now_us, name, own_us), shards=database.shards, groups=None
        )

    async def acquire(self, worker_id: str, shards: Sequence[tuple[str, ShardId]]) -> list[Lease]:
        wanted = tuple(shards)
        return await self._call("acquire", lambda: self.database.acquire(worker_id, wanted))

    async def release(self, leases: Sequence[Lease]) -> None:
        given = tuple(leases)
        await self._call("release", lambda: self.database.release(given))

    # ------------------------------------------------------------------ beside the seam

    async def schedules(self) -> list[Schedule]:
        """What `Control.schedules.all` reads."""
        return await self._call("schedules", self.database.recurring)

    async def once(self, what: str, work: Callable[[], T]) -> T:
        """A statement of a transaction that handlers share. Raises as all calls do."""
        return await self._call(what, work, once=True)

    async def enqueue(self, tasks: Sequence[NewTask]) -> None:
        """A handler's own transaction; repeated, it finds its rows and is refused."""
        database = self.database

        def work() -> None:
            if tasks[0].task_id not in database.truth.records:
                database.commit(database.begin(), tasks)

        await self._call("enqueue", work)
