"""One simulated world: what is in it, what goes wrong in it, and how it must end.

`Plan.draw(seed)` decides everything beforehand: the database, the fleet, the transactions and the
faults, each world with another mix (a *swarm*: a world in which everything goes wrong at once
hides what two faults do together). `World(plan).run()` lives it, heals it, and lets it finish.

At the end: E1 every committed task is final in every group, and E2 nothing else; E3 no task was
started more often than its deaths and failures explain, where nothing died; E4 every shard has an
owner; E5 house-keeping has taken what is settled. E6, that the same seed gives the same trace, is
the caller's to compare.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from late.task import NewTask, Options, TaskId
from late.testing.simulation.database import Broken, Database
from late.testing.simulation.logs import Log, PostgresLog, SpannerLog, SqliteLog
from late.testing.simulation.loop import Process, SimLoop, bury
from late.testing.simulation.network import Network, NetworkStore
from late.testing.simulation.process import Job, SimWorker

Profile = Literal["sqlite", "postgres", "spanner"]
PROFILES: tuple[Profile, ...] = ("sqlite", "postgres", "spanner")
FaultKind = Literal["kill", "pause", "restart", "cut", "lose", "repeat", "refuse", "abort", "slow"]
FAULTS: tuple[FaultKind, ...] = (
    "kill", "pause", "restart", "cut", "lose", "repeat", "refuse", "abort", "slow"
)  # fmt: skip
EPOCH_US = 1_800_000_000_000_000
FINISH_S = 120.0
"""Once all is healed, everything must be over within this."""


class Fault(msgspec.Struct, frozen=True):
    """Something goes wrong at `at_s`, for `for_s` where it lasts."""

    at_s: float
    kind: FaultKind
    worker: int = 0
    """Which place of the fleet; the one that works there at that moment."""
    for_s: float = 0.0


class Booking(msgspec.Struct, frozen=True):
    """A producer's transaction: begins at `at_s`, ends `for_s` later."""

    at_s: float
    for_s: float
    commits: bool
    tasks: tuple[NewTask, ...]


class Plan(msgspec.Struct, frozen=True):
    """All that is decided beforehand."""

    seed: int
    profile: Profile
    workers: int
    shards: int
    groups: tuple[str, ...]
    ttl_s: float
    window: int
    live_s: float
    """How long things go on and go wrong."""
    bookings: tuple[Booking, ...]
    faults: tuple[Fault, ...]

    @classmethod
    def draw(cls, seed: int, profile: Profile | None = None) -> Plan:
        """The world of this seed."""
        rng = random.Random(seed)
        shards = rng.choice((1, 2, 4, 8))
        live_s = rng.uniform(5.0, 25.0)
        ttl_s = rng.choice((1.5, 3.0, 6.0))
        workers = rng.randint(1, 4)
        armed = [kind for kind in FAULTS if rng.random() < 0.35]
        return cls(
            seed=seed,
            profile=rng.choice(PROFILES) if profile is None else profile,
            workers=workers,
            shards=shards,
            groups=("default", "audit")[: rng.choice((1, 1, 2))],
            ttl_s=ttl_s,
            window=rng.choice((12, 30, 200)),
            live_s=live_s,
            bookings=tuple(_bookings(rng, shards, live_s)),
            faults=tuple(_faults(rng, armed, workers, live_s, ttl_s)),
        )


def _bookings(rng: random.Random, shards: int, live_s: float) -> list[Booking]:
    kills = rng.random() < 0.3
    number, found = 0, []
    for _ in range(rng.randint(10, 60)):
        tasks = []
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            number += 1
            tasks.append(_task(rng, number, rng.randrange(shards), kills))
        long = rng.random() < 0.1
        for_s = rng.uniform(1.0, 8.0) if long else rng.expovariate(100)
        commits = rng.random() > 0.2
        found.append(Booking(rng.uniform(0, live_s), for_s, commits, tuple(tasks)))
    return sorted(found, key=lambda booking: booking.at_s)


