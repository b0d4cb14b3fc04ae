"""Handlers of a simulated world that share a transaction with their settlement.

Real are what puts attempts together, the loop of a transaction, its settlement, and how a lost
answer is found out (`late.dispatcher.transactions`, `late.scheduler.shared_settlements`). Not real
are the slots, and the transaction itself, which is a connection through the network: its statements
are messages, and with the COMMIT travel what the handlers have written and the settlements. A
process may die at each of its steps.

| invariant | judged at |
|---|---|
| S22 what a handler writes is committed once, and with the end of its task | commit |

That nothing is lost is S2: such a task is done by a commit of what it has written, and only by it.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from late.dispatcher.local.threads import Threads
from late.dispatcher.transactions.pool import TransactionHandler
from late.dispatcher.transactions.run import Turn, unbegun
from late.dispatcher.transactions.turn_queue import Alone, TurnQueue
from late.errors import StoreError, StoreRefused, StoreUnavailable, TransactionAborted
from late.handler.context import AsyncContext
from late.handler.outcomes import Snooze
from late.model.task import Attempt, NewTask, Outcome
from late.store.base import Fate, Settlement
from tests.simulator.job import Job
from tests.simulator.network import NetworkStore
from tests.simulator.truth import Witness

if TYPE_CHECKING:
    from tests.simulator.handlers import Slots
    from tests.simulator.plan import Booking
    from tests.simulator.workflows import Flow

SEEDS = range(700_000, 900_000)
"""Other worlds have none: those of lower seeds are what they were when they were first looked at,
and those of higher ones are on every database."""
PROFILES = ("sqlite", "postgres")
"""Where it can be."""
TIMEOUT_S, CANCEL_GRACE_S = 1.5, 1.0


class Sharing(msgspec.Struct, frozen=True):
    """How a world's handlers share transactions."""

    share: float
    """Of the tasks."""
    dies: float
    """The chance of a death of the process at each step of a transaction."""


class Effect(msgspec.Struct, frozen=True):
    """A row that a handler has written, and the task that it has added in the same transaction."""

    group: str
    task_id: str
    epoch: int
    follow_up: NewTask | None = None


def draw(seed: int) -> Sharing | None:
    """How it is in the world of this seed; None: no transaction is shared."""
    if seed not in SEEDS:
        return None
    rng = random.Random(seed ^ 0x5A4E)
    return Sharing(rng.choice((0.3, 0.9)), rng.choice((0.0, 0.002, 0.01)))


def profile(seed: int, drawn: Any) -> Any:
    """The database of a world of this seed: one on which transactions can be shared."""
    if seed not in SEEDS or drawn in PROFILES:
        return drawn
    return "sqlite" if drawn == "cockroach" else "postgres"


def share(
    sharing: Sharing, seed: int, bookings: Sequence[Booking], flows: Sequence[Flow]
) -> tuple[tuple[Booking, ...], tuple[Flow, ...]]:
    """Return the work of a world, some of which shares its transactions."""
    rng, replace = random.Random(seed ^ 0x5A4E2), msgspec.structs.replace

    def shared(task: Any) -> Any:
        if rng.random() >= sharing.share:
            return task
        job = msgspec.json.decode(task.payload, type=Job)
        return replace(task, payload=msgspec.json.encode(replace(job, shares=True)))

    booked = tuple(
        replace(each, tasks=tuple(map(shared, each.tasks)), again=tuple(map(shared, each.again)))
        for each in bookings
    )
    return booked, tuple(replace(f, stages=tuple(map(shared, f.stages))) for f in flows)


class Instant(Threads):
    """What would block a thread is awaited."""

    async def run(self, call: Callable[[], Any]) -> Any:
        value = call()
        return await value if inspect.isawaitable(value) else value

    def close(self) -> None:
        """There is none."""


