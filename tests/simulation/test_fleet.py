"""A large fleet without work: who owns what, and what heartbeats bring.

The keepers, the heartbeats, the placement and the kept views are the real ones.
`LATE_FLEET=300 pytest tests/simulation/test_fleet.py -s` takes two minutes, and prints what it saw.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from late import events
from late.store.base import WorkerInfo
from late.store.common import fleet_view
from late.tailer.lease_keeper import LeaseKeeper
from late.tailer.placement import announced
from late.tailer.release_notice import ReleaseNotice
from tests.simulator.database import Database
from tests.simulator.logs import PostgresLog
from tests.simulator.loop import Process, SimLoop, bury
from tests.simulator.network import Network, NetworkStore
from tests.simulator.process import SimHeartbeat
from tests.sizes import LONG_RUN

WORKERS = int(os.environ.get("LATE_FLEET", "140" if LONG_RUN else "60"))
WATCHED = min(fleet_view.ALL_WATCHED, WORKERS * 9 // 10)
"""More live than watch all of each other, until the tenth has died."""
GROUPS = tuple(f"g{number}" for number in range(5))
SHARDS = 2 * WORKERS
"""Of each group."""
TTL_S = 5.0
BEAT_S = 1.0
TURN_S = 0.1


class Member:
    """One worker: its heartbeat and its keeper of leases, and nothing that works."""

    def __init__(self, loop: SimLoop, database: Database, name: str, seed: int) -> None:
        rng, emitter = random.Random(seed), events.Emitter()
        self.name, self.process = name, Process(name)
        self.store = NetworkStore(loop, database, Network(), name, rng)
        self.keeper = LeaseKeeper(
            self.store, name,
            on_acquired=lambda leases: None, before_release=_at_once, on_lost=lambda key: None,
            on_distrusted=lambda: None, on_trusted=lambda: None,
            hurry=lambda: self.heartbeat.hurry(), notice=ReleaseNotice(BEAT_S), ttl_s=TTL_S,
            rng=rng, monotonic=loop.time, emitter=emitter,
        )  # fmt: skip
        self.heartbeat = SimHeartbeat(
            "simulation://", WorkerInfo(name, name, GROUPS, version=announced("1")),
            on_membership=self.keeper.observe, ttl_s=TTL_S, every_s=BEAT_S, rng=rng,
            monotonic=loop.time, emitter=emitter, store_factory=lambda url: self.store,
        )  # fmt: skip
        loop.start(self.process, self._run)

    async def _run(self) -> None:
        await asyncio.sleep(random.Random(self.name).random())
        self.heartbeat.start()
        await self.keeper.run()


async def _at_once(keys: Sequence[object]) -> None:
    pass


class Fleet:
    def __init__(self) -> None:
        self.loop = SimLoop()
        self.database = Database(
            PostgresLog(), now_us=lambda: 10**15 + round(self.loop.now_s * 1e6), groups=GROUPS,
            shards=SHARDS, schedules=(), window=10,
        )  # fmt: skip
        self.members = [
            Member(self.loop, self.database, f"w-{random.Random(n).randbytes(8).hex()}", n)
            for n in range(WORKERS)
        ]

    def owners(self) -> dict[object, str | None]:
        return {key: journal.owner for key, journal in self.database.journals.items()}

    def all_owned(self) -> bool:
        """Every shard has a living owner, and each of them has its share."""
        living = {member.name for member in self.members if not member.process.dead}
        loads = Counter(self.owners().values())
        return (
            loads.total() == SHARDS * len(GROUPS)
            and loads.keys() == living
            and max(loads.values()) - min(loads.values()) <= len(GROUPS)
        )

    async def until(self, condition: Callable[[], bool], most_s: float) -> float:
        began_s = self.loop.now_s
        while not condition():
            assert self.loop.now_s < began_s + most_s, Counter(self.owners().values())
            await asyncio.sleep(TURN_S)
        return self.loop.now_s - began_s

    def spent(self) -> tuple[int, int]:
        living = [member.store for member in self.members if not member.process.dead]
        return sum(each.beats for each in living), sum(each.rows for each in living)


async def _lives(fleet: Fleet) -> None:
    await fleet.until(fleet.all_owned, 120)
    await asyncio.sleep(10)
    beats, rows = fleet.spent()
    await asyncio.sleep(10)
    more_beats, more_rows = fleet.spent()
    quiet = (more_rows - rows) / (more_beats - beats)
    print(f"quiet: {quiet:.1f} rows a heartbeat of {WORKERS + SHARDS * len(GROUPS):,}")
    dead = random.Random(1).sample(fleet.members, WORKERS // 10)
    names = {member.name for member in dead}
    for member in dead:
        fleet.loop.kill(member.process)
    beats, rows = fleet.spent()

    def taken() -> bool:
        return names.isdisjoint(fleet.owners().values()) and None not in fleet.owners().values()

    took_s = await fleet.until(taken, 60)
    more_beats, more_rows = fleet.spent()
    busy = (more_rows - rows) / (more_beats - beats)
    print(f"a tenth dies: all owned after {took_s:.1f} s; {busy:.1f} rows a heartbeat")
    assert took_s <= TTL_S + 2
    # All is read once in 30 s, and nothing else.
    assert quiet < 1.5 * (WORKERS + SHARDS * len(GROUPS)) / 30


def test_all_shards_of_a_tenth_that_dies_are_owned_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_view, "ALL_WATCHED", WATCHED)
    fleet = Fleet()
    gc.disable()  # what ends is buried as a whole, see `World.run`
    try:
        fleet.loop.run_until_complete(_lives(fleet))
    finally:
        asyncio.set_event_loop(None)
        processes = [member.process for member in fleet.members]
        fleet.members.clear()
        fleet.loop.errors.clear()
        fleet.loop.forget()
        bury(processes)
        gc.enable()