def _task(rng: random.Random, number: int, shard_id: int, kills: bool) -> NewTask:
    options = Options()
    if rng.random() < 0.3:
        options = Options(
            delay_us=round(rng.expovariate(1) * 1e6) if rng.random() < 0.5 else 0,
            priority=rng.choice((0, 0, 5)),
            ordering_key=f"key-{shard_id}-{rng.randrange(3)}" if rng.random() < 0.5 else None,
            expires_in_us=round(rng.uniform(0.5, 5) * 1e6) if rng.random() < 0.2 else None,
        )
    job = Job(
        takes_s=rng.choice((0.001, 0.01, 0.1, 0.5)),
        fails=rng.choice((0, 0, 0, 0, 1, 2, 9)),
        kills=1 if kills and rng.random() < 0.01 else 0,
    )
    return NewTask(
        task_id=TaskId(f"{number:08x}-0000-0000-0000-000000000000"),
        shard_id=shard_id,
        queue="default",
        name="job",
        payload=msgspec.json.encode(job),
        headers=None,
        options=None if options == Options() else msgspec.json.encode(options).decode(),
    )


def _faults(
    rng: random.Random, armed: Sequence[FaultKind], workers: int, live_s: float, ttl_s: float
) -> list[Fault]:
    found = [
        Fault(
            at_s=rng.uniform(0.5, live_s),
            kind=kind,
            worker=rng.randrange(workers),
            for_s=rng.choice((0.1, 0.5, 1.2, 3.0)) * ttl_s,
        )
        for kind in armed
        for _ in range(rng.randint(1, 4))
    ]
    return sorted(found, key=lambda fault: fault.at_s)


class Result(msgspec.Struct, frozen=True):
    """How a world ended."""

    plan: Plan
    error: str | None
    """The invariant that was broken, or None."""
    trace: str
    steps: int
    tasks: int
    starts: int