class Shared:
    """One transaction, as `late.outbox.shared.SharedTransaction`."""

    error = None

    def __init__(self, store: NetworkStore, rng: random.Random, die: Callable[[], None]) -> None:
        self.connection = self
        self._store = store
        self._rng = rng
        self._die = die
        self._kept: list[Effect] = []
        self._fresh: list[Effect] = []
        """What the present handler has written."""
        self._gone = False
        """The connection has ended."""

    async def trip(self, what: str, work: Callable[[], Any] = lambda: None) -> Any:
        """A round trip.

        Raises:
            StoreUnavailable: the connection has ended.
            TransactionAborted: the transaction has.
        """
        if self._gone:
            raise StoreUnavailable("the connection has ended")
        when = self._rng.choice(("before", "on the way", "after")) if self._dies() else None
        if when == "before":
            await self._death()
        if when == "on the way":
            asyncio.get_running_loop().call_soon(self._die)
        try:
            found = await self._store.once(what, work)
        except StoreError:
            self._gone = True
            raise
        if when == "after":
            await self._death()
        return found

    def _dies(self) -> bool:
        return self._rng.random() < self._store.network.dies

    async def _death(self) -> None:
        self._die()
        await asyncio.get_running_loop().create_future()

    async def write(self, effect: Effect) -> None:
        """What handlers do."""
        await self.trip("write")
        self._fresh.append(effect)

    async def next_async(self) -> None:
        await self.trip("next")
        self._keep()

    def last(self) -> None:
        self._keep()

    def _keep(self) -> None:
        self._kept += self._fresh
        self._fresh.clear()

    async def undo_async(self) -> bool:
        self._fresh.clear()
        try:
            await self.trip("undo")
        except StoreError:
            return False
        return True

    async def commit(self, settlements: Sequence[Settlement]) -> tuple[Fate, BaseException | None]:
        effects, written = tuple(self._kept), tuple(settlements)
        database = self._store.database
        try:
            fate = await self.trip("commit", lambda: database.commit_shared(effects, written))
        except TransactionAborted as error:
            return Fate.ROLLED_BACK, error
        except StoreUnavailable as error:
            return Fate.UNKNOWN, error
        return fate, None if fate is Fate.COMMITTED else StoreRefused("the journal has another row")

    def roll_back(self) -> None:
        self._kept.clear()

    def close(self, *, committed: bool = False) -> None:
        self._gone = True

    def break_off(self) -> None:
        self._gone = True

    def cancel(self) -> None:
        """Nothing of it is at the database, but a COMMIT that is on its way."""

    async def end_session_async(self) -> None:
        """There is none."""

    async def flush_async(self) -> None:
        """Nothing is pending."""

    @staticmethod
    def is_of_database(error: BaseException) -> bool:
        return isinstance(error, StoreError)

    @staticmethod
    def is_transient(error: BaseException) -> bool:
        return isinstance(error, StoreError) and error.transient


