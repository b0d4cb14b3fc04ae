"""A worker process of the simulation: the real loops of `late`, wired as `late.worker` wires them.

Real are the scheduler with its cores, the tailer, the settler, the keeper with placement, and the
heartbeat. Not real are the handlers, which do what their payload says, and the heartbeat's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from late import events
from late.clock import DatabaseClock
from late.dispatcher.settle import Settler
from late.errors import LateError, StoreError
from late.scheduler.scheduler import Scheduler
from late.scheduler.settings import CoreSettings
from late.store.base import Page, Settlement, WorkerInfo
from late.tailer.heartbeat import Heartbeat
from late.tailer.keeper import Keeper
from late.tailer.tailer import Tailer
from late.task import Attempt, Options, Outcome, Policy
from late.testing.simulation.database import Database, Shard
from late.testing.simulation.loop import Process, SimLoop
from late.testing.simulation.network import NetworkStore

POLICY = Policy(max_attempts=5, base_us=200_000, cap_us=2_000_000)
GRACE_S = 5.0
CONCURRENCY = 8


class Job(msgspec.Struct, omit_defaults=True):
    """What the handler of one task does: its payload."""

    takes_s: float = 0.01
    fails: int = 0
    """How many attempts fail, over all processes."""
    kills: int = 0
    """How many starts take the process down."""


class SimHeartbeat(Heartbeat):
    """The heartbeat as a task of the worker's own loop: a simulation has no threads."""

    _living: asyncio.Task[None]

    def start(self) -> None:
        self._callers_loop = self._loop = asyncio.get_running_loop()
        self._living = self._loop.create_task(self._live())

    async def end(self) -> None:
        """`stop`, for a caller in the same loop."""
        self._stopping.set()
        await self._living


class Slots:
    """Runs attempts, a fixed number at a time, and judges each start with the truth (`Broken`).

    S4 nothing final is started by who could know it; S7 nothing uncommitted; S8 nothing early;
    S9 no more attempts than the policy has; S12 nothing by a worker whose heartbeat has run out.
    """

    def __init__(
        self,
        database: Database,
        worker_id: str,
        rng: random.Random,
        die: Callable[[], None],
        clock: Callable[[], int],
        trusted: Callable[[], bool],
    ) -> None:
        self.on_finished: Callable[[list[Outcome]], None] = lambda outcomes: None
        self._database = database
        self._worker_id = worker_id
        self._rng = rng
        self._die = die
        self._clock = clock
        self._trusted = trusted
        self._waiting: deque[Attempt] = deque()
        self._running: dict[asyncio.Task[None], Attempt] = {}
        self._stopping = False

    @property
    def load(self) -> int:
        return len(self._waiting) + len(self._running)

    def submit(self, attempts: Sequence[Attempt]) -> None:
        self._waiting.extend(attempts)
        self._fill()

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """What waits will not run. What runs goes on: its outcome is for nobody."""
        self._waiting = deque(
            a
            for a in self._waiting
            if (a.group, a.record.shard_id, a.epoch) != (group, shard_id, epoch)
        )

    async def stop(self, grace_s: float) -> None:
        """What waits goes back at once, what runs may finish within the grace."""
        self._stopping = True
        back = [self._outcome(attempt, "interrupted") for attempt in self._waiting]
        self._waiting.clear()
        if back:
            self.on_finished(back)
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace_s)
        for task in list(self._running):
            task.cancel()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < CONCURRENCY and not self._stopping:
            attempt = self._waiting.popleft()
            if not self._trusted():
                self.on_finished([self._outcome(attempt, "interrupted")])
                continue
            self._judge(attempt)
            job = msgspec.json.decode(attempt.record.payload, type=Job)
            witness = self._database.witness[attempt.group][attempt.record.task_id]
            witness.starts += 1
            if witness.starts <= job.kills:
                self._die()
                return
            task = asyncio.get_running_loop().create_task(self._run(attempt, job))
            self._running[task] = attempt
            task.add_done_callback(self._ended)

    async def _run(self, attempt: Attempt, job: Job) -> None:
        started_us = self._clock()
        witness = self._database.witness[attempt.group][attempt.record.task_id]
        try:
            await asyncio.sleep(job.takes_s * self._rng.expovariate(1.0))
        except asyncio.CancelledError:
            self.on_finished([self._outcome(attempt, "interrupted")])
            return
        if witness.failures < job.fails:
            witness.failures += 1
            outcome = self._outcome(attempt, "failed", started_us)
        else:
            witness.done = True
            outcome = self._outcome(attempt, "done", started_us)
        self.on_finished([outcome])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._fill()

    def _outcome(self, attempt: Attempt, kind: str, started_us: int = 0) -> Outcome:
        return Outcome(
            attempt=attempt,
            kind=kind,  # type: ignore[arg-type]
            started_at_us=started_us or self._clock(),
            busy_us=max(0, self._clock() - started_us) if started_us else 0,
            error="told to" if kind == "failed" else None,
            jitter=self._rng.random(),
        )

    def _judge(self, attempt: Attempt) -> None:
        database, record = self._database, attempt.record
        if record.task_id not in database.records:
            database.broken(f"S7: {record.task_id} was started and never committed")
            return
        witness = database.witness[attempt.group][record.task_id]
        if witness.final is not None and witness.final_epoch <= attempt.epoch:
            database.broken(f"S4: {record.task_id} was started, it is {witness.final}")
        options = attempt.options or Options()
        now_us = database.now_us()
        if now_us < attempt.due_at_us or now_us < record.created_at_us + options.delay_us:
            database.broken(f"S8: {record.task_id} was started early")
        if attempt.number > POLICY.max_attempts:
            database.broken(f"S9: {record.task_id} has its attempt {attempt.number}")
        until_us, _ = database.workers.get(self._worker_id, (0, None))
        if until_us <= now_us:
            late_s = (now_us - until_us) / 1e6
            database.broken(f"S12: {self._worker_id} started a task {late_s:.3f} s after its lease")


