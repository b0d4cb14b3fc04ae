"""One keeper under a virtual clock, with a lease table whose faults are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from late.errors import StoreUnavailable
from late.events import Emitter, Event
from late.model.task import Cursor, Epoch, ShardId, Suspect
from late.store.base import Lease, LeaseView, Membership, WorkerInfo
from late.tailer.lease_keeper import LeaseKeeper
from late.tailer.ownership import Key
from late.tailer.placement import announced, place
from late.testing.clock import VirtualClock

GROUP = "default"
TTL_S = 5.0


class Leases:
    """A lease table and its two statements; faults are scripted."""

    def __init__(self) -> None:
        self.owners: dict[Key, str | None] = {}
        self.epochs: dict[Key, int] = {}
        self.live = {"me"}
        self.calls: list[tuple[str, list[Any]]] = []
        self.faults: list[Exception] = []
        self.lose_answers = 0
        self.suspects: dict[Key, tuple[Suspect, ...]] = {}
        self.acquire_gate = asyncio.Event()
        self.acquire_gate.set()
        self.answer_gate = asyncio.Event()
        """Cleared: an acquire happens, and its answer is on its way."""
        self.answer_gate.set()

    async def acquire(self, worker_id: str, shards: Sequence[Key]) -> list[Lease]:
        self.calls.append(("acquire", [shard for _, shard in shards]))
        await self.acquire_gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        granted = []
        for key in shards:
            if self.owners.get(key) in self.live - {worker_id}:
                continue
            self.owners[key] = worker_id
            self.epochs[key] = self.epochs.get(key, 0) + 1
            epoch = Epoch(self.epochs[key])
            granted.append(Lease(key[0], key[1], worker_id, epoch, 1, Cursor(""), (), {},
                                 suspects=self.suspects.get(key, ())))  # fmt: skip
        await self.answer_gate.wait()
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("connection lost at commit")
        return granted

    async def release(self, leases: Sequence[Lease]) -> None:
        self.calls.append(("release", [lease.shard_id for lease in leases]))
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        for lease in leases:
            key = (lease.group, lease.shard_id)
            if self.owners[key] == lease.owner and self.epochs[key] == lease.epoch:
                self.owners[key] = None

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership:
        self.calls.append(("heartbeat", [worker.worker_id, ttl_s]))
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        return Membership(0, (), (), ())

    def take(self, key: Key, who: str) -> None:
        self.owners[key] = who
        self.epochs[key] += 1


class Fleet:
    """One keeper, the views that are shown to it, and all that it says."""

    def __init__(
        self,
        clock: VirtualClock,
        shards: int = 8,
        *,
        name: str = "me",
        store: Leases | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock
        self.store = store or Leases()
        self.shards = tuple(ShardId(shard) for shard in range(shards))
        self.versions: dict[str, str] = {}
        """Of the workers that are not as all others."""
        self.said: list[tuple[str, Any]] = []
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.settled = asyncio.Event()
        self.settled.set()
        self.busy: dict[int, asyncio.Event] = {}
        emitter = Emitter()
        emitter.subscribe(self.listen)
        self.keeper = LeaseKeeper(
            self.store,
            name,
            on_acquired=lambda leases: self.said.append(
                ("acquired", [lease.shard_id for lease in leases])
            ),
            before_release=self.before_release,
            on_lost=lambda key: self.said.append(("lost", key[1])),
            on_distrusted=lambda: self.said.append(("distrusted", clock.monotonic())),
            on_trusted=lambda: self.said.append(("trusted", clock.monotonic())),
            hurry=lambda: self.said.append(("hurry", None)),
            monotonic=clock.monotonic,
            emitter=emitter,
            **options,
        )

    def listen(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))

    async def before_release(self, keys: list[Key]) -> None:
        self.said.append(("before_release", [shard for _, shard in keys]))
        for _, shard in keys:
            await self.busy.get(shard, self.settled).wait()

    def view(self, *peers: str, now_s: float | None = None, leaving: bool = False) -> Membership:
        self.store.live = {"me", *peers}
        workers = tuple(
            WorkerInfo(
                name,
                "host:1",
                (GROUP,),
                0.0 if leaving and name == "me" else 1.0,
                version=self.versions.get(name, announced("1")),
            )
            for name in sorted(self.store.live)
        )
        leases = tuple(
            LeaseView(group, shard, who, Epoch(self.store.epochs[group, shard]))
            for (group, shard), who in sorted(self.store.owners.items())
        )
        now_s = self.clock.monotonic() if now_s is None else now_s
        return Membership(int(now_s * 1e6), workers, leases, self.shards)

    async def show(self, view: Membership, trusted_for_s: float = TTL_S) -> None:
        """Deliver a view and let everything happen that follows from it."""
        now_s = self.clock.monotonic()
        self.keeper.observe(view, now_s + trusted_for_s, now_s)
        await asyncio.sleep(0.001)

    def held(self) -> list[int]:
        return [shard for _, shard in sorted(self.keeper.leases)]

    def names(self) -> list[str]:
        return [name for name, _ in self.said]


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    task = asyncio.create_task(fleet.keeper.run())
    try:
        yield
    finally:
        fleet.keeper.stop()
        await task


def placed(name: str, names: Iterable[str], shards: int = 8) -> list[int]:
    owner_of = place([f"{GROUP}/{shard}" for shard in range(shards)], dict.fromkeys(names, 1.0))
    return [shard for shard in range(shards) if owner_of[f"{GROUP}/{shard}"] == name]


def key(shard: int) -> Key:
    return (GROUP, ShardId(shard))
