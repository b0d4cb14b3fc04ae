"""Puts attempts together that share a transaction, and takes in what became of each.

| an attempt | then |
|---|---|
| returns | it ends with the commit |
| fails | its savepoint is taken back, its outcome stands; the others go on |
| fails by the database, after others in the same transaction | it runs again, alone |
| was in a transaction that failed as a whole | it runs again, alone |
| is of a name that takes long | it runs alone |
| has no connection to begin on | it waits for one; it has not begun, and no attempt is lost |
| runs over its time | the connection is ended under it, the others run again |

`Alone` is: in a transaction of its own. To run again in this way costs no attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from itertools import chain, islice
from operator import attrgetter

from late.clock import Monotonic
from late.dispatcher.local.threads import Threads
from late.dispatcher.transactions.async_run import AsyncRun
from late.dispatcher.transactions.run import HOLD_S, TRIES, Run, Turn
from late.handler.classify import GIVEN_BACK, INTERRUPTED, Scrub, Verdict, raised
from late.model.task import TRANSACTION_POOL, Attempt, Outcome
from late.outbox.shared import SharedTransaction, SharedTransactions
from late.store.base import Fate, Settlement

logger = logging.getLogger("late.dispatcher")

PARALLEL = 2
"""Transactions of several tasks at the same time. More of them would each be of fewer tasks."""
TURNS_MAX = 60
"""PostgreSQL keeps 64 savepoints of a transaction at hand; beyond, every snapshot pays for them."""
SLOW_S = 0.050
"""Tasks of a name that takes longer run alone, as many at once as the worker has slots."""
UNKNOWN_S = 0.001
AWAY_S = 0.5
"""Pause after a transaction that could not be opened."""
PAUSE_S = 0.002
"""Pause after a transaction that kept out all other writers: they look every millisecond or so."""
COMMIT_S = 20.0
"""The longest wait for a commit, before the connection is ended: nothing else is settled then."""

_is_background = attrgetter("attempt.is_background")
Commit = Callable[
    [Sequence[Outcome], Callable[[Sequence[Settlement]], Awaitable[Fate]]], Awaitable[Fate]
]
Alone = Callable[[Sequence[Attempt]], AbstractAsyncContextManager[Commit | None]]
"""`SharedSettlements.alone`."""


class TurnQueue:
    """The shared transactions of one worker. Everything happens on its loop, but for `Run.work`.

    Args:
        alone: keeps out the worker's other settlements, and yields what settles tasks in their
            transaction.
        concurrency: the number of tasks that run alone at the same time.
        may_start: asked in a thread before each handler.
        now_us: the database's clock.
        report: takes an outcome of which the slot has spoken already.
        threads: where a `Run` works, begins and commits.
    """

    def __init__(
        self,
        transactions: SharedTransactions,
        alone: Alone,
        *,
        concurrency: int,
        may_start: Callable[[Attempt], bool],
        now_us: Callable[[], int],
        report: Callable[[Outcome], None],
        scrub: Scrub | None = None,
        threads: Threads | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._transactions = transactions
        self._alone_with = alone
        self._concurrency = concurrency
        self._may_start = may_start
        self._now_us = now_us
        self._report = report
        self._scrub = scrub
        self._monotonic = monotonic
        self._threads = threads or Threads()
        self._shared_next = False
        self._away_at: float | None = None
        """The last time that no transaction could be opened; None once a later one could."""
        self._short: deque[Turn] = deque()
        self._alone: deque[Turn] = deque()
        self._sharing: set[Run] = set()
        self._single: set[Run] = set()
        self.hanging = 0
        """Threads whose handler does not come back."""
        self._usual: dict[str, float] = {}
        """The time that an attempt takes, by task name, of late."""
        self.usual_s = 0.0
        """The same for all names, by how often each came of late; 0 before the first."""
        self._filling = self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, turn: Turn) -> None:
        """Take in an attempt."""
        (self._alone if turn.alone else self._short).append(turn)
        if not self._filling:
            # Those that come with it arrive in the next passes of the loop.
            self._filling = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._fill)

    async def cancel(self, turn: Turn) -> Verdict | None:
        """End an attempt whose slot was told to; None: by what the slot was told.

        It returns when its handler does, so that no repeat runs beside it.
        """
        if turn.over:
            return turn.verdict
        if turn.committing:
            turn.withdrawn = True  # After a rollback it must not run beside the next attempt.
            await asyncio.wait([turn.ended])
            return turn.verdict if turn.recorded else None
        turn.withdrawn = True
        run = turn.run
        if run is None or run.leave(turn):
            for waiting in (self._short, self._alone):
                if turn in waiting:
                    waiting.remove(turn)
            turn.verdict = INTERRUPTED if turn.begun else GIVEN_BACK
            self._end(turn)
            return turn.verdict
        runs_now = run.current is turn
        if not run.over:
            self._give_up(run)
        if not runs_now:
            return INTERRUPTED
        await asyncio.wait([turn.ended])
        return None

    def stop(self) -> None:
        """Close the connections, when nothing runs any more or is to be waited for."""
        self._stopped = True
        self._threads.close()
        self._transactions.close()

    # -- transactions --------------------------------------------------------------------------

    def _fill(self) -> None:
        self._filling = False
        if self._stopped:
            return
        if self._transactions.one_writer:
            self._fill_one()
            return
        while self._short and len(self._sharing) < PARALLEL:
            if turns := self._take_short():
                self._start(self._sharing, turns)
        while self._alone and len(self._single) < self._concurrency:
            self._start(self._single, [self._alone.popleft()])

    def _fill_one(self) -> None:
        """Start one transaction, where there can be only one at a time; both kinds take turns."""
        if self._sharing or self._single:
            return
        shared = self._short and (self._shared_next or not self._alone)
        if shared and (turns := self._take_short()):
            self._start(self._sharing, turns)
            self._shared_next = False
        elif self._alone:
            self._start(self._single, [self._alone.popleft()])
            self._shared_next = True

    def _take_short(self) -> list[Turn]:
        """Take out the tasks of a transaction, of few shards: each is a row of its journal. They
        are all `def` or all `async def`."""
        by_shard: dict[tuple[bool, int], list[Turn]] = {}
        # The foreground first, but for the one that has waited longest: nobody waits for ever.
        rest = sorted(islice(self._short, 1, None), key=_is_background)
        for number, turn in enumerate((self._short[0], *rest)):
            if turn.is_async == self._short[0].is_async:
                later = number > 0 and turn.attempt.is_background
                by_shard.setdefault((later, turn.attempt.record.shard_id), []).append(turn)
        found: list[Turn] = []
        gone: set[Turn] = set()
        left_s = HOLD_S
        for turn in chain.from_iterable(by_shard.values()):
            if left_s <= 0 or len(found) == TURNS_MAX:
                break
            usual_s = self._usual.get(turn.attempt.record.name, UNKNOWN_S)
            if usual_s > SLOW_S:
                self._alone.append(turn)
            else:
                found.append(turn)
                left_s -= usual_s
            gone.add(turn)
        self._short = deque(turn for turn in self._short if turn not in gone)
        return found

    def _start(self, runs: set[Run], turns: list[Turn]) -> None:
        kind = AsyncRun if turns[0].is_async else Run
        run = kind(turns, self._transactions.begin, self._may, self._scrub, self._monotonic)
        runs.add(run)
        task = asyncio.get_running_loop().create_task(self._serve(run), name="late-transaction")
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a shared transaction was not concluded", "exception": error}
            )

    def _may(self, turn: Turn) -> bool:
        return self._may_start(turn.attempt)

    async def _serve(self, run: Run) -> None:
        began = self._monotonic()
        try:
            async with AsyncExitStack() as held:
                commit: Commit | None = None
                if self._transactions.one_writer:
                    # From before it has the write lock: the settler would wait for that, and this
                    # run for the settler.
                    attempts = [turn.attempt for turn in run.unstarted]
                    commit = await held.enter_async_context(self._alone_with(attempts))
                    if commit is None:
                        self._requeue(run.take_back())
                        return
                work = asyncio.ensure_future(run.serve(self._threads))
                await self._until_worked(run, work)
                given_up = run.over
                if not given_up:
                    await self._take_in(run, work, began, commit)
            if given_up:  # It keeps out neither the settler nor those that wait.
                self._fill()
                await asyncio.wait([work])
                self.hanging -= 1
                await self._take_in(run, work, began)
            elif self._transactions.one_writer:
                await asyncio.sleep(PAUSE_S)
        finally:
            self._forget(run)
            self._fill()

    async def _until_worked(self, run: Run, work: asyncio.Future[None]) -> None:
        while not (work.done() or run.over):
            await asyncio.wait(
                [work, run.given_up],
                timeout=HOLD_S if run in self._sharing else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if run in self._sharing and run.is_held(HOLD_S) and not work.done():
                # Its place is free for others, and those behind the slow one need not wait for it.
                self._sharing.discard(run)
                self._single.add(run)
                self._requeue(run.take_back())
                self._fill()

    async def _take_in(
        self, run: Run, work: asyncio.Future[None], began: float, commit: Commit | None = None
    ) -> None:
        if work.exception() is None:
            self._look(run, began)
            await self._conclude(run, commit)
        else:  # No thread: nothing has begun.
            await asyncio.sleep(HOLD_S)
            self._requeue(run.take_back())

    def _look(self, run: Run, began: float) -> None:
        """Log that no transaction can be opened: once, until one that begins later is."""
        if run.tx is None:
            if self._away_at is None:
                logger.warning("no transaction for handlers, they wait for one: %s", run.error)
            self._away_at = self._monotonic()
        elif self._away_at is not None and began > self._away_at:
            self._away_at = None

    def _forget(self, run: Run) -> None:
        self._sharing.discard(run)
        self._single.discard(run)

    def _give_up(self, run: Run) -> None:
        """Let others go on without the turn that does not end."""
        turns = run.give_up()
        self._forget(run)
        self.hanging += 1
        if run.tx is not None:
            run.tx.break_off()
            run.cancelling = task = asyncio.ensure_future(self._threads.run(run.tx.cancel))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        run.interrupt()
        for turn in turns:
            turn.run = None
            if not (turn.begun or turn.withdrawn):
                self._requeue([turn])
            elif (turn.done or turn.again) and not turn.withdrawn:
                self._repeat(turn)
            else:
                self._end(turn)

    def _requeue(self, turns: Sequence[Turn]) -> None:
        """Put back what has not begun, first of all; what may not start here is given back."""
        for turn in reversed(turns):
            turn.run = None
            if not turn.withdrawn and self._may_start(turn.attempt):
                (self._alone if turn.alone else self._short).appendleft(turn)
            else:
                turn.verdict = INTERRUPTED if turn.begun else GIVEN_BACK
                self._end(turn)
        if turns:
            self._fill()

    # -- ends ----------------------------------------------------------------------------------

    async def _conclude(self, run: Run, commit: Commit | None) -> None:
        for turn in run.ended:
            self._learn(turn)
        done = [turn for turn in run.ended if turn.done and not turn.withdrawn]
        for turn in run.ended:
            if turn.withdrawn or not (turn.done or turn.again):
                self._end(turn)
            elif turn.again:
                self._repeat(turn)
        fate, tx = Fate.ROLLED_BACK, run.tx
        if tx is not None:
            if done and not (run.lost or run.over):
                fate = await self._settle(run, tx, done, commit)
            if run.cancelling is not None:
                # Its thread may be in the driver, which crashes if the connection is closed there.
                await asyncio.wait([run.cancelling])
            # Not in a `finally`: a thread may be at work on it where this is cancelled.
            tx.close(committed=fate is Fate.COMMITTED)
        for turn in done:
            turn.committing = False
            turn.recorded = fate is Fate.COMMITTED
            if turn.recorded:
                self._end(turn)
            elif not turn.withdrawn and (len(run.ended) > 1 or run.over or run.is_transient):
                self._repeat(turn, run.error)
            else:  # There is nobody else to blame, or its slot has given it up.
                self._fail(turn, run.error)
        if tx is None:  # There was no connection, so nothing has begun.
            await asyncio.sleep(AWAY_S)
        self._requeue(run.take_back())

    async def _settle(
        self, run: Run, tx: SharedTransaction, done: list[Turn], commit: Commit | None
    ) -> Fate:
        for turn in done:
            turn.committing = True

        async def write(settlements: Sequence[Settlement]) -> Fate:
            work = asyncio.ensure_future(self._threads.run(lambda: tx.commit(settlements)))
            if not (await asyncio.wait([work], timeout=COMMIT_S))[0]:
                tx.break_off()
            try:
                fate: Fate
                fate, run.error = await work
            except RuntimeError as error:  # No thread: nothing was sent.
                fate, run.error = Fate.ROLLED_BACK, error
            return fate

        outcomes = [self._outcome(turn) for turn in done]
        if commit is not None:
            return await commit(outcomes, write)
        async with self._alone_with([turn.attempt for turn in done]) as settle:
            return Fate.ROLLED_BACK if settle is None else await settle(outcomes, write)

    def _outcome(self, turn: Turn) -> Outcome:
        busy_us = int(turn.busy_s * 1_000_000)
        begun_us = self._now_us() - int((self._monotonic() - turn.begun) * 1_000_000)
        verdict = turn.verdict
        return Outcome(
            turn.attempt, "done", begun_us, busy_us, TRANSACTION_POOL, result=verdict.result,
            counts=verdict.counts,
        )  # fmt: skip

    def _repeat(self, turn: Turn, error: BaseException | None = None) -> None:
        """Run the attempt again, alone, unless that has not helped."""
        own, turn.run, turn.done, turn.again = turn.again, None, False, False
        if turn.withheld is None and turn.tries < TRIES:
            turn.tries += 1
            turn.begun = 0.0
            turn.alone = True
            self.add(turn)
        elif own:
            self._end(turn)
        else:
            self._fail(turn, error)

    def _fail(self, turn: Turn, error: BaseException | None) -> None:
        turn.done = False
        turn.verdict = INTERRUPTED if error is None else raised(error, turn.rule, self._scrub)
        if turn.withheld is not None:  # Its slot has spoken: it was told to end.
            self._report(turn.withheld)
        self._end(turn)

    def _end(self, turn: Turn) -> None:
        turn.over = True
        if not turn.ended.done():
            turn.ended.set_result(None)

    def _learn(self, turn: Turn) -> None:
        if turn.begun:
            name = turn.attempt.record.name
            usual_s = self._usual.get(name, UNKNOWN_S)
            # Rather by the quick ones: a wait for a lock, or for the processor, says nothing of the
            # handler, and what runs alone because of it would have more of both.
            weight = 1 / 2 if turn.busy_s < usual_s else 1 / 16
            self._usual[name] = usual_s + (min(turn.busy_s, 10 * SLOW_S) - usual_s) * weight
            all_s = self.usual_s or self._usual[name]
            self.usual_s = all_s + (self._usual[name] - all_s) / 16