class SimWorker:
    """One worker, from its start to its stop. Everything runs in its process's context."""

    def __init__(
        self,
        loop: SimLoop,
        process: Process,
        database: Database,
        store: NetworkStore,
        *,
        groups: Sequence[str],
        ttl_s: float,
        window: int,
        rng: random.Random,
        die: Callable[[], None],
    ) -> None:
        self._store = store
        self._ttl_s = ttl_s
        emitter = events.Emitter()
        clock = self.clock = DatabaseClock(loop.time)
        self.slots = Slots(
            database, process.name, rng, die, clock.now_us, lambda: self.keeper.trusted
        )
        settings = CoreSettings(
            window=window, page_size=max(4, window // 3), horizon_us=2_000_000, timers_max=64,
            idle_settle_us=1_000_000,
        )  # fmt: skip
        self.tailer = Tailer(
            store, wanted=lambda: self.scheduler.wanted(), on_pages=self._pages,
            page_size=settings.page_size, poll_max_s=0.5, rng=rng, emitter=emitter,
        )  # fmt: skip
        self.settler = Settler(
            store,
            collect=lambda: self.scheduler.collect(),
            on_result=lambda settlement, result: self.scheduler.settled(settlement, result),
            on_error=self._unsettled,
            rng=rng,
            monotonic=loop.time,
            emitter=emitter,
        )
        self.scheduler = Scheduler(
            store, {"job": POLICY}, slots=self.slots, concurrency=CONCURRENCY, now_us=clock.now_us,
            settle_soon=self.settler.poke, read_soon=self.tailer.wake,
            trusted=lambda: self.keeper.trusted,
            on_fenced=lambda shard: self.keeper.forget(shard),
            settings=settings, rng=rng, emitter=emitter,
        )  # fmt: skip
        self.slots.on_finished = self.scheduler.finished
        self.keeper = Keeper(
            store, process.name,
            on_acquired=self.scheduler.acquired,
            before_release=lambda shards: self.scheduler.hand_over(shards, GRACE_S),
            on_lost=self.scheduler.lost,
            on_distrusted=self.scheduler.wake, on_trusted=self.scheduler.wake,
            hurry=lambda: self.heartbeat.hurry(), rng=rng, monotonic=loop.time, emitter=emitter,
        )  # fmt: skip
        self.heartbeat = SimHeartbeat(
            "simulation://", WorkerInfo(process.name, process.name, tuple(groups)),
            on_membership=self.keeper.observe, ttl_s=ttl_s, clock=clock, rng=rng,
            monotonic=loop.time, emitter=emitter, store_factory=lambda url: store,
        )  # fmt: skip
        self._rng = rng
        self._loops: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Start. Returns once the loops run."""
        create = asyncio.get_running_loop().create_task
        for loop in (self.scheduler, self.settler, self.tailer, self.keeper):
            self._loops.append(create(loop.run()))
        self._loops.append(create(self._keep_house()))
        self.heartbeat.start()

    async def stop(self) -> None:
        """A clean stop, as `late.worker.Worker.stop`."""
        self.keeper.stop()
        self.tailer.stop()
        held = list(self.scheduler.cores)
        await asyncio.gather(
            self.slots.stop(GRACE_S), self.scheduler.hand_over(held, GRACE_S + 5.0)
        )
        with contextlib.suppress(TimeoutError, LateError):
            async with asyncio.timeout(self._ttl_s):
                await self.settler.flush()
                await self.keeper.release_all()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.heartbeat.end()

    def _pages(self, group: str, pages: list[Page]) -> None:
        now_s = asyncio.get_running_loop().time()
        self.clock.sample(max(page.now_us for page in pages), now_s)
        self.scheduler.pages(group, pages)

    def _unsettled(self, settlements: Sequence[Settlement], error: StoreError) -> None:
        for settlement in settlements:
            shard = (settlement.group, settlement.shard_id)
            self.scheduler.lost(shard)
            self.keeper.forget(shard)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(3.0 * self._rng.uniform(0.8, 1.2))
            with contextlib.suppress(StoreError):
                await self._store.prune(journal_keep_s=0.0)

    @property
    def held(self) -> list[Shard]:
        """The shards that it works on."""
        return [(group, int(shard_id)) for group, shard_id in self.scheduler.cores]