class World:
    """Lives one plan. `run` once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self._rng = random.Random(plan.seed ^ 0x5EED)
        self.database = Database(
            self._log(), now_us=self.now_us, groups=plan.groups, shards=plan.shards
        )
        self.network = Network()
        self._born = 0
        self._places: list[tuple[Process, SimWorker]] = []
        self._buried: list[Process] = []
        self._died = False
        """Whether anything has happened that explains a repeat."""

    def now_us(self) -> int:
        """The database's clock."""
        return EPOCH_US + round(self.loop.now_s * 1e6)

    def _log(self) -> Log:
        if self.plan.profile == "sqlite":
            return SqliteLog()
        if self.plan.profile == "postgres":
            return PostgresLog()
        return SpannerLog(self.now_us, random.Random(self.plan.seed ^ 0x71E5))

    def run(self) -> Result:
        """Live it to the end; what was broken is in the result."""
        error: str | None = None
        try:
            self.loop.run_until_complete(self._live())
        except Exception as broken:  # an error that nothing in `late` has caught is one, too
            error = f"{type(broken).__name__}: {broken}"
        finally:
            asyncio.set_event_loop(None)
        processes = [*self._buried, *(process for process, _ in self._places)]
        self._places, self._buried = [], []
        # Errors hold on to frames, and those to all that was alive in them.
        self.loop.errors.clear()
        self.database.verdicts.clear()
        self.loop.forget()
        bury(processes)
        witnesses = [w for group in self.database.witness.values() for w in group.values()]
        return Result(
            self.plan,
            error,
            self.database.trace,
            self.loop.steps,
            len(self.database.records),
            sum(w.starts for w in witnesses),
        )

    async def _live(self) -> None:
        for place in range(self.plan.workers):
            self._places.append(self._birth(place))
        for booking in self.plan.bookings:
            self.loop.outside(self._begin, booking, delay_s=booking.at_s)
        for fault in self.plan.faults:
            self.loop.outside(self._strike, fault, delay_s=fault.at_s)
        await self._pass(self.plan.live_s + 10.0)
        self._heal()
        await self._finish()
        await self._pass(10.0)  # for the last cursors, and for house-keeping
        self._judge()

    async def _pass(self, seconds: float) -> None:
        """Let time pass; the first error ends the world."""
        end_s = self.loop.now_s + seconds
        while self.loop.now_s < end_s:
            await asyncio.sleep(min(0.5, end_s - self.loop.now_s))
            for error in (*self.database.verdicts, *self.loop.errors):
                raise error

    async def _finish(self) -> None:
        end_s = self.loop.now_s + FINISH_S
        while any(self.database.unsettled.values()):
            if self.loop.now_s > end_s:
                left = sorted(t for each in self.database.unsettled.values() for t in each)
                raise Broken(f"E1: {len(left)} tasks are not over, {left[0]} for one")
            await self._pass(0.5)

    # ------------------------------------------------------------------ the fleet

    def _birth(self, place: int) -> tuple[Process, SimWorker]:
        """A new process in one place of the fleet."""
        self._born += 1
        rng = random.Random(self.plan.seed * 1_000 + self._born)
        process = Process(
            f"w{self._born}", offset_s=rng.uniform(0, 1e4), rate=1 + rng.uniform(-2e-4, 2e-4)
        )
        store = NetworkStore(self.loop, self.database, self.network, process.name, rng)
        worker = SimWorker(
            self.loop,
            process,
            self.database,
            store,
            groups=self.plan.groups,
            ttl_s=self.plan.ttl_s,
            window=self.plan.window,
            rng=rng,
            die=lambda: self._kill(place, process),
        )
        self.loop.start(process, worker.run)
        return process, worker

    def _kill(self, place: int, process: Process) -> None:
        if process.dead:
            return
        self._died = True
        self.loop.kill(process)
        self._buried.append(process)
        self.loop.outside(self._rebirth, place, delay_s=self._rng.uniform(0.1, 2.0))

    def _rebirth(self, place: int) -> None:
        self._places[place] = self._birth(place)

    def _strike(self, fault: Fault) -> None:
        process, worker = self._places[fault.worker]
        network = self.network
        if process.dead:
            return
        match fault.kind:
            case "kill":
                self._kill(fault.worker, process)
            case "pause":
                self._died = True
                self.loop.pause(process)
                self.loop.outside(self.loop.resume, process, delay_s=fault.for_s)
            case "restart":
                if not process.paused:
                    self.loop.start(process, lambda: self._restart(fault.worker, process, worker))
            case "cut":
                self._died = True
                network.cut |= {process.name}
                self.loop.outside(self._join, process.name, delay_s=fault.for_s)
            case "lose" | "repeat" | "refuse" | "abort" | "slow":
                self._weather(fault)

    def _weather(self, fault: Fault) -> None:
        """The network is bad for everybody, for a while."""
        field, value = {
            "lose": ("lost", 0.1),
            "repeat": ("twice", 0.2),
            "refuse": ("refused", 0.2),
            "abort": ("aborted", 0.2),
            "slow": ("delay_s", 0.2),
        }[fault.kind]
        self._died = self._died or fault.kind in ("lose", "repeat", "slow", "refuse", "abort")
        before = getattr(Network(), field)
        setattr(self.network, field, value)
        self.loop.outside(setattr, self.network, field, before, delay_s=fault.for_s)

    def _join(self, name: str) -> None:
        self.network.cut -= {name}

    async def _restart(self, place: int, process: Process, worker: SimWorker) -> None:
        """A deploy: a clean stop, and a new process in its place."""
        await worker.stop()
        if not process.dead:
            self.loop.kill(process)
            self._buried.append(process)
            self._rebirth(place)

    # ------------------------------------------------------------------ producers

    def _begin(self, booking: Booking) -> None:
        transaction = self.database.begin()
        self.loop.outside(self._end, booking, transaction, delay_s=booking.for_s)

    def _end(self, booking: Booking, transaction: int) -> None:
        if booking.commits:
            self.database.commit(transaction, booking.tasks)
        else:
            self.database.abort(transaction)

    # ------------------------------------------------------------------ the end

    def _heal(self) -> None:
        self.network.heal()
        self.network.delay_s = Network().delay_s
        for process, _ in self._places:
            if process.paused and not process.dead:
                self.loop.resume(process)

    def _judge(self) -> None:
        database, plan = self.database, self.plan
        promised = {task.task_id for b in plan.bookings if b.commits for task in b.tasks}
        if set(database.records) != promised:
            raise Broken("E2: the log is not what was committed")
        for group, witnesses in database.witness.items():
            for task_id, witness in witnesses.items():
                if witness.final is None:
                    raise Broken(f"E1: {task_id} is not final in {group}")
                extra = witness.starts - witness.failures - (witness.final == "done")
                if extra > 0 and not self._died:
                    raise Broken(f"E3: {task_id} was started {extra} times too often in {group}")
        live = {worker for _, worker in self._places}
        held = {shard for worker in live for shard in worker.held}
        for group in plan.groups:
            for shard_id in range(plan.shards):
                if (group, shard_id) not in held:
                    raise Broken(f"E4: nobody works on {group}/{shard_id}")
        if len(database.log.rows) > plan.shards * plan.window:
            raise Broken(f"E5: {len(database.log.rows)} rows are left in the log")


def live(seed: int) -> Result:
    """The world of one seed, quietly: its workers warn of every fault. For pools of processes."""
    logging.disable(logging.CRITICAL)
    return World(Plan.draw(seed)).run()