class SharedSlots:
    """The slots of attempts that wait for their transaction, as `TransactionPool`."""

    def __init__(self, slots: Slots, alone: Alone, rng: random.Random, *, one_writer: bool) -> None:
        self._slots = slots
        self._rng = rng
        self._fenced: set[tuple[str, int, int]] = set()
        self._turns: dict[int, Turn] = {}
        self._begun: dict[int, Witness] = {}
        """By the identity of attempts: whose handler was called."""
        self._hung: set[int] = set()
        self._arriving: dict[int, Attempt] = {}
        """In a slot, and not with the queue yet."""
        self._until_s: dict[int, float] = {}
        """By the same, when its time is over."""
        loop = asyncio.get_running_loop()
        self._queue = TurnQueue(
            SimpleNamespace(one_writer=one_writer, begin=self._begin, close=lambda: None),
            alone,
            concurrency=2,
            may_start=self._may_start,
            now_us=slots.clock,
            report=lambda outcome: self._told(outcome),
            threads=Instant(),
            monotonic=loop.time,
        )
        task = SimpleNamespace(
            name="job", fn=self._handle, is_async=True, timeout_s=None, retry=None,
            overlap_on_timeout=False, decode=None,
        )  # fmt: skip
        self._handler = TransactionHandler(task, self._joined, self._queue)

    @property
    def queued(self) -> list[Attempt]:
        return [*self._arriving.values(), *unbegun(self._turns.values())]

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        self._fenced.add((group, shard_id, epoch))

    def run(self, attempt: Attempt, job: Job) -> Coroutine[Any, Any, None]:
        """Its life in a slot: until its transaction has ended, or its time is over."""
        self._arriving[id(attempt)] = attempt
        return self._run(attempt, job)

    async def _run(self, attempt: Attempt, job: Job) -> None:
        loop = asyncio.get_running_loop()
        started_us = self._slots.clock()
        self._until_s[id(attempt)] = loop.time() + TIMEOUT_S
        context = AsyncContext(attempt, started_us, TIMEOUT_S, None, "", self._beat)
        call = loop.create_task(self._handler.fn(context, job=job))
        over = "failed"
        try:
            while not call.done() and (left_s := self._until_s[id(attempt)] - loop.time()) > 0:
                await asyncio.wait([call], timeout=left_s)
        except asyncio.CancelledError:
            over = "interrupted"
        if not call.done():
            call.cancel()
            await asyncio.wait([call], timeout=CANCEL_GRACE_S)
        kind, begun = over, True
        if call.done() and not call.cancelled():
            kind, begun = call.result().kind, call.result().begun
        self._reported(self._slots.outcome(attempt, kind, started_us, begun=begun))

    def _beat(self, attempt: Attempt) -> None:
        """Its turn has come, and its time counts from here."""
        self._slots.store.database.truth.begins(attempt)
        self._until_s[id(attempt)] = asyncio.get_running_loop().time() + TIMEOUT_S

    def _joined(self, turn: Turn) -> None:
        self._turns[id(turn.attempt)] = turn
        self._arriving.pop(id(turn.attempt), None)
        self._queue.add(turn)

    def _reported(self, outcome: Outcome) -> None:
        """Pass on what the journal does not have."""
        turn = self._turns.pop(id(outcome.attempt), None)
        if turn is not None and turn.committing:
            turn.withheld = outcome
        elif turn is None or not turn.recorded:
            self._told(outcome)
        else:
            self._end(outcome.attempt)

    def _told(self, outcome: Outcome) -> None:
        """The worker learns of it."""
        hung = id(outcome.attempt) in self._hung
        witness = self._end(outcome.attempt)
        if witness is not None and outcome.kind == "failed":
            witness.failures += 1
            witness.hangs += hung
        elif witness is not None:
            witness.deferrals += 1
        self._slots.on_finished([outcome])

    def _end(self, attempt: Attempt) -> Witness | None:
        """Forget an attempt; return the task if its handler was called."""
        self._hung.discard(id(attempt))
        self._arriving.pop(id(attempt), None)
        self._until_s.pop(id(attempt), None)
        witness = self._begun.pop(id(attempt), None)
        if witness is not None:
            witness.running.discard(attempt.epoch)
        return witness

    def _may_start(self, attempt: Attempt) -> bool:
        shard = (attempt.group, attempt.record.shard_id, attempt.epoch)
        return self._slots.trusted() and shard not in self._fenced

    def _begin(self, is_async: bool) -> Awaitable[Shared]:
        async def begin() -> Shared:
            shared = Shared(self._slots.store, self._rng, self._slots.die)
            await shared.trip("begin")
            return shared

        return begin()

    async def _handle(self, context: Any, job: Job) -> object:
        """The handler."""
        attempt, tx = context.own, context.tx
        before = self._begun.get(id(attempt))
        if before is not None:  # Its transaction has failed: this is no new attempt.
            before.running.discard(attempt.epoch)
            before.deferrals += 1
        witness = self._slots.judge_start(attempt, again=before is not None)
        if witness is None:
            return None
        self._begun[id(attempt)] = witness
        if witness.starts <= job.kills:
            self._slots.killed(attempt, witness)
            await asyncio.get_running_loop().create_future()
        if witness.hangs < job.hangs:
            self._hung.add(id(attempt))
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(min(TIMEOUT_S, job.takes_s * self._rng.expovariate(1.0)))
        follow_up = None
        if job.follows:
            witness.followed += 1
            follow_up = self._slots.follow_up(attempt, witness.followed)
        task_id = attempt.record.task_id
        await tx.write(Effect(attempt.group, task_id, attempt.epoch, follow_up))
        if witness.deferrals < job.snoozes:
            return Snooze(0.3)
        if self._slots.store.network.storm or witness.failures - witness.hangs < job.fails:
            raise self._rng.choice((RuntimeError, StoreRefused))("told to")
        return None
